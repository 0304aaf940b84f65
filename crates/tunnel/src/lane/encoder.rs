//! Targets for the encoder behind a lane: the largest next frame that is in time, or a rate.
//!
//! ```text
//! acknowledged ─► Windows ─► rooms by path ─┬─► scheduler: which of them a video has ─► next frame
//!                            rates by path ─┘                                        └► smoothed: rate
//! ```
//!
//! Where the route of every path takes the deadline or longer, a target of zero would stop the
//! video. The target is then what the paths carry within a deadline after the nearest route.
//!
//! Packets in flight on a path that falls silent go first on the others. Where these carry too
//! little in time, a key frame is better ([`super::superseded`]). A counter signals this.
//!
//! A path that stops answering leaves the sum at once. The smoothed rate falls quickly and rises
//! slowly: overshooting delays pictures, and undershooting only blurs them.
//!
//! Source: LoLa section 3.3, equations 2 and 3.

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathStatus, Rate};
use roadweave_schedule::{Scheduler, Windows};
use serde::{Deserialize, Serialize};

/// What an encoder should do, in bytes of the tunnel's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderTarget {
    /// Bytes that the next frame may have to arrive within the lane's deadline, or within one
    /// deadline beyond the nearest route where that takes as long; zero: no path answers.
    pub frame_bytes: u64,
    /// The rate that the paths have kept recently.
    #[serde(rename = "bitrate_bps")]
    pub bitrate: Rate,
    /// How often a key frame would have been better than repairing what was left on silent paths.
    #[serde(default)]
    pub renewals: u64,
}

#[derive(Debug)]
pub(super) struct Targets {
    deadline: Duration,
    pub(super) windows: Windows,
    smoothed: Option<(Instant, f64)>,
    pub(super) target: EncoderTarget,
    asked: Option<Instant>,
    /// The paths that answered at the last call, with their bytes in flight.
    answering: Vec<(PathId, u64)>,
    stranded: u64,
}

