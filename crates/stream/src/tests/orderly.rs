//! Peers that keep the protocol: order, speed, and cost.

use roadweave_proto::Urgency;
use roadweave_proto::wire::{EARLY_CREDIT, StreamsEpoch, StreamsOffer};

use super::*;

#[test]
fn a_stream_carries_bytes_both_ways_and_ends() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    assert_eq!(pair.client.write(pair.now, id, b"question"), Ok(8));
    pair.client.finish(pair.now, id).expect("open");
    assert_eq!(pair.server.accept(pair.now, id), Err(StreamError::NoSuchStream));
    pair.run(Duration::from_millis(30), |_| {});
    let priority = StreamPriority::default();
    let opened = Event::Opened { id, destination: destination(), priority };
    assert_eq!(events(&mut pair.server, pair.now), [opened, Event::Readable(id)]);
    assert_eq!(pair.server.write(pair.now, id, b"x"), Err(StreamError::NotAccepted));
    let mut out = [0; 20];
    assert_eq!(pair.server.read(pair.now, id, &mut out), Ok(8));
    assert_eq!(&out[..8], b"question");
    assert_eq!(events(&mut pair.server, pair.now), [Event::Finished(id)]);
    pair.server.accept(pair.now, id).expect("the peer's");
    pair.run(Duration::from_millis(30), |_| {});
    let expected = [Event::Connected(id), Event::Acknowledged(id)];
    assert_eq!(events(&mut pair.client, pair.now), expected);
    assert_eq!(pair.server.write(pair.now, id, b"answer"), Ok(6));
    pair.server.finish(pair.now, id).expect("open");
    pair.run(Duration::from_millis(60), |_| {});
    assert_eq!(pair.client.read(pair.now, id, &mut out), Ok(6));
    assert_eq!(events(&mut pair.client, pair.now), [Event::Readable(id), Event::Finished(id)]);
    assert_eq!(events(&mut pair.server, pair.now), [Event::Acknowledged(id)]);
    pair.run(Duration::from_millis(60), |_| {});
    assert_eq!((pair.client.open_streams(), pair.server.open_streams()), (0, 0));
    assert_eq!(pair.client.stats().sent_again, 0);
}

#[test]
fn a_stream_over_a_clean_channel_never_stalls() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    let mut read = Vec::new();
    pair.run(Duration::from_millis(1000), |pair| {
        // 10 kB in a millisecond: 80 Mbit/s.
        pair.client.write(pair.now, id, &[1; 10_000]).expect("open");
        read.push(drain(&mut pair.server, pair.now, id));
    });
    let slowest = read[300..].iter().min();
    assert_eq!(slowest, Some(&10_000), "each millisecond as much as was offered");
    let all: usize = read.iter().sum();
    assert!(all > 9_500_000, "{all} of 10 MB");
    let stats = pair.client.stats();
    assert_eq!((stats.sent_again, pair.server.stats().duplicate), (0, 0));
    let overhead = stats.symbols - stats.sent;
    assert!(overhead < stats.sent / 70, "{overhead} bytes beside {} of data", stats.sent);
}

#[test]
fn a_long_answer_needs_one_round_trip() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    pair.client.write(pair.now, id, b"question").expect("open");
    let (mut written, mut read) = (0, 0);
    let answer = vec![1; 200_000];
    pair.run(Duration::from_millis(52), |pair| {
        if pair.server.accept(pair.now, id).is_ok() {
            written += pair.server.write(pair.now, id, &answer[written..]).expect("accepted");
        }
        read += drain(&mut pair.client, pair.now, id);
    });
    assert_eq!((written, read), (200_000, 200_000));
}

