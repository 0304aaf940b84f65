//! Speed tests with a server that does not keep to what is agreed, or knows nothing of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use roadweave_proto::wire::{
    Control, Load, LoadCounts, LoadDirection, Speedtest, TestBounds, TestId, TestWord, Welcome,
};
use roadweave_proto::{DropReason, Instant, PathId, UplinkId};
use roadweave_quic::{
    Connection, ConnectionId, Endpoint, EndpointEvent, Event, Local, Source, TransportConfig,
};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, LoadStats, Node as _, Peer, PeerTable, RecvMeta,
    SpeedtestPlan, SpeedtestReport, SpeedtestState,
};

use crate::common::{client_address, epoch, identity, server_address};

const UPLINK: UplinkId = UplinkId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manners {
    /// Not at all: it knows no tests.
    Old,
    /// It grants them, and then is silent.
    Silent,
    /// It grants more than was asked for, and sends load without end, of this test and others.
    Flood,
    /// It reports more than there is.
    Boast,
}

struct Meeting {
    now: Instant,
    client: Client,
    server: Endpoint,
    id: Option<ConnectionId>,
    manners: Manners,
    floods: Option<TestId>,
}

impl Meeting {
    fn new(manners: Manners) -> Self {
        let epoch = epoch();
        let (own, other) = (Arc::new(identity(1)), identity(2));
        let peer = Peer::new("box", vec![IpAddr::from([10, 77, 0, 2]).into()]);
        let peers = Arc::new(PeerTable::new([(own.public_key(), peer)]));
        let candidate = Candidate::only(other.public_key(), vec![server_address()]);
        let config = ClientConfig::new("box", TransportConfig::new([5; 32]), candidate);
        let transport = TransportConfig::new([6; 32]);
        let mut meeting = Self {
            now: Instant::ZERO,
            client: Client::new(epoch, config, own).unwrap(),
            server: Endpoint::server(epoch, &transport, Arc::new(other), peers).unwrap(),
            id: None,
            manners,
            floods: None,
        };
        meeting.client.add_uplink(Instant::ZERO, UPLINK, "wwan0");
        meeting.run(500);
        assert!(meeting.client.status().is_some(), "it has joined");
        meeting
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let now = self.now;
            self.client.handle_timeout(now);
            while let Some(packets) = self.client.poll_transmit() {
                for (_, packet) in packets.packets() {
                    let local = Local::Address(Some(server_address().ip()));
                    let remote = client_address();
                    let source = Source { remote, local, ecn: None, received: None };
                    self.server.handle_packet(now, source, BytesMut::from(packet));
                }
            }
            self.serve();
            self.server.handle_timeout(now);
            while let Some(packets) = self.server.poll_transmit() {
                for (_, packet) in packets.packets() {
                    let meta = RecvMeta::new(UPLINK, server_address());
                    self.client.handle_packet(now, &meta, packet);
                }
            }
        }
    }

    fn serve(&mut self) {
        while let Some(event) = self.server.poll_event() {
            if let EndpointEvent::Incoming(id) = event {
                self.id = Some(id);
            }
        }
        while let Some(event) = self.connection().and_then(Connection::poll_event) {
            if let Event::Message(message) = event {
                match Control::parse(message).unwrap() {
                    Control::Hello(_) => self.say(&Control::Welcome(Welcome {
                        addresses: vec!["10.77.0.2/32".parse().unwrap()],
                        mtu: 1_360,
                        ..Welcome::default()
                    })),
                    Control::Speedtest(said) => self.answer(&said),
                    _ => {}
                }
            }
        }
        if let Some(test) = self.floods {
            self.send_load(test, 5);
            self.send_load(TestId(77), 1);
        }
    }

    fn answer(&mut self, said: &Speedtest) {
        let (test, manners) = (said.test, self.manners);
        let word = |word| Control::Speedtest(Speedtest { test, word });
        match &said.word {
            _ if manners == Manners::Old => {}
            TestWord::Ask { bounds, .. } => {
                let mut granted = *bounds;
                if manners == Manners::Flood {
                    let duration = Duration::from_secs(100_000);
                    granted = TestBounds { duration, bytes: u64::MAX, ..granted };
                    self.floods = Some(test);
                }
                self.say(&word(TestWord::Grant(granted)));
                if manners == Manners::Boast && bounds.direction == LoadDirection::Down {
                    self.send_load(test, 10);
                    let (packets, bytes) = (u64::MAX, u64::MAX);
                    let counts = LoadCounts { packets, bytes, ..LoadCounts::default() };
                    self.say(&word(TestWord::Sent(counts)));
                }
            }
            TestWord::Sent(_) if manners == Manners::Boast => {
                let all = u64::MAX;
                let counts = LoadCounts {
                    packets: all,
                    bytes: all,
                    micros: 1_000_000,
                    steady_bytes: all,
                    steady_micros: 1_000_000,
                    rtt_micros: all,
                };
                self.say(&word(TestWord::Received(counts)));
            }
            _ => {}
        }
    }

    fn send_load(&mut self, test: TestId, count: u32) {
        let now = self.now;
        let Some(connection) = self.connection() else { return };
        for number in 0..count {
            let load = Load::datagram(test, number, 1_100);
            let _ = connection.send_through(now, PathId(0), load, 0);
        }
    }

    fn say(&mut self, word: &Control) {
        self.connection().unwrap().send_message(word.to_bytes()).unwrap();
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.server.connection_mut(self.id?)
    }

    fn measure(&mut self) -> SpeedtestReport {
        let plan = SpeedtestPlan {
            uplinks: Vec::new(),
            duration: Duration::from_secs(1),
            bytes_max: 1_500_000,
            metered: false,
        };
        self.client.begin_speedtest(self.now, &plan).unwrap();
        for _ in 0..300 {
            self.run(100);
            let report = self.client.speedtest(self.now).unwrap();
            if report.state != SpeedtestState::Running {
                return report;
            }
        }
        panic!("it never ends");
    }

    fn load(&self) -> LoadStats {
        self.client.status().unwrap().stats.load
    }

    fn unasked(&self) -> u64 {
        self.client.status().unwrap().stats.drops.get(DropReason::UnaskedLoad)
    }
}

