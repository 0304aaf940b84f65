use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use roadweave_proto::{Order, PacketId};

use super::super::{HELD_BYTES_MAX, HELD_MAX, Reorder, ReorderPolicy, Unit};
use super::*;
use crate::lane::sender::tests::rtp_packet;

mod hostile;
mod model;

const DEADLINE: u64 = 100;
const DECODE: u64 = 10;
const MAX: u64 = 300;
const INTERVAL: u64 = 30;
/// Frames of one packet before each test, which prove the source.
const LEAD: u32 = 8;
const BEGIN: u64 = LEAD as u64 * INTERVAL;

fn order(max_buffer: u64) -> Order {
    let [deadline, decode, max_buffer] = [DEADLINE, DECODE, max_buffer].map(Duration::from_millis);
    Order::Frames { deadline, decode, max_buffer }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    id: u32,
    sent: u64,
    port: u8,
    ssrc: u32,
    sequence: u16,
    timestamp: u32,
    marker: bool,
}

impl Packet {
    fn inner(&self, bytes: usize) -> Vec<u8> {
        let Self { port, ssrc, sequence, timestamp, marker, .. } = *self;
        rtp_packet(port, &RtpHeader { marker, sequence, timestamp, ssrc }, bytes)
    }

    fn unit(&self, at: u64, bytes: usize) -> Unit {
        let id = PacketId(self.id);
        let age = Duration::from_millis(at - self.sent);
        let packet = Some(Bytes::from(self.inner(bytes)));
        Unit { first: id, last: id, id, after: 0, sent: None, age, decoded: false, packet }
    }
}

#[derive(Clone, Copy, Debug)]
struct Video {
    next: Packet,
    marks: bool,
}

impl Video {
    fn new(port: u8, sequence: u16, timestamp: u32) -> Self {
        let ssrc = 0x7777;
        let next = Packet { id: 0, sent: 0, port, ssrc, sequence, timestamp, marker: false };
        Self { next, marks: true }
    }

    fn frame(&mut self, sent: u64, id: &mut u32, packets: usize) -> Vec<Packet> {
        let packet = |at: usize| {
            let packet =
                Packet { id: *id, sent, marker: self.marks && at + 1 == packets, ..self.next };
            self.next.sequence = self.next.sequence.wrapping_add(1);
            *id += 1;
            packet
        };
        let frame = (0..packets).map(packet).collect();
        self.next.timestamp = self.next.timestamp.wrapping_add(90 * INTERVAL as u32);
        frame
    }
}

struct Bench {
    reorder: Reorder,
    out: Vec<(u64, u32)>,
    id: u32,
}

impl Bench {
    fn new(max_buffer: u64) -> Self {
        Self { reorder: Reorder::new(order(max_buffer), PacketId(0)), out: Vec::new(), id: 0 }
    }

    fn meet(&mut self, video: &mut Video) {
        for frame in 0..LEAD {
            let at = u64::from(frame) * INTERVAL;
            for packet in video.frame(at, &mut self.id, 1) {
                self.handle(at, packet);
            }
        }
        self.out.clear();
    }

    fn ids(&self) -> Vec<u32> {
        self.out.iter().map(|(_, id)| *id).collect()
    }

    fn handle(&mut self, at: u64, packet: Packet) -> Turn {
        self.handle_unit(at, packet.unit(at, 0))
    }

    fn handle_unit(&mut self, at: u64, unit: Unit) -> Turn {
        self.run_until(at);
        let out = &mut self.out;
        self.reorder.handle(Instant::from_millis(at), unit, &mut |unit| out.push((at, unit.id.0)))
    }

    fn run_until(&mut self, end: u64) {
        while let Some(due) = self.reorder.poll_timeout()
            && due <= Instant::from_millis(end)
        {
            let out = &mut self.out;
            let at = due.as_nanos() / 1_000_000;
            self.reorder.handle_timeout(due, &mut |unit| out.push((at, unit.id.0)));
        }
    }
}

fn met() -> (Bench, Video) {
    let (mut bench, mut video) = (Bench::new(MAX), Video::new(1, 100, 5000));
    bench.meet(&mut video);
    (bench, video)
}

/// Sends frames of these sizes, one each [`INTERVAL`]; `arrivals`, `expected`: when, and which.
fn check(sizes: &[usize], arrivals: &[(u64, usize)], expected: &[(u64, usize)]) {
    check_with(Video::new(1, 100, 5000), sizes, arrivals, expected);
}

