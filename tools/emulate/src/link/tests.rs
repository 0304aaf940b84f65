use proptest::prelude::*;
use roadweave_proto::Rate;

use super::*;
use crate::capacity::{Capacity, Opportunities};
use crate::timeline::{AtEnd, Timeline};

const MS: Duration = Duration::from_millis(1);

fn link(trace: Trace) -> Link<u32> {
    link_with(trace, |_| ())
}

fn link_with(trace: Trace, change: impl FnOnce(&mut LinkSettings)) -> Link<u32> {
    let mut settings = LinkSettings::new(trace, 1);
    change(&mut settings);
    Link::new(settings)
}

fn mbps(rate: u64, delay_ms: u32) -> Trace {
    Trace::constant(Rate::from_kbps(rate * 1_000), MS * delay_ms)
}

fn rates<const N: usize>(kbps: [(u32, u64); N], length_ms: u32, at_end: AtEnd) -> Capacity {
    let rates = kbps.map(|(at, kbps)| (MS * at, Rate::from_kbps(kbps)));
    Capacity::Rates(Timeline::new(rates, MS * length_ms, at_end).unwrap())
}

fn opportunities(opportunities: Option<Opportunities>) -> Trace {
    mbps(0, 0).with_capacity(Capacity::Opportunities(opportunities.unwrap()))
}

fn drain(link: &mut Link<u32>) -> Vec<(Instant, u32)> {
    let mut arrived = Vec::new();
    while let Some(at) = link.poll_timeout() {
        assert!(link.poll(at - Duration::from_nanos(1)).is_none(), "early at {at}");
        arrived.push((at, link.poll(at).expect("the timeout is exact")));
    }
    arrived
}

fn push(link: &mut Link<u32>, packets: &[(u64, usize)]) {
    for (&(at, bytes), number) in packets.iter().zip(0..) {
        link.push(Instant::from_millis(at), bytes, number).unwrap();
    }
}

fn check_arrivals(link: &mut Link<u32>, expected_ms: &[u64]) {
    let expected = expected_ms.iter().map(|&at| Instant::from_millis(at)).zip(0_u32..);
    assert_eq!(drain(link), expected.collect::<Vec<_>>());
}

#[test]
fn packets_wait_for_each_other_and_idle_time_gives_no_credit() {
    let mut link = link(mbps(12, 20));
    push(&mut link, &[(0, 1_500), (0, 1_500), (100, 1_500), (100, 1_500)]);
    check_arrivals(&mut link, &[21, 22, 121, 122]);
}

#[test]
fn the_rate_holds_across_its_changes_to_the_byte() {
    let rates = rates([(0, 12_000), (10, 0), (20, 24_000)], 30, AtEnd::Repeat);
    let trace = mbps(1, 0).with_capacity(rates);
    let mut link = link_with(trace, |settings| settings.queue_bytes = usize::MAX);
    push(&mut link, &[(0, 1_000); 450]);
    let arrived = drain(&mut link);
    assert_eq!(arrived[449].0, Instant::from_millis(300));
    assert_eq!(arrived[44].0, Instant::from_millis(30));
    assert_eq!(arrived[14].0, Instant::from_millis(10));
    assert_eq!(arrived[15].0, Instant::from_nanos(20_333_334));
}

#[test]
fn without_capacity_packets_stay() {
    for trace in [mbps(0, 5), opportunities(Opportunities::with_bytes([], MS * 10))] {
        let mut link = link(trace);
        push(&mut link, &[(25, 1_000)]);
        assert_eq!(link.poll_timeout(), None);
        assert_eq!(link.poll(Instant::from_millis(1_000_000)), None);
        assert_eq!((link.stats().in_link, link.queue_bytes(Instant::from_millis(29))), (1, 1_000));
    }
}

