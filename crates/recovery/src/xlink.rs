//! `xlink`: sends lost packets again, and packets that are late on a slow path a second time on a fast one
//! before they are lost.
//!
//! ```text
//! nothing waits to be sent ─► control: is a copy worth its bytes? ─► oldest unacknowledged packet of a
//!                               │                                    slower path ─► copy on a faster one
//!   dt, the play-time left ─────┤  dt > T2: no      dt < T1: yes
//!                               └  between: yes if dt < max over paths with packets of (rtt + deviation)
//! ```
//!
//! Sources: XLINK section 5.1 for re-injection, section 5.2 and algorithm 1 for its control. T1 and T2 are
//! the values that dt exceeds in so many percent of the time ([`Thresholds`], section 7.1); until dt was
//! observed for a while only the comparison between them decides.
//!
//! dt comes from the receiving application, if it tells ([`Qoe`]). A real-time receiver has next to no
//! buffer and seldom tells; then dt is the lane's deadline less the age of the oldest packet that is not
//! acknowledged: what is left until that packet is late.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_types::{Instant, PacketId, PathId, PathSnapshot};

use crate::flight::State;
use crate::qoe::Report;
use crate::{Qoe, Recovery, RecoveryConfig, RecoveryStats, Reliable, Repair, SentPacket, spare};

/// Where the control of re-injection begins and ends, by how often the play-time left exceeds each value, in
/// percent of the time: 1 to 99, `first` not below `second`.
///
/// Source: XLINK section 7.1, which writes them as (X, Y).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// X: below the value that is exceeded so often, copies are sent.
    first: u8,
    /// Y: above the value that is exceeded so often, none are.
    second: u8,
}

impl Default for Thresholds {
    /// The paper's choice: most of the gain, for copies of 2 % of the traffic.
    fn default() -> Self {
        Self { first: 95, second: 80 }
    }
}

impl Thresholds {
    /// Those of a recovery called `xlink`, or `xlink:X-Y`; `None` for any other name.
    pub fn by_name(name: &str) -> Option<Self> {
        if name == "xlink" {
            return Some(Self::default());
        }
        let (first, second) = name.strip_prefix("xlink:")?.split_once('-')?;
        let (first, second) = (first.parse().ok()?, second.parse().ok()?);
        (1 <= second && second <= first && first <= 99).then_some(Self { first, second })
    }
}

/// The recovery of XLINK, for datagrams.
#[derive(Debug)]
pub struct Xlink {
    deadline: Duration,
    reliable: Reliable,
    /// By path: packets that may be sent on another one as well, oldest first.
    candidates: BTreeMap<PathId, VecDeque<(Instant, PacketId)>>,
    /// What the application told last.
    report: Option<Report>,
    observed: Observed,
    /// When the control is asked again, if nothing happens before.
    next_look: Option<Instant>,
    reinjected: u64,
}

impl Xlink {
    /// A recovery for one lane.
    pub fn new(config: RecoveryConfig, thresholds: Thresholds) -> Self {
        Self {
            deadline: config.deadline,
            reliable: Reliable::new(config),
            candidates: BTreeMap::new(),
            report: None,
            observed: Observed::new(thresholds),
            next_look: None,
            reinjected: 0,
        }
    }

    /// The play-time left.
    fn play_time_left(&self, now: Instant) -> Duration {
        match (&self.report, self.reliable.oldest()) {
            (Some(report), _) => report.play_time_left(now),
            (None, Some(oldest)) => self.deadline.saturating_sub(now.since(oldest)),
            (None, None) => self.deadline,
        }
    }

    /// Whether packets are to be re-injected now: XLINK algorithm 1.
    fn is_on(&mut self, now: Instant, paths: &[PathSnapshot]) -> bool {
        let left = self.play_time_left(now);
        self.observed.note(now, left);
        if let Some((low, high)) = self.observed.thresholds() {
            if left > high {
                return false;
            }
            if left < low {
                return true;
            }
        }
        let has_packets = |path: &&PathSnapshot| self.candidates.contains_key(&path.id);
        let slowest = paths.iter().filter(has_packets).map(delivery_time).max();
        slowest.is_some_and(|slowest| left < slowest)
    }

