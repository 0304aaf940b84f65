//! What came of a fleet's life.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::Serialize;

use super::members::Shortfall;
use super::{FleetConfig, World};

/// Minutes between two moments of the time line.
const MOMENT_TURNS: u64 = 120;
/// Days of the month for which traffic is given.
const MONTH_HOURS: f64 = 30.0 * 24.0;
/// The most warnings that are kept.
const WARNINGS_MAX: usize = 20;

/// Everything that is counted while a fleet lives.
#[derive(Default)]
pub(super) struct Figures {
    pub events: u64,
    pub turns: u64,
    pub joins: u64,
    pub forgotten: u64,
    pub moves: u64,
    pub band_changes: u64,
    pub declared_dead: u64,
    pub declared_dead_falsely: u64,
    pub declared_dead_unused: u64,
    pub revocations_handed_back: u64,
    pub rollouts: u64,
    pub rollouts_done: u64,
    pub rollouts_halted: u64,
    pub rollouts_aborted: u64,
    /// In force, confirmed, taken back, refused.
    pub reported: [u64; 4],
    pub warnings: u64,
    pub wrongly_refused: u64,
    pub probe_bytes: u64,
    without: Duration,
    on_dead: Duration,
    gaps_ms: Vec<u64>,
    revoked: BTreeMap<PublicKey, Withdrawn>,
    revoked_ms: Vec<u64>,
    late: u64,
    texts: BTreeSet<String>,
    time_line: Vec<Moment>,
}

/// A key that a person has withdrawn.
struct Withdrawn {
    at: Instant,
    /// Proxies that the controller reached then, and that have not ended its sessions yet.
    reached: BTreeSet<usize>,
}

/// How a fleet was at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Moment {
    /// Hours since the start.
    pub hours: f64,
    /// Boxes that are on a proxy.
    pub boxes_on: u64,
    /// Boxes that could be on one, and are on none or on a dead one.
    pub boxes_lacking: u64,
    /// Streams that are up.
    pub streams: u64,
    /// Proxies that run.
    pub proxies: u64,
    /// Replicas that work.
    pub replicas: u64,
    /// Boxes that a bad configuration has cut off.
    pub cut_off: u64,
}

/// What came of a fleet's life.
#[derive(Clone, Debug, Serialize)]
pub struct FleetOutcome {
    /// What it was made of.
    pub config: FleetConfig,
    /// Events of the world.
    pub events: u64,
    /// Keys withdrawn.
    pub revocations: u64,
    /// From the withdrawal until a proxy that was reached had ended the sessions, ms: median.
    pub revoke_p50_ms: u64,
    /// The 99th percentile.
    pub revoke_p99_ms: u64,
    /// The longest.
    pub revoke_max_ms: u64,
    /// Proxies that were reached and have never confirmed: they failed just then.
    pub revoke_open: u64,
    /// Withdrawn keys that a restored database had forgotten and proxies handed back.
    pub revocations_handed_back: u64,
    /// Box-hours without any proxy, of all box-hours, in a million.
    pub without_proxy_ppm: f64,
    /// Box-hours on a proxy that was dead, in a million.
    pub on_dead_proxy_ppm: f64,
    /// How long boxes lacked a proxy that lives, ms: median.
    pub gap_p50_ms: u64,
    /// The 99th percentile.
    pub gap_p99_ms: u64,
    /// The longest.
    pub gap_max_ms: u64,
    /// Boxes that joined, those among them that a restored database had forgotten.
    pub joins: u64,
    /// Of them.
    pub forgotten: u64,
    /// Changes of the proxy without a gap between.
    pub moves: u64,
    /// Changes of the band of a proxy's load.
    pub band_changes: u64,
    /// Proxies that were declared dead.
    pub declared_dead: u64,
    /// Of them, those that lived and had boxes.
    pub declared_dead_falsely: u64,
    /// Of them, those that lived, cut off from the controller, and that no box used.
    pub declared_dead_unused: u64,
    /// Configurations that were rolled out, came to all, halted and were aborted.
    pub rollouts: [u64; 4],
    /// Versions that boxes have put in force, confirmed, taken back and refused.
    pub versions: [u64; 4],
    /// Boxes that go by another version than the database says, at the end.
    pub drift: u64,
    /// Boxes that a bad version has cut off, at the end.
    pub cut_off: u64,
    /// Bytes of its stream, for each box in a month, both ways with headers and keep-alives.
    pub stream_bytes_per_month: u64,
    /// Messages of its stream, for each box in a month.
    pub messages_per_month: u64,
    /// Bytes of measuring candidates, for each box in a month.
    pub probe_bytes_per_month: u64,
    /// Members that a proxy refused and should not have; only where the world is thorough.
    pub wrongly_refused: u64,
    /// What agents have warned of.
    pub warnings: u64,
    /// Some of it, where the world is thorough.
    pub warning_texts: Vec<String>,
    /// How it was every ten minutes.
    pub time_line: Vec<Moment>,
}