/// A slow link beside a fast one: more than a thousand gaps, and nothing is dropped or sent again.
#[test]
fn segments_that_are_late_alternately_are_all_buffered() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    pair.late = Duration::from_millis(300);
    let (mut read, mut most) = (0, 0);
    pair.run(Duration::from_millis(2500), |pair| {
        pair.client.write(pair.now, id, &[1; 10_000]).expect("open");
        read += drain(&mut pair.server, pair.now, id);
        most = most.max(pair.server.table.index.held_ranges);
    });
    assert!(most > 1000, "{most} gaps");
    assert_eq!((pair.server.stats().dropped, pair.client.stats().sent_again), (0, 0));
    assert!(read > 15_000_000, "{read} of 25 MB");
}

#[test]
fn responses_that_are_not_read_leave_room_for_the_next() {
    let mut pair = Pair::new(32);
    let ids = [(); 32].map(|()| pair.open());
    let mut read = 0;
    pair.run(Duration::from_millis(3_000), |pair| {
        for id in &ids {
            if pair.server.accept(pair.now, *id).is_ok() {
                pair.server.write(pair.now, *id, &[1; 20_000]).expect("accepted");
            }
        }
        read += drain(&mut pair.client, pair.now, ids[31]);
    });
    assert!(read > 5_000_000, "{read} bytes in three seconds");
    assert!(pair.client.table.receive_credit.held() < pair.client.table.config.receive_max);
}

#[test]
fn urgent_bytes_leave_first_and_incremental_streams_take_turns() {
    let mut pair = Pair::new(8);
    let now = pair.now;
    let client = &mut pair.client;
    let mut begin = |urgency, incremental| {
        let priority = StreamPriority::new(urgency, incremental);
        let id = client.open(now, destination(), priority).expect("room");
        client.write(now, id, &[0; 6000]).expect("open");
        id
    };
    let turns = [begin(5, true), begin(5, true)];
    let bulk = [begin(5, false), begin(5, false)];
    let urgent = begin(1, false);
    let order = order(sent(client, now));
    let count = |id: StreamId| order.iter().filter(|of| **of == id).count();
    let (urgent_frames, first, second) = (count(urgent), count(bulk[0]), count(bulk[1]));
    assert!(order[..urgent_frames].iter().all(|id| *id == urgent), "{order:?}");
    let rest = &order[urgent_frames..];
    assert!(rest[..first].iter().all(|id| *id == bulk[0]), "{order:?}");
    assert!(rest[first..first + second].iter().all(|id| *id == bulk[1]), "{order:?}");
    let rest = &rest[first + second..];
    assert!(rest.len() >= 10 && rest.iter().all(|id| turns.contains(id)));
    assert!(rest.windows(2).all(|pair| pair[0] != pair[1]), "in turn: {rest:?}");
}

#[test]
fn heads_go_first_and_the_urgency_of_the_next_is_known() {
    let config = Config { head: 1500, ..Config::for_streams(Side::Client, 4) };
    let mut streams = Streams::new(config);
    let now = Instant::from_millis(100);
    assert_eq!(streams.next_urgency(), Urgency::LAST);
    let urgent = StreamPriority::new(0, false);
    let ids = [urgent, StreamPriority::new(5, true), urgent].map(|priority| {
        let id = streams.open(now, destination(), priority).expect("room");
        assert_eq!(streams.write(now, id, &[7; 3000]), Ok(3000));
        id
    });
    let [first, second, third] = ids;
    streams.set_head(now, third, 3000).expect("it is open");
    let mut order = Vec::new();
    let mut urgencies = Vec::new();
    while streams.has_frames() {
        urgencies.push(streams.next_urgency());
        let body = streams.poll_transmit(now, ROOM).expect("there are frames");
        let frames = StreamFrames::new(body).expect("frames").map(Result::unwrap).collect();
        order.extend(super::order(frames));
    }
    order.dedup();
    assert_eq!(order, [first, third, second, first, second]);
    assert!(urgencies.is_sorted(), "{urgencies:?}");
}