#[test]
fn a_server_that_falls_silent_ends_the_test_after_a_while_with_the_reason() {
    for (manners, seconds, why) in [
        (Manners::Old, 6, "the server does not support speed tests"),
        (Manners::Silent, 15, "the result of the load"),
    ] {
        let mut meeting = Meeting::new(manners);
        let began = meeting.now;
        let error = meeting.measure().error.unwrap();
        assert!(error.contains(why), "{error}");
        assert!(meeting.now.since(began) < Duration::from_secs(seconds), "{}", meeting.now);
        assert_eq!(meeting.load(), LoadStats::default());
    }
}

#[test]
fn load_beyond_what_was_asked_for_is_counted_and_neither_taken_nor_answered() {
    let mut meeting = Meeting::new(Manners::Flood);
    meeting.send_load(TestId(1), 50);
    meeting.run(20);
    assert_eq!((meeting.unasked(), meeting.load()), (50, LoadStats::default()), "nobody asked");
    let report = meeting.measure();
    let (load, unasked) = (meeting.load(), meeting.unasked());
    assert!(load.received_bytes <= 750_000, "half of it is for one direction: {load:?}");
    assert!(load.received_bytes > 600_000 && unasked > 5_000, "{load:?} {unasked}");
    assert!(load.sent_bytes <= 750_000, "whatever the server grants: {load:?}");
    assert!(report.used_bytes <= 1_500_000, "{report:?}");
    let status = meeting.client.status().unwrap();
    assert!(status.stats.lanes.iter().all(|lane| lane.received.source_datagrams == 0));
}

#[test]
fn a_server_that_boasts_gains_no_more_than_what_was_sent() {
    let mut meeting = Meeting::new(Manners::Boast);
    let report = meeting.measure();
    assert_eq!(report.state, SpeedtestState::Done, "{report:?}");
    assert!(report.used_bytes <= 1_500_000, "{report:?}");
    let sent = meeting.load().sent_bytes;
    let up = report.rows[0].up.as_ref().unwrap();
    assert_eq!((up.bytes, up.loss), (sent, Some(0.0)));
    assert_eq!(up.bps, Some(sent * 8), "in the second that it says");
    let down = report.rows[0].down.as_ref().unwrap();
    assert!(down.bytes == 11_000 && down.loss > Some(0.99), "{down:?}");
}
