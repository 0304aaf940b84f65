//! The recovery of `pluribus`: spare capacity of the paths carries combinations of recent packets.
//!
//! Source: Mahajan, Padhye, Agarwal, Zill: "High Performance Vehicular Connectivity with
//! Opportunistic Erasure Coding" (USENIX ATC 2012): evolution codes and opportunistic
//! transmissions. One of the competitors in CellFusion section 8.3.4.
//!
//! ```text
//! W, the unacknowledged packets of the last round trip
//!                              r, the share of W that the receiver has, as estimated
//!
//! queue empty, and a path has spare capacity ─► a combination of d packets of W, chosen at random
//!                                                d = max(1, floor(-1 / ln r)): the best degree
//! new packet         r·W grows by 1 - p        p: the paths' loss
//! combination of d   r·W grows by (1 - p)·d·(1 - r)·r^(d-1): it helps if exactly one is missing
//! acknowledged       it leaves W, and r·W with it
//! ```
//!
//! A combination is sent before any loss is known. Two limits are ours: not more combinations than
//! packets, since several links have far more capacity than a vehicle needs, and at most
//! [`DEGREE_MAX`] packets in a combination. The d packets are neighbours, combined as in XNC; the
//! paper adds up d packets from anywhere in W.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot, SplitMix64};
use roadweave_recovery::{Recovery, RecoveryConfig, RecoveryStats, Repair, SentCopy, spare};

#[derive(Debug)]
pub(super) struct Pluribus {
    expire_after: Duration,
    /// W: the unacknowledged packets of the last round trip, ascending.
    window: VecDeque<WindowPacket>,
    /// r·W: how many of them the receiver is expected to have.
    received: f64,
    credit: usize,
    loss: f64,
    random: SplitMix64,
    next_look: Option<Instant>,
    stats: RecoveryStats,
}

#[derive(Clone, Copy, Debug)]
struct WindowPacket {
    id: PacketId,
    sent: Instant,
}

impl Pluribus {
    pub(super) fn new(config: RecoveryConfig) -> Self {
        Self {
            expire_after: config.expire_after,
            window: VecDeque::new(),
            received: 0.0,
            credit: 0,
            loss: LOSS_MIN,
            random: SplitMix64::new(0),
            next_look: None,
            stats: RecoveryStats::default(),
        }
    }

    fn share(&self) -> f64 {
        let share = self.received / self.window.len().max(1) as f64;
        share.clamp(SHARE_MIN, SHARE_MAX)
    }

    fn note(&mut self, now: Instant, id: PacketId) {
        let is_new = self.window.back().is_none_or(|newest| newest.id.precedes(id));
        if is_new {
            self.window.push_back(WindowPacket { id, sent: now });
            self.received += 1.0 - self.loss;
            self.credit += 1;
            if self.window.len() > WINDOW_MAX {
                self.retire();
            }
        }
    }

    fn retire(&mut self) {
        let share = self.share();
        if self.window.pop_front().is_some() {
            self.received = (self.received - share).max(0.0);
        }
    }

    fn position(&self, id: PacketId) -> Option<usize> {
        let at = self.window.partition_point(|member| member.id.precedes(id));
        self.window.get(at).is_some_and(|member| member.id == id).then_some(at)
    }

    /// At most `degree` neighbours from a random one on: the first, and their number.
    fn choose(&mut self, degree: usize) -> (PacketId, u16) {
        let begin = self.random.below(self.window.len());
        let first = self.window[begin].id;
        let run = self.window.range(begin..).take(degree).zip(0..);
        let count = run.take_while(|(member, at)| member.id == first.plus(*at)).count();
        (first, count as u16)
    }
}

impl Recovery for Pluribus {
    fn on_sent(&mut self, now: Instant, packet: SentCopy, _paths: &[PathSnapshot]) {
        self.note(now, packet.id);
    }

    fn on_waiting(&mut self, now: Instant, packet: SentCopy, _paths: &[PathSnapshot]) {
        self.note(now, packet.id);
    }

    fn on_acknowledged(&mut self, _now: Instant, id: PacketId) {
        self.on_superseded(id);
    }

