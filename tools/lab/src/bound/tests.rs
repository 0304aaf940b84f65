use proptest::prelude::*;
use roadweave_emulate::{AtEnd, Capacity, Link, LinkSettings, Opportunities, Timeline};
use roadweave_proto::Rate;

use super::slots::Slot;
use super::*;
use crate::video::quality::SentFrame;

const MS: Duration = Duration::from_millis(1);

fn stream(frames: usize, packets: usize, bytes: usize) -> (StreamLog, Vec<usize>) {
    let mut log = StreamLog::default();
    for number in 0..frames {
        let captured = Instant::ZERO + Duration::from_nanos(number as u64 * 1_000_000_000 / 30);
        let first = log.packets.len();
        log.packets.extend(std::iter::repeat_n(captured, packets));
        let packets = first..log.packets.len();
        log.frames.push(SentFrame { captured, idr: number % 10 == 0, packets });
    }
    let sizes = vec![bytes; log.packets.len()];
    (log, sizes)
}

fn question<'a>(
    links: &'a [&'a Trace],
    log: &'a StreamLog,
    bytes: &'a [usize],
    player: &'a Player,
    end: Instant,
) -> Question<'a> {
    Question { links, origin: Instant::ZERO, stream: log, bytes, player, end }
}

fn bound(links: &[&Trace], (log, bytes): &(StreamLog, Vec<usize>), end_ms: u64) -> Bound {
    Bound::new(&question(links, log, bytes, &Player::default(), Instant::from_millis(end_ms)))
}

fn steps<V: Copy>(values: &[V], step: Duration) -> Timeline<V> {
    let at = (0_u32..).zip(values).map(|(index, value)| (step * index, *value));
    Timeline::new(at, step * values.len() as u32, AtEnd::Repeat).unwrap()
}

#[test]
fn a_lone_constant_link_has_its_own_delay_as_bound() {
    let trace = Trace::constant(Rate::from_kbps(12_000), 20 * MS);
    let bound = bound(&[&trace], &stream(30, 1, 1_500), 2_000);
    // 1 ms to send and 20 ms to arrive.
    assert!((20.98..=21.0).contains(&bound.delay_ms.p999), "{bound:?}");
    assert_eq!(bound.reachable.delay_ms.p50, 21.0);
    assert_eq!((bound.fps, bound.reachable.fps), (30.0, 30.0));
    assert_eq!((bound.residual_loss, bound.stall_ratio), (0.0, 0.0));
}

#[test]
fn a_link_that_carries_half_of_the_stream_loses_half() {
    // 30 frames per second of 12,000 bits, over 180 kbit/s.
    let trace = Trace::constant(Rate::from_kbps(180), Duration::ZERO);
    let (log, bytes) = stream(300, 1, 1_500);
    let (links, player) = ([&trace], Player::default());
    let question = question(&links, &log, &bytes, &player, Instant::from_millis(10_000));
    let bound = Bound::new(&question);
    assert!((0.45..=0.5).contains(&bound.residual_loss), "{bound:?}");
    assert!((14.9..=15.1).contains(&bound.fps), "{bound:?}");
    assert_eq!(bound.delay_ms.p99, 700.0, "what cannot arrive counts as the deadline");
    let shares = Bound::shares_within(&question, &[0, 50, 67, 100, 700].map(|ms| MS * ms));
    assert_eq!((shares[0], shares[4]), (0.0, 1.0 - bound.residual_loss));
    assert!(shares[1] > 0.4 && shares.is_sorted(), "{shares:?}");
}

#[test]
fn silence_of_all_links_is_a_stall_and_silence_of_one_is_none() {
    // From 1.0 to 1.8 s the first link loses everything, the second has no capacity.
    let lossy = Trace::constant(Rate::from_kbps(50_000), 20 * MS).with_loss(steps(
        &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        200 * MS,
    ));
    let pausing = lossy.with_loss(Timeline::constant(0.0)).with_capacity(Capacity::Rates(steps(
        &[50, 50, 50, 50, 50, 0, 0, 0, 0, 50, 50, 50, 50, 50, 50, 50]
            .map(|mbps| Rate::from_kbps(mbps * 1_000)),
        200 * MS,
    )));
    let steady = Trace::constant(Rate::from_kbps(50_000), 20 * MS);
    let bound = |links: &[&Trace]| bound(links, &stream(90, 20, 1_240), 3_000);
    let silent = bound(&[&lossy, &pausing]);
    // 800 ms without arrivals; the player's frame wait can hide 100 ms.
    assert!((0.69 / 3.0..=0.71 / 3.0).contains(&silent.stall_ratio), "{silent:?}");
    assert!((0.75 / 3.0..=0.85 / 3.0).contains(&silent.reachable.stall_ratio), "{silent:?}");
    assert_eq!(bound(&[&lossy, &steady]).stall_ratio, 0.0);
    assert_eq!(bound(&[&lossy, &steady]).reachable.stall_ratio, 0.0);
}

