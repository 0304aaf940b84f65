//! Control messages of sessions and backhauls: refused, or equal after writing and reading.

use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{
    Binding, Control, Detached, Hello, LegMessage, LoadCounts, LoadDirection, Reason, Role,
    Speedtest, StreamsEpoch, StreamsOffer, TenantAnchor, TestBounds, TestId, TestRefusal, TestWord,
    Welcome,
};
use roadweave_proto::{LaneId, Order, PathId, Policy, Priority, Promise, Rate, peer_text};

pub fn run(data: &[u8]) {
    if let Ok(message) = LegMessage::parse(Bytes::copy_from_slice(data)) {
        assert_eq!(LegMessage::parse(message.to_bytes()), Ok(message));
    }
    let Ok(message) = Control::parse(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(Control::parse(message.to_bytes()), Ok(escaped(message)));
}

/// The message as read by the other side, with escaped control characters in its texts.
fn escaped(message: Control) -> Control {
    let text = |text: String| peer_text(text.as_bytes());
    match message {
        Control::Hello(hello) => Control::Hello(Hello { name: text(hello.name), ..hello }),
        Control::Refuse { reason, why } => Control::Refuse { reason: text(reason), why },
        Control::PathName { path, uplink } => Control::PathName { path, uplink: text(uplink) },
        other => other,
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let offer = StreamsOffer { epoch: StreamsEpoch(9), takes_priorities: true, takes_early: true };
    let networks = ["10.64.0.2/32", "fd64::2/128", "192.168.7.0/24"];
    let welcome = Welcome {
        addresses: networks.iter().map(|text| text.parse().expect("a network")).collect(),
        gateways: ["10.64.0.1", "fd64::1"].map(|text| text.parse().expect("an address")).to_vec(),
        networks: ["10.64.0.0/10", "fd64::/64"].map(|it| it.parse().expect("a network")).to_vec(),
        mtu: 1_400,
        anchor: Some(TenantAnchor { tenant: "acme".into(), key: [7; 32] }),
        streams: Some(offer),
        relays: true,
    };
    let (max_buffer, decode) = (Order::DEFAULT_BUFFER, Order::DEFAULT_DECODE);
    let frames = Order::Frames { deadline: Duration::from_millis(100), decode, max_buffer };
    let even = Order::Even { max_buffer };
    let messages = [
        Control::Streams(Some(offer)),
        Control::Hello(Hello { name: "bus-17".into(), ..Hello::default() }),
        Control::Welcome(welcome),
        Control::Refuse { reason: "unknown key".into(), why: Reason::Drain },
        Control::Hello(Hello { name: "b".into(), role: Role::Standby, ..Hello::default() }),
        Control::Move { why: Reason::Drain, grace: Some(Duration::from_secs(2)) },
        Control::PathName { path: PathId(3), uplink: "wwan0".into() },
        Control::PathPolicy {
            path: PathId(3),
            policy: Policy {
                priority: Priority::Backup,
                weight: 7,
                redundancy_percent: Some(5),
                takes_insurance: false,
                rate_max: Some(Rate::from_kbps(2_500)),
            },
        },
        Control::LanePromise {
            lane: LaneId(2),
            promise: Promise {
                acknowledge_on_all: true,
                order: Order::Adaptive { max_buffer: Duration::from_millis(300) },
                age_max: Duration::from_millis(1_000),
                expires: true,
                coded: false,
            },
        },
        Control::LanePromise {
            lane: LaneId(1),
            promise: Promise { acknowledge_on_all: true, order: frames, ..Promise::default() },
        },
        Control::LanePromise {
            lane: LaneId(1),
            promise: Promise { order: even, ..Promise::default() },
        },
    ];
    let bounds = TestBounds {
        direction: LoadDirection::Down,
        duration: Duration::from_secs(5),
        bytes: 1_000_000,
    };
    let counts = LoadCounts { packets: 9, bytes: 9_000, micros: 8_000, ..LoadCounts::default() };
    let words = [
        TestWord::Ask { bounds, paths: vec![PathId(0), PathId(2)] },
        TestWord::Grant(bounds),
        TestWord::Refuse(TestRefusal::TooOften),
        TestWord::Sent(counts),
        TestWord::Received(counts),
        TestWord::Stop,
    ];
    let tests = words.map(|word| Control::Speedtest(Speedtest { test: TestId(7), word }));
    let (anchor, proxy, signature) = ([7; 32], [8; 32], [9; 64]);
    let binding = Binding { tenant: "acme".into(), anchor, proxy, number: 3, signature };
    let (streams, device) = (Some(offer), [5; 32]);
    let attach = LegMessage::Attach { handle: 1, device, binding: binding.clone(), streams };
    let newest = Some(Box::new(binding.clone()));
    let detached = LegMessage::Detached { handle: 1, why: Detached::Old, newest };
    let messages = messages.into_iter().chain(tests).chain([Control::Binding(binding)]);
    let mut seeds: Vec<Vec<u8>> = messages.map(|m| m.to_bytes().to_vec()).collect();
    seeds.extend([attach, detached].map(|m| m.to_bytes().to_vec()));
    seeds.push([&seeds[0][..], &[0xff, 0xfe, 0, 2, 1, 2]].concat());
    seeds
}