#[test]
fn what_is_not_acknowledged_leaves_again_in_a_new_session() {
    let mut streams = Streams::new(Config::for_streams(Side::Client, 4));
    let now = Instant::from_millis(100);
    let id = begin(&mut streams, now);
    streams.write(now, id, &[3; 5000]).expect("open");
    streams.finish(now, id).expect("open");
    let before = sent(&mut streams, now);
    assert_eq!((streams.unacknowledged(), sent(&mut streams, now)), (5000, vec![]));
    streams.on_new_session(now);
    let again = sent(&mut streams, now);
    let opens = |frames: &[StreamFrame]| {
        frames.iter().filter(|frame| matches!(frame, StreamFrame::Open(_))).count()
    };
    assert_eq!((opens(&before), opens(&again)), (1, 1));
    assert_eq!(streams.stats().sent_again, 5000);
}

#[test]
fn ten_thousand_idle_streams_cost_little() {
    let mut pair = Pair::new(10_000);
    for number in 0..10_000 {
        let id = pair.open();
        pair.client.write(pair.now, id, &[number as u8; 10]).expect("open");
    }
    let mut out = [0; 20];
    pair.run(Duration::from_millis(200), |pair| {
        while let Some(event) = pair.server.poll_event(pair.now) {
            match event {
                Event::Opened { id, .. } => pair.server.accept(pair.now, id).expect("open"),
                Event::Readable(id) => {
                    assert_eq!(pair.server.read(pair.now, id, &mut out), Ok(10));
                }
                _ => {}
            }
        }
        while pair.client.poll_event(pair.now).is_some() {}
    });
    for end in [&pair.client, &pair.server] {
        assert_eq!((end.open_streams(), end.unacknowledged()), (10_000, 0));
        let each = end.memory() / 10_000;
        assert!(each < 1200, "{each} bytes each");
    }
    assert_eq!(pair.client.poll_timeout(), None, "nothing to do for those that are idle");
}

#[test]
fn writers_share_the_free_buffer_and_are_notified_when_there_is_room() {
    let mut pair = Pair::new(4);
    let now = pair.now;
    let most = pair.client.table.config.send_max as usize;
    let (first, second) = (pair.open(), pair.open());
    let all = vec![0; most + 1];
    assert_eq!(pair.client.write(now, first, &all), Ok(most));
    assert_eq!(pair.client.write(now, first, &all), Ok(0));
    assert_eq!(pair.client.write(now, second, &all), Ok(0));
    let mut out = vec![0; most];
    let mut seen = Vec::new();
    pair.run(Duration::from_secs(2), |pair| {
        while pair.server.poll_event(pair.now).is_some() {}
        let _ = pair.server.read(pair.now, first, &mut out);
        seen.extend(events(&mut pair.client, pair.now));
    });
    assert!(seen.contains(&Event::Writable(first)) && seen.contains(&Event::Writable(second)));
}

#[test]
fn bytes_are_taken_in_place_and_room_is_asked_for() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    let (mut sent, mut waited, mut has_room) = (0_usize, 0, true);
    let mut got = Vec::new();
    pair.run(Duration::from_secs(3), |pair| {
        for event in events(&mut pair.client, pair.now) {
            waited += usize::from(event == Event::Writable(id));
            has_room |= event == Event::Writable(id);
        }
        if has_room && sent < 24 << 20 {
            let room = pair.client.room(pair.now, id).expect("open");
            let bytes: Vec<u8> =
                (sent..sent + room).map(|place| ((place * 31) >> 3) as u8).collect();
            if room > 0 {
                assert_eq!(pair.client.write(pair.now, id, &bytes), Ok(room), "as it was told");
            }
            (sent, has_room) = (sent + room, room > 0);
        }
        events(&mut pair.server, pair.now);
        let _ = pair.server.read_with(pair.now, id, |[front, back]| {
            let taken = (front.len() + back.len()).min(100_001);
            got.extend(front.iter().chain(back).take(taken));
            taken
        });
    });
    assert!(waited > 0, "it never had to wait");
    assert_eq!((got.len(), pair.client.open_streams()), (sent, 1));
    let is_right = |(place, byte): (usize, &u8)| *byte == ((place * 31) >> 3) as u8;
    assert!(got.iter().enumerate().all(is_right));
}