impl Figures {
    pub fn warn(&mut self, text: &str) {
        if self.texts.len() < WARNINGS_MAX {
            self.texts.insert(text.to_owned());
        }
    }

    pub fn lacked(&mut self, lack: Shortfall, span: Duration) {
        match lack {
            Shortfall::Proxy => self.without += span,
            Shortfall::LiveProxy => self.on_dead += span,
        }
        self.gaps_ms.push(span.as_millis() as u64);
    }

    pub fn revoke(&mut self, key: PublicKey, at: Instant, reached: BTreeSet<usize>) {
        self.revoked.insert(key, Withdrawn { at, reached });
    }

    /// A proxy has ended the sessions of a key.
    pub fn revoked_at(&mut self, key: PublicKey, proxy: usize, now: Instant) {
        let Some(withdrawn) = self.revoked.get_mut(&key) else { return };
        if withdrawn.reached.remove(&proxy) {
            let span = (now - withdrawn.at).as_millis() as u64;
            self.late += u64::from(span > 2_000);
            self.revoked_ms.push(span);
        }
    }
}

impl World {
    pub(super) fn keep_time_line(&mut self) {
        if !self.figures.turns.is_multiple_of(MOMENT_TURNS) {
            return;
        }
        let moment = Moment {
            hours: Self::hours(self.now),
            boxes_on: self.rides.iter().filter(|ride| ride.on.is_some()).count() as u64,
            boxes_lacking: self.rides.iter().filter(|ride| ride.lacking.is_some()).count() as u64,
            streams: self.members.iter().filter(|m| m.stream.is_some()).count() as u64,
            proxies: self.proxies.iter().filter(|model| model.is_running()).count() as u64,
            replicas: self.replicas.iter().filter(|r| r.is_up && !r.is_hung).count() as u64,
            cut_off: self.cut_off(),
        };
        self.figures.time_line.push(moment);
    }

    /// What came of it all.
    pub(super) fn outcome(mut self) -> FleetOutcome {
        for who in 0..self.cast.boxes {
            if let Some((lack, since)) = self.rides[who].lacking.take() {
                self.figures.lacked(lack, self.now - since);
            }
            let member = &mut self.members[who];
            if member.stream.is_some() {
                member.connected_ms += (self.now - member.connected_since).as_millis() as u64;
            }
        }
        let (drift, cut_off) = (self.drift(), self.cut_off());
        let boxes = &self.members[..self.cast.boxes];
        let box_hours = Self::hours(self.end) * self.config.boxes as f64;
        let monthly = |sum: u64| (sum as f64 / box_hours * MONTH_HOURS) as u64;
        let ppm = |span: Duration| span.as_secs_f64() / 3_600.0 / box_hours * 1e6;
        let mut figures = self.figures;
        figures.revoked_ms.sort_unstable();
        figures.gaps_ms.sort_unstable();
        let revoke = |share| quantile(&figures.revoked_ms, share);
        let gap = |share| quantile(&figures.gaps_ms, share);
        FleetOutcome {
            events: figures.events,
            revocations: figures.revoked.len() as u64,
            revoke_p50_ms: revoke(0.5),
            revoke_p99_ms: revoke(0.99),
            revoke_max_ms: revoke(1.0),
            revoke_open: figures.revoked.values().map(|w| w.reached.len() as u64).sum(),
            revocations_handed_back: figures.revocations_handed_back,
            without_proxy_ppm: ppm(figures.without),
            on_dead_proxy_ppm: ppm(figures.on_dead),
            gap_p50_ms: gap(0.5),
            gap_p99_ms: gap(0.99),
            gap_max_ms: gap(1.0),
            joins: figures.joins,
            forgotten: figures.forgotten,
            moves: figures.moves,
            band_changes: figures.band_changes,
            declared_dead: figures.declared_dead,
            declared_dead_falsely: figures.declared_dead_falsely,
            declared_dead_unused: figures.declared_dead_unused,
            rollouts: [
                figures.rollouts,
                figures.rollouts_done,
                figures.rollouts_halted,
                figures.rollouts_aborted,
            ],
            versions: figures.reported,
            drift,
            cut_off,
            stream_bytes_per_month: monthly(boxes.iter().map(|member| member.traffic()).sum()),
            messages_per_month: monthly(boxes.iter().map(|member| member.messages).sum()),
            probe_bytes_per_month: monthly(figures.probe_bytes),
            wrongly_refused: figures.wrongly_refused,
            warnings: figures.warnings,
            warning_texts: figures.texts.into_iter().collect(),
            time_line: figures.time_line,
            config: self.config,
        }
    }
}

/// The value below which `share` of all lie; 0 without any.
fn quantile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}
