use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use roadweave_coding::{CodedRange, Decoder};
use roadweave_proto::wire::{Coded, Datagram, SOURCE_HEADER, split_predecessor, split_stamp};
use roadweave_proto::{Order, PathOffer, PathSnapshot, PathStatus};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler};

use super::*;
use crate::carrier::SendError;
use crate::lane::datagram::{DatagramToken, LaneDatagram};
use crate::observe::PacketStep;
use crate::testing::at;

mod copies;
mod insurance;
mod repairs;

#[test]
fn fragments_that_are_cut_again_stay_parts_of_one_packet() {
    let mut sender = sender_of("xnc");
    let packet: Vec<u8> = (0..3000_u32).map(|at| at as u8).collect();
    let ends_frame = RtpHeader { marker: true, sequence: 1, timestamp: 2, ssrc: 3 };
    sender.handle_inner(Instant::ZERO, &packet, 0, Some(ends_frame));
    assert!(split_front(&mut sender, 1400));
    assert!(split_front(&mut sender, 900), "the path became narrower");
    let mark = |part: &Queued| (part.datagram.position(), part.ends_packet, part.ends_frame);
    let parts: Vec<_> = sender.queue.packets.iter().map(mark).collect();
    use FragmentPosition::{First, Last, Middle};
    assert_eq!(
        parts,
        [(First, false, false), (Middle, false, false), (Middle, false, false), (Last, true, true)]
    );
    let together: Vec<u8> =
        sender.queue.packets.iter().flat_map(|part| part.datagram.body().to_vec()).collect();
    assert_eq!(together, packet);
}

#[test]
fn what_another_session_cannot_send_on_is_counted() {
    let mut sender = sender_of("xnc");
    let now = at(10) + sender.sent.age_max;
    for (ms, bytes) in [(0, 500), (20, 3000), (30, 400)] {
        sender.handle_inner(at(ms), &vec![0x45; bytes], 0, None);
    }
    assert_eq!(sender.waiting_packets(), 3);
    let (old, whole) = (sender.queue.packets.pop_front(), sender.queue.packets.pop_back());
    assert!(split_front(&mut sender, 1400));
    let first = sender.queue.pop().expect("a fragment, which leaves");
    assert!(!first.ends_packet);
    old.into_iter().for_each(|old| sender.queue.packets.push_front(old));
    sender.queue.packets.extend(whole);
    let rest = sender.take_unfinished(now);
    assert_eq!(rest.iter().map(|it| it.packet.len()).collect::<Vec<_>>(), [400]);
    assert_eq!(sender.stats().drops.get(DropReason::QueueExpired), 2, "one old, one cut");
    assert_eq!(sender.waiting_packets(), 0);
}

#[test]
fn what_was_sent_and_may_be_repaired_counts_and_can_be_let_go() {
    let mut carrier = TwoPaths::new([10_000, 10_000]);
    let mut sender = sender_of("xnc");
    sender.handle_inner(at(0), &[7; 500], 1, None);
    assert!(sender.memory().queue_bytes > 500 && sender.memory().encoder_bytes == 0);
    sender.transmit(at(0), &mut carrier);
    assert!(sender.memory().queue_bytes == 0 && sender.memory().encoder_bytes > 500);
    sender.shed(at(1), 1);
    assert_eq!(sender.memory().total(), 0);
}

#[test]
fn what_waits_for_a_path_is_bounded_in_bytes_and_in_age() {
    let mut carrier = TwoPaths::new([10_000_000, 0]);
    let mut sender = sender_everywhere();
    sender.config.queue_bytes_max = 2000;
    for _ in 0..5 {
        sender.handle_inner(at(0), &[7; 500], 1, None);
        sender.transmit(at(0), &mut carrier);
    }
    assert_eq!(carrier.sent.len(), 5);
    let stats = sender.stats();
    assert_eq!((stats.copy_queue_bytes, stats.drops.get(DropReason::CopyUnsent)), (3 * 508, 2));
    let age_max = sender.sent.age_max;
    for id in 0..5 {
        acknowledge(&mut sender, at(1), PathId(1), id + 100); // nothing that was sent
    }
    assert!(sender.poll_timeout().is_some_and(|due| due <= at(0) + age_max));
    sender.transmit(at(0) + age_max, &mut carrier);
    assert_eq!(sender.stats().copy_queue_bytes, 0);
}

#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<(Vec<PacketInfo>, Vec<String>)>>);

impl Recorder {
    fn packets(&self) -> Vec<PacketInfo> {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }

    fn note(&self, fate: String) {
        self.0.lock().unwrap().1.push(fate);
    }
}