fn asked(streams: &mut Streams, now: Instant) -> Vec<(u64, StreamPriority)> {
    let frames = sent(streams, now).into_iter();
    let asked = frames.filter_map(|frame| match frame {
        StreamFrame::Priority { change, priority, .. } => Some((change, priority)),
        _ => None,
    });
    asked.collect()
}

fn takes(takes_priorities: bool, takes_early: bool) -> Option<StreamsOffer> {
    Some(StreamsOffer { epoch: StreamsEpoch(1), takes_priorities, takes_early })
}

/// Uploads 200 kB while the session's credit is known: bytes after half a round trip, and the time.
fn upload(early: bool) -> (u64, u32) {
    let mut pair = Pair::new(4);
    pair.client.set_peer_takes(takes(false, early));
    let known = pair.open();
    pair.run(Duration::from_millis(100), |_| {});
    pair.client.reset(pair.now, known, ResetCode::Aborted).expect("open");
    pair.run(Duration::from_millis(100), |_| {});

    let id = pair.open();
    assert_eq!(pair.client.write(pair.now, id, &[7; 200_000]), Ok(200_000));
    let (mut ms, mut came, mut after_half, mut done) = (0, 0, 0, 0);
    pair.run(Duration::from_millis(200), |pair| {
        came += drain(&mut pair.server, pair.now, id) as u64;
        ms += 1;
        // 25 ms one way, and a step to leave.
        if ms == 30 {
            after_half = came;
        }
        if came == 200_000 && done == 0 {
            done = ms;
        }
    });
    (after_half, done)
}

#[test]
fn an_upload_waits_for_no_credit_of_a_peer_that_takes_it_early() {
    let (old_half, old) = upload(false);
    assert_eq!(old_half, STREAM_CREDIT);
    let (half, new) = upload(true);
    assert_eq!(half, 200_000);
    assert!(old >= new + 50, "a round trip less: {old} and {new} ms");
}

#[test]
fn what_many_send_early_leaves_room_for_the_next() {
    let mut streams = Streams::new(Config::for_streams(Side::Client, 400));
    streams.set_peer_takes(takes(false, true));
    let now = Instant::from_millis(100);
    let upload = |streams: &mut Streams| {
        let id = begin(streams, now);
        streams.write(now, id, &[7; 300_000]).expect("open");
        let before = streams.stats().sent;
        sent(streams, now);
        streams.stats().sent - before
    };
    // The first credit of the session alone allows nothing early.
    assert_eq!(upload(&mut streams), STREAM_CREDIT);
    streams.handle_symbol(now, body(&[StreamFrame::SessionCredit(4 << 20)])).expect("a frame");
    let early: Vec<u64> = (0..40).map(|_| upload(&mut streams)).collect();
    assert!(early[0] > 250_000 && early[0] <= EARLY_CREDIT, "{early:?}");
    assert!(early.windows(2).all(|two| two[1] <= two[0]), "{early:?}");
    assert!(early[39] >= STREAM_CREDIT, "{early:?}");
    assert!(early.iter().sum::<u64>() < 15 << 18, "a sixteenth is left: {early:?}");
}

