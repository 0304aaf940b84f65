//! `xlink`: sends lost packets again, and late packets of a slow path a second time on a fast one.
//!
//! ```text
//! nothing as urgent waits ─► control: is a copy worth its bytes? ─► oldest unacknowledged packet of a
//!                               │                                    slower path ─► copy on a faster one
//!   dt, the play-time left ─────┤  dt > T2: no      dt < T1: yes
//!                               └  between: yes if dt < max over paths with packets of (rtt + deviation)
//! ```
//!
//! Sources: XLINK section 5.1 for re-injection, section 5.2 and algorithm 1 for its control. T1 and
//! T2 are the values that dt exceeds in so many percent of the cases ([`Thresholds`], section 7.1);
//! until enough was observed only the comparison between them decides.
//!
//! dt comes from the receiving application, if it reports ([`Qoe`]); its cases are moments.
//! Otherwise dt is each packet's slack, the lane's deadline less its age until it is acknowledged,
//! and the cases are the packets that would have a copy without control ([`delays`]): a packet is
//! copied when it has waited for longer than most of them. The thresholds bound the copies as in
//! the paper. dt and thresholds may be negative: bounded by zero, they would be zero most of the
//! time where deadlines are shorter than round trips.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot, Urgency};

use self::allowance::Allowance;
use self::delays::RecentDelays;
use crate::flight::PacketState;
use crate::qoe::{Left, QoeReport};
use crate::{Qoe, Recovery, RecoveryConfig, RecoveryStats, Reliable, Repair, SentCopy, spare};

mod allowance;
mod delays;

/// The thresholds of the control, by how often the play-time left exceeds them, percent: 1 to 99,
/// `first` not below `second`.
///
/// Source: XLINK section 7.1, which writes them as (X, Y).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    first: u8,
    second: u8,
}

impl Default for Thresholds {
    /// The paper's choice: most of the gain, for copies of 2 % of the traffic.
    fn default() -> Self {
        Self { first: 95, second: 80 }
    }
}

impl Thresholds {
    /// Parses `X-Y` of `xlink:X-Y`.
    pub fn parse(percents: &str) -> Option<Self> {
        let (first, second) = percents.split_once('-')?;
        let (first, second) = (first.parse().ok()?, second.parse().ok()?);
        (1 <= second && second <= first && first <= 99).then_some(Self { first, second })
    }
}