impl Scheduler for Recorder {
    fn select(&mut self, _: Instant, packet: &PacketInfo, _: &[PathOffer<'_>]) -> Decision {
        self.0.lock().unwrap().0.push(*packet);
        Decision::Send(PathSet::one(0))
    }

    fn on_sent(&mut self, _: Instant, path: PathId, bytes: u32, flow: u64) {
        self.note(format!("{flow} on {path} sent {bytes}"));
    }

    fn on_acknowledged(&mut self, _: Instant, acknowledged: &AcknowledgedDatagram, flow: u64) {
        let AcknowledgedDatagram { path, rtt, .. } = acknowledged;
        self.note(format!("{flow} on {path} after {}", rtt.as_millis()));
    }

    fn on_lost(&mut self, _: Instant, path: PathId, flow: u64) {
        self.note(format!("{flow} on {path} lost"));
    }
}

fn recorded() -> (LaneSender, Recorder) {
    let (mut sender, recorder) = (sender_of("minrtt"), Recorder::default());
    sender.chooser.scheduler = Box::new(recorder.clone());
    (sender, recorder)
}

#[test]
fn the_scheduler_sees_stream_packets_and_their_lengths() {
    let (mut sender, recorder) = recorded();
    let seen = || {
        let packets = recorder.packets().into_iter();
        let seen = packets.map(|it| (it.is_of_streams, it.bytes, it.backlog_bytes, it.flow_bytes));
        seen.collect::<Vec<_>>()
    };
    let mut carrier = TwoPaths::new([10_000, 0]);
    sender.handle_inner(at(0), &[7; 92], 1, None);
    sender.transmit(at(0), &mut carrier);
    lose(&mut sender, at(1), [0]);
    sender.transmit(at(1), &mut carrier);
    assert_eq!(seen(), [(false, 100, 100, 100); 2], "it leaves again");

    sender.handle_symbol(at(2), &[7; 192], Urgency::FIRST);
    sender.hold_back(HeldBack { bytes: 5_000, urgency: Urgency::FIRST });
    sender.transmit(at(2), &mut carrier);
    lose(&mut sender, at(3), [1]);
    sender.transmit(at(3), &mut carrier);
    assert_eq!(seen(), [(true, 200, 5_200, 5_200); 2], "it leaves again");
}

#[test]
fn the_scheduler_hears_of_flows_waits_and_fates() {
    let (mut sender, recorder) = recorded();
    sender.handle_inner(at(0), &[7; 92], 77, None);
    sender.transmit(at(3), &mut TwoPaths::new([10_000, 0]));
    let waited = recorder.packets().iter().map(|it| (it.flow, it.waited)).collect::<Vec<_>>();
    assert_eq!(waited, [(77, Duration::from_millis(3))]);
    sender.on_lost(at(30), TokenKind::Source, PacketId(0), PathId(1));
    acknowledge(&mut sender, at(40), PathId(0), 0);
    sender.on_lost(at(41), TokenKind::Repair, PacketId(0), PathId(1));
    let (a, b) = (PathId(0), PathId(1));
    let expected = [
        format!("77 on {a} sent 100"),
        format!("77 on {b} lost"),
        format!("77 on {a} after 40"),
        format!("0 on {b} lost"),
    ];
    assert_eq!(recorder.0.lock().unwrap().1, expected);
}

#[test]
fn what_leaves_again_is_of_its_flow() {
    let (mut sender, recorder) = recorded();
    let flows = || recorder.packets().iter().map(|it| it.flow).collect::<Vec<_>>();
    let mut carrier = TwoPaths::new([100_000, 0]);
    sender.handle_inner(at(0), &[7; 500], 77, None);
    sender.handle_inner(at(0), &[7; 2000], 88, None);
    sender.handle_inner(at(0), &[7; 500], 99, None);
    sender.transmit(at(0), &mut carrier);
    assert_eq!(flows(), [77, 88, 88, 99]);
    acknowledge(&mut sender, at(40), PathId(0), 0);
    lose(&mut sender, at(50), 1..4);
    sender.transmit(at(50), &mut carrier);
    assert_eq!(flows(), [88, 88, 99]);
    assert_eq!(sender.sent.flows.of(PacketId(0)), 0, "it is forgotten with its bytes");
}

#[test]
fn what_a_second_look_wants_sent_again_leaves_at_once() {
    #[derive(Debug)]
    struct FirstElsewhere(bool);
    impl Scheduler for FirstElsewhere {
        fn select(&mut self, _: Instant, _: &PacketInfo, _: &[PathOffer<'_>]) -> Decision {
            Decision::Send(PathSet::one(usize::from(std::mem::take(&mut self.0))))
        }
    }
    let mut carrier = TwoPaths::new([10_000, 0]);
    let mut sender = sender_everywhere();
    sender.chooser.scheduler = Box::new(FirstElsewhere(true));
    sender.handle_inner(at(0), &[7; 500], 1, None);
    sender.config.queue_bytes_max = 0; // its copy cannot wait
    sender.transmit(at(0), &mut carrier);
    assert_eq!(carrier.sent, [(PathId(0), 0)]);
}

#[test]
fn a_frame_that_ends_behind_a_packet_that_has_left_ends_its_range() {
    let mut carrier = TwoPaths::new([10_000, 0]);
    let mut sender = sender_of("xnc");
    for _ in 0..2 {
        sender.handle_inner(at(0), &[7; 500], 1, None);
        sender.handle_inner(at(0), &[7; 500], 1, None);
        sender.transmit(at(0), &mut carrier);
        sender.end_frame();
    }
    assert_eq!(carrier.sent.len(), 4);
    lose(&mut sender, at(30), 0..4);
    sender.transmit(at(150), &mut carrier); // the path has been spared long enough
    // Together they would be n' = 6; each frame is n' = 4, its two packets and two combinations.
    let stats = sender.stats();
    let sent = (stats.recovery.repairs, stats.duplicate_datagrams, stats.coded_datagrams);
    assert_eq!(sent, (2, 4, 4));
}

#[test]
fn the_peer_hears_of_the_promise_when_another_strategy_changes_it() {
    let mut carrier = TwoPaths::new([10_000, 0]);
    let order = Order::Reorder { max_buffer: Duration::from_secs(5) };
    let config = LaneConfig { order, ..LaneConfig::new("default", crate::Strategy::xnc()) };
    let mut sender = LaneSender::new(LaneId(3), config, 1, false).expect("no uplink is named");
    let mut announced = |sender: &mut LaneSender, now: Instant| {
        sender.transmit(now, &mut carrier);
        sender.transmit(now, &mut carrier);
        std::mem::take(&mut carrier.messages)
    };
    let promises = |wait: u64, age: u64, coded, acknowledge_on_all| {
        let order = Order::Reorder { max_buffer: Duration::from_millis(wait) };
        let age_max = Duration::from_millis(age);
        let promise = Promise { order, age_max, expires: false, coded, acknowledge_on_all };
        vec![Control::LanePromise { lane: LaneId(3), promise }]
    };
    assert_eq!(announced(&mut sender, at(0)), promises(700, 700, true, false));
    follow(&mut sender, "minrtt");
    assert_eq!(announced(&mut sender, at(1)), promises(5000, 10_000, false, false));
    follow(&mut sender, "ecf");
    assert_eq!(announced(&mut sender, at(2)), []);
    sender.handle_inner(at(3), &[7; 500], 1, None);
    sender.transmit(at(3), &mut TwoPaths::new([10_000, 0]));
    follow(&mut sender, "lola");
    // What was sent by then may still be repaired.
    assert_eq!(announced(&mut sender, at(4)), promises(5000, 10_000, false, true));
    acknowledge(&mut sender, at(50), PathId(0), 0);
    assert_eq!(announced(&mut sender, at(50)), promises(100, 100, false, true));
}

#[test]
fn nothing_of_a_lane_with_an_expiry_leaves_after_it() {
    for name in ["redundant", "raven", "minrtt", "xlink", "xnc"] {
        let expire_after = Some(Duration::from_millis(300));
        let strategy = name.parse().expect("known");
        let config = LaneConfig { expire_after, ..LaneConfig::new("default", strategy) };
        let mut sender = LaneSender::new(LaneId(0), config, 1, false).expect("no uplink");
        // Packets that leave late, on a path that never answers, beside one that is full.
        let mut carrier = TwoPaths::new([0, 0]);
        for ms in 0..200 {
            sender.handle_inner(at(ms), &[7; 500], ms % 3, None);
        }
        sender.transmit(at(200), &mut carrier);
        carrier.paths[0].congestion_window = 60_000;
        sender.transmit(at(250), &mut carrier);
        let mut ids = carrier.sent.iter().map(|(_, id)| *id).collect::<Vec<_>>();
        ids.dedup();
        assert!(ids.len() > 90, "{name}: {}", ids.len());
        // Some are lost, the others are silent, and windows open when it is too late for the first.
        lose(&mut sender, at(250), ids.into_iter().filter(|id| *id % 2 == 0));
        sender.transmit(at(251), &mut carrier);
        carrier.sent.clear();
        carrier.paths.iter_mut().for_each(|path| path.congestion_window = 10_000_000);
        let mut last = at(251);
        for ms in 300..3000 {
            sender.transmit(at(ms), &mut carrier);
            // A repair stands for all packets of its range, which have come within 60 ms at most.
            for (_, id) in carrier.sent.drain(..) {
                last = at(ms);
                assert!(u64::from(id) + 60 + 300 > ms, "{name}: packet {id} leaves at {ms} ms");
            }
        }
        assert!(last < at(500), "{name}: {last}");
        assert!(
            sender.queue.packets.is_empty()
                && sender.resends.again.is_empty()
                && sender.resends.copies.is_empty()
        );
        assert!(sender.resends.repairs.is_empty(), "{name}");
    }
}

fn put_together(datagrams: &[(PathId, u64, Bytes)]) -> Vec<Bytes> {
    let (mut parts, mut drops) = (crate::lane::Reassembly::default(), Default::default());
    let mut put = |bytes: &Bytes| match roadweave_proto::wire::Datagram::parse(bytes.clone()) {
        Ok(roadweave_proto::wire::Datagram::Part(part)) => {
            parts.insert(at(0), part, Duration::from_millis(700), &mut drops)
        }
        _ => Some(bytes.clone()),
    };
    datagrams.iter().filter_map(|(_, _, bytes)| put(bytes)).collect()
}

#[test]
fn what_was_sent_when_the_paths_were_wider_is_sent_again_in_parts() {
    let (mut sender, mut carrier) = sending(sender_of("minrtt"), [100_000, 0], &[1360]);
    let whole = carrier.datagrams.pop().expect("it has left").2;
    carrier.datagram_max = 1160;
    let report = |sender: &mut LaneSender, now, lost: Option<&u64>, acknowledged: &[u64]| {
        for token in acknowledged {
            let DatagramToken { kind, id, .. } = DatagramToken::parse(*token);
            acknowledge_as(sender, now, kind, PathId(0), id);
        }
        if let Some(token) = lost {
            let DatagramToken { kind, id, .. } = DatagramToken::parse(*token);
            sender.on_lost(now, kind, id, PathId(0));
        }
    };
    // Sent again until all of its parts have arrived.
    let first = DatagramToken { kind: TokenKind::Source, lane: LaneId(0), id: PacketId(0) };
    report(&mut sender, at(50), Some(&first.to_u64()), &[]);
    for round in 1..4 {
        let now = at(100 * round);
        sender.transmit(now, &mut carrier);
        let parts = std::mem::take(&mut carrier.datagrams);
        assert_eq!((parts.len(), put_together(&parts)), (2, vec![whole.clone()]));
        let tokens: Vec<u64> = parts.iter().map(|(_, token, _)| *token).collect();
        match round {
            1 => report(&mut sender, now, tokens.last(), &tokens[..1]),
            2 => report(&mut sender, now, tokens.first(), &tokens[1..]),
            _ => report(&mut sender, now, None, &tokens),
        }
    }
    sender.transmit(at(9_000), &mut carrier);
    assert!(carrier.datagrams.is_empty() && sender.sent.encoder.is_empty());
    let stats = sender.stats();
    assert_eq!((stats.drops.total(), stats.recovery.abandoned), (0, 0), "{stats:?}");
}

#[test]
fn coded_packets_and_copies_that_wait_are_cut_when_the_paths_become_narrower() {
    let (mut sender, mut carrier) = sending(sender_of("xnc"), [100_000; 2], &[1360; 4]);
    carrier.datagrams.clear();
    carrier.datagram_max = 1160;
    lose(&mut sender, at(30), 0..4);
    (30..200).for_each(|ms| sender.transmit(at(ms), &mut carrier));
    let (copies, coded) = (sender.stats().duplicate_datagrams, sender.stats().coded_datagrams);
    let made = (copies + coded) as usize;
    assert!(copies >= 4 && made >= 6, "{copies}, {coded}");
    assert_eq!(carrier.datagrams.len(), 2 * made);
    let wholes = put_together(&carrier.datagrams);
    assert_eq!(wholes.len(), made);
    let is_coded = |bytes: &Bytes| {
        matches!(
            roadweave_proto::wire::Datagram::parse(bytes.clone()),
            Ok(roadweave_proto::wire::Datagram::Coded(_))
        )
    };
    assert_eq!(wholes.iter().filter(|whole| is_coded(whole)).count() as u64, coded);
    assert_eq!(sender.stats().drops.total(), 0);
}

#[test]
fn packets_of_a_lane_with_expiry_or_order_by_time_carry_their_arrival_time() {
    let max_buffer = Duration::from_millis(100);
    let frames = Order::Frames { deadline: max_buffer, decode: Order::DEFAULT_DECODE, max_buffer };
    for (order, expires, place) in [
        (Order::Pass, true, None),
        (Order::Adaptive { max_buffer }, true, Some(0)),
        (frames, false, None),
        (frames, true, None),
        (Order::Even { max_buffer }, false, None),
    ] {
        let expire_after = expires.then_some(Duration::from_millis(300));
        let config = LaneConfig::new("default", "redundant".parse().expect("known"));
        let config = LaneConfig { expire_after, order, ..config };
        let mut sender = LaneSender::new(LaneId(0), config, 1, false).expect("no uplink");
        let packet: Vec<u8> = std::iter::repeat_n(0x45, 3000).collect();
        sender.handle_inner(at(5), &packet, 1, None);
        assert!(split_front(&mut sender, 1400));
        sender.transmit(at(90), &mut TwoPaths::new([10_000, 0]));
        let pieces = (0..).map_while(|id| sender.sent.rebuild(PacketId(id)));
        let body =
            pieces.flat_map(|piece| piece.bytes.slice(SOURCE_HEADER + SYMBOL_HEADER..)).collect();
        let (found, rest) = split_predecessor(body);
        assert_eq!(found, place);
        let (stamp, rest) = split_stamp(rest);
        assert_eq!((stamp, rest.len()), (Some(Stamp::of(at(5))), packet.len()));
        assert_eq!(sender.stats().sent_bytes, 3000);
    }
}

#[test]
fn what_waits_of_a_frame_goes_when_its_first_packet_would_have_expired() {
    #[derive(Debug)]
    struct First;
    impl Scheduler for First {
        fn select(&mut self, _: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
            let has_room = paths[0].snapshot.room() >= packet.bytes as u64;
            if has_room { Decision::Send(PathSet::one(0)) } else { Decision::Wait }
        }
    }
    // By strategy: when a packet expires; whether the rest of its frame goes with it.
    for (strategy, expiry, is_whole) in
        [("lola", 100, true), ("xnc", 700, true), ("redundant", 700, false)]
    {
        for leaves in [false, true] {
            let mut carrier = TwoPaths::new([if leaves { 600 } else { 0 }, 0]);
            let mut sender = sender_of(strategy);
            sender.chooser.scheduler = Box::new(First);
            for (ms, timestamp, marker) in
                [(0, 1, false), (30, 1, true), (40, 2, false), (40, 2, true)]
            {
                let rtp = RtpHeader { marker, sequence: 0, timestamp, ssrc: 3 };
                sender.handle_inner(at(ms), &[7; 500], 1, Some(rtp));
                sender.transmit(at(ms), &mut carrier);
            }
            carrier.sent.clear();
            carrier.paths[0].congestion_window = 10_000;
            sender.transmit(at(expiry + 5), &mut carrier);
            let drops = &sender.stats().drops;
            let dropped = [DropReason::QueueExpired, DropReason::FrameShed];
            let dropped = dropped.map(|reason| drops.get(reason));
            let expired = u64::from(!leaves);
            let expected = if is_whole { (2, [expired, 1]) } else { (3, [expired, 0]) };
            assert_eq!((carrier.sent.len(), dropped), expected, "{strategy} {leaves}");
        }
    }
}

#[test]
fn what_a_strategy_has_learned_outlives_the_reign_of_others() {
    let mut first = sender_of("raven");
    first.chooser.name_path(PathId(0), "wwan0");
    let learned = |sender: &LaneSender| sender.chooser.learned().expect("raven learns");
    let nothing = learned(&first);
    for id in 0..20 {
        let sent = at(200 * u64::from(id));
        first.handle_inner(sent, &[7; 500], 1, None);
        first.transmit(sent, &mut TwoPaths::new([10_000, 0]));
        let rtt = Duration::from_millis(100);
        let acknowledged = AcknowledgedDatagram { path: PathId(0), sent, bytes: 508, rtt };
        first.on_acknowledged(sent + rtt, TokenKind::Source, PacketId(id), &acknowledged);
    }
    let something = learned(&first);
    assert_ne!(nothing, something);
    for name in ["xnc", "minrtt", "raven"] {
        follow(&mut first, name);
        assert_eq!(learned(&first), something, "{name}");
    }

    let mut second = sender_of("xnc");
    second.chooser.restore(&something).expect("well-formed");
    assert_eq!(learned(&second), something);
    follow(&mut second, "raven");
    assert_eq!(learned(&second), something);
}

#[test]
fn what_leaves_in_parts_for_the_first_time_is_no_redundancy() {
    let mut carrier = TwoPaths::new([100_000, 100_000]);
    let mut sender = sender_of("redundant");
    sender.handle_inner(at(0), &[7; 1360], 1, None);
    carrier.hold_back();
    sender.transmit(at(0), &mut carrier);
    assert_eq!(sender.resends.copies.len(), 2, "both paths are waited for");
    let mut wide = TwoPaths::new([100_000, 0]);
    wide.datagram_max = 1160;
    sender.transmit(at(5), &mut wide);
    assert_eq!((wide.datagrams.len(), wide.accounted[1]), (2, 0), "{:?}", wide.accounted);
    let mut second = TwoPaths::new([0, 100_000]);
    second.datagram_max = 1160;
    sender.transmit(at(10), &mut second);
    assert_eq!((second.datagrams.len(), second.accounted[0]), (2, 0), "{:?}", second.accounted);
}

#[test]
fn what_was_repaired_and_not_acknowledged_is_sent_on_by_another_session() {
    let unfinished = |acknowledge_repair: bool, later: u64| {
        let mut carrier = TwoPaths::new([100_000, 100_000]);
        let mut sender = sender_of("xnc");
        sender.keep_unfinished();
        for number in 0..10 {
            sender.handle_inner(at(0), &[0x45, number, 7, 7], 1, None);
        }
        sender.transmit(at(0), &mut carrier);
        (0..7).for_each(|id| acknowledge(&mut sender, at(40), PathId(0), id));
        lose(&mut sender, at(41), 7..10);
        sender.transmit(at(60), &mut carrier);
        let repairs = sender.stats().coded_datagrams;
        assert!(repairs >= 3, "{repairs} coded packets left");
        if acknowledge_repair {
            for _ in 0..3 {
                acknowledge_as(&mut sender, at(100), TokenKind::Repair, PathId(0), PacketId(7));
            }
        }
        for ms in (60..later).step_by(10) {
            sender.transmit(at(ms), &mut carrier);
        }
        let packets = sender.take_unfinished(at(later));
        packets.iter().map(|unfinished| unfinished.packet[1]).collect::<Vec<_>>()
    };
    assert_eq!(unfinished(false, 80), [7, 8, 9], "the repair is on its way");
    assert_eq!(unfinished(false, 600), [7, 8, 9], "the repair's time is over");
    assert_eq!(unfinished(true, 110), [0_u8; 0], "the repair has arrived");
}

#[test]
fn an_expiry_that_is_changed_holds_for_what_is_under_way_and_is_promised() {
    let none = LaneConfig::new("default", "minrtt".parse().expect("known"));
    let with = |ms| LaneConfig { expire_after: Some(Duration::from_millis(ms)), ..none.clone() };
    // The last repetition of a packet that came at 900 ms and is lost every 100 ms from 1000 ms on.
    let check = |before: &LaneConfig, after: LaneConfig, last: u64, expires: bool| {
        let mut sender = LaneSender::new(LaneId(0), before.clone(), 1, false).expect("no uplink");
        let mut carrier = TwoPaths::new([1 << 20, 0]);
        sender.handle_inner(at(900), &[7; 500], 1, None);
        sender.transmit(at(900), &mut carrier);
        sender.set_config(at(1_000), after, false).expect("no uplink is named");
        let mut sent = Vec::new();
        for ms in (1_000..5_000).step_by(100) {
            carrier.datagrams.clear();
            lose(&mut sender, at(ms), [0]);
            sender.transmit(at(ms), &mut carrier);
            if !carrier.datagrams.is_empty() {
                sent.push(ms);
            }
        }
        assert_eq!(sent.last(), Some(&last), "{:?}: {sent:?}", before.expire_after);
        let Some(Control::LanePromise { promise, .. }) = carrier.messages.last() else {
            panic!("it is promised: {:?}", carrier.messages);
        };
        assert_eq!(promise.expires, expires);
        sender.handle_inner(at(5_000), &[7; 500], 1, None);
        carrier.datagrams.clear();
        sender.transmit(at(5_000), &mut carrier);
        let body = carrier.datagrams[0].2.slice(SOURCE_HEADER + SYMBOL_HEADER..);
        assert_eq!(split_stamp(body).0.is_some(), expires, "it tells when it came");
    };
    // What came before expires as if it had come with the change.
    check(&none, with(500), 1_400, true);
    check(&with(2_000), with(500), 1_300, true);
    check(&with(300), with(2_000), 2_800, true);
    check(&with(300), none.clone(), 4_900, false);
}

fn split_front(sender: &mut LaneSender, limit: usize) -> bool {
    sender.queue.split_front(limit, &mut sender.stats.drops)
}

fn sender_of(strategy: &str) -> LaneSender {
    let config = LaneConfig::new("default", strategy.parse().expect("known"));
    LaneSender::new(LaneId(0), config, 1, false).expect("no uplink is named")
}

fn follow(sender: &mut LaneSender, strategy: &str) {
    sender.set_strategy(strategy.parse().expect("known"), false).expect("no uplink is named");
}

fn sender_everywhere() -> LaneSender {
    #[derive(Debug)]
    struct Everywhere;
    impl Scheduler for Everywhere {
        fn select(&mut self, _: Instant, _: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
            Decision::Send((0..paths.len()).filter(|at| paths[*at].is_usable()).collect())
        }
    }
    let mut sender = sender_of("minrtt");
    sender.chooser.scheduler = Box::new(Everywhere);
    sender
}

pub(crate) fn acknowledge(sender: &mut LaneSender, now: Instant, path: PathId, id: u32) {
    acknowledge_as(sender, now, TokenKind::Source, path, PacketId(id));
}

pub(crate) fn acknowledge_as(
    sender: &mut LaneSender,
    now: Instant,
    kind: TokenKind,
    path: PathId,
    id: PacketId,
) {
    let rtt = now.since(at(0));
    let acknowledged = AcknowledgedDatagram { path, sent: at(0), bytes: 100, rtt };
    sender.on_acknowledged(now, kind, id, &acknowledged);
}

pub(crate) fn lose(sender: &mut LaneSender, now: Instant, ids: impl IntoIterator<Item = u32>) {
    for id in ids {
        sender.on_lost(now, TokenKind::Source, PacketId(id), PathId(0));
    }
}

pub(crate) fn decode(with: &mut Decoder, data: Bytes, out: &mut Vec<(PacketId, Bytes)>) -> LaneId {
    match Datagram::parse(data).expect("well-formed") {
        Datagram::Source { lane, id, symbol } => {
            with.on_source(at(0), id, symbol, out);
            lane
        }
        Datagram::Coded(Coded { lane, start, count, seed, payload }) => {
            with.on_coded(at(0), CodedRange { start, count, seed }, payload, out);
            lane
        }
        other => panic!("{other:?}"),
    }
}

fn sending(mut sender: LaneSender, windows: [u64; 2], lengths: &[usize]) -> (LaneSender, TwoPaths) {
    let mut carrier = TwoPaths::new(windows);
    for length in lengths {
        sender.handle_inner(at(0), &vec![7; *length], 1, None);
    }
    sender.transmit(at(0), &mut carrier);
    (sender, carrier)
}

pub(crate) fn path(id: u32, congestion_window: u64) -> PathSnapshot {
    let rtt = Duration::from_millis(100);
    PathSnapshot { pto: rtt * 20, ..PathSnapshot::idle(PathId(id), rtt, congestion_window) }
}

pub(crate) struct TwoPaths {
    paths: [PathSnapshot; 2],
    sent: Vec<(PathId, u32)>,
    datagrams: Vec<(PathId, u64, Bytes)>,
    messages: Vec<Control>,
    datagram_max: usize,
    /// Bytes of first transmissions, and redundant bytes.
    accounted: [u64; 2],
}

impl TwoPaths {
    pub(crate) fn new(windows: [u64; 2]) -> Self {
        let paths = [path(0, windows[0]), path(1, windows[1])];
        let (sent, datagrams, messages) = (Vec::new(), Vec::new(), Vec::new());
        Self { paths, sent, datagrams, messages, datagram_max: 1400, accounted: [0; 2] }
    }

    pub(crate) fn datagrams(&self) -> Vec<Bytes> {
        self.datagrams.iter().map(|(_, _, bytes)| bytes.clone()).collect()
    }

    pub(crate) fn messages(&self) -> &[Control] {
        &self.messages
    }

    pub(crate) fn set_window(&mut self, path: usize, window: u64) {
        self.paths[path].congestion_window = window;
    }

    pub(crate) fn hold_back(&mut self) {
        self.paths.iter_mut().for_each(|path| path.pacing_budget = 0);
    }
}

impl Carrier for TwoPaths {
    fn paths(&mut self, _now: Instant) -> &[PathSnapshot] {
        &self.paths
    }

    fn max_datagram_size(&self) -> usize {
        self.datagram_max
    }

    fn account(&mut self, _path: PathId, bytes: u32, redundant: bool) {
        self.accounted[usize::from(redundant)] += u64::from(bytes);
    }

    fn send_on(&mut self, _: Instant, path: PathId, data: LaneDatagram) -> Result<(), SendError> {
        if data.len() > self.datagram_max {
            return Err(SendError::TooLarge(data));
        }
        let link = &mut self.paths[path.0 as usize];
        if link.room() < data.len() as u64 || link.status == PathStatus::Standby {
            return Err(SendError::Blocked(data));
        }
        link.bytes_in_flight += data.len() as u64;
        self.sent.push((path, data.content.id().0));
        self.datagrams.push((path, data.token(), data.bytes));
        Ok(())
    }

    fn send_message(&mut self, message: Bytes) -> bool {
        self.messages.push(Control::parse(message).expect("well-formed"));
        true
    }
}

pub(crate) fn rtp_packet(port: u8, header: &RtpHeader, bytes: usize) -> Vec<u8> {
    let RtpHeader { marker, sequence, timestamp, ssrc } = *header;
    let length = 40 + bytes as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 19, port, 19, port]);
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0, 0x80, 96 | u8::from(marker) << 7]);
    packet.extend(sequence.to_be_bytes());
    packet.extend(timestamp.to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.resize(length.into(), 7);
    packet
}

