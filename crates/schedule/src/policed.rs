//! The policies of uplinks, around any scheduler: priorities, weights, budgets.
//!
//! ```text
//! paths ─► primary ones ─► scheduler ─► Send ─────────────────────────► weights ─► Send
//!                                    └► Wait ─► would it take clearly longer than on the next ones?
//!          and secondary ones ─► scheduler ◄──────── yes ┘   └ no ─► Wait
//!          backup ones: only when none of the others is usable
//! ```
//!
//! The scheduler sees all paths and whether the packet may go there ([`PathOffer::may_send`]), so
//! that no algorithm needs to know of policies. Where all paths are alike it decides alone.
//!
//! - Paths that do not answer are ignored: when the primary paths are all suspect, the secondary
//!   ones are first. When no path answers, the scheduler sees all of them.
//! - Weights count among usable paths of one priority with similar round trips: the packet goes to
//!   the one whose turn it is, if its window has room; it waits some milliseconds for the pacer,
//!   since a frame comes as a burst. Smooth weighted round robin: 3:1 is a b a a, not a a a b.
//! - A budget of redundancy bounds copies: a packet for several paths leaves on the best of them
//!   ([`PathSet::first_choice`]) in spite of its budget, and is copied to those that have budget
//!   left. Weights do not count here.
//! - A scheduler that keeps each flow on its path ignores weights and secondary paths.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, Policy, Priority, Rate};

use crate::{AcknowledgedDatagram, Decision, PacketInfo, PathSet, RestoreError, Scheduler};

/// Applies the policies of the paths to a scheduler.
#[derive(Debug)]
pub struct Policed {
    inner: Box<dyn Scheduler>,
    turns: Turns,
}

impl Policed {
    /// Applies them to `inner`.
    pub fn new(inner: Box<dyn Scheduler>) -> Self {
        Self { inner, turns: Turns::default() }
    }

    fn select_up_to(
        &mut self,
        last: Priority,
        now: Instant,
        packet: &PacketInfo,
        paths: &[PathOffer<'_>],
    ) -> Decision {
        self.inner.select(now, packet, &up_to(last, paths))
    }

    fn by_priority(
        &mut self,
        now: Instant,
        packet: &PacketInfo,
        paths: &[PathOffer<'_>],
    ) -> Decision {
        let tiers = usable_priorities(paths);
        let Some((first, rest)) = tiers.split_first() else {
            return self.inner.select(now, packet, paths);
        };
        let decision = self.select_up_to(*first, now, packet, paths);
        let spills = rest.first() == Some(&Priority::Secondary)
            && !self.inner.keeps_flows()
            && decision == Decision::Wait
            && is_slow(*first, packet, paths);
        if spills { self.select_up_to(Priority::Secondary, now, packet, paths) } else { decision }
    }
}

impl Scheduler for Policed {
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let alike = |of: fn(&Policy) -> u8| {
            let of = |path: &PathOffer<'_>| of(&path.snapshot.policy);
            paths.windows(2).all(|two| of(&two[0]) == of(&two[1]))
        };
        let decision = match alike(|policy| policy.priority as u8) {
            true => self.inner.select(now, packet, paths),
            false => self.by_priority(now, packet, paths),
        };
        match decision {
            Decision::Send(chosen) if chosen.len() > 1 => {
                Decision::Send(within_budgets(chosen, packet, paths))
            }
            Decision::Send(chosen)
                if !alike(|policy| policy.weight) && !self.inner.keeps_flows() =>
            {
                self.turns.take(chosen, packet, paths)
            }
            decision => decision,
        }
    }

    fn on_sent(&mut self, now: Instant, path: PathId, bytes: u32, flow: u64) {
        self.inner.on_sent(now, path, bytes, flow);
    }

    fn on_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram, flow: u64) {
        self.inner.on_acknowledged(now, acknowledged, flow);
    }

    fn on_lost(&mut self, now: Instant, path: PathId, flow: u64) {
        self.inner.on_lost(now, path, flow);
    }

    fn name_path(&mut self, path: PathId, name: &str) {
        self.inner.name_path(path, name);
    }

    fn learned(&self) -> Option<String> {
        self.inner.learned()
    }

    fn restore(&mut self, learned: &str) -> Result<(), RestoreError> {
        self.inner.restore(learned)
    }

    fn share_of(&self, paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        let Some(first) = usable_priorities(paths).first().copied() else { return 0.0 };
        // A secondary path may carry all: an encoder that asks for less would never fill it.
        let last = first.max(Priority::Secondary);
        let rooms = paths
            .iter()
            .zip(rooms)
            .map(|(path, room)| if path.snapshot.policy.priority <= last { *room } else { 0.0 });
        self.inner.share_of(&up_to(last, paths), &rooms.collect::<Vec<f64>>())
    }

