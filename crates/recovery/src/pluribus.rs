//! `pluribus`: whatever room the paths have to spare carries sums of recent packets.
//!
//! Source: Mahajan, Padhye, Agarwal, Zill: "High Performance Vehicular Connectivity with
//! Opportunistic Erasure Coding" (USENIX ATC 2012): evolution codes and opportunistic
//! transmissions. One of the yardsticks of CellFusion section 8.3.4.
//!
//! ```text
//! W, the unacknowledged packets of the last round trip
//!                              r, the share of W that the receiver has, as far as one can guess
//!
//! nothing waits to be sent, a path has room ─► the sum of d packets of W, chosen at random
//!                                              d = max(1, floor(-1 / ln r)): the degree that helps most
//! new packet         r·W grows by 1 - p        p: the paths' loss
//! sum of d           r·W grows by (1 - p)·d·(1 - r)·r^(d-1): it helps if exactly one is missing
//! acknowledged       it leaves W, and r·W with it
//! ```
//!
//! Nothing waits for a loss to be noticed, and no loss is: a sum is sent before anybody knows
//! whether it is needed. Ours are two bounds: no more sums than packets, since the room of several
//! links is far more than what a vehicle sends; and half of the packets that a mask can name, since
//! the sum of all of them would tell the same again and again where several are missing.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_types::{Instant, PacketId, PathId, PathOffer, PathSnapshot, SplitMix64};

use crate::{Recovery, RecoveryConfig, RecoveryStats, Repair, SentCopy, spare};

/// The recovery of Pluribus.
#[derive(Debug)]
pub struct Pluribus {
    expire_after: Duration,
    /// W: the packets of the last round trip that are not acknowledged, ascending.
    window: VecDeque<Member>,
    /// r·W: how many of them the receiver has, as expected.
    received: f64,
    /// How many sums may be sent for what was sent so far.
    credit: usize,
    /// The share of packets that the paths lose.
    loss: f64,
    random: SplitMix64,
    next_look: Option<Instant>,
    stats: RecoveryStats,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    id: PacketId,
    sent: Instant,
}

