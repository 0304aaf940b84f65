//! `raven`: copies where it is not certain which path is the fastest.
//!
//! ```text
//! path      0     50    100 ms    Of every path a round trip is predicted, with an interval that holds it
//! A         ├──x──┤               with the confidence that the user wants. A has the lowest prediction.
//! B            ├──x───┤           B might be as fast: it gets a copy.
//! C                    ├─x─┤      C certainly is not: nothing, until its interval has grown with the age
//! C later   ├──────────x──────┤   of its newest sample. Then a copy finds out whether C has improved.
//! ```
//!
//! A prediction is an average of the path's samples that forgets by time ([`forecast`]). How fast
//! it forgets, how wide intervals are and how they grow is learned per network from a log of its
//! round trips ([`tables`]): first after a hundred samples, then after
//! [`RavenConfig::relearn_samples`] or a day. Until then all networks' tables apply, and before
//! that [`Tables::assumed`]. A path without any sample gets a copy of everything.
//!
//! Large transfers must not be doubled. When all paths but one, or all that would be chosen, have a
//! window's worth of a flow's data under way or waiting, its packets go out once, by min-RTT that
//! waits for a fast path rather than use a slow one (`ordered`); when fewer than two packets of it
//! wait anywhere or are under way on the best path, its copies begin again. Each flow has its own
//! mode ([`flows`]), as each connection has in the paper.
//!
//! A paced flow never fills a window, however much it sends. So whatever has sent [`LARGE`] bytes,
//! or [`LARGE_OF_STREAMS`] of streams, without an end is a large transfer as well, and stays one
//! until it ends. It has ended when less than two packets are under way on the best path (on every
//! path, once it goes out once), and no more wait or nothing was sent for [`PAUSE`].
//!
//! The measurements of the carrier count as well: keep-alives and other lanes' packets.
//!
//! Source: RAVEN section 4; docs/deviations.md.

mod flows;
mod forecast;
mod log;
mod networks;
mod stored;
mod tables;

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, PathStatus};

use self::flows::{Flows, Mode};
use self::forecast::Forecast;
use self::networks::{NETWORKS_MAX, Network, Networks, RTT_MIN};
use self::tables::Interval;
use crate::{
    AcknowledgedDatagram, Decision, Ordered, PacketInfo, PathSet, RestoreError, Scheduler,
    best_status,
};

/// The settings of RAVEN: response time against volume, and how often it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RavenConfig {
    /// The confidence of the intervals, percent: 0 sends no copies, 100 copies everything to every
    /// path.
    pub confidence: u8,
    /// Whether intervals grow with the age of the newest sample: Age() of section 4.4.
    pub ages: bool,
    /// New samples of a network after which its tables are learned again.
    pub relearn_samples: usize,
    /// Time after which they are learned again.
    pub relearn_after: Duration,
}

