//! What a proxy keeps of the frames for a client, and what it says that it takes.

use roadweave_proto::wire::StreamsEpoch;

use super::*;

fn offer(epoch: u64) -> Option<StreamsOffer> {
    Some(StreamsOffer { epoch: StreamsEpoch(epoch), takes_priorities: true, takes_early: true })
}

const SESSION: ConnectionId = ConnectionId(7);

fn streams_event(far_end: Option<StreamsOffer>) -> Option<LegEvent> {
    Some(LegEvent::Streams(SESSION, far_end))
}

fn relay() -> Relay {
    let mut relay = Relay { client: offer(1), ..Relay::default() };
    assert_eq!(relay.on_far_end(SESSION, offer(2)), streams_event(offer(2)));
    relay.room.size = 1_200;
    relay
}

fn frames(sent: u64, urgency: u64, length: usize) -> LegFrames {
    let frames = vec![roadweave_proto::wire::STREAM_TAG; length].into();
    LegFrames { handle: 1, urgency: Urgency(urgency), sent, frames }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn what_is_urgent_overtakes_what_waits() {
    let mut relay = relay();
    for (sent, urgency) in [(0, 3), (100, 3), (200, 1), (300, 2)] {
        relay.push(frames(sent, urgency, 100)).unwrap();
    }
    assert_eq!(relay.room.left(), 0);
    let order: Vec<u64> = relay.waiting.keys().map(|(urgency, _)| urgency.0).collect();
    assert_eq!(order, [1, 2, 3, 3]);
    while relay.pop().is_some() {}
    assert_eq!((relay.held, relay.room.waiting, relay.room.left()), (0, 0, 400));
}

#[test]
fn more_is_taken_ahead_the_more_leaves_and_no_more_than_that() {
    let mut relay = relay();
    let (mut now, mut sent, mut until) = (Instant::from_millis(1_000), 0, 0);
    let mut most = 0;
    // The lane takes 12.5 MB a second, and the anchor is 20 ms away.
    for _ in 0..1_000 {
        now += MS;
        until = relay.due(now, 20 * MS).map_or(until, |(until, ..)| until);
        while sent + 1_000 <= until {
            relay.push(frames(sent, 1, 1_000)).unwrap();
            sent += 1_000;
        }
        for _ in 0..12 {
            relay.pop();
        }
        most = most.max(relay.room.waiting);
    }
    let window = 2 * 12_000 * 40;
    assert!((window * 9 / 10..=window).contains(&most), "{most}");
    now += 10 * MS;
    while relay.pop().is_some() {}
    relay.due(now, 20 * MS);
    relay.due(now + 1_000 * MS, 20 * MS);
    assert!(relay.room.window < WINDOW_MIN);
}

#[test]
fn what_was_lost_on_the_leg_takes_no_room_for_ever() {
    let mut relay = relay();
    let (until, size, _) = relay.due(Instant::from_millis(5), MS).expect("asked at first");
    assert_eq!((until, size), (WINDOW_MIN, 1_200));
    // All of it was lost; only the question that follows shows that.
    assert_eq!(relay.due(Instant::from_millis(900), MS), None);
    relay.push(frames(WINDOW_MIN, 0, 0)).unwrap();
    let (until, ..) = relay.due(Instant::from_millis(1_000), MS).expect("it was asked");
    assert_eq!(until, 2 * WINDOW_MIN);
}

#[test]
fn the_memory_of_a_relay_is_bounded_whatever_the_anchor_sends() {
    for length in [1, 1_000, 60_000] {
        let mut relay = relay();
        let push = |at: u64| relay.push(frames(at.wrapping_mul(7_919), at % 5, length));
        let refused = (0..100_000).map(push).filter(Result::is_err).count();
        assert!(refused > 0 && relay.held <= HELD_MAX, "{length}: {refused}");
        assert!(relay.shed(1 << 20) > 0);
        assert!(relay.held <= 1 << 20);
        assert!(relay.reset() > 0);
        assert_eq!(relay.held, 0);
    }
}

#[test]
fn unsolicited_frames_are_refused() {
    let mut none = Relay::default();
    assert_eq!(none.on_far_end(SESSION, offer(2)), None);
    assert_eq!(none.push(frames(0, 0, 10)), Err(DropReason::Unbound));
    let mut without = Relay { client: offer(1), ..Relay::default() };
    assert_eq!(without.on_far_end(SESSION, None), streams_event(None));
    assert_eq!(without.push(frames(0, 0, 10)), Err(DropReason::Unbound));
    assert_eq!(without.due(Instant::ZERO, MS), None);
}

#[test]
fn in_one_session_streams_do_not_become_others() {
    let mut relay = relay();
    relay.reset();
    assert_eq!(relay.on_far_end(SESSION, offer(2)), streams_event(offer(2)), "after a new leg");
    let over = Some(LegEvent::StreamsOver(SESSION));
    assert_eq!(relay.on_far_end(SESSION, offer(3)), over);
    assert_eq!(relay.on_far_end(SESSION, None), over);
}

#[test]
fn an_anchor_may_say_any_number() {
    let mut relay = relay();
    let mut now = Instant::from_millis(5);
    for (sent, urgency) in [(u64::MAX, u64::MAX), (u64::MAX - 1, 0), (0, 0), (7, u64::MAX)] {
        relay.push(frames(sent, urgency, 1_000)).unwrap();
        relay.push(frames(sent, urgency, 0)).unwrap();
        for _ in 0..3 {
            now += 100 * MS;
            relay.due(now, 20 * MS);
            relay.pop();
        }
        assert_eq!(relay.due(now, 20 * MS), None, "told, and nothing has changed");
    }
    assert_eq!((relay.held, relay.room.until), (0, u64::MAX));
}
