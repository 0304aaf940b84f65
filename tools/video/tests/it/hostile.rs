//! Bad disks, strangers, and senders whose numbers leap, at the receiver.

use std::net::UdpSocket;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{self, Process, column, number, receiver, relay, reports, whole};

fn sender(port: u16, options: &str) -> Process {
    common::sender(port, &format!("--size 320x240 --bitrate 1M {options}"))
}

/// Number of lines on standard error that contain `part`.
fn said(output: &Output, part: &str) -> usize {
    String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains(part)).count()
}

#[test]
fn a_disk_that_is_full_is_told_once_and_pictures_go_on() {
    let (receiver, port) = receiver("--frames /dev/full --write /dev/full --seconds 8");
    let sent = sender(port, "--seconds 5 --frames /dev/full").output();
    let received = receiver.output();
    let frames = number(&whole(&sent), "frames");
    let shown = number(&whole(&received), "frames_shown");
    assert!(frames > 60.0 && shown > 0.9 * frames - 5.0, "{shown} of {frames}");
    assert_eq!((said(&received, "No space left"), said(&sent, "No space left")), (2, 1));
}

fn add_16(bytes: &mut [u8], more: u16) {
    let value = u16::from_be_bytes(bytes.try_into().unwrap()).wrapping_add(more);
    bytes.copy_from_slice(&value.to_be_bytes());
}

fn add_32(bytes: &mut [u8], more: u32) {
    let value = u32::from_be_bytes(bytes.try_into().unwrap()).wrapping_add(more);
    bytes.copy_from_slice(&value.to_be_bytes());
}

/// Reports of a receiver behind a link that changes the sender's packets, given the time since the
/// first packet; and by how many KiB the receiver's memory grew.
fn behind(change: impl Fn(Duration, &mut [u8]) + Send + 'static) -> (Vec<Value>, u64) {
    let (receiver, port) = receiver("--seconds 15");
    let mut began = None;
    let link = relay(port, move |is_answer, packet| {
        if !is_answer {
            let since = began.get_or_insert_with(Instant::now).elapsed();
            if packet.len() > 28 && packet[1] & 0x7f == 96 {
                change(since, packet);
            }
        }
        1
    });
    let sender = sender(link, "--seconds 17");
    thread::sleep(Duration::from_secs(2));
    let before = receiver.memory_kib();
    thread::sleep(Duration::from_secs(10));
    let grown = receiver.memory_kib().saturating_sub(before);
    let reports = reports(&receiver.output());
    drop(sender);
    (reports, grown)
}

/// Checks that pictures stand only briefly while numbers leap, and recover.
fn check((reports, grown): (Vec<Value>, u64)) {
    let (whole, seconds) = reports.split_last().unwrap();
    let shown = column(seconds, "frames_shown");
    let still = shown[3..].iter().filter(|frames| **frames < 1.0).count();
    assert!(still <= 3 && shown[12..].iter().sum::<f64>() > 9.0, "{shown:?} {whole}");
    assert!(number(whole, "packets_lost") < 100_000.0, "{whole}");
    let delays = &seconds.last().unwrap()["glass_to_glass_ms"];
    assert!((0.0..2_000.0).contains(&number(delays, "p50")), "{delays}");
    assert!(grown < 8_000, "{grown} KiB more");
}

#[test]
fn times_of_rtp_that_leap_hold_nothing_up() {
    check(behind(|since, packet| {
        let more = match since.as_secs() {
            0..=3 => 0,
            // An hour back, half of the range ahead, a second back, random.
            4..=5 => 0_u32.wrapping_sub(3_600 * 90_000),
            6..=7 => 1 << 31,
            8 => (1 << 31) - 90_000,
            9 => u32::from(packet[3]).wrapping_mul(0x9e37_79b9),
            _ => 5,
        };
        add_32(&mut packet[4..8], more);
    }));
}

#[test]
fn numbers_of_rtp_that_leap_hold_nothing_up() {
    check(behind(|since, packet| {
        let more = match since.as_secs() {
            0..=3 => 0,
            4..=5 => 2_000,
            6..=7 => 30_000,
            8 => 100,
            9 => u16::from(packet[3]).wrapping_mul(0x9e37),
            _ => 65_000,
        };
        add_16(&mut packet[2..4], more);
    }));
}

