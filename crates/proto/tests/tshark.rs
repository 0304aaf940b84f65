//! Interop of our GENEVE: tshark's dissector reads captures of our packets and of others'.
//!
//! Without tshark (`make packages`) the test is skipped; with `ROADWEAVE_REQUIRE_TOOLS` it fails.

#![allow(clippy::disallowed_methods, reason = "interop tests start programs")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use roadweave_proto::wire::{
    GENEVE_PORT, Geneve, GeneveContent, GeneveError, GeneveHello, GeneveSequence,
};

const SEQUENCE: GeneveSequence = GeneveSequence { epoch: 0xa1b2_c3d4, number: 4_000_000_000 };
const VNI: u32 = 0x00_beef;
/// Several values of a field are separated by `|`.
const FIELDS: [&str; 10] = [
    "frame.protocols",
    "geneve.version",
    "geneve.flags.oam",
    "geneve.flags.critical",
    "geneve.vni",
    "geneve.option.class",
    "geneve.option.type",
    "udp.srcport",
    "ip.dst",
    "ipv6.dst",
];

fn inner(is_ipv6: bool) -> Vec<u8> {
    let udp = [0x9c, 0x40, 0x9c, 0x41, 0, 12, 0, 0, 1, 2, 3, 4];
    ip(is_ipv6, [10, 0, 0, 2], "fd00::2", &udp)
}