fn take_video(sender: &mut LaneSender, ms: u64, ssrc: u32, sequence: u16, timestamp: u32) {
    let header = RtpHeader { marker: false, sequence, timestamp, ssrc };
    sender.handle_inner(at(ms), &rtp_packet(1, &header, 500), ssrc.into(), Some(header));
}

#[test]
fn packets_superseded_by_a_key_frame_are_not_repaired_and_all_others_are() {
    for strategy in ["xnc", "minrtt", "xlink", "raven"] {
        let mut sender = sender_of(strategy);
        let mut carrier = TwoPaths::new([1 << 20, 0]);
        for sequence in 0..8 {
            take_video(&mut sender, 0, 7, sequence, u32::from(sequence) / 4 * 3_000);
        }
        take_video(&mut sender, 0, 8, 1, 0);
        sender.handle_inner(at(0), &[0x45; 300], 9, None);
        sender.transmit(at(0), &mut carrier);
        assert_eq!(carrier.sent.len(), 10, "{strategy}");
        acknowledge(&mut sender, at(30), PathId(0), 0);
        let given_up = sender.supersede(at(30), Superseded { ssrc: 7, timestamp: 3_000 });
        assert_eq!(given_up, 3, "{strategy}: the first one is there");
        assert_eq!(sender.stats().drops.get(DropReason::Superseded), 3, "{strategy}");
        sender.log.switch(true);
        lose(&mut sender, at(40), 1..10);
        (40..400).step_by(10).for_each(|ms| sender.transmit(at(ms), &mut carrier));
        let mut asked = BTreeSet::new();
        while let Some(event) = sender.log.poll() {
            asked.extend((event.what == PacketStep::RepairAsked).then_some(event.id.0));
        }
        assert_eq!(asked, (4..10).collect(), "{strategy}");
    }
}