#[test]
fn a_priority_is_asked_of_the_peer_that_takes_it() {
    let mut pair = Pair::new(4);
    let [urgent, late] = [StreamPriority::new(1, true), StreamPriority::new(6, false)];
    let now = pair.now;
    let id = pair.open();
    // The open frame carries it.
    pair.client.ask_priority(now, id, urgent).expect("open");
    pair.run(Duration::from_millis(100), |_| {});
    assert_eq!(pair.server.asked_priority(id), Ok(urgent));
    // An older peer is not notified; what leaves here follows it.
    pair.client.ask_priority(pair.now, id, late).expect("open");
    assert_eq!(asked(&mut pair.client, pair.now), []);
    pair.client.set_peer_takes(takes(true, false));
    pair.client.on_new_session(pair.now);
    pair.run(Duration::from_millis(100), |_| {});
    assert_eq!(pair.server.asked_priority(id), Ok(late));
    // Once for each change, and once for each session.
    pair.client.ask_priority(pair.now, id, urgent).expect("open");
    pair.client.ask_priority(pair.now, id, urgent).expect("open");
    assert_eq!(asked(&mut pair.client, pair.now), [(2, urgent)]);
    assert_eq!(asked(&mut pair.client, pair.now), []);
    pair.client.on_new_session(pair.now);
    assert_eq!(asked(&mut pair.client, pair.now), [(2, urgent)]);
    pair.server.set_peer_takes(takes(true, false));
    pair.server.ask_priority(pair.now, id, StreamPriority::new(7, true)).expect("open");
    assert_eq!(asked(&mut pair.server, pair.now), []);
    assert_eq!(pair.server.asked_priority(id), Ok(late));
}

/// How many bytes of an answer that was called urgent leave before a fifth of a plain one.
#[test]
fn a_stream_marked_urgent_does_not_starve_others() {
    let config = Config { favour: 100_000, ..Config::for_streams(Side::Client, 4) };
    let asked = [StreamPriority::new(0, true), StreamPriority::new(3, false)];
    for asked in asked.map(Some).into_iter().chain([None]) {
        let mut streams = Streams::new(config);
        let now = Instant::from_millis(100);
        let [plain, greedy] = [(); 2].map(|()| {
            let id = begin(&mut streams, now);
            streams.write(now, id, &[7; 1_000_000]).expect("open");
            id
        });
        sent(&mut streams, now);
        match asked {
            None => streams.set_head(now, greedy, u64::MAX).expect("open"),
            Some(priority) => streams.set_priority(now, greedy, priority).expect("open"),
        }
        for id in [plain, greedy] {
            let acknowledged = acknowledged(id, (true, false), 0, 1 << 20, vec![]);
            let frames = [acknowledged, StreamFrame::SessionCredit(4 << 20)];
            streams.handle_symbol(now, body(&frames)).expect("frames");
        }
        let mut before = 0;
        let mut left = 1_000_000_u64;
        for frame in sent(&mut streams, now) {
            let StreamFrame::Data(data) = frame else { continue };
            match data.id == plain {
                true => left = left.saturating_sub(data.data.len() as u64),
                false if left > 800_000 => before += data.data.len(),
                false => {}
            }
        }
        // All of its favour, then five bytes for each four of the other's.
        assert!((320_000..380_000).contains(&before), "{before} with {asked:?}");
    }
}

#[test]
fn streams_whose_predecessors_are_under_way_are_taken_in_any_order() {
    for streams in [256, 4_096] {
        let mut pair = Pair::new(streams);
        let now = pair.now;
        let mut symbols = Vec::new();
        for _ in 0..streams {
            let id = pair.open();
            assert_eq!(pair.client.write(now, id, &[7; 100]), Ok(100));
            symbols.extend(std::iter::from_fn(|| pair.client.poll_transmit(now, ROOM)));
        }
        let (fast, slow): (Vec<_>, Vec<_>) =
            symbols.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        for (_, symbol) in fast.into_iter().chain(slow) {
            pair.server.handle_symbol(now, symbol).expect("a peer that keeps to the rules");
        }
        let opened = events(&mut pair.server, now);
        let opened = opened.iter().filter(|event| matches!(event, Event::Opened { .. })).count();
        assert_eq!((opened, pair.server.stats().refused), (streams, 0));
        assert_eq!(pair.server.stats().received, pair.client.stats().sent);
    }
}
