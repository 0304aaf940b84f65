//! `lola`: a video frame's packets spread over the paths so that the last of them arrives soonest.
//!
//! ```text
//! arrival, ms    path A: owd 20, a packet each 5    path B: owd 35, a packet each 8
//!   25           ▏1                                                      a frame of six packets, each put
//!   30           ▏2                                                      where it would arrive soonest
//!   35           ▏3
//!   40           ▏4                                 (43)
//!   43           (45)                               ▏5
//!   45           ▏6                                 (51)      the frame is there after 45 ms
//! ```
//!
//! - How long a path takes for a packet is measured from its arrivals ([`pace`]).
//! - A path carries no more than arrives within delta, the lane's deadline: at most `(delta -
//!   min_rtt / 2) / iat` packets under way (equation 2). All is counted in bytes, since packets
//!   have all sizes: an inter-arrival time is what the bytes of a packet take.
//! - Each packet goes where `owd + (under way + 1) * iat` is smallest (equation 6). That this is
//!   the min-max of equation 4: a path's estimate rises with each packet put there, whatever
//!   happens on the others. Were there a better spread, it would have fewer packets on some path
//!   than the greedy one, and so more on another, where each further packet arrives no sooner than
//!   the greedy one's last: greed took a sooner place while there was one. So the better spread's
//!   last packet is no sooner.
//! - What finds no place waits in the lane's queue, which is in the order of deadlines since all
//!   packets have the same time, until it is late.
//! - A path that got no two packets in a row for `min(1 s, 2 * iat)` gets copies of the first two
//!   of the next frame, so that its pace is known (section 3.6); not while others of the lane are
//!   under way on it, which tell as much.
//! - The next frame should have `sum(0.8 * window - under way)` packets (equation 3).
//!
//! The path's congestion window and pacer hold as well; where they make a packet wait, that counts
//! into its arrival.
//!
//! Source: LoLa section 3.

mod pace;

use std::time::Duration;

use roadweave_types::{Instant, PathId, PathOffer, PathSnapshot, Rate};

use self::pace::Pace;
use crate::{AcknowledgedDatagram, Decision, PacketInfo, PathSet, Scheduler, best_status};

/// The scheduler of LoLa.
#[derive(Debug)]
pub struct Lola {
    /// delta: what a packet may take.
    delta: Duration,
    paths: Vec<PathState>,
    /// The largest datagram so far: what a pair of packets is taken for, sent or yet to be sent.
    packet_bytes: u64,
    /// When the newest frame came in.
    frame: Option<Instant>,
}

#[derive(Debug)]
struct PathState {
    id: PathId,
    pace: Pace,
    /// A sender that waits longer between two packets has nothing to send; less is the pacer's
    /// doing.
    pause: Duration,
    last_sent: Option<Instant>,
    /// When two packets in a row were last sent.
    last_pair: Option<Instant>,
    /// This lane's datagrams under way: their acknowledgements tell as much as copies would.
    flying: u32,
    /// Copies that are still to be sent, to know its pace.
    probes: u8,
}

/// What is expected of a path.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    position: usize,
    /// When the next packet put there would arrive, seconds from now.
    arrival: f64,
    has_place: bool,
    has_room: bool,
}

impl Lola {
    /// A scheduler whose packets should arrive within `delta`.
    pub fn new(delta: Duration) -> Self {
        Self { delta, paths: Vec::new(), packet_bytes: PACKET_BYTES, frame: None }
    }

