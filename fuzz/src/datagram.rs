//! The payload of a DATAGRAM frame: refused, or written back unchanged.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::{
    Coded, Datagram, Feedback, FragmentPosition, LaneReport, LegFrames, LegRoom, Load,
    MAX_FEEDBACK_LANES, Part, Passed, SourceDatagram, Symbol, TestId,
};
use roadweave_proto::{LaneId, PacketId, Urgency};

pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    run_of_leg(&bytes);
    let Ok(datagram) = Datagram::parse(bytes.clone()) else { return };
    let written = match datagram {
        Datagram::Source { lane, id, symbol } => {
            let symbol = Symbol::parse(&symbol).expect("the symbol of a source packet was checked");
            SourceDatagram::new(lane, &symbol).finish(id)
        }
        Datagram::Coded(coded) => {
            let Coded { lane, count, seed, start, payload } = coded;
            let mut written = BytesMut::new();
            Coded::write_header(lane, start, count, seed, &mut written);
            written.extend_from_slice(&payload);
            written.freeze()
        }
        Datagram::Part(Part { lane, number, index, last, bytes }) => {
            let [first, second, third, fourth] = number.to_be_bytes();
            let header = [5, lane.0, first, second, third, fourth, index << 4 | last];
            Bytes::from([&header[..], &bytes].concat())
        }
        Datagram::Feedback(feedback) => feedback.to_bytes(),
        Datagram::Load(Load { test, number, filler }) => {
            let (test, number) = (test.0.to_be_bytes(), number.to_be_bytes());
            Bytes::from([&[9][..], &test, &number, &filler].concat())
        }
    };
    assert_eq!(written, bytes);
}

/// Datagrams of a backhaul: at most one of three kinds, and equal when written again.
fn run_of_leg(bytes: &Bytes) {
    let passed = Passed::parse(bytes.clone()).map(|it| Passed::datagram(it.handle, &it.packet));
    let frames = LegFrames::parse(bytes.clone()).map(|frames| frames.to_bytes());
    let room = LegRoom::parse(bytes.clone()).map(|room| room.to_bytes());
    let written: Vec<Bytes> = [passed, frames, room].into_iter().flatten().collect();
    assert!(written.len() <= 1);
    // Bytes after a room belong to a later version.
    assert!(written.iter().all(|written| bytes.starts_with(written)));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let symbol = Symbol { position: FragmentPosition::Last, body: b"inner packet" };
    let source = SourceDatagram::new(LaneId(3), &symbol).finish(PacketId(u32::MAX));
    let mut coded = BytesMut::new();
    Coded::write_header(LaneId(0), PacketId(7), 10, 99, &mut coded);
    coded.extend_from_slice(&[9; 30]);
    let report = LaneReport { lane: 1, highest: PacketId(9), delivered: 8, recovered: 7, lost: 6 };
    let body = Bytes::from_static(&[0x20, 0x0a, 4]);
    let frames = LegFrames { handle: 1, urgency: Urgency(2), sent: 3, frames: body };
    let room = LegRoom { handle: 1, until: 65_536, size: 1_200, wait: Duration::from_millis(925) };
    let feedback = |lanes| Feedback { lanes: vec![report; lanes] }.to_bytes().to_vec();
    vec![
        source.to_vec(),
        coded.to_vec(),
        feedback(0),
        feedback(2),
        feedback(MAX_FEEDBACK_LANES),
        Passed::datagram(1, &[0x20, 0x0a, 4]).to_vec(),
        frames.to_bytes().to_vec(),
        room.to_bytes().to_vec(),
        Load::datagram(TestId(7), 3, 40).to_vec(),
    ]
}