#[test]
fn a_repair_that_waits_goes_if_all_that_it_is_for_is_superseded_and_only_then() {
    for (with_sound, stay) in [(false, false), (true, true)] {
        let mut sender = sender_of("xnc");
        let mut carrier = TwoPaths::new([1 << 20, 1 << 20]);
        take_video(&mut sender, 0, 7, 0, 0);
        if with_sound {
            take_video(&mut sender, 0, 8, 0, 0);
        }
        take_video(&mut sender, 0, 7, 1, 0);
        sender.transmit(at(0), &mut carrier);
        let sent = carrier.sent.clone();
        sent.iter().for_each(|(path, id)| {
            sender.on_lost(at(40), TokenKind::Source, PacketId(*id), *path);
        });
        carrier.hold_back();
        (40..60).for_each(|ms| sender.transmit(at(ms), &mut carrier));
        assert!(!sender.resends.repairs.is_empty(), "they wait for the pacer");
        sender.supersede(at(60), Superseded { ssrc: 7, timestamp: 3_000 });
        let left = sender.resends.repairs.values().flatten();
        let left: Vec<u32> = left.map(|repair| repair.lost.count_ones()).collect();
        assert_eq!(left.iter().any(|of| *of > 1), stay, "with sound: {with_sound}: {left:?}");
        assert_eq!(left.iter().filter(|of| **of == 1).count(), usize::from(stay), "{left:?}");
        assert!(sender.stats().drops.get(DropReason::CopyCancelled) >= 2);
    }
}

