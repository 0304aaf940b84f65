use super::*;

#[test]
fn a_packet_of_a_frame_reads_back() {
    let packet = FramePacket { number: 1 << 40, frame: 70_000, index: 3, count: 900, is_key: true };
    let payload = packet.write(1_150);
    assert_eq!((payload.len(), FramePacket::parse(&payload)), (1_150, Some(packet)));
    assert_eq!(FramePacket::parse(&payload[..FramePacket::BYTES - 1]), None);
}