#[test]
fn the_queue_drops_its_tail_and_counts_it() {
    let mut link = link_with(mbps(12, 50), |settings| settings.queue_bytes = 3_000);
    assert_eq!(link.push(Instant::ZERO, 1_500, 1), Ok(()));
    assert_eq!(link.push(Instant::ZERO, 1_500, 2), Ok(()));
    assert_eq!(link.push(Instant::ZERO, 1_500, 3), Err(DropReason::LinkQueueFull));
    // A millisecond later the first packet has departed, though it has not arrived.
    assert_eq!(link.push(Instant::from_millis(1), 1_500, 4), Ok(()));
    assert_eq!(drain(&mut link).iter().map(|a| a.1).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(link.stats().dropped.get(DropReason::LinkQueueFull), 1);
    assert_eq!(link.stats().queue_bytes_max, 3_000);
}

#[test]
fn a_falling_delay_does_not_reorder() {
    let delays =
        Timeline::new([(Duration::ZERO, MS * 100), (MS * 10, MS * 20)], MS * 500, AtEnd::Hold);
    let mut link = link(mbps(1_200, 0).with_delay(delays.unwrap()));
    push(&mut link, &std::array::from_fn::<_, 20, _>(|at| (at as u64, 100)));
    let arrived = drain(&mut link);
    assert!(arrived.is_sorted_by_key(|a| a.1), "{arrived:?}");
    // The last packet with the long delay, sent at 9 ms, holds up later ones.
    assert_eq!(arrived[15].0.as_nanos() / 1_000_000, 109);
}

fn jittery(rate: u64, deviation_ms: u32, reorders: bool) -> Link<u32> {
    let jitter = Jitter { deviation: MS * deviation_ms, reorders };
    link_with(mbps(rate, 50), |settings| settings.jitter = Some(jitter))
}

#[test]
fn jitter_reorders_only_when_it_may() {
    for reorders in [false, true] {
        let mut link = jittery(100, 10, reorders);
        push(&mut link, &std::array::from_fn::<_, 200, _>(|at| (at as u64, 1_000)));
        let arrived = drain(&mut link);
        assert_eq!(arrived.len(), 200);
        assert_eq!(!arrived.is_sorted_by_key(|a| a.1), reorders);
    }
}

#[test]
fn reordering_jitter_has_the_given_deviation() {
    let mut link = jittery(1_000, 8, true);
    let mut sent = Instant::ZERO;
    let mut delays = Vec::new();
    for packet in 0..5_000 {
        sent += MS * 200;
        link.push(sent, 125, packet).unwrap();
        delays.extend(drain(&mut link).iter().map(|(at, _)| at.since(sent).as_secs_f64() * 1e3));
    }
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    let variance = delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / delays.len() as f64;
    assert!((mean - 50.0).abs() < 0.5 && (variance.sqrt() - 8.0).abs() < 0.4, "{mean} {variance}");
}

#[test]
fn loss_follows_the_trace() {
    let loss =
        Timeline::new([(Duration::ZERO, 0.0), (MS * 1_000, 0.25)], MS * 2_000, AtEnd::Repeat);
    let mut link = link(mbps(100, 1).with_loss(loss.unwrap()));
    for packet in 0..20_000_u32 {
        link.push(Instant::from_millis(packet.into()), 100, packet).unwrap();
    }
    let arrived = drain(&mut link);
    let good = arrived.iter().filter(|a| a.1 % 2_000 < 999).count();
    assert_eq!(good, 9_990, "no loss in the odd seconds");
    let lost = link.stats().dropped.get(DropReason::LinkLoss) as f64;
    assert!((lost / 10_000.0 - 0.25).abs() < 0.02, "{lost}");
}

#[test]
fn a_dead_link_loses_what_it_holds_and_starts_afresh() {
    let mut link = link(mbps(12, 100));
    push(&mut link, &[(0, 1_500); 10]);
    link.set_dead(Instant::from_millis(3), true);
    assert_eq!(link.push(Instant::from_millis(4), 1_500, 10), Err(DropReason::LinkLoss));
    assert_eq!(link.poll_timeout(), None);
    link.set_dead(Instant::from_millis(6), false);
    link.push(Instant::from_millis(6), 1_500, 11).unwrap();
    assert_eq!(drain(&mut link), [(Instant::from_millis(107), 11)]);
    assert_eq!(link.stats().dropped.get(DropReason::LinkLoss), 11);
}

#[test]
fn opportunities_serve_what_waits_and_not_what_comes_later() {
    let full = |at: &[u32]| opportunities(Opportunities::new(at.iter().map(|&at| MS * at)));
    let slots = [(2, 1_000), (4, 3_000), (5, 0)].map(|(at, bytes)| (MS * at, bytes));
    let sized = opportunities(Opportunities::with_bytes(slots, MS * 10));
    let check = |trace: Trace, packets: &[(u64, usize)], expected_ms: &[u64]| {
        let mut link = link(trace);
        push(&mut link, packets);
        check_arrivals(&mut link, expected_ms);
    };
    // 2,000 bytes need both opportunities of 5 ms; their rest serves 900 bytes of the next packet.
    check(full(&[5, 5, 10]), &[(0, 2_000), (0, 900), (0, 1_500), (0, 1_000)], &[5, 5, 10, 15]);
    // A packet pushed at 5 ms has missed that opportunity; the third pass has 25 and 30 ms.
    check(full(&[5, 10]), &[(5, 100), (22, 100)], &[10, 25]);
    // An opportunity at zero coincides with the last one of the previous pass.
    check(full(&[0, 10]), &[(0, 1_500); 4], &[10, 10, 20, 20]);
    // 1,000 at 2 ms and 3,000 at 4 ms carry the first two and 1,500 of the third's 2,000.
    let packets = [1_500, 1_000, 2_000, 500, 3_000].map(|bytes| (0, bytes));
    check(sized, &packets, &[4, 4, 12, 12, 14]);
    assert_eq!(Opportunities::with_bytes([(MS * 11, 1)], MS * 10), None);
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Push(usize),
    Poll,
    Dead(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_000_000_u64).prop_map(Step::Wait),
        (1..1_501_usize).prop_map(Step::Push),
        (1..1_501_usize).prop_map(Step::Push),
        Just(Step::Poll),
        prop::bool::weighted(0.3).prop_map(Step::Dead),
    ]
}