#[test]
fn who_does_not_know_the_future_meets_a_pause_and_who_hears_later_meets_more_of_it() {
    // The nearer link pauses for 200 ms in each second, without a sign beforehand.
    let rate = |index: u64| Rate::from_kbps(if index % 5 == 2 { 0 } else { 50_000 });
    let rates: Vec<Rate> = (0..10).map(rate).collect();
    let near = Trace::constant(Rate::from_kbps(50_000), 20 * MS)
        .with_capacity(Capacity::Rates(steps(&rates, 200 * MS)));
    let far = Trace::constant(Rate::from_kbps(50_000), 50 * MS);
    let bound = bound(&[&near, &far], &stream(60, 20, 1_240), 4_000);
    let Informed { at_once, late, insured, doubled, copies } = bound.informed;
    let p999 = |reached: &Reachable| reached.delay_ms.p999;
    assert!(bound.delay_ms.p999 < 60.0 && p999(&at_once) < 60.0, "frames lie beside the changes");
    // A frame sent into the pause leaves again over the other link 40 ms later.
    assert!((90.0..110.0).contains(&p999(&late)), "{late:?}");
    assert!(p999(&copies) < 60.0, "its copies are there by the other link: {copies:?}");
    assert_eq!((late.residual_loss, copies.residual_loss), (0.0, 0.0));
    // A copy of the whole frame would queue on the other link, a copy of a part does not.
    let p50 = |reached: &Reachable| reached.delay_ms.p50;
    assert!(p999(&copies) <= p999(&doubled) && p999(&doubled) <= p999(&late), "{doubled:?}");
    assert!((p50(&insured) - p50(&late)).abs() < 1.0, "copies delay nothing: {insured:?}");
}

