use super::*;

const MS: Duration = Duration::from_millis(1);

fn meter() -> (Meter, Instant) {
    let mut meter = Meter::new(Duration::from_millis(100), 1200);
    meter.start_tracking();
    (meter, Instant::from_millis(1_000))
}

fn send(meter: &mut Meter, at: Instant, pn: u64, token: u64) {
    meter.on_sent(at, 1000, pn);
    assert!(meter.claim(Some(TrackedPayload::Datagram(token))));
}

fn acknowledged(token: u64, sent: Instant, rtt: Duration) -> (TrackedPayload, Fate) {
    let packet = AcknowledgedPacket { sent, bytes: 1000, rtt };
    (TrackedPayload::Datagram(token), Fate::Acknowledged(packet))
}

fn lost(token: u64) -> (TrackedPayload, Fate) {
    (TrackedPayload::Datagram(token), Fate::Lost)
}

fn signals(meter: &mut Meter) -> Vec<(TrackedPayload, Fate)> {
    meter.take_signals().collect()
}

fn sent(packets: u32) -> (Meter, Instant) {
    let (mut meter, start) = meter();
    (0..packets).for_each(|pn| meter.on_sent(start + MS * pn, 1000, pn.into()));
    acknowledge(&mut meter, start, 40, &[0]);
    (meter, start)
}

fn acknowledge(meter: &mut Meter, start: Instant, at: u32, packets: &[u32]) -> bool {
    let now = start + MS * at;
    let all_came = packets.iter().fold(false, |all, pn| {
        all | meter.on_acknowledged(now, start + MS * *pn, 1000, u64::from(*pn))
    });
    meter.on_acks_end(now);
    all_came
}

fn acknowledge_at(meter: &mut Meter, now: Instant, sent: Instant, pn: u32) {
    meter.on_acknowledged(now, sent, 1000, pn.into());
    meter.on_acks_end(now);
}

fn losses(meter: &mut Meter) -> Vec<u64> {
    let losses = meter.take_losses().map(|losses| losses.packets).unwrap_or_default();
    losses.iter().map(|packet| packet.pn).collect()
}

#[test]
fn a_round_trip_does_not_hold_what_the_peer_waited_for_newer_packets() {
    let (mut meter, start) = meter();
    send(&mut meter, start, 1, 1);
    send(&mut meter, start + MS * 9, 2, 2);
    send(&mut meter, start + MS * 10, 3, 3);
    for (pn, sent) in [(3, 10), (2, 9), (1, 0)] {
        meter.on_acknowledged(start + MS * 50, start + MS * sent, 1000, pn);
    }
    meter.on_acks_end(start + MS * 50);
    meter.on_acks_end(start + MS * 51);
    let expected = [
        acknowledged(3, start + MS * 10, MS * 40),
        acknowledged(2, start + MS * 9, MS * 40),
        // The peer waits at most 2 ms.
        acknowledged(1, start, MS * 48),
    ];
    assert_eq!(signals(&mut meter), expected);
}

#[test]
fn an_acknowledgement_of_something_newer_is_one_round_trip() {
    let (mut meter, start) = meter();
    for (pn, ms) in (1..=4).zip(1..) {
        send(&mut meter, start + MS * ms, pn, pn);
    }
    for (pn, ms) in [(1, 1), (2, 2), (3, 3)] {
        meter.on_acknowledged(start + MS * 50, start + MS * ms, 1000, pn);
    }
    meter.on_acks_end(start + MS * 50);
    // A late one says nothing about the present path.
    meter.on_acknowledged(start + MS * 90, start + MS * 2, 1000, 2);
    meter.on_acks_end(start + MS * 90);
    meter.on_acknowledged(start + MS * 154, start + MS * 4, 1000, 4);
    meter.on_acks_end(start + MS * 154);
    let counts: Vec<_> = meter.round_trips.buckets().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(0.05, 1), (0.15, 1)]);
}

#[test]
fn each_token_gets_one_fate() {
    let (mut meter, start) = meter();
    for pn in [5, 6, 8, 9] {
        send(&mut meter, start, pn, pn * 100);
    }
    assert_eq!(meter.in_flight(), 4000);
    meter.on_acknowledged(start + MS, start, 1000, 8);
    meter.on_acknowledged(start + MS, start, 1000, 8);
    meter.on_lost(5);
    meter.on_lost(7);
    meter.abandon();
    meter.on_acknowledged(start + MS, start, 1000, 6);
    let expected = [acknowledged(800, start, MS), lost(500), lost(600), lost(900)];
    assert_eq!(signals(&mut meter), expected);
    assert_eq!(meter.in_flight(), 0);
}