    fn look_at(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        self.paths.retain(|state| paths.iter().any(|path| path.snapshot.id == state.id));
        for path in paths.iter().map(|path| path.snapshot) {
            if !self.paths.iter().any(|state| state.id == path.id) {
                self.paths.push(PathState {
                    id: path.id,
                    pace: Pace::default(),
                    pause: PAUSE_MIN,
                    last_sent: None,
                    last_pair: Some(now),
                    flying: 0,
                    probes: 0,
                });
            }
            let Some(state) = self.paths.iter_mut().find(|state| state.id == path.id) else {
                continue;
            };
            let interval = path.pacing_rate.map(|rate| rate.time_for(self.packet_bytes));
            let interval = interval.unwrap_or_default().min(PAUSE_MAX);
            state.pause = (interval + interval / 4).clamp(PAUSE_MIN, PAUSE_MAX);
            if path.bytes_in_flight == 0 {
                state.flying = 0;
            }
        }
    }

    fn state(&self, path: &PathSnapshot) -> Option<&PathState> {
        self.paths.iter().find(|state| state.id == path.id)
    }

    /// Seconds that the path takes for a byte.
    fn byte_time(&self, path: &PathSnapshot) -> f64 {
        let measured = self.state(path).and_then(|state| state.pace.byte_time());
        // Until then what the carrier would do: its pace, or a window in a round trip.
        let carrier = || {
            let by_rate = path.pacing_rate.map(|rate| rate.time_for(self.packet_bytes));
            let window = path.congestion_window.max(self.packet_bytes) as f64;
            let by_window = path.smoothed_rtt.as_secs_f64() / window;
            let packet_bytes = self.packet_bytes as f64;
            by_rate.map_or(by_window, |time| time.as_secs_f64().min(1.0) / packet_bytes)
        };
        measured.unwrap_or_else(carrier).max(BYTE_TIME_MIN)
    }

    /// The smallest delay of late, one way, seconds.
    fn one_way(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let measured = self.state(path).and_then(|state| state.pace.min_rtt(now));
        measured.unwrap_or(path.latest_rtt).as_secs_f64() / 2.0
    }

    /// Equation 2: the most bytes under way, so that the last arrives within delta.
    fn window(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let left = self.delta.as_secs_f64() - self.one_way(now, path);
        (left / self.byte_time(path)).max(0.0)
    }

    fn estimate(
        &self,
        now: Instant,
        position: usize,
        offer: &PathOffer<'_>,
        bytes: u64,
    ) -> Estimate {
        let path = offer.snapshot;
        let ahead = under_way(offer) + bytes as f64;
        let travels = self.one_way(now, path) + ahead * self.byte_time(path);
        Estimate {
            position,
            arrival: travels + held_back(path, bytes),
            has_place: ahead <= self.window(now, path) + ROUNDING,
            has_room: path.room() >= bytes,
        }
    }

    /// Begins to probe those paths that have gone without two packets in a row, if this packet
    /// opens a frame.
    fn plan_probes(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) {
        let came = now - packet.waited;
        let is_new = self.frame.is_none_or(|frame| came > frame + FRAME_GAP);
        if !is_new {
            return;
        }
        self.frame = Some(came);
        for path in paths.iter().map(|path| path.snapshot) {
            let interval = (2.0 * self.packet_bytes as f64 * self.byte_time(path)).min(1.0);
            let Some(state) = self.paths.iter_mut().find(|state| state.id == path.id) else {
                continue;
            };
            let since = now.since(state.last_pair.unwrap_or_default()).as_secs_f64();
            state.probes = if since > interval && state.flying < 2 { 2 } else { 0 };
        }
    }