fn check_with(mut video: Video, sizes: &[usize], came: &[(u64, usize)], expected: &[(u64, usize)]) {
    let mut bench = Bench::new(MAX);
    bench.meet(&mut video);
    let frame = |(number, size): (usize, &usize)| {
        video.frame(BEGIN + number as u64 * INTERVAL, &mut bench.id, *size)
    };
    let packets: Vec<Packet> = sizes.iter().enumerate().flat_map(frame).collect();
    for (at, index) in came {
        bench.handle(BEGIN + at, packets[*index]);
    }
    bench.run_until(10_000);
    let out: Vec<(u64, usize)> =
        bench.out.iter().map(|(at, id)| (at - BEGIN, (id - LEAD) as usize)).collect();
    assert_eq!(out, expected, "{sizes:?} {came:?}");
    let stats = bench.reorder.stats();
    assert_eq!((stats.held_packets, stats.held_bytes), (0, 0));
}

#[test]
fn frames_go_out_whole_and_in_order() {
    check(&[3], &[(20, 0), (21, 1), (25, 2)], &[(25, 0), (25, 1), (25, 2)]);
    check(&[3], &[(20, 2), (21, 0), (25, 1)], &[(25, 0), (25, 1), (25, 2)]);
    check(&[1], &[(20, 0)], &[(20, 0)]);
    let arrivals = [(20, 0), (50, 2), (51, 3), (60, 1)];
    check(&[2, 2], &arrivals, &[(60, 0), (60, 1), (60, 2), (60, 3)]);
}

#[test]
fn what_lacks_something_waits_until_the_next_frame_is_due_and_goes_out_as_it_is() {
    // The second frame is sent at 30, due at 130, and decoded from 120 on.
    let arrivals = [(20, 0), (21, 2), (50, 3), (51, 4), (119, 1)];
    check(&[3, 2], &arrivals, &[(119, 0), (119, 1), (119, 2), (119, 3), (119, 4)]);
    let arrivals = [(20, 0), (21, 2), (50, 3), (51, 4), (121, 1)];
    check(&[3, 2], &arrivals, &[(120, 0), (120, 2), (120, 3), (120, 4)]);
    // Of the second and third frames one packet each has come: each has its own time.
    let arrivals = [(20, 0), (50, 2), (80, 4)];
    check(&[2, 2, 1], &arrivals, &[(120, 0), (150, 2), (150, 4)]);
}

#[test]
fn before_there_is_a_next_frame_it_is_expected_after_an_interval() {
    check(&[2], &[(20, 0)], &[(120, 0)]);
    check(&[2], &[(20, 0), (125, 1)], &[(120, 0), (125, 1)]);
}

#[test]
fn a_frame_of_which_nothing_is_there_is_waited_for_until_the_next_is_due() {
    check(&[1, 2], &[(50, 1), (51, 2)], &[(120, 1), (120, 2)]);
    check(&[1, 2], &[(50, 1), (51, 2), (90, 0)], &[(90, 0), (90, 1), (90, 2)]);
    // The beginning may belong to a frame before.
    check(&[3], &[(50, 1), (51, 2)], &[(90, 1), (90, 2)]);
}

#[test]
fn the_rest_of_a_passed_frame_goes_out_until_something_later_has() {
    let arrivals = [(20, 0), (125, 2), (130, 1), (140, 3), (150, 4)];
    check(&[4, 1], &arrivals, &[(120, 0), (125, 2), (140, 3), (150, 4)]);
    let arrivals = [(20, 0), (125, 4), (150, 3)];
    check(&[4, 1], &arrivals, &[(120, 0), (145, 4)]);
}

#[test]
fn what_is_late_when_it_comes_has_an_interval_to_come_whole() {
    check(&[2, 1], &[(200, 0), (210, 2)], &[(230, 0), (230, 2)]);
    check(&[2, 1], &[(200, 0), (210, 2), (225, 1)], &[(225, 0), (225, 1), (225, 2)]);
}

