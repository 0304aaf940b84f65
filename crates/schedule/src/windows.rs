//! How much each path brings to the other end within a given time, by the pace of its packets.
//!
//! ```text
//! acknowledgements ─► pace: time by the byte ─► window = (delta - min_rtt / 2) / time ─► room
//!                                                        what is in flight ───────────────┘ less
//! ```
//!
//! All is counted in bytes. A path of unknown pace counts with the rate of its congestion control.
//! [`crate::Lola`] probes its paths, so that their paces are known.
//!
//! Source: LoLa sections 3.2 and 3.3.

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathSnapshot};

use crate::AcknowledgedDatagram;
use crate::pace::Pace;

/// The windows of a lane's paths.
#[derive(Debug)]
pub struct Windows {
    delta: Duration,
    /// The largest datagram so far: the size of the packets of a pair.
    packet_bytes: u64,
    paths: Vec<PathPace>,
}

#[derive(Debug)]
struct PathPace {
    id: PathId,
    pace: Pace,
    /// A longer gap between two packets is the sender's; a shorter one the pacer's.
    pause: Duration,
}

impl Windows {
    /// `delta`: the time within which the last byte arrives.
    pub fn new(delta: Duration) -> Self {
        Self { delta, packet_bytes: PACKET_BYTES, paths: Vec::new() }
    }

    /// Changes the time within which the last byte arrives.
    pub fn set_delta(&mut self, delta: Duration) {
        self.delta = delta;
    }