    fn on_superseded(&mut self, id: PacketId) -> bool {
        let Some(at) = self.position(id) else { return false };
        self.window.remove(at);
        self.received = (self.received - 1.0).max(0.0);
        true
    }

    fn on_abandoned(&mut self, _id: PacketId) {} // it never asks for `Repair::Again`

    fn on_lost(&mut self, _now: Instant, _id: PacketId, _path: PathId) {
        self.stats.lost += 1;
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        backlog: u64,
    ) -> Option<Repair> {
        let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
        let round_trip = usable().map(|path| path.snapshot.smoothed_rtt).max().unwrap_or_default();
        let age_max = round_trip.min(self.expire_after);
        while self.window.front().is_some_and(|oldest| now.since(oldest.sent) > age_max) {
            self.retire();
        }
        self.loss = loss(paths);
        self.next_look = None;
        let share = self.share();
        let degree = degree(share);
        self.credit = self.credit.min(self.window.len());
        if backlog > 0 || self.credit == 0 {
            return None;
        }
        // A combination that waits for the pacer would delay new packets.
        let path = usable()
            .filter(|path| spare(path) >= u64::from(path.snapshot.mtu))
            .map(|path| path.snapshot)
            .min_by_key(|path| (path.smoothed_rtt, path.id));
        let Some(path) = path else {
            self.next_look = Some(now + LOOK_INTERVAL);
            return None;
        };
        let (start, count) = self.choose(degree);
        let gain = gain(share, count.into(), self.loss);
        self.credit -= 1;
        self.received = (self.received + gain).min(self.window.len() as f64);
        self.stats.repairs += 1;
        Some(Repair::Coded { start, count, lost: 0, shares: vec![(path.id, 1)] })
    }

    fn is_settled(&self) -> bool {
        self.window.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let oldest = self.window.front().map(|oldest| oldest.sent + self.expire_after);
        let expiry = oldest.map(|expiry| expiry + Duration::from_nanos(1));
        [self.next_look, expiry].into_iter().flatten().min()
    }

    fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

fn degree(share: f64) -> usize {
    ((-1.0 / share.ln()).floor() as usize).clamp(1, DEGREE_MAX)
}

fn gain(share: f64, degree: usize, loss: f64) -> f64 {
    (1.0 - loss) * degree as f64 * (1.0 - share) * share.powi(degree as i32 - 1)
}

fn loss(paths: &[PathOffer<'_>]) -> f64 {
    let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
    let carries = |path: &PathOffer<'_>| path.window_for_repairs();
    let weight: u64 = usable().map(carries).sum();
    let lost: f64 = usable().map(|path| f64::from(path.snapshot.loss) * carries(path) as f64).sum();
    (lost / weight.max(1) as f64).clamp(LOSS_MIN, LOSS_MAX)
}

/// A second of 24 Mbit/s.
const WINDOW_MAX: usize = 2048;
/// Loss assumed for paths without recent losses, which may lose packets at any time.
const LOSS_MIN: f64 = 0.01;
const LOSS_MAX: f64 = 0.9;
const SHARE_MIN: f64 = 0.001;
const SHARE_MAX: f64 = 1.0 - 1e-6;
const DEGREE_MAX: usize = 32;
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use roadweave_proto::Urgency;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn sent(id: u32) -> SentCopy {
        SentCopy {
            id: PacketId(id),
            path: PathId(0),
            bytes: 1200,
            ends_frame: false,
            urgency: Urgency::FIRST,
        }
    }

    fn after(count: u32, loss: f32) -> (Pluribus, PathSnapshot) {
        let rtt = Duration::from_millis(100);
        let path = PathSnapshot { loss, ..PathSnapshot::idle(PathId(0), rtt, 1_200_000) };
        let mut pluribus = Pluribus::new(RecoveryConfig::default());
        poll(&mut pluribus, 0, &path, 0);
        (0..count).for_each(|id| pluribus.on_sent(at(0), sent(id), std::slice::from_ref(&path)));
        (pluribus, path)
    }

    fn poll(pluribus: &mut Pluribus, ms: u64, path: &PathSnapshot, backlog: u64) -> Option<Repair> {
        pluribus.poll_repair(at(ms), &[PathOffer::free(path)], backlog)
    }

    #[test]
    fn the_degree_is_the_one_that_helps_most() {
        for share in [0.0_f64, 0.1, 0.5, 0.7, 0.9, 0.95, 0.969] {
            let share = share.max(SHARE_MIN);
            let chosen = gain(share, degree(share), 0.1);
            let best = (1..=64).map(|degree| gain(share, degree, 0.1)).fold(0.0, f64::max);
            assert!(chosen > 0.94 * best, "r = {share}: {chosen}, and {best} was possible");
        }
        assert_eq!((degree(0.5), degree(0.9), degree(SHARE_MAX)), (1, 9, DEGREE_MAX));
    }

    #[test]
    fn combinations_rank_below_data_and_use_only_spare_room() {
        let (mut pluribus, mut path) = after(20, 0.1);
        assert_eq!(poll(&mut pluribus, 1, &path, 1), None);
        path.pacing_budget = 1451;
        assert_eq!(poll(&mut pluribus, 1, &path, 0), None);
        assert_eq!(pluribus.poll_timeout(), Some(at(3)), "there may be room soon");
        path.pacing_budget = 2000;
        let sent = poll(&mut pluribus, 3, &path, 0);
        assert!(matches!(sent, Some(Repair::Coded { .. })), "{sent:?}");
        let queued = PathOffer { queued_bytes: 1200, ..PathOffer::free(&path) };
        assert_eq!(pluribus.poll_repair(at(3), &[queued], 0), None);
    }

    #[test]
    fn combinations_cover_unacknowledged_packets_only_and_are_no_more_than_these() {
        let (mut pluribus, path) = after(60, 0.2);
        for id in (0..60).filter(|id| id % 3 != 0) {
            pluribus.on_acknowledged(at(1), PacketId(id));
        }
        let mut combinations = 0;
        while let Some(repair) = poll(&mut pluribus, 2, &path, 0) {
            let Repair::Coded { start, count, .. } = repair else { panic!("{repair:?}") };
            for id in start.0..start.0 + u32::from(count) {
                assert!(id % 3 == 0 && id < 60, "{id} is acknowledged, or was never sent");
            }
            combinations += 1;
        }
        assert_eq!(combinations, 20);
        (0..60).for_each(|id| pluribus.on_acknowledged(at(9), PacketId(id)));
        assert!(pluribus.is_settled());
        assert_eq!(poll(&mut pluribus, 9, &path, 0), None);
    }

    #[test]
    fn packets_leave_the_window_with_age() {
        let (mut pluribus, path) = after(5, 0.1);
        assert_eq!(poll(&mut pluribus, 101, &path, 0), None);
        assert!(pluribus.is_settled());
    }

    /// The paper's claim: without feedback, and with capacity for slightly more combinations than
    /// there are losses, the combinations alone recover nearly every lost packet.
    #[test]
    fn a_receiver_gets_back_what_was_lost_without_reporting_it() {
        const PACKETS: u32 = 60;
        let (mut pluribus, path) = after(PACKETS, 0.1);
        let mut missing: Vec<u32> = (0..PACKETS).filter(|id| id % 10 == 3).collect();
        let lost = missing.len();
        let mut runs = Vec::new();
        for _ in 0..3 * lost {
            let sent = poll(&mut pluribus, 1, &path, 0);
            let Some(Repair::Coded { start, count, .. }) = sent else { break };
            runs.push(start.0..start.0 + u32::from(count));
        }
        // Peeling: a combination with one missing packet yields that packet.
        while let Some(found) = runs.iter().find_map(|run| {
            let mut unknown = missing.iter().filter(|id| run.contains(id));
            unknown.next().filter(|_| unknown.next().is_none()).copied()
        }) {
            missing.retain(|id| *id != found);
        }
        assert!(missing.len() <= 1, "{} of {lost} are missing after {}", missing.len(), runs.len());
    }
}
