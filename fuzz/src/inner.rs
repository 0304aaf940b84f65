//! Inner packets and symbols: each view lies within its bytes.

use roadweave_proto::wire::{InnerPacket, RtpHeader, Symbol, protocol};

pub fn run(data: &[u8]) {
    if let Ok(packet) = InnerPacket::parse(data) {
        assert!(data.ends_with(packet.payload));
        assert!(packet.payload.len() <= data.len() - 20, "a header has at least 20 bytes");
        assert!(packet.dscp < 64);
        assert_eq!(packet.source.is_ipv4(), packet.destination.is_ipv4());
        let has_ports = packet.ports().is_some();
        assert!(!has_ports || matches!(packet.protocol, protocol::TCP | protocol::UDP));
        assert!(RtpHeader::of(&packet).is_none() || has_ports);
    }
    if let Ok(symbol) = Symbol::parse(data) {
        let mut written = Vec::new();
        symbol.write(&mut written);
        assert_eq!(written, data);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let rtp = [0x80, 0xe0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    let v4 = |options: &[u8], fragment: [u8; 2], payload: &[u8]| {
        let words = 5 + options.len() / 4;
        let length = (words * 4 + payload.len()) as u16;
        let [length_high, length_low] = length.to_be_bytes();
        let mut packet = vec![0x40 | words as u8, 0xb8, length_high, length_low, 0, 0];
        packet.extend(fragment);
        packet.extend([64, protocol::UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(options);
        packet.extend(payload);
        packet
    };
    let udp = [&[0x13, 0x88, 0x13, 0x89, 0, 20, 0, 0], &rtp[..]].concat();
    let mut v6 = vec![0x60, 0, 0, 0, 0, 4, protocol::TCP, 64];
    v6.extend([0xfd; 32]);
    v6.extend([0, 80, 0, 81]);
    vec![v4(&[1; 4], [0, 0], &udp), v4(&[], [0, 9], &udp), v6, vec![0x40, 3, 1, 2, 3]]
}