#[test]
fn what_the_informed_scheduler_loses_leaves_again_when_that_is_heard() {
    let loss = steps(&[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 50 * MS);
    let lossy = Trace::constant(Rate::from_kbps(50_000), 20 * MS).with_loss(loss);
    let informed = bound(&[&lossy], &stream(3, 1, 1_240), 1_000).informed;
    // The loss of the third frame, at 67 ms, is seen at once or a round trip later.
    assert!((53.0..58.0).contains(&informed.at_once.delay_ms.p999), "{informed:?}");
    assert!((60.0..100.0).contains(&informed.late.delay_ms.p999), "{informed:?}");
}

#[test]
fn the_time_until_a_frame_can_be_whole_is_a_stall() {
    // 24,800 bytes over 400 kbit/s take half a second.
    let trace = Trace::constant(Rate::from_kbps(400), 20 * MS);
    let bound = bound(&[&trace], &stream(60, 20, 1_240), 3_000);
    assert!((0.51 / 3.0..=0.52 / 3.0).contains(&bound.stall_ratio), "{bound:?}");
    assert!(bound.reachable.stall_ratio > bound.stall_ratio);
}

fn opportunity_each_ms(delay: Duration) -> Trace {
    let at = (1..=1_000).map(|ms| MS * ms);
    let opportunities = Capacity::Opportunities(Opportunities::new(at).unwrap());
    Trace::constant(Rate::ZERO, delay).with_capacity(opportunities)
}

#[test]
fn an_opportunity_without_delay_brings_its_last_byte_at_once() {
    let trace = opportunity_each_ms(Duration::ZERO);
    let (mut log, bytes) = stream(60, 1, 1_500);
    // A frame in 31 ms, each 1 ms before an opportunity or at one.
    for (number, frame) in (0_u64..).zip(&mut log.frames) {
        frame.captured = Instant::from_millis(31 * number);
        log.packets[frame.packets.start] = frame.captured;
    }
    let player = Player::default();
    let end = Instant::from_millis(3_000);
    let dice = vec![(0, 9, 0)];
    let arrivals = play(&[&trace], &log, &bytes, &dice, end);
    let found = Percentiles::of_sorted(&delays_of_all(&log, &arrivals, player.deadline));
    let links = [&trace];
    let question = question(&links, &log, &bytes, &player, end);
    let bound = Bound::new(&question).delay_ms;
    assert_eq!(found.p999, 1.0);
    assert!((0.98..=1.0).contains(&bound.p999) && bound.p50 <= found.p50, "{bound:?} {found:?}");
    assert_eq!(Bound::shares_within(&question, &[MS]), [1.0]);
}

#[test]
fn no_links_and_no_packets_are_no_panic() {
    let nothing_arrives = bound(&[], &stream(10, 2, 1_000), 1_000);
    assert_eq!((nothing_arrives.residual_loss, nothing_arrives.fps), (1.0, 0.0));
    assert_eq!(bound(&[], &stream(0, 0, 0), 1_000), Bound::default());
}

/// The greatest flow from packets to ticks of slots, by augmenting paths, byte by byte.
fn missing_by_flow(slots: &[Slot], batches: &[Batch], deadline: u64) -> u64 {
    let units: Vec<_> = batches
        .iter()
        .flat_map(|batch| std::iter::repeat_n(batch.released, batch.bytes as usize))
        .collect();
    let ticks: Vec<_> = slots
        .iter()
        .flat_map(|slot| (slot.from / TICK..slot.to / TICK).map(|tick| (tick * TICK, slot.delay)))
        .collect();
    let usable = |released: u64, (at, delay): (u64, i64)| {
        released <= at && (at + TICK).saturating_add_signed(delay) <= released + deadline
    };
    fn augment(
        unit: usize,
        edges: &[Vec<usize>],
        taken: &mut [Option<usize>],
        seen: &mut [bool],
    ) -> bool {
        edges[unit].iter().any(|&tick| {
            if std::mem::replace(&mut seen[tick], true) {
                return false;
            }
            let free = taken[tick].is_none_or(|other| augment(other, edges, taken, seen));
            if free {
                taken[tick] = Some(unit);
            }
            free
        })
    }
    let edges: Vec<Vec<usize>> = units
        .iter()
        .map(|&released| (0..ticks.len()).filter(|&t| usable(released, ticks[t])).collect())
        .collect();
    let mut taken = vec![None; ticks.len()];
    let matched = (0..units.len())
        .filter(|&unit| augment(unit, &edges, &mut taken, &mut vec![false; ticks.len()]))
        .count();
    (units.len() - matched) as u64
}

/// A tick in ns, in which a slot of [`tick_slot`] carries one byte.
const TICK: u64 = 1_000;

fn tick_slot() -> impl Strategy<Value = Slot> {
    (0_u64..20, 1_u64..12, -10_i64..10).prop_map(|(from, lasting, delay)| Slot {
        from: from * TICK,
        to: (from + lasting) * TICK,
        bps: 8 * 1_000_000_000 / TICK,
        delay: delay * TICK as i64,
    })
}

fn tick_batch() -> impl Strategy<Value = Batch> {
    (0_u64..20, 1_u64..8).prop_map(|(released, bytes)| Batch { released: released * TICK, bytes })
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let rate = prop_oneof![Just(0), Just(40), 100_u64..3_000, 3_000_u64..30_000];
    let delay = prop_oneof![3 => 5_u64..40, 1 => 40_u64..300];
    let loss = prop_oneof![5 => Just(0.0), 1 => Just(1.0)];
    let step = (rate, delay, loss);
    prop::collection::vec(step, 1..30).prop_map(|values| {
        let rates: Vec<_> = values.iter().map(|v| Rate::from_kbps(v.0)).collect();
        let delays: Vec<_> = values.iter().map(|v| MS * v.1 as u32).collect();
        let losses: Vec<_> = values.iter().map(|v| v.2).collect();
        let length = 20 * MS;
        Trace::new(
            Capacity::Rates(steps(&rates, length)),
            steps(&delays, length),
            steps(&losses, length),
        )
    })
}

/// For each packet an optional first and second link, and a wait.
type Dice = Vec<(u8, u8, u16)>;

/// Sends the stream as the dice say over real links; returns the first arrival of each packet.
fn play(
    links: &[&Trace],
    log: &StreamLog,
    bytes: &[usize],
    dice: &Dice,
    end: Instant,
) -> Vec<Option<Instant>> {
    let mut sends: Vec<(Instant, usize, usize)> = Vec::new();
    for (index, sent) in log.packets.iter().enumerate() {
        let (first, second, wait) = dice[index % dice.len()];
        for link in [first, second].map(usize::from) {
            sends.push((*sent + MS * u32::from(wait), link, index));
        }
    }
    sends.sort_unstable();
    let mut arrivals = vec![None; log.packets.len()];
    for (number, trace) in links.iter().enumerate() {
        let mut link = Link::new(LinkSettings {
            queue_bytes: 20_000,
            ..LinkSettings::new((*trace).clone(), number as u64)
        });
        for &(at, _, index) in sends.iter().filter(|send| send.1 == number) {
            let _ = link.push(at, bytes[index], index);
        }
        while let Some(at) = link.poll_timeout().filter(|&at| at <= end) {
            let index = link.poll(at).expect("it is due");
            let arrival: &mut Option<Instant> = &mut arrivals[index];
            *arrival = Some(arrival.map_or(at, |before| before.min(at)));
        }
    }
    arrivals
}

fn assert_not_beaten(
    bound: &Bound,
    log: &StreamLog,
    arrivals: &[Option<Instant>],
    player: &Player,
    end: Instant,
) -> Result<(), TestCaseError> {
    let playout = Playout::new(log, arrivals, player, end);
    let quality = quality::measure(log, arrivals, &playout, player);
    let delays = Percentiles::of_sorted(&delays_of_all(log, arrivals, player.deadline));
    let all = |delays: &Percentiles| [delays.p50, delays.p95, delays.p99, delays.p999];
    let mut pairs = all(&bound.delay_ms).into_iter().zip(all(&delays));
    prop_assert!(pairs.all(|(least, found)| least <= found), "{bound:?} {delays:?}");
    prop_assert!(bound.residual_loss <= quality.residual_loss() + 1e-12, "{bound:?} {quality:?}");
    prop_assert!(bound.fps + 1e-9 >= quality.fps, "{bound:?} {quality:?}");
    prop_assert!(bound.stall_ratio <= quality.stall_ratio + 1e-12, "{bound:?} {quality:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_greatest_matching_is_found(
        mut slots in prop::collection::vec(tick_slot(), 0..5),
        batches in prop::collection::vec(tick_batch(), 0..6),
        deadline in 0_u64..25,
    ) {
        slots.sort_unstable_by_key(|slot| slot.from);
        let deadline = deadline * TICK;
        let expected = missing_by_flow(&slots, &batches, deadline);
        let found = Matching::new(&slots, batches, u64::MAX).missing_bytes(deadline);
        // The matching errs by less than a byte, to the low side.
        prop_assert!(found == expected || found + 1 == expected, "{found} of {expected}");
    }

    #[test]
    fn no_schedule_of_any_kind_beats_the_bound(
        traces in prop::collection::vec(any_trace(), 1..4),
        packets in 1_usize..6,
        size in 100_usize..1_500,
        dice in prop::collection::vec((0_u8..5, 0_u8..7, prop_oneof![Just(0_u16), 0_u16..300]), 1..40),
    ) {
        let links: Vec<&Trace> = traces.iter().collect();
        let (log, bytes) = stream(30, packets, size);
        let player = Player::default();
        let end = Instant::from_millis(2_000);
        let bound = Bound::new(&question(&links, &log, &bytes, &player, end));
        let arrivals = play(&links, &log, &bytes, &dice, end);
        assert_not_beaten(&bound, &log, &arrivals, &player, end)?;
        let sends = log.packets.iter().copied().zip(bytes.iter().copied());
        let choices = greedy::schedule(&links, Instant::ZERO, sends, end.since(Instant::ZERO));
        let arrivals: Vec<_> = choices
            .iter()
            .map(|choice| choice.map(|choice| choice.arrives).filter(|&at| at <= end))
            .collect();
        assert_not_beaten(&bound, &log, &arrivals, &player, end)?;
    }

    #[test]
    fn what_the_clairvoyant_scheduler_promises_real_links_keep(
        traces in prop::collection::vec(any_trace(), 1..4),
        packets in 1_usize..6,
        size in 100_usize..1_500,
    ) {
        let links: Vec<&Trace> = traces.iter().collect();
        let (log, bytes) = stream(30, packets, size);
        let sends = log.packets.iter().copied().zip(bytes.iter().copied());
        let choices = greedy::schedule(&links, Instant::ZERO, sends, 2_000 * MS);
        for (number, trace) in links.iter().enumerate() {
            let mut link = Link::new(LinkSettings {
                queue_bytes: usize::MAX,
                ..LinkSettings::new((*trace).clone(), 1)
            });
            for choice in choices.iter().flatten().filter(|choice| choice.link == number) {
                prop_assert_eq!(link.push(choice.at, size, choice.arrives), Ok(()));
            }
            while let Some(at) = link.poll_timeout() {
                prop_assert_eq!(link.poll(at), Some(at), "arrives as promised");
            }
            prop_assert_eq!(link.stats().dropped_bytes, 0);
        }
    }
}