    /// Forgets candidates that are acknowledged, lost or on several paths by now.
    fn trim(&mut self) {
        let reliable = &self.reliable;
        self.candidates.retain(|path, queue| {
            let is_on_its_way = |id| {
                !reliable.flight().has_further(id)
                    && matches!(reliable.flight().state(id), Some(State::InFlight { path: on, .. }) if on == *path)
            };
            while queue.front().is_some_and(|(_, id)| !is_on_its_way(*id)) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
    }

    /// The oldest packet that a faster path has room for, on that path.
    fn reinjection(&mut self, now: Instant, paths: &[PathSnapshot]) -> Option<Repair> {
        let oldest = self.candidates.iter().filter_map(|(slow, queue)| {
            let (sent, id) = *queue.front()?;
            let slow = paths.iter().find(|path| path.id == *slow)?;
            // An answer that is overdue says that the path is slower than its figures.
            let answer = delivery_time(slow).max(now.since(sent));
            let takes = |path: &&PathSnapshot| {
                path.is_usable()
                    && path.id != slow.id
                    && spare(path) >= REINJECTED_BYTES
                    && (path.smoothed_rtt < answer || !slow.is_usable())
            };
            let fast =
                paths.iter().filter(takes).min_by_key(|path| (path.smoothed_rtt, path.id))?;
            Some((sent, slow.id, id, fast.id))
        });
        let (_, slow, id, fast) = oldest.min_by_key(|(sent, slow, ..)| (*sent, *slow))?;
        self.candidates.get_mut(&slow)?.pop_front();
        self.reinjected += 1;
        Some(Repair::Reinject { id, path: fast })
    }
}

impl Recovery for Xlink {
    fn on_sent(&mut self, now: Instant, packet: SentPacket, paths: &[PathSnapshot]) {
        let is_further = matches!(
            self.reliable.flight().state(packet.id),
            Some(State::InFlight { .. } | State::Settled)
        );
        if !is_further {
            self.candidates.entry(packet.path).or_default().push_back((now, packet.id));
        }
        self.reliable.on_sent(now, packet, paths);
    }

    fn on_waiting(&mut self, now: Instant, packet: SentPacket, paths: &[PathSnapshot]) {
        self.reliable.on_waiting(now, packet, paths);
    }

    fn on_acknowledged(&mut self, now: Instant, id: PacketId) {
        self.reliable.on_acknowledged(now, id);
    }

    fn on_abandoned(&mut self, id: PacketId) {
        self.reliable.on_abandoned(id);
    }

    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        self.reliable.on_lost(now, id, path);
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathSnapshot],
        backlog: u64,
    ) -> Option<Repair> {
        let repair = self.reliable.poll_repair(now, paths, backlog);
        if repair.is_some() {
            return repair;
        }
        self.trim();
        self.next_look = (!self.candidates.is_empty()).then_some(now + LOOK_INTERVAL);
        // What has not left for the first time goes first.
        if backlog > 0 || !self.is_on(now, paths) {
            return None;
        }
        self.reinjection(now, paths)
    }

    fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        self.report = Some(Report { at: now, qoe });
    }

    fn is_settled(&self) -> bool {
        self.reliable.is_settled()
    }

    fn poll_lost(&mut self) -> Option<PacketId> {
        self.reliable.poll_lost()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.reliable.poll_timeout(), self.next_look].into_iter().flatten().min()
    }

    fn stats(&self) -> RecoveryStats {
        let stats = self.reliable.stats();
        RecoveryStats { repairs: stats.repairs + self.reinjected, ..stats }
    }
}

/// How long a packet on `path` is expected to take (algorithm 1).
fn delivery_time(path: &PathSnapshot) -> Duration {
    path.smoothed_rtt + path.rtt_deviation
}

/// The play-times left that were seen of late.
#[derive(Debug)]
struct Observed {
    asked: Thresholds,
    samples: VecDeque<Duration>,
    last: Option<Instant>,
    thresholds: Option<(Duration, Duration)>,
    since_thresholds: usize,
}

impl Observed {
    fn new(asked: Thresholds) -> Self {
        let samples = VecDeque::new();
        Self { asked, samples, last: None, thresholds: None, since_thresholds: 0 }
    }

    fn note(&mut self, now: Instant, left: Duration) {
        if self.last.is_some_and(|last| now < last + LOOK_INTERVAL) {
            return;
        }
        self.last = Some(now);
        self.samples.push_back(left);
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.since_thresholds += 1;
        if self.since_thresholds >= SAMPLES_MIN {
            self.since_thresholds = 0;
            let mut sorted: Vec<Duration> = self.samples.iter().copied().collect();
            sorted.sort_unstable();
            let exceeded_in =
                |percent| sorted[(sorted.len() - 1) * (100 - usize::from(percent)) / 100];
            self.thresholds = Some((exceeded_in(self.asked.first), exceeded_in(self.asked.second)));
        }
    }

    /// T1 and T2, once enough was seen.
    fn thresholds(&self) -> Option<(Duration, Duration)> {
        self.thresholds
    }
}

/// How often the play-time left is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Samples before there are thresholds, and between two reckonings.
const SAMPLES_MIN: usize = 100;
/// Samples that are remembered: 30 s.
const SAMPLES_MAX: usize = 3000;
/// The room that a path must have for a copy: no datagram is longer.
const REINJECTED_BYTES: u64 = 1500;

#[cfg(test)]
mod tests;