fn ip(is_ipv6: bool, to: [u8; 4], to_v6: &str, udp: &[u8]) -> Vec<u8> {
    let mut udp = udp.to_vec();
    let mut bytes = Vec::new();
    if is_ipv6 {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend((udp.len() as u16).to_be_bytes());
        bytes.extend([17, 64]);
        bytes.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        bytes.extend(to_v6.parse::<std::net::Ipv6Addr>().unwrap().octets());
        let pseudo = [&bytes[8..40], &(udp.len() as u32).to_be_bytes(), &[0, 0, 0, 17]].concat();
        let sum = checksum(&[pseudo, udp.clone()].concat());
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
    } else {
        bytes.extend([0x45, 0]);
        bytes.extend((20 + udp.len() as u16).to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1]);
        bytes.extend(to);
        let sum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes.extend(udp);
    bytes
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

fn outer(is_ipv6: bool, payload: &[u8]) -> Vec<u8> {
    let [high, low] = GENEVE_PORT.to_be_bytes();
    let [length_high, length_low] = (8 + payload.len() as u16).to_be_bytes();
    let mut udp = vec![high, low, high, low, length_high, length_low, 0, 0];
    udp.extend(payload);
    ip(is_ipv6, [192, 0, 2, 2], "2001:db8::2", &udp)
}

fn write_capture(path: &Path, packets: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        bytes.extend(word.to_le_bytes());
    }
    for packet in packets {
        for word in [0, 0, packet.len() as u32, packet.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(packet);
    }
    std::fs::write(path, bytes).unwrap();
}

/// By packet and field; the last two fields are complaints.
fn dissect(packets: &[Vec<u8>]) -> Option<Vec<Vec<String>>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("geneve.pcap");
    write_capture(&path, packets);
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=;", "-E", "aggregator=|"]);
    FIELDS.iter().for_each(|field| _ = command.args(["-e", field]));
    command.args(["-e", "_ws.malformed", "-e", "_ws.expert.message"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    let output = match command.output() {
        Ok(output) => output,
        Err(why) if std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none() => {
            let _ = writeln!(std::io::stderr(), "skipped: tshark cannot run: {why}");
            return None;
        }
        Err(why) => panic!("tshark cannot run: {why}"),
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}

#[test]
fn tshark_reads_what_we_write_without_complaint() {
    let mut packets = Vec::new();
    for outer_ipv6 in [false, true] {
        for inner_ipv6 in [false, true] {
            let packet = inner(inner_ipv6);
            let header = Geneve::inner_header(VNI, packet[0], SEQUENCE);
            packets.push(outer(outer_ipv6, &[&header[..], &packet].concat()));
        }
        let hello = GeneveHello { epoch: 1, link: 2, sent_us: 3, echoed_us: 4, held_us: 5 };
        packets.push(outer(outer_ipv6, &Geneve::hello(VNI, &hello)));
    }
    let Some(found) = dissect(&packets) else { return };
    let mut expected = Vec::new();
    for (outer, at) in [("ip", "192.0.2.2"), ("ipv6", "2001:db8::2")] {
        for (inner, inner_at) in [("ip", "10.0.0.2"), ("ipv6", "fd00::2")] {
            let protocols = format!("raw:{outer}:udp:geneve:{inner}:udp:data");
            let all = |family: &str| {
                let pairs = [(outer, at), (inner, inner_at)];
                let of = pairs.iter().filter(|(name, _)| *name == family).map(|(_, at)| *at);
                of.collect::<Vec<_>>().join("|")
            };
            let (v4, v6) = (all("ip"), all("ipv6"));
            expected.push(format!("{protocols};0;0;1;0x00beef;0xff52;0x81;6081|40000;{v4};{v6};;"));
        }
        let (v4, v6) = if outer == "ip" { (at, "") } else { ("", at) };
        expected
            .push(format!("raw:{outer}:udp:geneve;0;1;0;0x00beef;0xff52;0x02;6081;{v4};{v6};;"));
    }
    let found: Vec<_> = found.iter().map(|fields| fields.join(";")).collect();
    assert_eq!(found, expected);
}

/// Options before ours, another network, and what must be refused: tshark and we see the same.
#[test]
fn layouts_of_others_are_read_as_tshark_reads_them() {
    let ours = &Geneve::inner_header(VNI, 0x45, SEQUENCE)[8..];
    let foreign = [0x01, 0x02, 0x05, 2, 9, 9, 9, 9, 8, 8, 8, 8];
    let critical = [0x01, 0x02, 0x85, 0];
    let packet = |options: &[&[u8]], vni: u32| {
        let options = options.concat();
        let [_, vni @ ..] = vni.to_be_bytes();
        let mut bytes = vec![(options.len() / 4) as u8, 0x40, 0x08, 0];
        bytes.extend(vni);
        bytes.push(0);
        bytes.extend(options);
        bytes.extend(inner(false));
        bytes
    };
    let packets = [
        packet(&[&foreign, ours], VNI),
        packet(&[&foreign, ours, &foreign], 0xff_ffff),
        packet(&[&critical, ours], VNI),
        packet(&[&foreign], VNI),
    ];
    let content = GeneveContent::Inner { sequence: SEQUENCE, packet: &inner(false) };
    assert_eq!(Geneve::parse(&packets[0]), Ok(Geneve { vni: VNI, content }));
    assert_eq!(Geneve::parse(&packets[1]), Ok(Geneve { vni: 0xff_ffff, content }));
    let unknown = GeneveError::UnknownCritical { class: 0x0102, kind: 0x85 };
    assert_eq!(Geneve::parse(&packets[2]), Err(unknown));
    assert_eq!(Geneve::parse(&packets[3]), Err(GeneveError::NoSequence));
    let captured: Vec<_> = packets.iter().map(|payload| outer(false, payload)).collect();
    let Some(found) = dissect(&captured) else { return };
    let options: Vec<_> =
        found.iter().map(|packet| (&*packet[4], &*packet[5], &*packet[6])).collect();
    assert_eq!(
        options,
        [
            ("0x00beef", "0x0102|0xff52", "0x05|0x81"),
            ("0xffffff", "0x0102|0xff52|0x0102", "0x05|0x81|0x05"),
            ("0x00beef", "0x0102|0xff52", "0x85|0x81"),
            ("0x00beef", "0x0102", "0x05"),
        ]
    );
    assert!(found.iter().all(|packet| packet[0] == "raw:ip:udp:geneve:ip:udp:data"));
}