impl Default for RavenConfig {
    fn default() -> Self {
        Self {
            confidence: 90,
            ages: true,
            relearn_samples: 2048,
            relearn_after: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl RavenConfig {
    /// `raven:<percent>`; `None` unless `percent` is a whole number, 0..=100.
    pub fn with_confidence(percent: &str) -> Option<Self> {
        let is_number = percent.bytes().all(|digit| digit.is_ascii_digit());
        let confidence = percent.parse().ok().filter(|percent| is_number && *percent <= 100)?;
        Some(Self { confidence, ..Self::default() })
    }
}

/// The RAVEN scheduler.
#[derive(Debug)]
pub struct Raven {
    config: RavenConfig,
    flows: Flows,
    paths: Vec<PathState>,
    networks: Networks,
    names: Vec<(PathId, String)>,
}

#[derive(Debug)]
struct PathState {
    id: PathId,
    network: usize,
    forecast: Forecast,
}

impl Raven {
    /// A RAVEN scheduler with these thresholds.
    pub fn new(config: RavenConfig) -> Self {
        Self {
            config: RavenConfig { confidence: config.confidence.min(100), ..config },
            flows: Flows::default(),
            paths: Vec::new(),
            networks: Networks::new(config),
            names: Vec::new(),
        }
    }

    /// Learns from recorded round trips of the network `name`, ascending by time.
    pub fn learn(&mut self, name: &str, samples: impl IntoIterator<Item = (Instant, Duration)>) {
        if let Some(network) = self.networks.place(Some(name), &self.paths) {
            self.networks.learn(network, samples.into_iter());
        }
    }

    fn look_at(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        self.paths.retain(|state| {
            let is_there = paths.iter().any(|path| path.snapshot.id == state.id);
            if !is_there {
                self.flows.clear(state.id);
            }
            is_there
        });
        for path in paths.iter().map(|path| path.snapshot) {
            let Some(state) = self.state(path) else { continue };
            if path.bytes_in_flight == 0 {
                self.flows.clear(path.id);
            }
            if let Some(at) = path.last_acknowledged
                && self.paths[state].forecast.newest().is_none_or(|it| at.as_secs_f64() > it)
            {
                self.sample(now, state, at, path.latest_rtt);
            }
        }
    }

    fn state(&mut self, path: &PathSnapshot) -> Option<usize> {
        if let Some(known) = self.paths.iter().position(|state| state.id == path.id) {
            return Some(known);
        }
        if self.paths.len() >= NETWORKS_MAX {
            return None;
        }
        let name = self.names.iter().find(|(id, _)| *id == path.id).map(|(_, name)| name.clone());
        let network = self.networks.place(name.as_deref(), &self.paths)?;
        self.networks.all[network].log.end_run();
        self.paths.push(PathState { id: path.id, network, forecast: Forecast::default() });
        Some(self.paths.len() - 1)
    }

    fn sample(&mut self, now: Instant, state: usize, at: Instant, rtt: Duration) {
        let (at, rtt) = (at.as_secs_f64(), rtt.as_secs_f64());
        if rtt >= RTT_MIN {
            let PathState { network, forecast, .. } = &mut self.paths[state];
            forecast.add(at, rtt, self.networks.tables(*network).lambda);
            self.networks.sample(now, *network, at, rtt);
        }
    }

    fn candidates(&self, now: Instant, flow: u64, paths: &[PathOffer<'_>]) -> Vec<CandidatePath> {
        let candidates = paths.iter().enumerate().filter(|(_, path)| path.takes_data());
        let candidate = |(position, offer): (usize, &PathOffer<'_>)| {
            let path = offer.snapshot;
            let state = self.paths.iter().find(|state| state.id == path.id);
            let known = state.and_then(|state| {
                let (predicted, newest) = (state.forecast.rtt()?, state.forecast.newest()?);
                let age =
                    if self.config.ages { (now.as_secs_f64() - newest).max(0.0) } else { 0.0 };
                let percent = self.config.confidence.clamp(1, 99);
                let tables = self.networks.tables(state.network);
                Some((predicted, tables.interval(predicted, age, percent)))
            });
            let waits = offer.queued_bytes.min(self.flows.busy_bytes(flow));
            let (predicted, interval) =
                known.unwrap_or((path.smoothed_rtt.as_secs_f64(), Interval::UNKNOWN));
            CandidatePath {
                position,
                is_suspect: path.status == PathStatus::Suspect,
                predicted,
                interval,
                room: if offer.queued_bytes > 0 { 0 } else { path.room() },
                queue: self.flows.flying_bytes(flow, path.id) + waits,
                waits,
                window: path.congestion_window,
            }
        };
        candidates.map(candidate).collect()
    }

    /// Sends to all that are `chosen`, or if none has room to the next best that has.
    fn copy(&self, packet: &PacketInfo, candidates: &[CandidatePath], chosen: PathSet) -> Decision {
        let has_room = |candidate: &CandidatePath| candidate.room >= packet.bytes as u64;
        let leaves =
            |candidate: &CandidatePath| chosen.contains(candidate.position) && has_room(candidate);
        if candidates.iter().any(leaves) {
            return Decision::Send(chosen);
        }
        let is_single = self.config.confidence == 0;
        match lowest(candidates, has_room) {
            Some(other) if is_single => Decision::Send(PathSet::one(other.position)),
            Some(other) => {
                let mut chosen = chosen;
                chosen.insert(other.position);
                Decision::Send(chosen)
            }
            None if is_single => Decision::Wait,
            None => Decision::Send(chosen),
        }
    }

    /// A silent path may get a copy, but what it holds says nothing of how much is sent. Source:
    /// RAVEN section 4.5. A subflow's queue there holds what is in flight and what waits.
    fn next_mode(
        &mut self,
        now: Instant,
        packet: &PacketInfo,
        paths: &[PathOffer<'_>],
        candidates: &[CandidatePath],
        chosen: PathSet,
    ) -> Mode {
        let flow = self.flows.flow(now, packet.flow);
        let status = best_status(paths);
        let answering = || {
            candidates.iter().filter(move |candidate| {
                paths.get(candidate.position).map(|path| path.snapshot.status) == status
            })
        };
        let few = two_packets(paths);
        let holds_little = |candidate: &CandidatePath| candidate.queue < few;
        // In the paper an arrival over any subflow leaves all queues, also those of slow paths.
        let best_holds_little = lowest(candidates, |_| true).is_some_and(holds_little);
        // A burst begins with all that it holds.
        let has_paused = flow.sent_at.is_none_or(|at| now.since(at) >= PAUSE);
        let begins = packet.flow_bytes < few || has_paused;
        let waits_little =
            begins && best_holds_little && answering().all(|candidate| candidate.waits < few);
        let is_through = match flow.mode {
            Mode::Redundant => best_holds_little,
            Mode::Striping => answering().all(holds_little),
        };
        if is_through && begins {
            flow.busy_bytes = 0;
        }
        let is_full = |candidate: &CandidatePath| candidate.queue >= candidate.window;
        let large = if packet.is_of_streams { LARGE_OF_STREAMS } else { LARGE };
        let full = answering().filter(|candidate| is_full(candidate)).count();
        let of_chosen = || answering().filter(|candidate| chosen.contains(candidate.position));
        let all_chosen_full = of_chosen().next().is_some() && of_chosen().all(is_full);
        if full + 1 >= candidates.len() || all_chosen_full || flow.busy_bytes >= large {
            flow.mode = Mode::Striping;
        } else if waits_little {
            flow.mode = Mode::Redundant;
        }
        flow.mode
    }

    /// The path with the lowest prediction, and those whose intervals meet its interval.
    fn overlapping(&self, candidates: &[CandidatePath]) -> PathSet {
        let Some(best) = lowest(candidates, |_| true) else { return PathSet::EMPTY };
        let is_chosen = |candidate: &&CandidatePath| {
            let overlaps = match self.config.confidence {
                0 => false,
                100 => true,
                // A silent path may lie below: it would be the fastest if it answered.
                _ => candidate.interval.low <= best.interval.high,
            };
            // A packet that waits for a path that does not answer is given up.
            let is_lost = candidate.is_suspect && candidate.room == 0;
            candidate.position == best.position || overlaps && !is_lost
        };
        candidates.iter().filter(is_chosen).map(|candidate| candidate.position).collect()
    }
}

#[derive(Debug)]
struct CandidatePath {
    position: usize,
    is_suspect: bool,
    predicted: f64,
    interval: Interval,
    room: u64,
    /// Bytes of the flow in flight or waiting.
    queue: u64,
    /// Bytes of the flow that wait, at most.
    waits: u64,
    window: u64,
}

/// A silent path has the lowest prediction only if there is no other.
fn lowest(
    candidates: &[CandidatePath],
    may: impl Fn(&CandidatePath) -> bool,
) -> Option<&CandidatePath> {
    let only_suspects = candidates.iter().all(|candidate| candidate.is_suspect);
    candidates
        .iter()
        .filter(|candidate| (only_suspects || !candidate.is_suspect) && may(candidate))
        .min_by(|a, b| a.predicted.total_cmp(&b.predicted))
}

impl Scheduler for Raven {
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        self.look_at(now, paths);
        let candidates = self.candidates(now, packet.flow, paths);
        let chosen = self.overlapping(&candidates);
        let decision = match self.next_mode(now, packet, paths, &candidates, chosen) {
            _ if chosen.is_empty() => Decision::Wait,
            Mode::Striping => Ordered.select(now, packet, paths),
            Mode::Redundant => self.copy(packet, &candidates, chosen),
        };
        if matches!(decision, Decision::Send(_)) {
            self.flows.flow(now, packet.flow).busy_bytes += packet.bytes as u64;
        }
        decision
    }

    fn on_sent(&mut self, now: Instant, path: PathId, bytes: u32, flow: u64) {
        self.flows.on_sent(now, flow, path, bytes.into());
    }

    fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram, flow: u64) {
        self.flows.on_landed(flow, acknowledged.path);
        let state = self.paths.iter().position(|state| state.id == acknowledged.path);
        state.into_iter().for_each(|state| self.sample(now, state, now, acknowledged.rtt));
    }

    fn on_lost(&mut self, _now: Instant, path: PathId, flow: u64) {
        self.flows.on_landed(flow, path);
    }

    fn name_path(&mut self, path: PathId, name: &str) {
        self.names.retain(|(id, _)| *id != path);
        if self.names.len() >= NETWORKS_MAX {
            self.names.remove(0);
        }
        self.names.push((path, name.to_owned()));
        if self.paths.iter().any(|state| state.id == path)
            && let Some(network) = self.networks.place(Some(name), &self.paths)
        {
            self.networks.all[network].log.end_run();
            let states = self.paths.iter_mut().filter(|state| state.id == path);
            states.for_each(|state| state.network = network);
        }
    }

    fn learned(&self) -> Option<String> {
        Some(stored::write(&self.networks.all, self.networks.pooled.as_ref()))
    }

    fn restore(&mut self, learned: &str) -> Result<(), RestoreError> {
        let (networks, pooled) = stored::read(learned)?;
        for network in networks {
            let name = network.name.as_deref();
            let Some(place) = self.networks.place(name, &self.paths) else { continue };
            let learned_at = network.tables.is_some().then_some(Instant::ZERO);
            self.networks.all[place] = Network { learned_at, ..network };
        }
        self.networks.pooled = pooled.or(self.networks.pooled.take());
        Ok(())
    }
}

fn two_packets(paths: &[PathOffer<'_>]) -> u64 {
    2 * paths.iter().map(|path| u64::from(path.snapshot.mtu)).max().unwrap_or(0)
}

/// The packets of a larger transfer have an order, which a far path would disturb.
const LARGE: u64 = 64_000;
/// The most that is copied of a transfer in the paper, 41.67 % of 50 kB (section 5.6).
const LARGE_OF_STREAMS: u64 = 20_800;
/// The pause that ends a stream: longer than between two video frames.
const PAUSE: Duration = Duration::from_millis(80);

#[cfg(test)]
mod tests;