    /// Adds the paths that are probed with this packet.
    fn probe(&mut self, chosen: &mut PathSet, bytes: u64, paths: &[PathOffer<'_>]) {
        for (position, offer) in paths.iter().enumerate() {
            let path = offer.snapshot;
            let Some(state) = self.paths.iter_mut().find(|state| state.id == path.id) else {
                continue;
            };
            if state.probes > 0 && offer.takes_data() && path.room() >= bytes {
                state.probes -= 1;
                chosen.insert(position);
            }
        }
    }
}

/// Bytes under way on a path, or waiting for it.
fn under_way(path: &PathOffer<'_>) -> f64 {
    (path.snapshot.bytes_in_flight + path.queued_bytes) as f64
}

/// How long the window or the pacer of `path` holds back a packet of `bytes` bytes, seconds.
fn held_back(path: &PathSnapshot, bytes: u64) -> f64 {
    let for_pacer = match path.pacing_rate {
        Some(rate) if path.pacing_budget < bytes => {
            rate.max(Rate::from_bps(1)).time_for(bytes - path.pacing_budget).as_secs_f64()
        }
        None if path.pacing_budget < bytes => path.smoothed_rtt.as_secs_f64(),
        _ => 0.0,
    };
    let packets = (path.congestion_window / bytes.max(1)).max(1) as f64;
    let for_window = match path.window_room() < bytes {
        true => path.smoothed_rtt.as_secs_f64() / packets,
        false => 0.0,
    };
    for_pacer + for_window
}

impl Scheduler for Lola {
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let bytes = packet.bytes as u64;
        self.packet_bytes = self.packet_bytes.max(bytes);
        self.look_at(now, paths);
        let status = best_status(paths);
        let soonest = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| status.is_some_and(|status| path.has_status(status)))
            .map(|(position, path)| self.estimate(now, position, path, bytes))
            .filter(|estimate| estimate.has_place)
            .min_by(|a, b| a.arrival.total_cmp(&b.arrival));
        self.plan_probes(now, packet, paths);
        let mut chosen = match soonest {
            Some(estimate) if estimate.has_room => PathSet::one(estimate.position),
            _ => PathSet::EMPTY,
        };
        if chosen.is_empty() && soonest.is_some() {
            // To wait a moment for the pacer of that path is sooner than any other path.
            return Decision::Wait;
        }
        self.probe(&mut chosen, bytes, paths);
        if chosen.is_empty() { Decision::Wait } else { Decision::Send(chosen) }
    }

    fn on_sent(&mut self, now: Instant, path: PathId, _bytes: u32) {
        let Some(state) = self.paths.iter_mut().find(|state| state.id == path) else { return };
        if state.last_sent.is_some_and(|last| now.since(last) <= state.pause) {
            state.last_pair = Some(now);
        }
        state.last_sent = Some(now);
        state.flying += 1;
    }

    fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram) {
        if let Some(state) = self.paths.iter_mut().find(|state| state.id == acknowledged.path) {
            state.pace.on_acknowledged(now, acknowledged, state.pause);
            state.flying = state.flying.saturating_sub(1);
        }
    }

    fn on_lost(&mut self, _now: Instant, path: PathId) {
        if let Some(state) = self.paths.iter_mut().find(|state| state.id == path) {
            state.flying = state.flying.saturating_sub(1);
        }
    }

    fn frame_target(&self, now: Instant, paths: &[PathOffer<'_>]) -> Option<u64> {
        let status = best_status(paths)?;
        let bytes = paths
            .iter()
            .filter(|path| path.has_status(status))
            .map(|path| TARGET_SHARE * self.window(now, path.snapshot) - under_way(path))
            .map(|bytes| bytes.max(0.0))
            .sum::<f64>();
        Some((bytes + ROUNDING) as u64)
    }
}

/// A datagram's length until larger ones were seen, bytes.
const PACKET_BYTES: u64 = 1200;
/// Seconds; a path that seems faster is taken for this fast: 10 Gbit/s.
const BYTE_TIME_MIN: f64 = 8e-10;
/// Bytes by which a sum may be off for being rounded.
const ROUNDING: f64 = 1e-3;
/// The share of the windows that the next frame should fill (equation 3).
const TARGET_SHARE: f64 = 0.8;
/// The shortest pause that says that a sender had nothing to send.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause within a frame: shorter than from one frame to the next at 30 a second.
const PAUSE_MAX: Duration = Duration::from_millis(25);
/// Packets that come in closer together belong to one frame.
const FRAME_GAP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;
