//! Peers that violate the protocol: each costs itself a stream, or all of them, and bounded memory.

use roadweave_proto::SplitMix64;
use roadweave_proto::wire::EARLY_CREDIT;

use super::*;
use crate::stream::Stream;

const NOW: Instant = Instant::from_millis(1000);

fn server(streams: usize) -> Streams {
    Streams::new(Config::for_streams(Side::Server, streams))
}

fn check_reset(frames: &[StreamFrame]) {
    let mut streams = server(4);
    streams.handle_symbol(NOW, body(frames)).expect("the others go on");
    let is_reset = |frame: &StreamFrame| {
        matches!(frame, StreamFrame::Reset { id: of, code: ResetCode::Violation, .. }
            if *of == StreamId(0))
    };
    assert!(sent(&mut streams, NOW).iter().any(is_reset), "{frames:?}");
    assert_eq!((streams.stats().violations, streams.violation()), (1, None), "{frames:?}");
    assert!(streams.open(NOW, destination(), StreamPriority::default()).is_ok());
}

fn check_closed(frames: &[StreamFrame], expected: Violation) {
    let mut streams = server(64);
    let handled = streams.handle_symbol(NOW, body(frames));
    assert_eq!(handled, Err(HandleError::Violation(expected)), "{frames:?}");
    assert_eq!(streams.violation(), Some(expected));
    let refused = streams.open(NOW, destination(), StreamPriority::default());
    assert_eq!(refused, Err(StreamError::Closed(expected)));
    streams.handle_symbol(NOW, body(&[open(200, vec![])])).expect("reported once");
    assert!(events(&mut streams, NOW).iter().all(|event| matches!(event, Event::Reset { .. })));
}

fn ack(contiguous: u64, begun: bool, fin: bool) -> StreamFrame {
    acknowledged(StreamId(0), (begun, fin), contiguous, contiguous + (1 << 20), vec![])
}

fn reset(id: u64, final_size: u64) -> StreamFrame {
    let (id, code) = (StreamId(id), ResetCode::Aborted);
    StreamFrame::Reset { id, code, final_size, is_answer: false }
}

#[test]
fn a_stream_whose_rules_are_broken_is_reset_alone() {
    for frames in [
        &[open(0, vec![]), data(0, EARLY_CREDIT, 1, false)][..],
        &[open(0, vec![1; 9]), data(0, 9, 3, true), data(0, 12, 1, false)],
        &[open(0, vec![1; 9]), data(0, 5, 3, true)],
        &[open(0, vec![]), ack(1, false, false)],
        &[open(0, vec![]), ack(0, false, true)],
        &[open(0, vec![]), ack(0, true, false)],
    ] {
        check_reset(frames);
    }
}

#[test]
fn a_peer_that_breaks_the_rules_of_all_streams_loses_all() {
    check_closed(&[data(1, 0, 1, false)], Violation::StreamState);
    check_closed(&[open(0, vec![]), open(1, vec![])], Violation::StreamState);
    check_closed(&[StreamFrame::Opened(StreamId(0))], Violation::StreamState);
    // Each stream keeps to its credit, all together do not.
    let streams = SESSION_CREDIT / STREAM_CREDIT + 1;
    let full: Vec<_> = (0..streams)
        .flat_map(|at| [open(2 * at, vec![]), data(2 * at, STREAM_CREDIT - 1, 1, false)])
        .collect();
    check_closed(&full, Violation::SessionCredit);
}

#[test]
fn a_reset_beyond_the_credit_of_the_session_ends_all() {
    let mut streams = server(4);
    for id in 0..1000 {
        let frames = [open(2 * id, vec![]), reset(2 * id, STREAM_CREDIT)];
        streams.handle_symbol(NOW, body(&frames)).expect("credit is told again and again");
        sent(&mut streams, NOW);
    }
    assert_eq!((streams.open_streams(), events(&mut streams, NOW)), (0, vec![]));
    let resets = (0..=SESSION_CREDIT / STREAM_CREDIT).map(|at| reset(2 * at, STREAM_CREDIT));
    let untold: Vec<_> = resets.collect();
    check_closed(&untold, Violation::SessionCredit);
}

