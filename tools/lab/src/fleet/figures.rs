//! Results of a fleet run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_fleet::Kind;
use roadweave_fleet::records::DeviceState;
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::Serialize;

use super::sessions::Shortfall;
use super::{FleetConfig, FleetWorld};

const MONTH_HOURS: f64 = 30.0 * 24.0;
const WARNINGS_MAX: usize = 20;

#[derive(Default)]
pub(super) struct FleetFigures {
    pub events: u64,
    pub turns: u64,
    pub counts: Counts,
    pub revocations_handed_back: u64,
    pub warnings: u64,
    pub wrongly_refused: u64,
    pub probe_bytes: u64,
    without: Duration,
    on_dead: Duration,
    gaps_ms: Vec<u64>,
    revoked: BTreeMap<PublicKey, Withdrawn>,
    revoked_ms: Vec<u64>,
    texts: BTreeSet<String>,
    pub time_line: Vec<Moment>,
}

struct Withdrawn {
    at: Instant,
    /// Proxies that the controller reached at that time and that still have the sessions.
    reached: BTreeSet<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Moment {
    pub hours: f64,
    pub boxes_on: u64,
    /// Boxes with a network that are on no proxy or a dead one.
    pub boxes_lacking: u64,
    pub streams: u64,
    pub proxies: u64,
    pub replicas: u64,
    pub cut_off: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub joins: u64,
    /// Added boxes that a restored database lacked.
    pub forgotten: u64,
    /// Moves between proxies without a gap.
    pub moves: u64,
    pub band_changes: u64,
    pub declared_dead: u64,
    /// Proxies declared dead while alive and with boxes.
    pub declared_dead_falsely: u64,
    /// Proxies declared dead while alive, without boxes and partitioned from the controller.
    pub declared_dead_unused: u64,
    /// Rollouts: begun, completed, halted, aborted.
    pub rollouts: [u64; 4],
    /// Versions applied, confirmed, rolled back and refused by boxes.
    pub versions: [u64; 4],
}

#[derive(Clone, Debug, Serialize)]
pub struct Revoked {
    pub revocations: u64,
    /// Time from a revocation until a reached proxy ended the sessions, ms: median.
    pub revoke_p50_ms: u64,
    pub revoke_p99_ms: u64,
    pub revoke_max_ms: u64,
    /// Reached proxies that never confirmed because they failed at that time.
    pub revoke_open: u64,
    /// Revoked keys that a restored database lacked and proxies returned.
    pub revocations_handed_back: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FleetOutcome {
    pub config: FleetConfig,
    pub events: u64,
    #[serde(flatten)]
    pub revoked: Revoked,
    /// Box-hours without a proxy, per million.
    pub without_proxy_ppm: f64,
    /// Box-hours on a dead proxy, per million.
    pub on_dead_proxy_ppm: f64,
    /// How long boxes had no live proxy, ms: median.
    pub gap_p50_ms: u64,
    pub gap_p99_ms: u64,
    pub gap_max_ms: u64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Boxes whose version differs from the database's at the end.
    pub drift: u64,
    /// Boxes cut off by a bad version at the end.
    pub cut_off: u64,
    /// Stream bytes per box and month, both ways, with headers and keep-alives.
    pub stream_bytes_per_month: u64,
    pub messages_per_month: u64,
    pub probe_bytes_per_month: u64,
    /// Members wrongly refused by proxies; counted only in thorough runs.
    pub wrongly_refused: u64,
    pub warnings: u64,
    /// Some of the warnings, in thorough runs.
    pub warning_texts: Vec<String>,
    /// State every ten minutes.
    pub time_line: Vec<Moment>,
}

impl FleetFigures {
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

    pub fn revoked_at(&mut self, key: PublicKey, proxy: usize, now: Instant) {
        let Some(withdrawn) = self.revoked.get_mut(&key) else { return };
        if withdrawn.reached.remove(&proxy) {
            let span = (now - withdrawn.at).as_millis() as u64;
            self.revoked_ms.push(span);
        }
    }
}

impl Moment {
    pub(super) fn of(world: &FleetWorld) -> Self {
        let (rides, proxies) = (&world.sessions.rides, &world.sessions.proxies);
        Self {
            hours: hours(world.agenda.now),
            boxes_on: rides.iter().filter(|ride| ride.on.is_some()).count() as u64,
            boxes_lacking: rides.iter().filter(|ride| ride.lacking.is_some()).count() as u64,
            streams: world.members.iter().filter(|m| m.stream.is_some()).count() as u64,
            proxies: proxies.iter().filter(|model| model.is_running()).count() as u64,
            replicas: world.replicas.iter().filter(|replica| replica.works()).count() as u64,
            cut_off: cut_off(world),
        }
    }
}

impl FleetOutcome {
    pub(super) fn of(mut world: FleetWorld) -> Self {
        let (now, roster) = (world.agenda.now, &world.roster);
        for ride in &mut world.sessions.rides {
            if let Some((lack, since)) = ride.lacking.take() {
                world.figures.lacked(lack, now - since);
            }
        }
        let (drift, cut_off) = (drift(&world), cut_off(&world));
        let boxes = &world.members[..roster.boxes];
        let box_hours = hours(now) * world.config.boxes as f64;
        let monthly = |sum: u64| (sum as f64 / box_hours * MONTH_HOURS) as u64;
        let ppm = |span: Duration| span.as_secs_f64() / 3_600.0 / box_hours * 1e6;
        let mut figures = world.figures;
        figures.revoked_ms.sort_unstable();
        figures.gaps_ms.sort_unstable();
        let revoke = |share| quantile(&figures.revoked_ms, share);
        let gap = |share| quantile(&figures.gaps_ms, share);
        Self {
            events: figures.events,
            revoked: Revoked {
                revocations: figures.revoked.len() as u64,
                revoke_p50_ms: revoke(0.5),
                revoke_p99_ms: revoke(0.99),
                revoke_max_ms: revoke(1.0),
                revoke_open: figures.revoked.values().map(|w| w.reached.len() as u64).sum(),
                revocations_handed_back: figures.revocations_handed_back,
            },
            without_proxy_ppm: ppm(figures.without),
            on_dead_proxy_ppm: ppm(figures.on_dead),
            gap_p50_ms: gap(0.5),
            gap_p99_ms: gap(0.99),
            gap_max_ms: gap(1.0),
            counts: figures.counts,
            drift,
            cut_off,
            stream_bytes_per_month: monthly(boxes.iter().map(|it| it.traffic(now)).sum()),
            messages_per_month: monthly(boxes.iter().map(|member| member.messages).sum()),
            probe_bytes_per_month: monthly(figures.probe_bytes),
            wrongly_refused: figures.wrongly_refused,
            warnings: figures.warnings,
            warning_texts: figures.texts.into_iter().collect(),
            time_line: figures.time_line,
            config: world.config,
        }
    }
}

fn drift(world: &FleetWorld) -> u64 {
    let (roster, store) = (&world.roster, &world.store);
    let is_other = |who: &usize| {
        let in_force = world.members[*who].agent.persisted().configuration_in_force().0;
        let of = (roster.key(*who), Kind::Configuration);
        let wanted = store.documents.get(&of).map(|written| written.version);
        store.state(roster, *who) == Some(DeviceState::Active) && in_force != wanted
    };
    (0..roster.boxes).filter(is_other).count() as u64
}

fn cut_off(world: &FleetWorld) -> u64 {
    world.sessions.rides.iter().filter(|ride| ride.is_cut_off).count() as u64
}

pub(super) fn hours(at: Instant) -> f64 {
    at.as_secs_f64() / 3_600.0
}

fn quantile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}