    /// Sets the paths.
    pub fn look_at(&mut self, paths: &[PathOffer<'_>]) {
        self.paths.retain(|known| paths.iter().any(|path| path.snapshot.id == known.id));
        for path in paths.iter().map(|path| path.snapshot) {
            let interval = path.pacing_rate.map(|rate| rate.time_for(self.packet_bytes));
            let interval = interval.unwrap_or_default().min(PAUSE_MAX);
            let pause = (interval + interval / 4).clamp(PAUSE_MIN, PAUSE_MAX);
            match self.paths.iter_mut().find(|known| known.id == path.id) {
                Some(known) => known.pause = pause,
                None => self.paths.push(PathPace { id: path.id, pace: Pace::default(), pause }),
            }
        }
    }

    pub(crate) fn on_packet(&mut self, bytes: u64) {
        self.packet_bytes = self.packet_bytes.max(bytes);
    }

    /// The peer acknowledged a datagram of any lane.
    pub fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.id == acknowledged.path) {
            path.pace.on_acknowledged(now, acknowledged, path.pause);
        }
    }

    pub(crate) fn pause(&self, path: PathId) -> Duration {
        self.known(path).map_or(PAUSE_MIN, |known| known.pause)
    }

    pub(crate) fn packet_bytes(&self) -> u64 {
        self.packet_bytes
    }

    fn known(&self, path: PathId) -> Option<&PathPace> {
        self.paths.iter().find(|known| known.id == path)
    }

    /// Seconds per byte.
    pub(crate) fn byte_time(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let measured = self.known(path.id).and_then(|known| known.pace.recent(now));
        // By the pacer's rate, or a window per round trip.
        let carrier = || {
            let by_rate = path.pacing_rate.map(|rate| rate.time_for(self.packet_bytes));
            let window = path.congestion_window.max(self.packet_bytes) as f64;
            let by_window = path.smoothed_rtt.as_secs_f64() / window;
            let packet_bytes = self.packet_bytes as f64;
            by_rate.map_or(by_window, |time| time.as_secs_f64().min(1.0) / packet_bytes)
        };
        measured.unwrap_or_else(carrier).max(BYTE_TIME_MIN)
    }

    /// The smallest recent delay of one way, seconds.
    pub(crate) fn one_way(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let measured = self.known(path.id).and_then(|known| known.pace.min_rtt(now));
        measured.unwrap_or(path.latest_rtt).as_secs_f64() / 2.0
    }

    /// Equation 2: the most bytes in flight, so that the last arrives within delta.
    pub(crate) fn window(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let left = self.delta.as_secs_f64() - self.one_way(now, path);
        (left / self.byte_time(now, path)).max(0.0)
    }

    /// What a window per round trip, and one at least, lets through within delta.
    fn carried(&self, now: Instant, path: &PathSnapshot) -> f64 {
        let left = self.delta.as_secs_f64() - self.one_way(now, path);
        (left * carrier_rate(path)).max(path.congestion_window as f64)
    }

    /// Equation 3, by path: the bytes that may be sent now and arrive within delta. 0 for a path
    /// that does not answer; what congestion control lets through for one that has just come back.
    ///
    /// Of the bytes in flight only those count that stand before the next frame: what the path
    /// brings in a round trip is travelling, or has arrived and is not acknowledged yet.
    pub fn rooms(&self, now: Instant, paths: &[PathOffer<'_>]) -> Vec<f64> {
        let room = |path: &PathOffer<'_>| match path.takes_data() && path.is_usable() {
            true => {
                let in_time = ROOM_SHARE * self.window(now, path.snapshot) - self.ahead(now, path);
                let let_through = ROOM_SHARE * self.carried(now, path.snapshot) - under_way(path);
                in_time.min(let_through).max(0.0)
            }
            false => 0.0,
        };
        paths.iter().map(room).collect()
    }

    fn ahead(&self, now: Instant, path: &PathOffer<'_>) -> f64 {
        // There may have been a queue all the time.
        let round_trip =
            path.snapshot.min_rtt.as_secs_f64().min(2.0 * self.one_way(now, path.snapshot));
        let travelling = round_trip / self.byte_time(now, path.snapshot);
        let queued = (path.snapshot.bytes_in_flight as f64 - travelling).max(0.0);
        queued + path.queued_bytes as f64
    }

    /// Bytes per second by path, for as long as nothing changes; 0 where new packets come too late.
    pub fn rates(&self, now: Instant, paths: &[PathOffer<'_>]) -> Vec<f64> {
        let rate = |path: &PathOffer<'_>| {
            let is_in_time = self.one_way(now, path.snapshot) < self.delta.as_secs_f64();
            match path.takes_data() && path.is_usable() && is_in_time {
                true => {
                    let measured = 1.0 / self.byte_time(now, path.snapshot);
                    ROOM_SHARE * measured.min(carrier_rate(path.snapshot))
                }
                false => 0.0,
            }
        };
        paths.iter().map(rate).collect()
    }

    /// A packet of 1,200 bytes each `inter_arrival`.
    #[cfg(test)]
    pub(crate) fn push_known(
        &mut self,
        now: Instant,
        path: PathId,
        inter_arrival: Duration,
        rtt: Duration,
    ) {
        let pace = Pace::known(now, inter_arrival, rtt);
        self.paths.push(PathPace { id: path, pace, pause: PAUSE_MIN });
    }
}

fn carrier_rate(path: &PathSnapshot) -> f64 {
    path.congestion_window as f64 / path.smoothed_rtt.as_secs_f64().max(1e-3)
}

pub(crate) fn under_way(path: &PathOffer<'_>) -> f64 {
    (path.snapshot.bytes_in_flight + path.queued_bytes) as f64
}