#[test]
fn streams_beyond_the_limit_are_refused_and_their_bytes_are_given_back() {
    let mut streams = server(4);
    for id in 0..1000 {
        streams.handle_symbol(NOW, body(&[open(2 * id, vec![7; 1000])])).expect("refused");
        assert!(streams.open_streams() <= 4);
        assert!(streams.memory() <= streams.memory_max());
        let refused = sent(&mut streams, NOW);
        let is_refusal = |frame: &StreamFrame| {
            matches!(frame, StreamFrame::Reset { code: ResetCode::TooMany, is_answer: true, .. })
        };
        assert_eq!(refused.iter().any(is_refusal), id >= 4, "{id}");
    }
    assert_eq!(streams.table.receive_credit.held(), 4000, "of the four");
    assert_eq!(streams.stats().refused, 996);
}

#[test]
fn a_peer_that_leaves_gaps_costs_a_bound() {
    let bounds = Config::for_streams(Side::Server, 4);
    let mut streams = Streams::new(Config { receive_max: SESSION_CREDIT, ..bounds });
    for id in [0, 2, 4, 6] {
        streams.handle_symbol(NOW, body(&[open(id, vec![])])).expect("room");
        for at in 1..STREAM_CREDIT / 2 {
            streams.handle_symbol(NOW, body(&[data(id, 2 * at, 1, false)])).expect("credit");
        }
        assert!(streams.memory() <= streams.memory_max());
    }
    // As many as there is credit for, and those that each may have.
    let most = SESSION_CREDIT as usize / 1024 + 3 * crate::receive::RANGES_MIN;
    let held: usize = streams.table.streams.values().map(|stream| stream.receive.records()).sum();
    assert_eq!(held, most);
    assert_eq!(streams.stats().dropped, 4 * (STREAM_CREDIT / 2 - 1) - most as u64);
    for id in [0, 2, 4, 6] {
        streams.stop(NOW, StreamId(id), ResetCode::Other).expect("open");
    }
    assert_eq!(streams.table.index.held_ranges, 0);
}

#[test]
fn a_peer_that_never_reads_holds_back_one_writer() {
    let mut pair = Pair::new(4);
    pair.client.table.config.give_up_after = Duration::from_secs(20);
    let id = pair.open();
    let mut written = 0;
    pair.run(Duration::from_secs(60), |pair| {
        written += pair.client.write(pair.now, id, &[0; 5000]).expect("the peer still answers");
        while pair.server.poll_event(pair.now).is_some() {}
    });
    let most = pair.client.table.config.send_max + pair.server.table.config.receive_max;
    assert!(written as u64 <= most, "{written} bytes were taken");
    assert!(pair.server.table.receive_credit.held() <= pair.server.table.config.receive_max);
    let stats = pair.client.stats();
    let idle = stats.symbols - stats.sent;
    assert!(idle < stats.sent / 20, "{idle} bytes to ask for credit");
    let now = pair.now;
    for second in 0..100 {
        pair.client.handle_timeout(now + Duration::from_secs(second));
        sent(&mut pair.client, now + Duration::from_secs(second));
    }
    let seen = events(&mut pair.client, now);
    let code = ResetCode::TimedOut;
    assert!(seen.contains(&Event::Reset { id, code, by_peer: false }), "{seen:?}");
}

#[test]
fn an_answer_is_never_answered() {
    let mut streams = server(4);
    let id = StreamId(0);
    let answer = |code| StreamFrame::Reset { id, code, final_size: 5, is_answer: true };
    for code in [ResetCode::Unknown, ResetCode::Aborted] {
        streams.handle_symbol(NOW, body(&[answer(code)])).expect("ignored");
        let answers = sent(&mut streams, NOW);
        assert!(!answers.iter().any(|frame| matches!(frame, StreamFrame::Reset { .. })));
    }
}

#[test]
fn a_reset_is_resent_until_it_is_acknowledged_or_given_up() {
    let mut streams = server(4);
    let id = begin(&mut streams, NOW);
    sent(&mut streams, NOW);
    streams.reset(NOW, id, ResetCode::Aborted).expect("open");
    let (mut now, mut resets) = (NOW, sent(&mut streams, NOW).len());
    while let Some(at) = streams.poll_timeout() {
        assert!(at > now, "time passes");
        now = at;
        streams.handle_timeout(now);
        resets += sent(&mut streams, now).len();
    }
    assert!((200..300).contains(&resets), "{resets} times");
    assert_eq!((streams.open_streams(), streams.stats().timed_out), (0, 1));
}