#[test]
fn packets_superseded_by_a_key_frame_are_dropped_wherever_they_wait() {
    let mut sender = sender_of("minrtt");
    let mut carrier = TwoPaths::new([1_200, 0]);
    for sequence in 0..6 {
        // That the flow is a video need not be known.
        let timestamp = u32::from(sequence) / 3 * 3_000;
        let header = RtpHeader { marker: false, sequence, timestamp, ssrc: 7 };
        sender.handle_inner(at(0), &rtp_packet(1, &header, 500), 7, None);
    }
    sender.transmit(at(0), &mut carrier);
    assert_eq!(carrier.sent.len(), 2, "there is no room for more");
    lose(&mut sender, at(30), [0]);
    sender.transmit(at(30), &mut carrier);
    assert_eq!(sender.resends.again.len(), 1, "it waits to leave again");
    let superseded = Superseded { ssrc: 7, timestamp: 3_000 };
    assert_eq!(sender.supersede(at(40), superseded), 3, "one lost, one under way, one waiting");
    take_video(&mut sender, 50, 7, 9, 0);
    take_video(&mut sender, 50, 7, 10, 6_000);
    assert_eq!((sender.waiting_packets(), sender.resends.again.len()), (4, 0), "nor new ones");
    assert_eq!(sender.stats().drops.get(DropReason::Superseded), 4);
    assert_eq!(sender.queued_bytes(), 4 * (540 + SOURCE_HEADER + SYMBOL_HEADER));
    take_video(&mut sender, 141, 7, 11, 0);
    assert_eq!(sender.waiting_packets(), 5, "a wrong word holds for a moment");
}