impl Targets {
    pub(super) fn new(deadline: Duration) -> Self {
        let (windows, target) = (Windows::new(deadline), EncoderTarget::default());
        let (smoothed, asked, answering) = (None, None, Vec::new());
        Self { deadline, windows, smoothed, target, asked, answering, stranded: 0 }
    }

    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.asked.is_some_and(|at| now.since(at) < ASKED_MAX)
    }

    pub(super) fn take(
        &mut self,
        now: Instant,
        scheduler: &dyn Scheduler,
        paths: &[PathOffer<'_>],
        waiting: u64,
        under_way: u64,
    ) -> EncoderTarget {
        self.windows.look_at(paths);
        self.set_reach(now, scheduler, paths);
        let room = scheduler.share_of(paths, &self.windows.rooms(now, paths));
        let rate = scheduler.share_of(paths, &self.windows.rates(now, paths));
        // While a path answers, zero would be taken for dead links.
        let answer = |path: &PathOffer<'_>| f64::from(path.takes_data() && path.is_usable());
        let answering: Vec<f64> = paths.iter().map(answer).collect();
        let answers = scheduler.share_of(paths, &answering) > 0.0;
        let least = if answers { FRAME_MIN } else { 0 };
        let rate = match self.smoothed {
            Some((at, before)) => {
                let takes = if rate < before { FALL } else { RISE };
                let kept = (-now.since(at).as_secs_f64() / takes.as_secs_f64()).exp();
                rate + (before - rate) * kept
            }
            None => rate,
        };
        self.smoothed = Some((now, rate));
        self.asked = Some(now);
        self.stranded = (self.stranded + self.newly_silent(paths)).min(under_way);
        // Without a path that answers, a restart is useless.
        let stranded = if answers { std::mem::take(&mut self.stranded) } else { 0 };
        let renews = answers && stranded as f64 > room;
        self.target = EncoderTarget {
            renewals: self.target.renewals + u64::from(renews),
            frame_bytes: ((room - waiting as f64 + ROUNDING).max(0.0) as u64).max(least),
            bitrate: Rate::from_bytes_per_second(rate as u64),
        };
        self.target
    }

    /// Sets the time for a frame: the deadline, or a deadline beyond the scheduler's nearest route.
    fn set_reach(&mut self, now: Instant, scheduler: &dyn Scheduler, paths: &[PathOffer<'_>]) {
        let answering = paths.iter().filter(|path| path.takes_data() && path.is_usable());
        let routes = answering.map(|path| path.snapshot.min_rtt / 2);
        let far = routes.filter(|route| *route >= self.deadline);
        let reaches = far.map(|route| route + self.deadline).chain([self.deadline]);
        let mut reaches: Vec<Duration> = reaches.collect();
        reaches.sort_unstable();
        let brings = |reach: &Duration| {
            self.windows.set_delta(*reach);
            scheduler.share_of(paths, &self.windows.rates(now, paths)) > 0.0
        };
        if !reaches.iter().any(brings) {
            self.windows.set_delta(self.deadline);
        }
    }

    fn newly_silent(&mut self, paths: &[PathOffer<'_>]) -> u64 {
        let held = |(id, before): &(PathId, u64)| {
            let path = paths.iter().map(|path| path.snapshot).find(|path| path.id == *id);
            match path {
                Some(path) if path.status == PathStatus::Suspect => path.bytes_in_flight,
                Some(_) => 0,
                None => *before,
            }
        };
        let held = self.answering.iter().map(held).sum();
        let answering = paths.iter().map(|path| path.snapshot).filter(|path| path.is_usable());
        self.answering = answering.map(|path| (path.id, path.bytes_in_flight)).collect();
        held
    }
}

/// Time in which the smoothed rate falls by two thirds.
const FALL: Duration = Duration::from_millis(50);
/// Time in which it rises by two thirds: a returned path is used to nine tenths a second later.
const RISE: Duration = Duration::from_millis(400);
const FRAME_MIN: u64 = 1_200;
const ASKED_MAX: Duration = Duration::from_secs(10);
const ROUNDING: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use roadweave_proto::{PathSnapshot, Policy, Priority};
    use roadweave_schedule::{MinRtt, Policed};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn take(targets: &mut Targets, at_ms: u64, path: &PathSnapshot, waiting: u64) -> EncoderTarget {
        let now = Instant::from_millis(at_ms);
        targets.take(now, &MinRtt::default(), &[PathOffer::free(path)], waiting, 0)
    }

    /// The renewals of a path of 40 ms in these states, 33 ms each, while another answers or not.
    fn renewals(in_flight: u64, under_way: u64, states: &[(Option<PathStatus>, bool)]) -> Vec<u64> {
        let path = |id| PathSnapshot::idle(PathId(id), MS * 40, 12_000);
        let mut targets = Targets::new(MS * 100);
        let mut counts = Vec::new();
        for (at, (first, other_answers)) in states.iter().enumerate() {
            let other = if *other_answers { PathStatus::Usable } else { PathStatus::Suspect };
            let first =
                first.map(|status| PathSnapshot { status, bytes_in_flight: in_flight, ..path(0) });
            let other = PathSnapshot { status: other, ..path(1) };
            let paths: Vec<_> = first.iter().chain([&other]).map(PathOffer::free).collect();
            let now = Instant::from_millis(at as u64 * 33);
            let target = targets.take(now, &MinRtt::default(), &paths, 0, under_way);
            counts.push(target.renewals);
        }
        counts
    }

    const ANSWERS: (Option<PathStatus>, bool) = (Some(PathStatus::Usable), true);
    const SILENT: (Option<PathStatus>, bool) = (Some(PathStatus::Suspect), true);

    #[test]
    fn what_is_stranded_and_more_than_the_others_bring_in_time_renews_once() {
        let falls_silent = [ANSWERS, SILENT, SILENT, ANSWERS];
        assert_eq!(renewals(19_000, 50_000, &falls_silent), [0, 0, 0, 0]);
        assert_eq!(renewals(20_000, 50_000, &falls_silent), [0, 1, 1, 1]);
        assert_eq!(renewals(20_000, 15_000, &falls_silent), [0, 0, 0, 0], "it is of other lanes");
        assert_eq!(renewals(20_000, 50_000, &falls_silent[1..]), [0, 0, 0], "it was so before");
        assert_eq!(renewals(20_000, 50_000, &[ANSWERS, (None, true)]), [0, 1], "it is gone");
        let parked = (Some(PathStatus::Standby), true);
        assert_eq!(renewals(20_000, 50_000, &[ANSWERS, parked]), [0, 0], "it still brings that");
    }

    #[test]
    fn after_an_outage_of_all_paths_one_that_returns_asks_for_a_key_frame() {
        let dead = (Some(PathStatus::Suspect), false);
        assert_eq!(renewals(20_000, 50_000, &[ANSWERS, dead, dead, SILENT]), [0, 0, 0, 1]);
        assert_eq!(renewals(9_000, 50_000, &[ANSWERS, dead, dead, SILENT]), [0, 0, 0, 0]);
    }

    #[test]
    fn without_a_path_within_the_deadline_the_target_is_what_the_paths_carry() {
        for rtt_ms in [200, 201, 600] {
            let path = PathSnapshot::idle(PathId(0), MS * rtt_ms, 60_000);
            let target = take(&mut Targets::new(MS * 100), 0, &path, 0);
            // The target is four fifths of a window per round trip.
            let carried = 8 * 48_000 * 1_000 / u64::from(rtt_ms);
            assert!(target.bitrate.as_bps().abs_diff(carried) < 1_000, "{rtt_ms}: {target:?}");
            assert!(target.frame_bytes > 5_000, "{rtt_ms}: {target:?}");
        }
        // A nearer backup carries nothing while the satellite answers.
        let policy = Policy { priority: Priority::Backup, ..Policy::default() };
        let near = PathSnapshot { policy, ..PathSnapshot::idle(PathId(1), MS * 50, 60_000) };
        let far = PathSnapshot::idle(PathId(0), MS * 600, 60_000);
        let scheduler = Policed::new(Box::new(MinRtt::default()));
        let paths = [PathOffer::free(&far), PathOffer::free(&near)];
        let target = Targets::new(MS * 100).take(Instant::ZERO, &scheduler, &paths, 0, 0);
        assert!(target.frame_bytes > 5_000 && target.bitrate.as_bps() > 600_000, "{target:?}");
        // A queue that delays all for a moment is no long route.
        let queued =
            PathSnapshot { latest_rtt: MS * 400, ..PathSnapshot::idle(PathId(0), MS * 40, 60_000) };
        let target = take(&mut Targets::new(MS * 100), 0, &queued, 0);
        assert_eq!(target.frame_bytes, FRAME_MIN, "the path is not dead");
    }

    #[test]
    fn a_target_falls_at_once_and_rises_within_a_second() {
        let path = PathSnapshot::idle(PathId(0), MS * 40, 12_000);
        let dead = PathSnapshot { status: PathStatus::Suspect, ..path.clone() };
        let mut targets = Targets::new(MS * 100);
        let full = take(&mut targets, 0, &path, 0);
        assert_eq!(full.frame_bytes, 19_200);
        assert_eq!(full.bitrate, Rate::from_kbps(1_920));
        assert_eq!(take(&mut targets, 10, &path, 5_000).frame_bytes, 14_200, "what waits is first");
        assert_eq!(take(&mut targets, 20, &path, 90_000).frame_bytes, 1_200, "it is not dead");
        let fallen = take(&mut targets, 120, &dead, 0);
        assert_eq!(fallen.frame_bytes, 0);
        assert!(fallen.bitrate < Rate::from_kbps(300), "{fallen:?}");
        take(&mut targets, 2_000, &dead, 0);
        take(&mut targets, 2_010, &path, 0);
        let risen = take(&mut targets, 3_010, &path, 0);
        assert!(risen.bitrate > Rate::from_kbps(1_700), "{risen:?}");
        assert!(targets.is_wanted(Instant::from_millis(13_000)));
        assert!(!targets.is_wanted(Instant::from_millis(13_020)));
    }
}