const PACKET_BYTES: u64 = 1200;
/// Seconds: 10 Gbit/s at most.
const BYTE_TIME_MIN: f64 = 8e-10;
/// The share of the windows that the next frame should fill (equation 3).
const ROOM_SHARE: f64 = 0.8;
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause within a frame: shorter than between frames at 30 a second.
const PAUSE_MAX: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{free, path};

    const MS: Duration = Duration::from_millis(1);

    fn acknowledged(windows: &mut Windows, now: Instant, rtt: Duration) {
        let acknowledged =
            AcknowledgedDatagram { path: PathId(0), sent: now - rtt, bytes: 1200, rtt };
        windows.on_acknowledged(now, &acknowledged);
    }

    #[test]
    fn acknowledgements_after_an_outage_do_not_count_for_the_pace() {
        let mut windows = Windows::new(MS * 100);
        let paths = [path(0, 40, u64::MAX / 4)];
        windows.look_at(&free(&paths));
        let at = Instant::from_millis;
        for packet in 0..100 {
            acknowledged(&mut windows, at(1_000 + 2 * packet), MS * 40);
        }
        let before = windows.window(at(1_200), &paths[0]);
        // The answers to what left just before the link died come four seconds later.
        for packet in 0..20 {
            acknowledged(&mut windows, at(5_200), MS * (4_040 - 2 * packet));
        }
        acknowledged(&mut windows, at(5_202), MS * 40);
        let after = windows.window(at(5_203), &paths[0]);
        assert!(after > before * 0.5, "{before:.0} bytes, then {after:.0}");
    }

    #[test]
    fn a_path_brings_no_more_than_its_congestion_window_lets_through() {
        let mut windows = Windows::new(MS * 100);
        let now = Instant::from_millis(10_000);
        windows.push_known(now, PathId(0), MS, MS * 40);
        let rooms = |window: u64, rtt_ms: u64| {
            let paths = [path(0, rtt_ms, window)];
            windows.rooms(now, &free(&paths))[0].round()
        };
        // 80 ms by a packet of 1,200 bytes each millisecond.
        assert_eq!(rooms(1 << 30, 40), 0.8 * 96_000.0);
        // Two round trips of a window, or one where they are long.
        assert_eq!(rooms(12_000, 40), 0.8 * 24_000.0);
        assert_eq!(rooms(12_000, 400), 0.8 * 12_000.0);
    }

    #[test]
    fn the_window_never_exceeds_the_congestion_window() {
        let mut windows = Windows::new(MS * 100);
        let paths = [path(0, 40, 12_000)];
        windows.look_at(&free(&paths));
        // One packet each 20 ms, each as fast as the one before: they show no pace.
        for packet in 0..100 {
            acknowledged(&mut windows, Instant::from_millis(1_000 + 20 * packet), MS * 40);
        }
        let now = Instant::from_millis(3_000);
        let rate = windows.rates(now, &free(&paths))[0];
        assert!(rate <= 0.8 * 12_000.0 / 0.04 + 1.0, "{rate:.0} bytes a second");
    }

    #[test]
    fn a_pace_that_is_old_is_not_believed() {
        let mut windows = Windows::new(MS * 100);
        let now = Instant::from_millis(10_000);
        windows.push_known(now, PathId(0), MS * 40, MS * 40);
        let path = path(0, 40, 48_000);
        let at = |later: Duration| windows.window(now + later, &path).round();
        assert_eq!(at(MS * 1_900), 2_400.0, "80 ms by a packet each 40");
        assert_eq!(at(MS * 2_100), 96_000.0, "a window of 48,000 bytes in each of 40 ms");
    }

    #[test]
    fn a_video_has_the_rooms_that_its_scheduler_would_use() {
        let usable = [path(0, 40, 9_000), path(1, 50, 9_000), path(2, 60, 9_000)];
        let mut suspect = usable.clone();
        suspect[2].status = roadweave_proto::PathStatus::Suspect;
        let mut single = crate::Single::new("wwan0");
        crate::Scheduler::name_path(&mut single, PathId(1), "wwan0");
        let schedulers: [(Box<dyn crate::Scheduler>, f64, f64); 3] = [
            (Box::new(crate::MinRtt::default()), 60.0, 30.0),
            (Box::new(crate::Redundant), 30.0, 20.0),
            (Box::new(single), 20.0, 20.0),
        ];
        for (scheduler, all, without) in schedulers {
            assert_eq!(scheduler.share_of(&free(&usable), &[10.0, 20.0, 30.0]), all);
            assert_eq!(scheduler.share_of(&free(&suspect), &[10.0, 20.0, 0.0]), without);
        }
    }
}