/// XLINK for datagrams.
#[derive(Debug)]
pub struct Xlink {
    deadline: Duration,
    reliable: Reliable,
    /// By path: packets that may be sent on another one as well.
    candidates: BTreeMap<PathId, Candidates>,
    next: Urgency,
    report: Option<QoeReport>,
    observed: Observed,
    allowance: Allowance,
    delays: RecentDelays,
    /// Packets in flight that would be copied without control.
    eligible: BTreeSet<u32>,
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
            next: Urgency::FIRST,
            report: None,
            observed: Observed::new(thresholds),
            allowance: Allowance::default(),
            delays: RecentDelays::default(),
            eligible: BTreeSet::new(),
            next_look: None,
            reinjected: 0,
        }
    }

    /// The play-time left and both thresholds for a packet, by player reports or by its slack.
    fn play_time_left(&mut self, now: Instant, id: PacketId) -> (Left, Option<(Left, Left)>) {
        if let Some(report) = &self.report {
            return (report.play_time_left(now), self.observed.thresholds());
        }
        let left = |age| Left::of(self.deadline, age);
        let Thresholds { first, second } = self.observed.asked;
        let thresholds =
            self.delays.exceeded_by(100 - first).zip(self.delays.exceeded_by(100 - second));
        let thresholds = thresholds.map(|(first, second)| (left(first), left(second)));
        let sent = self.reliable.flight().tag(id).unwrap_or(now);
        (left(now.since(sent)), thresholds)
    }

    fn wants(&mut self, now: Instant, id: PacketId, paths: &[PathOffer<'_>]) -> bool {
        let (left, thresholds) = self.play_time_left(now, id);
        if let Some((low, high)) = thresholds {
            if left > high {
                return false;
            }
            if left < low {
                return true;
            }
        }
        let has_packets = |path: &&PathSnapshot| self.candidates.contains_key(&path.id);
        let slowest =
            paths.iter().map(|path| path.snapshot).filter(has_packets).map(delivery_time).max();
        slowest.is_some_and(|slowest| left < Left::from(slowest))
    }

    fn look_at_player(&mut self, now: Instant) {
        if self.report.take_if(|report| report.is_outdated(now)).is_some() {
            self.observed.forget();
        }
        if let Some(report) = &self.report
            && !self.reliable.is_settled()
        {
            self.observed.note(now, report.play_time_left(now));
        }
    }

    fn trim(&mut self) {
        let reliable = &self.reliable;
        self.candidates.retain(|path, candidates| {
            let is_on_its_way = |id| {
                !reliable.flight().has_further(id)
                    && matches!(reliable.flight().state(id), Some(PacketState::InFlight { path: on, .. }) if on == *path)
            };
            candidates.retain(|_, queue| {
                while queue.front().is_some_and(|(_, id)| !is_on_its_way(*id)) {
                    queue.pop_front();
                }
                !queue.is_empty()
            });
            !candidates.is_empty()
        });
    }

    /// By path: first packet, and faster path with room; packets more urgent than `before` only.
    fn choices(
        &self,
        now: Instant,
        paths: &[PathOffer<'_>],
        before: Option<Urgency>,
    ) -> Vec<Choice> {
        let choices = self.candidates.iter().filter_map(|(slow, candidates)| {
            let (urgency, queue) = candidates.first_key_value()?;
            let urgency = *urgency;
            if before.is_some_and(|before| urgency >= before) {
                return None;
            }
            let (sent, id) = *queue.front()?;
            let slow = paths.iter().map(|path| path.snapshot).find(|path| path.id == *slow)?;
            // An overdue answer means that the path is slower than its figures.
            let answer = delivery_time(slow).max(now.since(sent));
            let takes = |path: &&PathOffer<'_>| {
                let PathOffer { snapshot, .. } = path;
                snapshot.is_usable()
                    && snapshot.id != slow.id
                    && spare(path) >= REINJECTED_BYTES
                    && (snapshot.smoothed_rtt < answer || !slow.is_usable())
            };
            let speed = |path: &&PathOffer<'_>| (path.snapshot.smoothed_rtt, path.snapshot.id);
            let fast = paths.iter().filter(takes).min_by_key(speed)?;
            let room = spare(fast) / REINJECTED_BYTES;
            Some(Choice { urgency, sent, slow: slow.id, id, fast: fast.snapshot.id, room })
        });
        choices.collect()
    }

    fn note_eligible(&mut self, choices: &[Choice]) {
        for choice in choices {
            let candidates = self.candidates.get(&choice.slow);
            let queue = candidates.and_then(|of| of.get(&choice.urgency)).into_iter().flatten();
            let flight = self.reliable.flight();
            let flies = |(_, id): &&(Instant, PacketId)| {
                matches!(flight.state(*id), Some(PacketState::InFlight { .. }))
            };
            let room = choice.room.min(ELIGIBLE_EACH) as usize;
            for (_, id) in queue.take(ELIGIBLE_EACH as usize).filter(flies).take(room) {
                self.eligible.insert(id.0);
            }
        }
        while self.eligible.len() > ELIGIBLE_MAX {
            self.eligible.pop_first();
        }
    }

    /// The most urgent, oldest packet to re-inject on a faster path, if more urgent than `before`.
    fn reinjection(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        before: Option<Urgency>,
    ) -> Option<Repair> {
        let choices = self.choices(now, paths, before);
        self.note_eligible(&choices);
        let first = choices.into_iter().min_by_key(|it| (it.urgency, it.sent, it.slow))?;
        let Choice { urgency, id, slow, fast, .. } = first;
        let has_report = self.report.is_some();
        if has_report && !self.allowance.has_one() || !self.wants(now, id, paths) {
            return None;
        }
        if has_report {
            self.allowance.take();
        }
        self.candidates.get_mut(&slow)?.get_mut(&urgency)?.pop_front();
        self.reinjected += 1;
        Some(Repair::Reinject { id, path: fast })
    }
}

