use proptest::prelude::*;
use roadweave_proto::Rate;

use super::*;
use crate::capacity::{Capacity, Opportunities};
use crate::timeline::{AtEnd, Timeline};

const MS: Duration = Duration::from_millis(1);

fn link(trace: Trace) -> Link<u32> {
    Link::new(LinkSettings::new(trace, 1))
}

fn mbps(rate: u64, delay_ms: u32) -> Trace {
    Trace::constant(Rate::from_kbps(rate * 1_000), MS * delay_ms)
}

/// Everything that arrives, each with the time of its arrival.
fn drain(link: &mut Link<u32>) -> Vec<(Instant, u32)> {
    let mut arrived = Vec::new();
    while let Some(at) = link.poll_timeout() {
        assert!(link.poll(at - Duration::from_nanos(1)).is_none(), "early at {at}");
        arrived.push((at, link.poll(at).expect("the timeout is exact")));
    }
    arrived
}

#[test]
fn a_packet_takes_its_transmission_and_the_propagation() {
    let mut link = link(mbps(12, 20));
    link.push(Instant::from_millis(5), 1_500, 7).unwrap();
    assert_eq!(drain(&mut link), [(Instant::from_millis(5 + 1 + 20), 7)]);
}

#[test]
fn packets_wait_for_each_other_and_idle_time_gives_no_credit() {
    let mut link = link(mbps(12, 0));
    for (at, packet) in [(0, 1), (0, 2), (100, 3), (100, 4)] {
        link.push(Instant::from_millis(at), 1_500, packet).unwrap();
    }
    let expected = [(1, 1), (2, 2), (101, 3), (102, 4)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
}

#[test]
fn the_rate_holds_across_its_changes_to_the_byte() {
    // 12, 0 and 24 Mbit/s for 10 ms each, again and again: 45,000 bytes in 30 ms.
    let rates = [(0, 12), (10, 0), (20, 24)].map(|(at, r)| (MS * at, Rate::from_kbps(r * 1_000)));
    let rates = Timeline::new(rates, MS * 30, AtEnd::Repeat).unwrap();
    let mut settings = LinkSettings::new(mbps(1, 0).with_capacity(Capacity::Rates(rates)), 1);
    settings.queue_bytes = usize::MAX;
    let mut link = Link::new(settings);
    for packet in 0..450 {
        link.push(Instant::ZERO, 1_000, packet).unwrap();
    }
    let arrived = drain(&mut link);
    assert_eq!(arrived[449].0, Instant::from_millis(300));
    assert_eq!(arrived[44].0, Instant::from_millis(30));
    assert_eq!(arrived[14].0, Instant::from_millis(10));
    assert_eq!(arrived[15].0, Instant::from_nanos(20_333_334));
}

#[test]
fn a_trace_without_capacity_keeps_its_packets() {
    let mut link = link(mbps(0, 5));
    link.push(Instant::ZERO, 1_000, 1).unwrap();
    assert_eq!(link.poll_timeout(), None);
    assert_eq!(link.poll(Instant::from_millis(1_000_000)), None);
    assert_eq!((link.stats().in_link, link.queue_bytes(Instant::from_millis(9))), (1, 1_000));
}

#[test]
fn the_queue_drops_its_tail_and_counts_it() {
    let mut settings = LinkSettings::new(mbps(12, 50), 1);
    settings.queue_bytes = 3_000;
    let mut link = Link::new(settings);
    assert_eq!(link.push(Instant::ZERO, 1_500, 1), Ok(()));
    assert_eq!(link.push(Instant::ZERO, 1_500, 2), Ok(()));
    assert_eq!(link.push(Instant::ZERO, 1_500, 3), Err(DropReason::LinkQueueFull));
    // A millisecond later the first has departed, though it has not arrived.
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
    for packet in 0..20 {
        link.push(Instant::from_millis(packet.into()), 100, packet).unwrap();
    }
    let arrived = drain(&mut link);
    assert!(arrived.is_sorted_by_key(|a| a.1), "{arrived:?}");
    // The last one sent at the long delay, at 9 ms, holds up those behind it.
    assert_eq!(arrived[15].0.as_nanos() / 1_000_000, 109);
}

#[test]
fn jitter_reorders_only_when_it_may() {
    for reorders in [false, true] {
        let mut settings = LinkSettings::new(mbps(100, 50), 1);
        settings.jitter = Some(Jitter { deviation: MS * 10, reorders });
        let mut link = Link::new(settings);
        for packet in 0..200 {
            link.push(Instant::from_millis(packet.into()), 1_000, packet).unwrap();
        }
        let arrived = drain(&mut link);
        assert_eq!(arrived.len(), 200);
        assert_eq!(!arrived.is_sorted_by_key(|a| a.1), reorders);
    }
}

#[test]
fn reordering_jitter_has_the_given_deviation() {
    let mut settings = LinkSettings::new(mbps(1_000, 50), 1);
    settings.jitter = Some(Jitter { deviation: MS * 8, reorders: true });
    let mut link = Link::new(settings);
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
fn burst_loss_comes_in_bursts_of_the_given_mean() {
    let mut settings = LinkSettings::new(mbps(100, 1), 9);
    settings.burst_loss = Some(GilbertElliott::bursts(0.05, 4.0));
    let mut link = Link::new(settings);
    for packet in 0..100_000_u32 {
        link.push(Instant::from_millis(packet.into()), 100, packet).unwrap();
    }
    let arrived: Vec<u32> = drain(&mut link).iter().map(|a| a.1).collect();
    let gaps = arrived.windows(2).map(|pair| pair[1] - pair[0] - 1).filter(|&gap| gap > 0);
    let bursts: Vec<f64> = gaps.map(f64::from).collect();
    let lost: f64 = bursts.iter().sum();
    assert!((lost / 100_000.0 - 0.05).abs() < 0.006, "{lost}");
    assert!((lost / bursts.len() as f64 - 4.0).abs() < 0.4, "{lost} in {}", bursts.len());
}

#[test]
fn a_dead_link_loses_what_it_holds_and_starts_afresh() {
    let mut link = link(mbps(12, 100));
    for packet in 0..10 {
        link.push(Instant::ZERO, 1_500, packet).unwrap();
    }
    link.set_dead(Instant::from_millis(3), true);
    assert_eq!(link.push(Instant::from_millis(4), 1_500, 10), Err(DropReason::LinkLoss));
    assert_eq!(link.poll_timeout(), None);
    link.set_dead(Instant::from_millis(6), false);
    link.push(Instant::from_millis(6), 1_500, 11).unwrap();
    assert_eq!(drain(&mut link), [(Instant::from_millis(107), 11)]);
    assert_eq!(link.stats().dropped.get(DropReason::LinkLoss), 11);
}

#[test]
fn an_opportunity_serves_what_waits_and_its_rest_goes_on() {
    let opportunities = Opportunities::new([5, 5, 10].map(|at| MS * at)).unwrap();
    let mut link = link(mbps(0, 0).with_capacity(Capacity::Opportunities(opportunities)));
    // 2,000 bytes need both opportunities of 5 ms, their rest serves 900 of the next packet.
    for (packet, bytes) in [(1, 2_000), (2, 900), (3, 1_500), (4, 1_000)] {
        link.push(Instant::ZERO, bytes, packet).unwrap();
    }
    let expected = [(5, 1), (5, 2), (10, 3), (15, 4)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
}

#[test]
fn an_opportunity_does_not_wait_for_packets() {
    let opportunities = Opportunities::new([5, 10].map(|at| MS * at)).unwrap();
    let mut link = link(mbps(0, 0).with_capacity(Capacity::Opportunities(opportunities)));
    link.push(Instant::from_millis(5), 100, 1).unwrap(); // just missed that of 5 ms
    link.push(Instant::from_millis(22), 100, 2).unwrap(); // the third pass: 25, 30
    let expected = [(10, 1), (25, 2)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
}

#[test]
fn an_opportunity_at_zero_falls_together_with_the_last_of_the_pass_before() {
    let opportunities = Opportunities::new([0, 10].map(|at| MS * at)).unwrap();
    let mut link = link(mbps(0, 0).with_capacity(Capacity::Opportunities(opportunities)));
    for packet in 0..4 {
        link.push(Instant::ZERO, 1_500, packet).unwrap();
    }
    let times: Vec<u64> = drain(&mut link).iter().map(|a| a.0.as_nanos() / 1_000_000).collect();
    assert_eq!(times, [10, 10, 20, 20]);
}

#[test]
fn an_opportunity_carries_its_own_bytes_and_repeats_after_its_period() {
    let slots = [(2, 1_000), (4, 3_000), (5, 0)].map(|(at, bytes)| (MS * at, bytes));
    let opportunities = Opportunities::with_bytes(slots, MS * 10).unwrap();
    let mut link = link(mbps(0, 0).with_capacity(Capacity::Opportunities(opportunities)));
    // 1,000 at 2 ms and 3,000 at 4 ms carry the first two and 1,500 of the third's 2,000.
    for (packet, bytes) in [(1, 1_500), (2, 1_000), (3, 2_000), (4, 500), (5, 3_000)] {
        link.push(Instant::ZERO, bytes, packet).unwrap();
    }
    let expected = [(4, 1), (4, 2), (12, 3), (12, 4), (14, 5)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
}

#[test]
fn without_opportunities_nothing_ever_departs() {
    let none = Opportunities::with_bytes([], MS * 10).unwrap();
    let mut link = link(mbps(0, 0).with_capacity(Capacity::Opportunities(none)));
    link.push(Instant::from_millis(25), 100, 1).unwrap();
    assert_eq!(link.poll_timeout(), None);
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

/// A link with everything that can happen in it.
fn busy_link(seed: u64, reorders: bool) -> Link<u32> {
    let rates = [(0, 8_000), (40, 0), (60, 900)].map(|(at, r)| (MS * at, Rate::from_kbps(r)));
    let capacity = Capacity::Rates(Timeline::new(rates, MS * 90, AtEnd::Repeat).unwrap());
    let mut settings = LinkSettings::new(mbps(1, 4).with_capacity(capacity), seed);
    settings.queue_bytes = 8_000;
    settings.burst_loss = Some(GilbertElliott::bursts(0.1, 2.0));
    settings.jitter = Some(Jitter { deviation: MS, reorders });
    Link::new(settings)
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

/// Capacity ends after a second; what waits then departs when the trace begins again.
#[test]
fn what_waits_at_a_restart_departs_by_the_trace_as_it_begins() {
    let rates = [(0, 12), (1_000, 0)].map(|(at, r)| (MS * at, Rate::from_kbps(r * 1_000)));
    let rates = Timeline::new(rates, MS * 2_000, AtEnd::Hold).unwrap();
    let mut link = link(mbps(1, 20).with_capacity(Capacity::Rates(rates)));
    for (at, packet) in [(990, 1), (1_500, 2), (1_500, 3)] {
        link.push(Instant::from_millis(at), 1_500, packet).unwrap();
    }
    link.push(Instant::from_millis(1_500), 1_500, 4).unwrap();
    link.restart(Instant::from_millis(3_000));
    assert_eq!(link.queue_bytes(Instant::from_millis(3_000)), 4_500);
    link.push(Instant::from_millis(3_001), 1_500, 5).unwrap();
    let expected = [(1_011, 1), (3_021, 2), (3_022, 3), (3_023, 4), (3_024, 5)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
    let stats = link.stats();
    assert_eq!((stats.pushed, stats.delivered, stats.in_link), (5, 5, 0));
}

#[test]
fn what_is_on_its_way_at_a_restart_arrives_before_what_waited() {
    let mut link = link(mbps(12, 50));
    for packet in 0..3 {
        link.push(Instant::ZERO, 1_500, packet).unwrap();
    }
    // The first has departed at 1 ms and arrives at 51 ms, although the delay is 10 ms from now on.
    link.restart_with(Instant::from_millis(1), mbps(12, 10));
    let expected = [(51, 0), (51, 1), (51, 2)];
    assert_eq!(drain(&mut link), expected.map(|(at, packet)| (Instant::from_millis(at), packet)));
}