    fn keeps_flows(&self) -> bool {
        self.inner.keeps_flows()
    }
}

fn up_to<'a>(last: Priority, paths: &[PathOffer<'a>]) -> Vec<PathOffer<'a>> {
    let within = |path: &PathOffer<'_>| path.snapshot.policy.priority <= last;
    paths
        .iter()
        .map(|path| PathOffer { may_send: path.may_send && within(path), ..*path })
        .collect()
}

fn usable_priorities(paths: &[PathOffer<'_>]) -> Vec<Priority> {
    let has_usable = |at: &Priority| {
        paths.iter().any(|path| path.is_usable() && path.snapshot.policy.priority == *at)
    };
    [Priority::Primary, Priority::Secondary, Priority::Backup]
        .into_iter()
        .filter(has_usable)
        .collect()
}

/// Whether the packet waits clearly long for priority `first`, and a secondary path is sooner.
fn is_slow(first: Priority, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> bool {
    let of = |priority: Priority| {
        let usable = paths.iter().filter(|path| path.is_usable()).map(|path| path.snapshot);
        usable.filter(move |path| path.policy.priority == priority)
    };
    let rtt = |priority| of(priority).map(|path| path.expected_rtt).min().unwrap_or(Duration::MAX);
    let rate = of(first).filter_map(|path| path.pacing_rate).map(Rate::as_bps);
    let rate = Rate::from_bps(rate.fold(0, u64::saturating_add));
    let wait = rate.time_for(packet.backlog_bytes).max(packet.waited);
    wait >= MARGIN && rtt(Priority::Secondary) <= rtt(first).saturating_add(wait)
}

/// Of `chosen`, the path of the packet itself, and those that may carry a copy.
fn within_budgets(chosen: PathSet, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> PathSet {
    let bytes = packet.bytes as u64;
    let first = chosen.first_choice(bytes, paths);
    let may = |at: &usize| {
        Some(*at) == first || paths.get(*at).is_some_and(|path| path.redundancy_left() >= bytes)
    };
    chosen.iter().filter(may).collect()
}

#[derive(Debug, Default)]
struct Turns {
    /// Each path's deficit, bytes times weights.
    owed: BTreeMap<PathId, i64>,
}

impl Turns {
    fn take(&mut self, chosen: PathSet, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let Some((favourite, first)) = chosen
            .iter()
            .next()
            .and_then(|at| Some((at, paths.get(at)?)))
            .filter(|_| chosen.len() == 1)
        else {
            return Decision::Send(chosen);
        };
        if !first.is_usable() {
            return Decision::Send(chosen);
        }
        self.owed.retain(|id, _| paths.iter().any(|path| path.snapshot.id == *id));
        let bytes = packet.bytes as u64;
        let first = first.snapshot;
        let slowest = first.expected_rtt + (first.expected_rtt / 4).max(SIMILAR_MIN);
        let shares = |(position, path): &(usize, &PathOffer<'_>)| {
            *position == favourite
                || path.is_usable()
                    && path.snapshot.policy.priority == first.policy.priority
                    && path.snapshot.expected_rtt <= slowest
                    && path.snapshot.window_room() >= path.queued_bytes + bytes
                    && is_paced_soon(path, bytes)
        };
        let cost = bytes.min(BYTES_MAX) as i64;
        let turn = |(at, path): (usize, &PathOffer<'_>)| {
            let PathOffer { snapshot, queued_bytes, .. } = *path;
            let weight = i64::from(snapshot.policy.weight.max(1));
            WeightedPath {
                at,
                id: snapshot.id,
                weight,
                owed: self.owed.get(&snapshot.id).copied().unwrap_or(0) + weight * cost,
                has_room: at == favourite || snapshot.pacing_budget >= queued_bytes + bytes,
            }
        };
        let turns: Vec<WeightedPath> = paths.iter().enumerate().filter(shares).map(turn).collect();
        let order = |turn: &&WeightedPath| (turn.owed, Reverse(turn.at));
        let next = turns.iter().max_by_key(order);
        if next.is_some_and(|turn| !turn.has_room) && packet.waited < TURN_WAIT_MAX {
            return Decision::Wait;
        }
        let next = turns.iter().filter(|turn| turn.has_room).max_by_key(order);
        let taken = next.map_or(favourite, |turn| turn.at);
        let weights: i64 = turns.iter().map(|turn| turn.weight).sum();
        // Bounds the deficit of a path without room.
        let bound = weights * OWED_PACKETS * PACKET_BYTES;
        for turn in &turns {
            let paid = if turn.at == taken { weights * cost } else { 0 };
            self.owed.insert(turn.id, (turn.owed - paid).clamp(-bound, bound));
        }
        Decision::Send(PathSet::one(taken))
    }
}

struct WeightedPath {
    at: usize,
    id: PathId,
    weight: i64,
    owed: i64,
    has_room: bool,
}

fn is_paced_soon(path: &PathOffer<'_>, bytes: u64) -> bool {
    let PathOffer { snapshot, queued_bytes, .. } = *path;
    let ahead = queued_bytes + bytes;
    snapshot.pacing_budget >= ahead
        || snapshot.pacing_rate.is_some_and(|rate| rate.time_for(ahead) <= TURN_WAIT_MAX / 4)
}

/// How long a packet may wait for a primary path before it takes a secondary one.
const MARGIN: Duration = Duration::from_millis(20);
/// Round trips are similar if they differ by less than a quarter, or than this.
const SIMILAR_MIN: Duration = Duration::from_millis(10);
const TURN_WAIT_MAX: Duration = Duration::from_millis(20);
const BYTES_MAX: u64 = 1 << 16;
/// The most that a path is owed, in packets of [`PACKET_BYTES`].
const OWED_PACKETS: i64 = 32;
const PACKET_BYTES: i64 = 1500;

#[cfg(test)]
mod tests {
    use roadweave_proto::{PathSnapshot, PathStatus};

    use super::*;
    use crate::testing::{Among, free, packet, packet_of, path, to, to_all};
    use crate::{MinRtt, Raven, RavenConfig, Redundant};

    fn policed() -> Policed {
        Policed::new(Box::new(MinRtt::default()))
    }

    fn with(priority: Priority, weight: u8, path: PathSnapshot) -> PathSnapshot {
        let policy = Policy { priority, weight, ..Policy::default() };
        PathSnapshot { policy, pacing_rate: Some(Rate::from_kbps(8_000)), ..path }
    }

    fn check(paths: &[PathSnapshot], packet: PacketInfo, expected: Decision) {
        assert_eq!(policed().select_among(Instant::ZERO, &packet, paths), expected, "{paths:?}");
    }

    use Priority::{Backup, Primary, Secondary};

    #[test]
    fn primary_paths_come_first_however_slow() {
        let fast = with(Secondary, 1, path(0, 10, 9000));
        let slow = with(Primary, 1, path(1, 200, 9000));
        check(&[fast.clone(), slow.clone()], packet(1200), to(1));
        check(&[with(Backup, 1, fast), slow], packet(1200), to(1));
    }

    #[test]
    fn secondary_paths_help_when_waiting_takes_clearly_longer() {
        let full = with(Primary, 1, path(0, 40, 0));
        let helper = |rtt_ms| with(Secondary, 1, path(1, rtt_ms, 90_000));
        // 8 Mbit/s: 1,200 bytes take 1.2 ms.
        check(&[full.clone(), helper(40)], packet(1200), Decision::Wait);
        check(&[full.clone(), helper(15)], packet(1200), Decision::Wait);
        let backlog = packet_of(30_000);
        check(&[full.clone(), helper(70)], backlog, to(1));
        check(&[full.clone(), helper(71)], backlog, Decision::Wait);
        let waited = PacketInfo { waited: MARGIN, ..packet(1200) };
        check(&[full.clone(), helper(60)], waited, to(1));
        check(&[full.clone(), helper(90)], waited, Decision::Wait);
        let backup = with(Backup, 1, path(1, 15, 90_000));
        check(&[full, backup], waited, Decision::Wait);
    }

    #[test]
    fn backup_paths_take_over_when_no_other_answers() {
        let mut paths = [
            with(Primary, 1, path(0, 20, 9000)),
            with(Backup, 1, path(1, 90, 9000)),
            with(Secondary, 1, path(2, 60, 9000)),
        ];
        for (silent, next) in [(0, 2), (2, 1), (1, 0)] {
            paths[silent].status = PathStatus::Suspect;
            check(&paths, packet(1200), to(next));
        }
    }

    #[test]
    fn copies_stay_within_the_priority() {
        let paths = [
            with(Primary, 1, path(0, 20, 9000)),
            with(Backup, 1, path(1, 20, 9000)),
            with(Primary, 9, path(2, 90, 9000)),
        ];
        assert_eq!(Policed::new(Box::new(Redundant)).choose(&paths), to_all(&[0, 2]));
    }

    #[test]
    fn a_path_without_budget_gets_no_copies() {
        let metered = |id, left| {
            let policy = Policy { redundancy_percent: Some(5), ..Policy::default() };
            let rtt = 40 - 10 * u64::from(id);
            PathSnapshot { policy, redundancy_left: left, ..path(id, rtt, 9000) }
        };
        let check = |paths: &[PathSnapshot], expected: &[usize]| {
            assert_eq!(Policed::new(Box::new(Redundant)).choose(paths), to_all(expected));
        };
        check(&[metered(0, 1200), metered(1, 1199), path(2, 20, 9000)], &[0, 2]);
        check(&[metered(0, 1200), metered(1, 1199), path(2, 90, 9000)], &[0, 1, 2]);
        check(&[metered(0, 0), metered(1, 0)], &[1]);
    }

    #[test]
    fn a_packet_leaves_on_a_path_that_answers_whatever_its_budget() {
        let spent = |path: PathSnapshot| {
            let policy = Policy { redundancy_percent: Some(0), ..path.policy };
            PathSnapshot { policy, redundancy_left: 0, ..path }
        };
        let mut dead = with(Primary, 1, path(0, 20, 9000));
        dead.status = PathStatus::Suspect;
        let paths = [dead, spent(with(Backup, 1, path(1, 90, 9000)))];
        let schedulers: [Box<dyn Scheduler>; 2] =
            [Box::new(Redundant), Box::new(Raven::new(RavenConfig::default()))];
        for scheduler in schedulers {
            assert_eq!(Policed::new(scheduler).choose(&paths), to_all(&[0, 1]));
        }
    }

    #[test]
    fn weights_share_among_similar_paths_with_room() {
        let mut scheduler = policed();
        let mut count = |paths: &[PathSnapshot]| {
            let mut counts = vec![0; paths.len()];
            for _ in 0..400 {
                let Decision::Send(chosen) = scheduler.choose(paths) else {
                    panic!("there is room")
                };
                chosen.iter().for_each(|position| counts[position] += 1);
            }
            counts
        };
        let heavy = with(Primary, 3, path(0, 45, 9000));
        let light = with(Primary, 1, path(1, 40, 9000));
        assert_eq!(count(&[heavy.clone(), light.clone()]), [300, 100]);
        let far = with(Primary, 3, path(0, 80, 9000));
        assert_eq!(count(&[far, light.clone()]), [0, 400]);
        let paced = PathSnapshot { pacing_budget: 0, ..heavy.clone() };
        let mut fresh = policed();
        let both = [paced, light.clone()];
        let mut select = |packet: PacketInfo| fresh.select_among(Instant::ZERO, &packet, &both);
        assert_eq!(select(packet(1200)), Decision::Wait);
        assert_eq!(select(PacketInfo { waited: TURN_WAIT_MAX, ..packet(1200) }), to(1));
        let full = with(Primary, 3, path(0, 45, 900));
        assert_eq!(count(&[full, light.clone()]), [0, 400]);
        let other = with(Secondary, 3, path(0, 45, 9000));
        assert_eq!(count(&[other, light.clone()]), [0, 400]);
        assert_eq!(count(&[heavy, light]), [300, 100], "nothing is owed from before");
    }

    #[test]
    fn pinned_flows_stay_on_their_path() {
        #[derive(Debug)]
        struct Kept;
        impl Scheduler for Kept {
            fn select(&mut self, _: Instant, _: &PacketInfo, _: &[PathOffer<'_>]) -> Decision {
                to(0)
            }
            fn keeps_flows(&self) -> bool {
                true
            }
        }
        let mut scheduler = Policed::new(Box::new(Kept));
        let paths = [with(Primary, 3, path(0, 40, 9000)), with(Primary, 1, path(1, 40, 9000))];
        assert!((0..20).all(|_| scheduler.choose(&paths) == to(0)));
    }

    #[test]
    fn an_encoder_may_fill_secondary_paths_and_a_backup_only_where_it_is_all_there_is() {
        let [first, second, last] = [(Primary, 9000), (Secondary, 5000), (Backup, 7000)]
            .map(|(priority, window)| with(priority, 1, path(0, 40, window)));
        let share = |paths: &[PathSnapshot]| {
            let rooms: Vec<_> = paths.iter().map(|path| path.congestion_window as f64).collect();
            policed().share_of(&free(paths), &rooms)
        };
        assert_eq!(share(&[first, second.clone(), last.clone()]), 14_000.0);
        assert_eq!(share(&[second, last.clone()]), 5000.0);
        assert_eq!(share(&[last]), 7000.0);
        assert_eq!(share(&[]), 0.0);
    }
}
