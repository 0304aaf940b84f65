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
//! - A path carries no more than arrives within delta, the lane's deadline: at most `(delta -
//!   min_rtt / 2) / iat` packets (equation 2), by the pace of arrivals ([`Windows`]).
//! - Each packet goes where `owd + (under way + 1) * iat` is smallest (equation 6). This greedy
//!   choice is the min-max of equation 4: a path's estimate rises with each packet put there, so a
//!   spread with fewer packets on one path has more on another, where they arrive no sooner.
//! - What finds no place waits in the lane's queue until it is late. While almost nothing of the
//!   lane is under way, two packets leave anyway each time that a path is to be probed.
//! - A path that got no two packets in a row for `min(1 s, 2 * iat)` gets copies of the first two
//!   of the next frame, so that its pace is known (section 3.6); not while others of the lane are
//!   under way on it. Only a packet that has a place elsewhere is copied.
//!
//! The path's congestion window and pacer hold as well, and count into a packet's arrival.
//!
//! Source: LoLa section 3.

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot, Rate};

use crate::windows::under_way;
use crate::{AcknowledgedDatagram, Decision, PacketInfo, PathSet, Scheduler, Windows, best_status};

/// The LoLa scheduler.
#[derive(Debug)]
pub struct Lola {
    windows: Windows,
    paths: Vec<PathState>,
    frame: Option<Instant>,
}

#[derive(Debug)]
struct PathState {
    id: PathId,
    last_sent: Option<Instant>,
    last_pair: Option<Instant>,
    /// Datagrams of this lane in flight: their acknowledgements serve as probes.
    flying: u32,
    probes: u8,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    position: usize,
    /// When a further packet would arrive, seconds from now.
    arrival: f64,
    has_place: bool,
    has_room: bool,
}

impl Lola {
    /// `delta`: the time within which packets should arrive.
    pub fn new(delta: Duration) -> Self {
        Self { windows: Windows::new(delta), paths: Vec::new(), frame: None }
    }

    fn look_at(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        self.windows.look_at(paths);
        self.paths.retain(|state| paths.iter().any(|path| path.snapshot.id == state.id));
        for path in paths.iter().map(|path| path.snapshot) {
            match self.paths.iter_mut().find(|state| state.id == path.id) {
                Some(state) if path.bytes_in_flight == 0 => state.flying = 0,
                Some(_) => {}
                None => self.paths.push(PathState::new(now, path.id)),
            }
        }
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
        let travels = self.windows.one_way(now, path) + ahead * self.windows.byte_time(now, path);
        Estimate {
            position,
            arrival: travels + held_back(path, bytes),
            has_place: ahead <= self.windows.window(now, path) + ROUNDING,
            has_room: path.room() >= bytes,
        }
    }

    /// If this packet opens a frame, begins to probe the paths without two recent packets in a row.
    fn plan_probes(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) {
        let came = now - packet.waited;
        let is_new = self.frame.is_none_or(|frame| came > frame + FRAME_GAP);
        if !is_new {
            return;
        }
        self.frame = Some(came);
        for path in paths.iter().map(|path| path.snapshot) {
            let pair = 2.0 * self.windows.packet_bytes() as f64;
            let interval = (pair * self.windows.byte_time(now, path)).min(1.0);
            let Some(state) = self.paths.iter_mut().find(|state| state.id == path.id) else {
                continue;
            };
            let since = now.since(state.last_pair.unwrap_or_default()).as_secs_f64();
            state.probes = if since > interval && state.flying < 2 { 2 } else { 0 };
        }
    }

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

impl PathState {
    fn new(now: Instant, id: PathId) -> Self {
        Self { id, last_sent: None, last_pair: Some(now), flying: 0, probes: 0 }
    }
}

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
        self.windows.on_packet(bytes);
        self.look_at(now, paths);
        self.plan_probes(now, packet, paths);
        let status = best_status(paths);
        let answering = || {
            let paths = paths.iter().enumerate();
            paths.filter(|(_, path)| status.is_some_and(|status| path.has_status(status)))
        };
        // A lane with next to nothing in flight learns by a pair that a path has become faster.
        let (mut probed, mut is_quiet) = (PathSet::EMPTY, true);
        for (position, path) in answering() {
            let state = self.paths.iter().find(|state| state.id == path.snapshot.id);
            is_quiet &= state.is_none_or(|state| state.flying < 2);
            if state.is_some_and(|state| state.probes > 0) {
                probed.insert(position);
            }
        }
        let soonest = answering()
            .filter(|(_, path)| !path.snapshot.is_held_back(bytes))
            .map(|(position, path)| self.estimate(now, position, path, bytes))
            .filter(|estimate| estimate.has_place || is_quiet && probed.contains(estimate.position))
            .min_by(|a, b| a.arrival.total_cmp(&b.arrival));
        // Without a place it waits for one; without room it waits for the pacer of that path.
        let Some(estimate) = soonest.filter(|estimate| estimate.has_room) else {
            return Decision::Wait;
        };
        let mut chosen = PathSet::one(estimate.position);
        self.probe(&mut chosen, bytes, paths);
        Decision::Send(chosen)
    }

    fn on_sent(&mut self, now: Instant, path: PathId, _bytes: u32, _flow: u64) {
        let pause = self.windows.pause(path);
        let Some(state) = self.paths.iter_mut().find(|state| state.id == path) else { return };
        if state.last_sent.is_some_and(|last| now.since(last) <= pause) {
            state.last_pair = Some(now);
        }
        state.last_sent = Some(now);
        state.flying += 1;
    }

    fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram, _flow: u64) {
        self.windows.on_acknowledged(now, acknowledged);
        if let Some(state) = self.paths.iter_mut().find(|state| state.id == acknowledged.path) {
            state.flying = state.flying.saturating_sub(1);
        }
    }

    fn on_lost(&mut self, _now: Instant, path: PathId, _flow: u64) {
        if let Some(state) = self.paths.iter_mut().find(|state| state.id == path) {
            state.flying = state.flying.saturating_sub(1);
        }
    }
}

const ROUNDING: f64 = 1e-3;
/// Packets closer together belong to one frame.
const FRAME_GAP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;
