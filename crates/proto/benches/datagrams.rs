//! What it costs to build and to parse each kind of datagram, and an inner packet.

use std::hint::black_box;

use bytes::{BufMut, Bytes, BytesMut};
use criterion::{Criterion, criterion_group, criterion_main};
use roadweave_proto::wire::{
    CODED_HEADER, Coded, Datagram, Feedback, InnerPacket, LaneReport, Part, SourceDatagram,
};
use roadweave_proto::{LaneId, PacketId};

const LANE: LaneId = LaneId(1);
const ID: PacketId = PacketId(77);

fn inner() -> Vec<u8> {
    let mut packet = vec![0; 1200];
    packet[..4].copy_from_slice(&[0x45, 0, 0x04, 0xb0]);
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 2, 192, 0, 2, 1]);
    packet[20..28].copy_from_slice(&[0x13, 0x88, 0x13, 0x89, 0x04, 0x9c, 0, 0]);
    packet
}

fn source(packet: &[u8]) -> Bytes {
    SourceDatagram::of_packet(LANE, false, None, packet).finish(ID)
}

fn coded(payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(CODED_HEADER + payload.len());
    Coded::write_header(LANE, ID, 10, 5, &mut out);
    out.put_slice(payload);
    out.freeze()
}

fn feedback() -> Feedback {
    let report = |lane| LaneReport { lane, highest: ID, delivered: 70, recovered: 3, lost: 1 };
    Feedback { lanes: (0..3).map(report).collect() }
}

fn build(criterion: &mut Criterion) {
    let (packet, feedback) = (inner(), feedback());
    let whole = source(&packet);
    let mut group = criterion.benchmark_group("build");
    group.bench_function("source", |bencher| bencher.iter(|| source(black_box(&packet))));
    group.bench_function("coded", |bencher| bencher.iter(|| coded(black_box(&packet))));
    group.bench_function("parts", |bencher| {
        bencher.iter(|| Part::cut(LANE, 7, black_box(&whole), 700));
    });
    group.bench_function("feedback", |bencher| bencher.iter(|| black_box(&feedback).to_bytes()));
    group.finish();
}

fn parse(criterion: &mut Criterion) {
    let packet = inner();
    let whole = source(&packet);
    let part = Part::cut(LANE, 7, &whole, 700).expect("it is longer than 700 bytes").remove(0);
    let kinds = [
        ("source", whole),
        ("coded", coded(&packet)),
        ("part", part),
        ("feedback", feedback().to_bytes()),
    ];
    let mut group = criterion.benchmark_group("parse");
    for (kind, datagram) in kinds {
        Datagram::parse(datagram.clone()).expect("it was built by this crate");
        group.bench_function(kind, |bencher| {
            bencher.iter(|| Datagram::parse(black_box(&datagram).clone()));
        });
    }
    InnerPacket::parse(&packet).expect("a packet of IPv4");
    group.bench_function("inner", |bencher| {
        bencher.iter(|| InnerPacket::parse(black_box(&packet)).map(|packet| packet.ports()));
    });
    group.finish();
}

criterion_group!(benches, build, parse);
criterion_main!(benches);