#[test]
fn stamps_that_leap_leave_statistics_sane() {
    let (reports, grown) = behind(|since, packet| match since.as_millis() {
        0..=3_999 => {}
        // A clock that is set, and a distant number.
        4_000..=5_999 => {
            add_32(&mut packet[17..21], 1_000_000_000);
            add_16(&mut packet[26..28], 40_000);
        }
        6_000..=6_999 => packet[17..25].fill(0xff),
        7_000..=7_999 => packet[17..28].fill(0),
        8_000..=8_999 => {
            let value = packet[3];
            packet[17..28].iter_mut().for_each(|byte| *byte ^= value.wrapping_mul(167));
        }
        _ => {}
    });
    let whole = reports.last().unwrap();
    let lost = number(whole, "frames_lost");
    assert!(lost < 300.0 * number(whole, "frames_shown"), "{whole}");
    let after = number(&whole["glass_to_glass_ms"], "p99");
    assert!((0.0..5_000.0).contains(&after), "{whole}");
    check((reports, grown));
}

/// A stranger's RTP, with numbers in order.
fn stranger(sequence: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend(sequence.to_be_bytes());
    packet.extend((u32::from(sequence) * 3_000).to_be_bytes());
    packet.extend([0xde, 0xad, 0xbe, 0xef]);
    packet.extend(payload);
    packet
}

#[test]
fn a_stranger_in_the_middle_takes_the_picture_for_a_moment_at_most() {
    let (receiver, port) = receiver("--seconds 14");
    let sender = sender(port, "--seconds 15");
    thread::sleep(Duration::from_secs(4));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |packet: &[u8]| {
        let _ = socket.send_to(packet, ("127.0.0.1", port));
    };
    let noise: Vec<u8> =
        (0..65_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for sequence in (0..120).step_by(2) {
        // Broken slices of all lengths; packets that are too long or empty.
        let length = usize::from(sequence) * 10;
        send(&stranger(sequence, &[&[0x41], &noise[..length]].concat()));
        send(&stranger(sequence + 1, &[&[0x41], &noise[..60_000]].concat()));
        send(&[]);
        send(&noise[..12]);
        thread::sleep(Duration::from_millis(15));
    }
    let reports = reports(&receiver.output());
    drop(sender);
    let shown = column(&reports, "frames_shown");
    assert!(shown[4..9].iter().any(|frames| *frames < 3.0), "it took it: {shown:?}");
    assert!(shown[10..14].iter().sum::<f64>() > 12.0, "{shown:?}");
}

#[test]
fn key_frames_of_a_stranger_behind_gaps_are_gone_on_with_a_few_times_a_second() {
    let (receiver, port) = receiver("--seconds 15");
    let sender = sender(port, "--seconds 16");
    thread::sleep(Duration::from_secs(3));
    let before = receiver.memory_kib();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let key_frame = [24, 0, 2, 0x67, 0x42, 0, 2, 0x68, 0xce, 0, 2, 0x65, 0x88];
    let (began, mut number_of_it) = (Instant::now(), 0_u16);
    while began.elapsed() < Duration::from_secs(4) {
        // Some in order, so that it counts as a sender; then with gaps that exhaust the budget.
        number_of_it = number_of_it.wrapping_add(if number_of_it < 20 { 1 } else { 99 });
        let mut packet = stranger(number_of_it, &key_frame);
        packet[1] |= 0x80;
        let _ = socket.send_to(&packet, ("127.0.0.1", port));
        thread::sleep(Duration::from_millis(1));
    }
    let grown = receiver.memory_kib().saturating_sub(before);
    let reports = reports(&receiver.output());
    drop(sender);
    let whole = reports.last().unwrap();
    assert!((1.0..=60.0).contains(&number(whole, "jumps")), "{whole}");
    assert!(grown < 16_000, "{grown} KiB more");
    let shown = column(&reports, "frames_shown");
    assert!(shown[11..15].iter().sum::<f64>() > 12.0, "{shown:?}");
}

#[test]
fn what_is_not_taken_leads_no_answers_away() {
    let (receiver, port) = receiver("--seconds 8");
    let sender = sender(port, "--seconds 9");
    thread::sleep(Duration::from_secs(2));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let unknown = [&[0x80, 77][..], &[0; 40]].concat();
    // A sender report (RFC 3550 section 6.4.1) of another source.
    let report = [&[0x80, 200, 0, 6, 0xde, 0xad, 0xbe, 0xef][..], &[1; 20]].concat();
    let (began, mut answers) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(5) {
        for packet in [&unknown, &report] {
            let _ = socket.send_to(packet, ("127.0.0.1", port));
        }
        answers += u32::from(socket.recv(&mut [0; 2048]).is_ok());
        thread::sleep(Duration::from_millis(2));
    }
    let shown = number(&whole(&receiver.output()), "frames_shown");
    drop(sender);
    assert!(answers == 0 && shown > 100.0, "{answers} answers, {shown} pictures");
}