#[test]
fn what_is_malformed_is_refused_and_counted() {
    let mut streams = server(4);
    for bytes in [&b""[..], b"E", b"\x20\xff", b"\x20\x03"] {
        let handled = streams.handle_symbol(NOW, Bytes::copy_from_slice(bytes));
        assert!(matches!(handled, Err(HandleError::Malformed(_))), "{bytes:?}");
    }
    assert_eq!((streams.stats().malformed, streams.violation()), (4, None));
}

#[test]
fn frames_at_random_cost_a_bound() {
    for seed in 0..400 {
        let mut random = SplitMix64::new(seed);
        let config = Config { send_max: 64 << 10, ..Config::for_streams(Side::Server, 4) };
        let mut streams = Streams::new(config);
        let mut now = NOW;
        for _ in 0..400 {
            now += Duration::from_millis(random.below(200) as u64);
            match random.below(4) {
                0 => use_at_random(&mut random, &mut streams, now),
                1 => {
                    streams.handle_timeout(now);
                    assert!(streams.poll_timeout().is_none_or(|at| at > now), "seed {seed}");
                    if random.below(50) == 0 {
                        streams.on_new_session(now);
                    }
                }
                2 => {
                    let room = random.below(2000);
                    let body = streams.poll_transmit(now, room);
                    assert!(body.is_none_or(|body| body.len() <= room), "seed {seed}");
                }
                _ => {
                    let frame = any_frame(&mut random);
                    let _ = streams.handle_symbol(now, body(&[frame]));
                }
            }
            assert!(streams.memory() <= streams.memory_max(), "seed {seed}");
        }
        let mut rounds = 0;
        while let Some(at) = streams.poll_timeout() {
            rounds += 1;
            assert!(rounds < 20_000, "seed {seed}: {streams:#?}");
            now = at;
            streams.handle_timeout(now);
            sent(&mut streams, now);
            events(&mut streams, now);
        }
        let is_waiting = |stream: &Stream| stream.reset.is_some() && !stream.events.is_empty();
        assert!(!streams.table.streams.values().any(|stream| is_waiting(stream)), "seed {seed}");
        let buffered: u64 =
            streams.table.streams.values().map(|stream| stream.send.buffered()).sum();
        assert_eq!(streams.table.index.buffered, buffered, "seed {seed}");
    }
}

fn use_at_random(random: &mut SplitMix64, streams: &mut Streams, now: Instant) {
    let id = StreamId(random.below(12) as u64);
    let _ = match random.below(9) {
        0 => streams.open(now, destination(), StreamPriority::default()).map(|_| ()),
        1 => streams.accept(now, id),
        2 => streams.write(now, id, &vec![0; random.below(30_000)]).map(|_| ()),
        3 => streams.finish(now, id),
        4 => streams.read(now, id, &mut vec![0; random.below(9000)]).map(|_| ()),
        5 => streams.stop(now, id, ResetCode::Aborted),
        6 if random.below(4) == 0 => streams.reset(now, id, ResetCode::Aborted),
        7 => streams.set_priority(now, id, StreamPriority::new(random.below(9) as u8, true)),
        _ => {
            streams.poll_event(now);
            Ok(())
        }
    };
}

fn any_frame(random: &mut SplitMix64) -> StreamFrame {
    let index = random.below(6) as u64;
    let ours = random.below(8) == 0;
    let id = StreamId(2 * if ours { index / 3 } else { index } + u64::from(ours));
    let small = |random: &mut SplitMix64| match random.below(20) {
        0 => roadweave_proto::wire::VARINT_MAX - 70_000,
        1..4 => 0,
        _ => random.below(20_000) as u64,
    };
    let code = ResetCode::Aborted;
    match random.below(16) {
        0..3 if !ours => open(id.0, vec![1; random.below(900)]),
        0..8 => data(id.0, small(random), random.below(900), random.below(9) == 0),
        8..11 => {
            let contiguous = small(random) / 16;
            let at = contiguous + 1 + random.below(50) as u64;
            let ranges =
                if random.below(2) == 0 { vec![at..at + 1, at + 2..at + 9] } else { vec![] };
            let credit = contiguous + 100 + small(random);
            let (begun, fin) = (random.below(2) == 0, random.below(9) == 0);
            acknowledged(id, (begun, fin), contiguous, credit, ranges)
        }
        11 => StreamFrame::SessionCredit(small(random)),
        12 => {
            let (final_size, is_answer) = (small(random), random.below(2) == 0);
            StreamFrame::Reset { id, code, final_size, is_answer }
        }
        13 => StreamFrame::Stop { id, code },
        14 if ours => StreamFrame::Opened(id),
        _ => data(id.0, small(random), 0, false),
    }
}