#[test]
fn what_the_library_forgets_is_lost_in_the_end() {
    let (mut meter, start) = meter();
    send(&mut meter, start, 1, 1);
    send(&mut meter, start + MS, 2, 2);
    meter.on_acknowledged(start + MS * 50, start + MS, 1000, 2);
    meter.on_acks_end(start + MS * 50);
    assert_eq!(signals(&mut meter), [acknowledged(2, start + MS, MS * 49)]);
    meter.on_acks_end(start + MS * 3000);
    assert_eq!(signals(&mut meter), [lost(1)]);
    assert_eq!(meter.in_flight(), 0);
}

#[test]
fn an_answer_is_owed_since_the_oldest_packet_or_the_last_answer() {
    let (mut meter, start) = meter();
    assert_eq!(meter.unanswered_since(), None);
    send(&mut meter, start, 1, 1);
    send(&mut meter, start + MS, 2, 2);
    assert_eq!(meter.unanswered_since(), Some(start));
    meter.on_acknowledged(start + MS * 9, start + MS, 1000, 2);
    assert_eq!(meter.unanswered_since(), Some(start + MS * 9));
    meter.on_acknowledged(start + MS * 9, start, 1000, 1);
    assert_eq!(meter.unanswered_since(), None);
}

#[test]
fn a_sender_that_leaves_room_is_application_limited() {
    let (mut meter, start) = meter();
    assert!(meter.is_app_limited(start));
    meter.on_limited(start, true, MS);
    assert!(!meter.is_app_limited(start + MS * 5));
    let progress = meter.on_acks_end(start + MS * 5);
    assert_eq!(progress, WindowUse { app_limited: false, window_limited: true });
    meter.on_limited(start + MS * 100, false, MS);
    assert!(!meter.is_app_limited(start + MS * 105));
    assert!(meter.is_app_limited(start + MS * 106));
    let progress = meter.on_acks_end(start + MS * 500);
    assert_eq!(progress, WindowUse { app_limited: true, window_limited: false });
}

#[test]
fn gaps_between_numbers_cost_nothing() {
    let (mut meter, start) = meter();
    send(&mut meter, start, 10, 1);
    send(&mut meter, start, 1 << 40, 2);
    meter.on_sent(start, 1000, 3);
    assert_eq!((meter.sent.len(), meter.in_flight()), (2, 2000));
    meter.on_lost(10);
    assert_eq!((meter.sent.len(), meter.in_flight()), (1, 1000));
}

#[test]
fn an_overtaken_packet_is_lost_after_two_round_trips() {
    let (mut meter, start) = sent(4);
    assert_eq!(meter.loss_due(), None, "none was overtaken");
    acknowledge(&mut meter, start, 43, &[3]);
    assert_eq!(meter.loss_due(), Some(start + MS * 81));
    assert!(!meter.detect_losses(start + MS * 80));
    assert!(meter.detect_losses(start + MS * 81));
    assert!(meter.detect_losses(start + MS * 82));
    assert_eq!(losses(&mut meter), [1, 2]);
    assert_eq!(losses(&mut meter), [0; 0], "the controller hears of each once");
    assert_eq!((meter.loss_due(), meter.in_flight()), (None, 0));
}

#[test]
fn where_packets_are_known_to_keep_their_order_one_is_lost_after_a_round_trip_and_a_quarter() {
    let (mut meter, start) = meter();
    for pn in 0..200 {
        meter.on_sent(start + MS * 60 * pn, 1000, pn.into());
        acknowledge_at(&mut meter, start + MS * (60 * pn + 40), start + MS * 60 * pn, pn);
    }
    let later = start + MS * 12_000;
    (200..202).for_each(|pn| meter.on_sent(later, 1000, pn));
    acknowledge_at(&mut meter, later + MS * 40, later, 201);
    assert_eq!(meter.loss_due(), Some(later + MS * 50));
    // It comes after all: packets do not keep their order.
    acknowledge_at(&mut meter, later + MS * 45, later, 200);
    meter.on_sent(later + MS * 50, 1000, 202);
    meter.on_sent(later + MS * 50, 1000, 203);
    acknowledge_at(&mut meter, later + MS * 90, later + MS * 50, 203);
    assert!(meter.loss_due() > Some(later + MS * 129));
}

#[test]
fn what_comes_after_all_was_not_lost_and_raises_the_loss_delay() {
    let (mut meter, start) = sent(300);
    acknowledge(&mut meter, start, 43, &[3]);
    meter.detect_losses(start + MS * 100);
    assert_eq!(losses(&mut meter), [1, 2]);
    assert!(!acknowledge(&mut meter, start, 102, &[1]));
    assert!(acknowledge(&mut meter, start, 122, &[2]), "the last of them");
    // Packet 2 was 120 ms old. Otherwise packet 5, in flight, would be lost after about 80.
    acknowledge(&mut meter, start, 123, &[80]);
    meter.detect_losses(start + MS * 150);
    assert_eq!(losses(&mut meter), [0; 0]);
    meter.detect_losses(start + MS * (5 + 150));
    assert_eq!(losses(&mut meter), [4, 5], "a quarter more");
}