fn busy_link(seed: u64, reorders: bool) -> Link<u32> {
    let capacity = rates([(0, 8_000), (40, 0), (60, 900)], 90, AtEnd::Repeat);
    link_with(mbps(1, 4).with_capacity(capacity), |settings| {
        settings.seed = seed;
        settings.queue_bytes = 8_000;
        settings.burst_loss = Some(GilbertElliott::bursts(0.1, 2.0));
        settings.jitter = Some(Jitter { deviation: MS, reorders });
    })
}

proptest! {
    #[test]
    fn packets_are_conserved(
        steps in prop::collection::vec(step(), 0..400),
        seed: u64,
        reorders: bool,
    ) {
        let mut link = busy_link(seed, reorders);
        let mut twin = busy_link(seed, reorders);
        let mut now = Instant::ZERO;
        let (mut pushed, mut refused, mut delivered) = (0_u32, 0, Vec::new());
        for step in steps {
            match step {
                Step::Wait(nanos) => now += Duration::from_nanos(nanos),
                Step::Push(bytes) => {
                    let outcome = link.push(now, bytes, pushed);
                    prop_assert_eq!(outcome, twin.push(now, bytes, pushed), "equal seeds differ");
                    pushed += 1;
                    refused += u64::from(outcome.is_err());
                }
                Step::Poll => {
                    let packet = link.poll(now);
                    prop_assert_eq!(packet, twin.poll(now), "equal seeds differ");
                    delivered.extend(packet);
                }
                Step::Dead(dead) => {
                    link.set_dead(now, dead);
                    twin.set_dead(now, dead);
                }
            }
            let stats = link.stats();
            prop_assert_eq!(stats.pushed, u64::from(pushed));
            prop_assert_eq!(stats.delivered, delivered.len() as u64);
            prop_assert_eq!(stats.pushed, stats.delivered + stats.dropped.total() + stats.in_link);
            prop_assert!(stats.dropped.total() >= refused);
            prop_assert!(link.queue_bytes(now) <= 8_000);
        }
        link.set_dead(now, false);
        delivered.extend(drain(&mut link).iter().map(|arrived| arrived.1));
        let stats = link.stats();
        prop_assert_eq!(stats.in_link, 0);
        prop_assert_eq!(stats.pushed_bytes, stats.delivered_bytes + stats.dropped_bytes);
        if !reorders {
            prop_assert!(delivered.is_sorted(), "reordered: {:?}", delivered);
        }
        delivered.sort_unstable();
        delivered.dedup();
        prop_assert_eq!(delivered.len() as u64, stats.delivered, "a packet came twice");
    }
}

#[test]
fn what_waits_at_a_restart_departs_by_the_trace_as_it_begins() {
    let capacity = rates([(0, 12_000), (1_000, 0)], 2_000, AtEnd::Hold);
    let mut link = link(mbps(1, 20).with_capacity(capacity));
    push(&mut link, &[(990, 1_500), (1_500, 1_500), (1_500, 1_500), (1_500, 1_500)]);
    link.restart(Instant::from_millis(3_000));
    assert_eq!(link.queue_bytes(Instant::from_millis(3_000)), 4_500);
    link.push(Instant::from_millis(3_001), 1_500, 4).unwrap();
    check_arrivals(&mut link, &[1_011, 3_021, 3_022, 3_023, 3_024]);
    let stats = link.stats();
    assert_eq!((stats.pushed, stats.delivered, stats.in_link), (5, 5, 0));
}

#[test]
fn what_is_on_its_way_at_a_restart_arrives_before_what_waited() {
    let mut link = link(mbps(12, 50));
    push(&mut link, &[(0, 1_500); 3]);
    // The first has departed at 1 ms and arrives at 51 ms, although the delay is now 10 ms.
    link.restart_with(Instant::from_millis(1), mbps(12, 10));
    check_arrivals(&mut link, &[51, 51, 51]);
}