impl Pluribus {
    /// A recovery for one lane.
    pub fn new(config: RecoveryConfig) -> Self {
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

    /// r, the share of W that the receiver has.
    fn share(&self) -> f64 {
        let share = self.received / self.window.len().max(1) as f64;
        share.clamp(SHARE_MIN, SHARE_MAX)
    }

    /// Adds a packet that is new to W.
    fn note(&mut self, now: Instant, id: PacketId) {
        let is_new = self.window.back().is_none_or(|newest| newest.id.precedes(id));
        if is_new {
            self.window.push_back(Member { id, sent: now });
            self.received += 1.0 - self.loss;
            self.credit += 1;
            if self.window.len() > WINDOW_MAX {
                self.retire();
            }
        }
    }

    /// The oldest packet leaves W.
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

    /// The sum of `degree` packets: the first, and a bit for each.
    fn choose(&mut self, degree: usize) -> (PacketId, u64) {
        // The packets must lie within a mask, so a place in W is chosen first.
        let begin = self.random.below(self.window.len());
        let first = self.window[begin].id;
        let near = |member: &&Member| member.id.distance(first) < u64::BITS as i32;
        let mut run: Vec<PacketId> =
            self.window.range(begin..).take_while(near).map(|member| member.id).collect();
        for at in 0..degree.min(run.len()) {
            let other = at + self.random.below(run.len() - at);
            run.swap(at, other);
        }
        run.truncate(degree);
        let start = run.iter().copied().min_by_key(|id| id.distance(first)).unwrap_or(first);
        let mask = run.iter().fold(0, |mask, id| mask | 1 << id.distance(start));
        (start, mask)
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
        // What its pacer would hold back would be in the way of new packets.
        let path = usable()
            .filter(|path| spare(path) >= u64::from(path.snapshot.mtu))
            .map(|path| path.snapshot)
            .min_by_key(|path| (path.smoothed_rtt, path.id));
        let Some(path) = path else {
            self.next_look = Some(now + LOOK_INTERVAL);
            return None;
        };
        let (start, mask) = self.choose(degree);
        let gain = gain(share, degree, self.loss);
        self.credit -= 1;
        self.received = (self.received + gain).min(self.window.len() as f64);
        self.stats.repairs += 1;
        Some(Repair::Sum { start, mask, path: path.id })
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

/// The degree of a sum that is most likely to help a receiver who has this share of the packets.
fn degree(share: f64) -> usize {
    ((-1.0 / share.ln()).floor() as usize).clamp(1, DEGREE_MAX)
}

/// How many packets a sum of `degree` brings, on average.
fn gain(share: f64, degree: usize, loss: f64) -> f64 {
    (1.0 - loss) * degree as f64 * (1.0 - share) * share.powi(degree as i32 - 1)
}

/// The share of packets that the paths lose, weighted by what they carry.
fn loss(paths: &[PathOffer<'_>]) -> f64 {
    let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
    let carries = |path: &PathOffer<'_>| path.window_for_repairs();
    let weight: u64 = usable().map(carries).sum();
    let lost: f64 = usable().map(|path| f64::from(path.snapshot.loss) * carries(path) as f64).sum();
    (lost / weight.max(1) as f64).clamp(LOSS_MIN, LOSS_MAX)
}

/// The most packets in W: a second of 24 Mbit/s.
const WINDOW_MAX: usize = 2048;
/// The loss of paths that have lost nothing of late: they may at any time.
const LOSS_MIN: f64 = 0.01;
/// The most loss that is reckoned with.
const LOSS_MAX: f64 = 0.9;
/// The least r, where its logarithm is of use.
const SHARE_MIN: f64 = 0.001;
/// The largest r, where its logarithm is of use.
const SHARE_MAX: f64 = 1.0 - 1e-6;
/// The most packets in a sum: half of those that a mask can name.
const DEGREE_MAX: usize = u64::BITS as usize / 2;
/// How soon a path is asked for spare room again.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use roadweave_types::Urgency;

    use super::*;
    use crate::testing::{Among, path};

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

    /// A recovery that has sent `count` packets, and a path of which it believes that it loses
    /// `loss`.
    fn after(count: u32, loss: f32) -> (Pluribus, PathSnapshot) {
        let path = PathSnapshot { loss, ..path(0, 100, 1000) };
        let mut pluribus = Pluribus::new(RecoveryConfig::default());
        pluribus.poll_repair_among(at(0), std::slice::from_ref(&path), 0);
        (0..count).for_each(|id| pluribus.on_sent(at(0), sent(id), std::slice::from_ref(&path)));
        (pluribus, path)
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
    fn sums_rank_below_data_and_use_only_spare_room() {
        let (mut pluribus, mut path) = after(20, 0.1);
        assert_eq!(pluribus.poll_repair_among(at(1), std::slice::from_ref(&path), 1), None);
        path.pacing_budget = 1451;
        assert_eq!(pluribus.poll_repair_among(at(1), std::slice::from_ref(&path), 0), None);
        assert_eq!(pluribus.poll_timeout(), Some(at(3)), "there may be room soon");
        path.pacing_budget = 2000;
        let sum = pluribus.poll_repair_among(at(3), std::slice::from_ref(&path), 0);
        assert!(matches!(sum, Some(Repair::Sum { .. })), "{sum:?}");
        let queued = PathOffer { queued_bytes: 1200, ..PathOffer::free(&path) };
        assert_eq!(pluribus.poll_repair(at(3), &[queued], 0), None);
    }

    #[test]
    fn sums_cover_unacknowledged_packets_only_and_are_no_more_than_these() {
        let (mut pluribus, path) = after(60, 0.2);
        for id in (0..60).filter(|id| id % 3 != 0) {
            pluribus.on_acknowledged(at(1), PacketId(id));
        }
        let mut sums = 0;
        while let Some(repair) = pluribus.poll_repair_among(at(2), std::slice::from_ref(&path), 0) {
            let Repair::Sum { start, mask, .. } = repair else { panic!("{repair:?}") };
            assert_eq!(mask & 1, 1);
            for id in (0..64).filter(|at| mask >> at & 1 == 1).map(|at| start.0 + at) {
                assert!(id % 3 == 0 && id < 60, "{id} is acknowledged, or was never sent");
            }
            sums += 1;
        }
        assert_eq!(sums, 20);
        (0..60).for_each(|id| pluribus.on_acknowledged(at(9), PacketId(id)));
        assert!(pluribus.is_settled());
        assert_eq!(pluribus.poll_repair_among(at(9), std::slice::from_ref(&path), 0), None);
    }

    #[test]
    fn packets_leave_the_window_with_age() {
        let (mut pluribus, path) = after(5, 0.1);
        assert_eq!(pluribus.poll_repair_among(at(101), std::slice::from_ref(&path), 0), None);
        assert!(pluribus.is_settled());
    }

    /// What the paper promises: without any feedback, and with room to spare for as many sums as
    /// the losses call for and a few more, nearly every lost packet comes back by sums alone.
    #[test]
    fn a_receiver_gets_back_what_was_lost_without_telling_what_it_was() {
        const PACKETS: usize = 60;
        let (mut pluribus, path) = after(PACKETS as u32, 0.1);
        let mut missing: Vec<usize> = (0..PACKETS).filter(|id| id % 10 == 3).collect();
        let lost = missing.len();
        let mut sums: Vec<u128> = Vec::new();
        for _ in 0..3 * lost {
            let sum = pluribus.poll_repair_among(at(1), std::slice::from_ref(&path), 0);
            let Some(Repair::Sum { start, mask, .. }) = sum else { break };
            sums.push(u128::from(mask) << start.0);
        }
        // Peeling: a sum with one missing packet gives it.
        while let Some(found) = sums.iter().find_map(|sum| {
            let mut unknown = missing.iter().filter(|id| sum >> **id & 1 == 1);
            unknown.next().filter(|_| unknown.next().is_none()).copied()
        }) {
            missing.retain(|id| *id != found);
        }
        assert!(missing.len() <= 1, "{} of {lost} are missing after {}", missing.len(), sums.len());
    }
}