#[test]
fn the_loss_delay_falls_when_packets_keep_their_order_again() {
    let (mut meter, start) = sent(10);
    acknowledge(&mut meter, start, 43, &[3]);
    acknowledge(&mut meter, start, 70, &[1]);
    assert_eq!(meter.reordering.most(), MS * 69);
    assert_eq!(meter.order_rate(), None, "of one it is not known how late they are as a rule");
    meter.detect_losses(start + MS * 12_000);
    meter.detect_losses(start + MS * 18_000);
    assert_eq!(meter.reordering.most(), Duration::ZERO);
}

#[test]
fn the_controller_hears_nothing_of_a_loss_that_was_none() {
    let (mut meter, start) = sent(10);
    acknowledge(&mut meter, start, 43, &[3]);
    assert!(meter.detect_losses(start + MS * 100));
    let loss = meter.loss;
    assert!(!acknowledge(&mut meter, start, 101, &[1, 2]));
    assert_eq!(losses(&mut meter), [0; 0]);
    assert!(meter.loss < loss);
}

#[test]
fn one_swapped_packet_in_many_is_no_rule() {
    let (mut meter, start) = sent(200);
    acknowledge(&mut meter, start, 43, &[3]);
    acknowledge(&mut meter, start, 44, &[2]);
    assert!(meter.is_overtaken(), "one of two");
    for pn in 4..100 {
        acknowledge(&mut meter, start, pn + 40, &[pn]);
    }
    assert!(!meter.is_overtaken(), "one of a hundred");
}

#[test]
fn numbers_of_the_handshake_overtake_nothing() {
    let start = Instant::from_millis(1_000);
    let mut meter = Meter::new(MS * 100, 1200);
    meter.on_acknowledged(start + MS * 40, start, 1200, 3);
    meter.on_acks_end(start + MS * 40);
    meter.start_tracking();
    meter.on_sent(start + MS * 41, 1200, 0);
    assert_eq!(meter.loss_due(), None);
    meter.on_acknowledged(start + MS * 90, start + MS * 41, 1200, 0);
    meter.on_acks_end(start + MS * 90);
    assert_eq!(meter.reordering.most(), Duration::ZERO);
}

#[test]
fn what_more_packets_have_overtaken_than_a_peer_remembers_is_lost() {
    let (mut meter, start) = meter();
    (0..=PACKET_THRESHOLD).for_each(|pn| meter.on_sent(start, 1000, pn));
    acknowledge(&mut meter, start, 20, &[0]);
    meter.on_acknowledged(start + MS * 21, start, 1000, PACKET_THRESHOLD - 1);
    meter.on_acks_end(start + MS * 21);
    assert_eq!(losses(&mut meter), [0; 0]);
    meter.on_sent(start + MS, 1000, PACKET_THRESHOLD + 1);
    meter.on_acknowledged(start + MS * 22, start + MS, 1000, PACKET_THRESHOLD + 1);
    meter.on_acks_end(start + MS * 22);
    assert_eq!(losses(&mut meter), [1]);
}

#[test]
fn late_packets_bound_the_rate() {
    let (mut meter, start) = sent(2000);
    // Each odd one 60 ms later than the even ones.
    for pn in (2..1800).step_by(2) {
        acknowledge(&mut meter, start, pn + 40, &[pn]);
        if pn > 62 {
            acknowledge(&mut meter, start, pn + 40, &[pn - 61]);
        }
    }
    let rate = meter.order_rate().expect("they were overtaken").bytes_per_second();
    let bound = 128.0 * 1200.0 / 0.061;
    assert!((bound * 0.8..bound * 1.1).contains(&rate), "{rate} is not about {bound}");
}

#[test]
fn a_probe_of_the_mtu_that_is_lost_is_no_congestion() {
    let (mut meter, start) = meter();
    meter.on_sent(start, 1400, 0);
    meter.on_sent(start, 1000, 1);
    meter.on_acknowledged(start + MS * 40, start, 1000, 1);
    meter.on_acks_end(start + MS * 40);
    assert!(meter.detect_losses(start + MS * 90));
    assert_eq!((meter.in_flight(), losses(&mut meter).len()), (0, 0));
}

#[test]
fn nothing_but_losses_for_three_probe_timeouts_is_persistent_congestion() {
    for (packets, expected) in [(100, false), (900, true)] {
        let (mut meter, start) = sent(packets + 1);
        acknowledge(&mut meter, start, packets + 40, &[packets]);
        meter.detect_losses(start + MS * (packets + 200));
        let losses = meter.take_losses().expect("all but two");
        let found = (losses.packets.len() as u32, losses.is_persistent);
        assert_eq!(found, (packets - 1, expected));
    }
}