#[test]
fn numbers_and_timestamps_wrap() {
    for (sequence, timestamp) in [
        (u16::MAX - LEAD as u16 - 2, 5000),
        (100, 0_u32.wrapping_sub(90 * INTERVAL as u32 * (LEAD + 1))),
        (u16::MAX - LEAD as u16, 0_u32.wrapping_sub(90 * INTERVAL as u32 * (LEAD + 2))),
    ] {
        let video = Video::new(1, sequence, timestamp);
        let arrivals = [(20, 0), (21, 2), (50, 3), (60, 1), (90, 5), (91, 4)];
        let expected = [(60, 0), (60, 1), (60, 2), (60, 3), (91, 4), (91, 5)];
        check_with(video, &[3, 1, 2], &arrivals, &expected);
    }
}

#[test]
fn without_a_marker_the_next_frame_ends_the_one_before() {
    let (mut bench, mut video) = met();
    video.marks = false;
    let unmarked = video.frame(BEGIN, &mut bench.id, 2);
    video.marks = true;
    let next = video.frame(BEGIN + INTERVAL, &mut bench.id, 2);
    bench.handle(BEGIN + 20, unmarked[0]);
    bench.handle(BEGIN + 20, unmarked[1]);
    assert_eq!(bench.out, []);
    bench.handle(BEGIN + 50, next[0]);
    assert_eq!(bench.out.len(), 2);
}

#[test]
fn a_source_without_end_markers_is_only_kept_in_order() {
    // Audio marks the beginning of speech.
    let mut bench = Bench::new(MAX);
    let mut audio = Video { marks: false, ..Video::new(1, 100, 5000) };
    let at = |number: u64| number * 20;
    for number in 0..100 {
        audio.marks = number % 20 == 0;
        let packet = audio.frame(at(number), &mut bench.id, 1)[0];
        bench.handle(at(number) + 5, packet);
        assert_eq!(bench.out.last(), Some(&(at(number) + 5, packet.id)));
    }
    audio.marks = false;
    let lost = audio.frame(at(100), &mut bench.id, 1)[0];
    let next = audio.frame(at(101), &mut bench.id, 1)[0];
    bench.handle(at(101) + 5, next);
    assert_eq!(bench.out.len(), 100, "it waits for the one before");
    bench.handle(at(101) + 9, lost);
    assert_eq!(bench.out[100..], [(2029, 100), (2029, 101)]);
}

#[test]
fn packets_lost_before_the_tunnel_are_not_awaited() {
    for missing in [0, 1] {
        let (mut bench, mut video) = met();
        // Number `missing` was lost before the tunnel, so it has no ID.
        let mut frame = video.frame(BEGIN, &mut 0, 4);
        frame.remove(missing);
        for (packet, id) in frame.iter_mut().zip(bench.id..) {
            packet.id = id;
        }
        bench.id += 3;
        for packet in frame {
            bench.handle(BEGIN + 20, packet);
        }
        assert_eq!(bench.out.len(), 3, "{missing}");
    }
    // A whole frame was given up before it left.
    let (mut bench, mut video) = met();
    video.frame(BEGIN, &mut 0, 7);
    let next = video.frame(BEGIN + INTERVAL, &mut bench.id, 1);
    bench.handle(BEGIN + 50, next[0]);
    assert_eq!(bench.out.len(), 1);
}

#[test]
fn flows_and_sources_do_not_wait_for_one_another() {
    let mut bench = Bench::new(MAX);
    let mut videos = [Video::new(1, 100, 5000), Video::new(2, 100, 5000), Video::new(2, 7, 5000)];
    videos[2].next.ssrc = 9;
    videos.iter_mut().for_each(|video| bench.meet(video));
    let mut frames: Vec<Vec<Packet>> =
        videos.iter_mut().map(|video| video.frame(BEGIN, &mut bench.id, 2)).collect();
    let lost = frames[0].remove(0);
    for packet in frames.into_iter().flatten() {
        bench.handle(BEGIN + 20, packet);
    }
    let out: Vec<u32> = bench.out.iter().map(|(_, id)| id - lost.id).collect();
    assert_eq!(out, [2, 3, 4, 5], "1 waits for 0");
    bench.handle(BEGIN + 30, lost);
    assert_eq!(bench.out.len(), 6);
}

