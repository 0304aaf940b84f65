//! RTCP of a hostile receiver at the sender.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{lines, number, sender, whole};

/// A compound packet (RFC 3550, RFC 4585, RFC 5104) from `from` about `about`: an empty report, and
/// a request for a key frame, PLI or FIR.
fn request(from: u32, about: u32, fir: Option<u8>) -> Vec<u8> {
    let mut packet = vec![0x80, 201, 0, 1];
    packet.extend(from.to_be_bytes());
    let (format, words) = if fir.is_some() { (4, 4) } else { (1, 2) };
    packet.extend([0x80 | format, 206, 0, words]);
    packet.extend(from.to_be_bytes());
    packet.extend(if fir.is_some() { 0 } else { about }.to_be_bytes());
    if let Some(number) = fir {
        packet.extend(about.to_be_bytes());
        packet.extend([number, 0, 0, 0]);
    }
    packet
}

#[test]
fn a_flood_of_requests_and_garbage_brings_few_key_frames_and_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let options = format!("--size 320x240 --seconds 8 --frames {}", file.display());
    let sender = sender(socket.local_addr().unwrap().port(), &options);
    let mut bytes = [0; 2048];
    let (about, there) = loop {
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        if length > 12 && bytes[1] & 0x7f == 96 {
            break (u32::from_be_bytes(bytes[8..12].try_into().unwrap()), from);
        }
    };
    thread::sleep(Duration::from_millis(500));
    let before = sender.memory_kib();
    let began = Instant::now();
    let mut seed = 1_u32;
    let mut turn = 0_u32;
    while began.elapsed() < Duration::from_secs(5) {
        for _ in 0..50 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let from = if turn.is_multiple_of(2) { 7 } else { seed };
            let mut packet = request(from, about, (turn % 4 < 2).then_some(turn as u8));
            if turn.is_multiple_of(5) {
                let at = seed as usize % packet.len();
                packet[at] ^= (seed >> 8) as u8;
                packet.truncate(packet.len() - (seed >> 16) as usize % 9);
            }
            let _ = socket.send_to(&packet, there);
            turn += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut bytes).is_ok() {}
    let grown = sender.memory_kib().saturating_sub(before);
    let sent = whole(&sender.output());
    assert!(turn > 5_000, "{turn}");
    assert!(number(&sent, "key_frames_asked") > 0.0, "{sent}");
    assert!(number(&sent, "rtcp_dropped") > 0.5 * f64::from(turn), "{turn} {sent}");
    assert!(grown < 8_000, "{grown} KiB more");
    let keys = lines(&file).iter().filter(|line| line["key"] == true).count();
    assert!((2..=85).contains(&keys), "{keys} {sent}");
}