#[test]
fn priorities_out_of_turn_change_nothing() {
    let mut streams = server(4);
    let ask = |id, change, urgency| {
        let priority = StreamPriority::new(urgency, false);
        StreamFrame::Priority { id: StreamId(id), change, priority }
    };
    let before = streams.memory();
    for id in 0..1_000 {
        streams.handle_symbol(NOW, body(&[ask(2 * id, 1, 0)])).expect("it says nothing");
    }
    assert_eq!((streams.stats().ignored_frames, streams.open_streams()), (1_000, 0));
    assert_eq!((sent(&mut streams, NOW), streams.memory()), (vec![], before));
    // A change that overtakes the open is forgotten; one that overtakes another change holds.
    let frames = [open(0, vec![]), ask(0, 7, 1), ask(0, 6, 5), ask(0, 7, 6), ask(0, 0, 2)];
    streams.handle_symbol(NOW, body(&frames)).expect("frames");
    assert_eq!(streams.asked_priority(StreamId(0)), Ok(StreamPriority::new(1, false)));
    let mut last = server(4);
    last.handle_symbol(NOW, body(&[data(0, 5, 3, false), ask(0, 1, 2), open(0, vec![])]))
        .expect("frames");
    assert_eq!(last.asked_priority(StreamId(0)), Ok(StreamPriority::new(2, false)));
    // The peer cannot ask for a stream of this end.
    let mut streams = server(4);
    begin(&mut streams, NOW);
    let handled = streams.handle_symbol(NOW, body(&[ask(1, 1, 0)]));
    assert_eq!(handled, Err(HandleError::Violation(Violation::StreamState)));
}

/// The least time of an acknowledgement of scattered bytes with so many pieces in flight.
#[allow(clippy::disallowed_methods, reason = "what it costs by what it costs otherwise")]
fn acknowledging(scattered: u64) -> Duration {
    let mut streams = server(4);
    let now = NOW;
    let acknowledged =
        |contiguous, ranges| acknowledged(StreamId(0), (true, false), contiguous, 1 << 40, ranges);
    streams.handle_symbol(now, body(&[open(0, vec![])])).expect("room");
    events(&mut streams, now);
    streams.accept(now, StreamId(0)).expect("it is open");
    sent(&mut streams, now);
    let credit = [StreamFrame::SessionCredit(1 << 40), acknowledged(0, vec![])];
    streams.handle_symbol(now, body(&credit)).expect("it keeps to the rules");
    while streams.write(now, StreamId(0), &[0; 1 << 16]).expect("it is open") > 0 {}
    while streams.poll_transmit(now, ROOM).is_some() {}
    for at in 0..scattered / 32 {
        let ranges = (0..32).map(|piece| (at * 32 + piece + 1) * 250).map(|byte| byte..byte + 1);
        let frame = acknowledged(0, ranges.collect());
        streams.handle_symbol(now, body(&[frame])).expect("it was sent");
    }
    let now = now + Duration::from_secs(6);
    streams.handle_timeout(now);
    let tiny = acknowledged(0, (0..32).map(|at| 2 * at + 1..2 * at + 2).collect());
    let symbol = body(&vec![tiny; 15]);
    let time = |streams: &mut Streams| {
        let began = std::time::Instant::now();
        streams.handle_symbol(now, symbol.clone()).expect("it was sent");
        began.elapsed()
    };
    (0..20).map(|_| time(&mut streams)).min().expect("some")
}

#[test]
fn an_acknowledgement_costs_no_more_where_thousands_of_pieces_are_lost() {
    let (few, many) = (acknowledging(32), acknowledging(15_000));
    assert!(many < few * 20, "{many:?}, and {few:?} where hardly any are");
}
