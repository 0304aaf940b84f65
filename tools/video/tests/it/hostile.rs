//! Strangers, and a sender whose times leap, at the receiver.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Process, column, number, receiver, relay, reports, whole};

fn sender(port: u16, options: &str) -> Process {
    common::sender(port, &format!("--size 320x240 --bitrate 1M {options}"))
}

#[test]
fn times_of_rtp_that_leap_hold_nothing_up() {
    let (receiver, port) = receiver("--seconds 15");
    let mut began = None;
    let link = relay(port, move |is_answer, packet| {
        if !is_answer && packet.len() > 28 && packet[1] & 0x7f == 96 {
            let more = match began.get_or_insert_with(Instant::now).elapsed().as_secs() {
                0..=3 => 0,
                4..=5 => 0_u32.wrapping_sub(3_600 * 90_000),
                6..=7 => 1 << 31,
                8 => (1 << 31) - 90_000,
                9 => u32::from(packet[3]).wrapping_mul(0x9e37_79b9),
                _ => 5,
            };
            let time = u32::from_be_bytes(packet[4..8].try_into().unwrap()).wrapping_add(more);
            packet[4..8].copy_from_slice(&time.to_be_bytes());
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
    let (whole, seconds) = reports.split_last().unwrap();
    let shown = column(seconds, "frames_shown");
    let still = shown[3..].iter().filter(|frames| **frames < 1.0).count();
    assert!(still <= 3 && shown[12..].iter().sum::<f64>() > 9.0, "{shown:?} {whole}");
    assert!(number(whole, "packets_lost") < 100_000.0, "{whole}");
    let delays = &seconds.last().unwrap()["glass_to_glass_ms"];
    assert!((0.0..2_000.0).contains(&number(delays, "p50")), "{delays}");
    assert!(grown < 8_000, "{grown} KiB more");
}

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