/// The most urgent first, of these the oldest.
type Candidates = BTreeMap<Urgency, VecDeque<(Instant, PacketId)>>;

#[derive(Clone, Copy, Debug)]
struct Choice {
    urgency: Urgency,
    sent: Instant,
    slow: PathId,
    id: PacketId,
    fast: PathId,
    /// Packets that the faster path has room for.
    room: u64,
}

impl Recovery for Xlink {
    fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        let is_further = matches!(
            self.reliable.flight().state(packet.id),
            Some(PacketState::InFlight { .. } | PacketState::Settled)
        );
        if !is_further {
            self.allowance.on_first();
            let candidates = self.candidates.entry(packet.path).or_default();
            candidates.entry(packet.urgency).or_default().push_back((now, packet.id));
        }
        self.reliable.on_sent(now, packet, paths);
    }

    fn on_waiting(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]) {
        self.reliable.on_waiting(now, packet, paths);
    }

    fn on_acknowledged(&mut self, now: Instant, id: PacketId) {
        if self.eligible.remove(&id.0)
            && let Some(sent) = self.reliable.flight().tag(id)
        {
            self.delays.note(now, now.since(sent));
        }
        self.reliable.on_acknowledged(now, id);
    }

    fn on_abandoned(&mut self, id: PacketId) {
        self.eligible.remove(&id.0);
        self.reliable.on_abandoned(id);
    }

    fn on_superseded(&mut self, id: PacketId) -> bool {
        self.eligible.remove(&id.0);
        self.reliable.on_superseded(id)
    }

    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        self.reliable.on_lost(now, id, path);
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        backlog: u64,
    ) -> Option<Repair> {
        let repair = self.reliable.poll_repair(now, paths, backlog);
        if repair.is_some() {
            return repair;
        }
        self.trim();
        self.next_look = (!self.candidates.is_empty()).then_some(now + LOOK_INTERVAL);
        self.look_at_player(now);
        // New packets go first, unless one in flight is more urgent.
        self.reinjection(now, paths, (backlog > 0).then_some(self.next))
    }

    fn set_next(&mut self, urgency: Urgency) {
        self.next = urgency;
    }

    fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        if self.report.replace(QoeReport { at: now, qoe }).is_none() {
            self.observed.forget();
        }
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

fn delivery_time(path: &PathSnapshot) -> Duration {
    path.smoothed_rtt + path.rtt_deviation
}

#[derive(Debug)]
struct Observed {
    asked: Thresholds,
    samples: VecDeque<Left>,
    last: Option<Instant>,
    thresholds: Option<(Left, Left)>,
    since_thresholds: usize,
}

impl Observed {
    fn new(asked: Thresholds) -> Self {
        let samples = VecDeque::new();
        Self { asked, samples, last: None, thresholds: None, since_thresholds: 0 }
    }

    fn forget(&mut self) {
        *self = Self::new(self.asked);
    }

    fn note(&mut self, now: Instant, left: Left) {
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
            let mut sorted: Vec<Left> = self.samples.iter().copied().collect();
            sorted.sort_unstable();
            let exceeded_in =
                |percent| sorted[(sorted.len() - 1) * (100 - usize::from(percent)) / 100];
            self.thresholds = Some((exceeded_in(self.asked.first), exceeded_in(self.asked.second)));
        }
    }

    fn thresholds(&self) -> Option<(Left, Left)> {
        self.thresholds
    }
}

const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Samples before there are thresholds, and between two updates.
const SAMPLES_MIN: usize = 100;
/// 30 s.
const SAMPLES_MAX: usize = 3000;
/// The most packets noted at once: more would not leave before the next look.
const ELIGIBLE_EACH: u64 = 64;
const ELIGIBLE_MAX: usize = 1 << 16;
/// The room for a copy: no datagram is longer.
const REINJECTED_BYTES: u64 = 1500;

#[cfg(test)]
mod tests;