#[test]
fn what_is_no_rtp_goes_out_as_it_comes() {
    let (mut bench, mut video) = met();
    let frame = video.frame(BEGIN, &mut bench.id, 2);
    bench.handle(BEGIN + 20, frame[1]);
    for (at, packet) in [&[0x45, 0][..], &[0; 40], b""].into_iter().enumerate() {
        let id = PacketId(bench.id + 1 + at as u32);
        let packet = Some(Bytes::copy_from_slice(packet));
        let unit = Unit { first: id, last: id, id, packet, ..frame[0].unit(BEGIN, 0) };
        assert_eq!(bench.handle_unit(BEGIN + 20, unit), Turn::Kept);
    }
    // It looks like RTP but does not count.
    for sequence in [9, 9, 100, 200, 300] {
        bench.id += 10;
        let packet = Packet { id: bench.id, port: 9, ssrc: 3, sequence, ..frame[0] };
        bench.handle(BEGIN + 21, packet);
    }
    assert_eq!(bench.out.len(), 8);
}

#[test]
fn a_restarted_source_is_followed() {
    for sequence in [40_000, 90_u16.wrapping_sub(150), 60_000] {
        let (mut bench, mut video) = met();
        let old = video.frame(BEGIN, &mut bench.id, 3);
        bench.handle(BEGIN + 20, old[0]);
        let mut anew = Video::new(1, sequence, 70_000);
        let frames: Vec<Packet> =
            (0..4).flat_map(|at| anew.frame(BEGIN + at * INTERVAL, &mut bench.id, 2)).collect();
        for packet in &frames {
            bench.handle(packet.sent + 25, *packet);
        }
        bench.handle(BEGIN + 130, old[1]);
        let expected: Vec<u32> =
            old[..1].iter().chain(&frames).chain(&old[1..2]).map(|packet| packet.id).collect();
        assert_eq!(bench.ids(), expected, "{sequence}");
    }
}

#[test]
fn what_the_source_itself_sends_again_or_out_of_turn_passes() {
    let (mut bench, mut video) = met();
    let frame = video.frame(BEGIN, &mut bench.id, 2);
    let again = |bench: &mut Bench, packet: Packet| {
        bench.id += 1;
        Packet { id: bench.id - 1, ..packet }
    };
    bench.handle(BEGIN, frame[0]);
    bench.handle(BEGIN, frame[1]);
    let copy = again(&mut bench, frame[1]);
    assert_eq!(bench.handle(BEGIN + 1, copy), Turn::Kept);
    let swapped = video.frame(BEGIN + INTERVAL, &mut 0, 2);
    for packet in swapped.into_iter().rev() {
        let packet = again(&mut bench, packet);
        assert_eq!(bench.handle(BEGIN + 40, packet), Turn::Kept);
    }
    assert_eq!(bench.out.len(), 5);
    let frame = video.frame(BEGIN + 2 * INTERVAL, &mut bench.id, 2);
    bench.handle(BEGIN + 60, frame[0]);
    let copy = again(&mut bench, frame[0]);
    assert_eq!(bench.handle(BEGIN + 60, copy), Turn::Discarded);
    bench.handle(BEGIN + 60, frame[1]);
    assert_eq!(bench.out.len(), 7);
}

#[test]
fn the_order_is_that_of_numbers_and_not_of_timestamps() {
    let (mut bench, mut video) = met();
    // Decoded as I P B B, shown as I B B P.
    let shown = [0, 3, 1, 2_u32];
    let frames: Vec<Packet> = shown
        .into_iter()
        .enumerate()
        .flat_map(|(at, shown)| {
            let mut frame = video.frame(BEGIN + at as u64 * INTERVAL, &mut bench.id, 2);
            frame.iter_mut().for_each(|packet| packet.timestamp = 90_000 + 2700 * shown);
            frame
        })
        .collect();
    for at in [0, 1, 4, 5, 2, 6, 7, 3] {
        bench.handle(BEGIN + 95, frames[at]);
    }
    let expected: Vec<u32> = frames.iter().map(|packet| packet.id).collect();
    assert_eq!(bench.ids(), expected);
}

#[test]
fn other_times_hold_for_what_waits() {
    let (mut bench, mut video) = met();
    let frame = video.frame(BEGIN, &mut bench.id, 2);
    bench.handle(BEGIN + 20, frame[0]);
    let out = &mut bench.out;
    let now = Instant::from_millis(BEGIN + 30);
    bench.reorder.set_order(now, order(40), &mut |unit| out.push((0, unit.id.0)));
    bench.run_until(BEGIN + 59);
    assert_eq!(bench.out, []);
    bench.run_until(BEGIN + 60);
    assert_eq!(bench.out, [(BEGIN + 60, frame[0].id)]);
}
