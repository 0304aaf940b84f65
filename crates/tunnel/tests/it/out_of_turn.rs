//! A server against a client that says things out of turn.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::{
    Control, Hello, Load, LoadCounts, LoadDirection, Role, SourceDatagram, Speedtest, TestBounds,
    TestId, TestRefusal, TestWord,
};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PacketId, PathId, UplinkId};
use roadweave_quic::{Connection, ConnectionId, Endpoint, Event, Local, Source, TransportConfig};
use roadweave_tunnel::{
    LEG_SOCKET, LaneConfig, MEMORY_MAX, Node, Peer, PeerTable, Peers, ProxyConfig, ProxyTenant,
    RecvMeta, Server, ServerConfig, ServerEvent, SpeedtestLimits,
};

use crate::common::{client_address, epoch, identity, server_address};

const INNER: [u8; 4] = [10, 77, 0, 2];
const UPLINK: UplinkId = UplinkId(0);

fn peer(tenant: &str, address: [u8; 4]) -> Peer {
    Peer { tenant: tenant.into(), ..Peer::new("box", vec![IpAddr::from(address).into()]) }
}

struct Visit {
    now: Instant,
    server: Server,
    endpoint: Endpoint,
    id: ConnectionId,
    said: Vec<Control>,
    load: usize,
    is_closed: bool,
}

impl Visit {
    fn new(tenant: Option<&str>) -> Self {
        let epoch = epoch();
        let duration_max = Duration::from_secs(2);
        let limits = SpeedtestLimits { duration_max, bytes_max: 50_000, per_hour: 3, at_a_time: 1 };
        let config = ServerConfig {
            lanes: vec![LaneConfig::new("default", "xnc".parse().unwrap())],
            speedtest: Some(limits),
            memory_max: 8 * MEMORY_MAX,
            ..ServerConfig::new(TransportConfig::new([1; 32]), Vec::new())
        };
        let peer = peer(tenant.unwrap_or_default(), INNER);
        let peers = Arc::new(PeerTable::new([(identity(1).public_key(), peer)]));
        let key = Arc::new(identity(2));
        let server = match tenant {
            None => Server::new(epoch, config, key, peers),
            Some(name) => {
                let tenant = ProxyTenant {
                    name: name.into(),
                    anchor: identity(3).public_key(),
                    addresses: vec![SocketAddr::from(([203, 0, 113, 1], 4434))],
                    gateways: vec!["10.77.0.1/16".parse().unwrap()],
                    rate_limit: None,
                };
                let proxy = ProxyConfig { tenants: vec![tenant], leg_rate: None };
                Server::proxy(epoch, config, proxy, key, peers)
            }
        };
        let transport = TransportConfig::new([5; 32]);
        let mut endpoint = Endpoint::client(epoch, &transport, Arc::new(identity(1))).unwrap();
        let key = identity(2).public_key();
        let id = endpoint.connect(Instant::ZERO, UPLINK, server_address(), key).unwrap();
        let (said, load, is_closed, now) = (Vec::new(), 0, false, Instant::ZERO);
        let mut visit = Self { now, server: server.unwrap(), endpoint, id, said, load, is_closed };
        visit.run(50);
        visit
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.endpoint.handle_timeout(self.now);
            while let Some(packets) = self.endpoint.poll_transmit() {
                for (_, packet) in packets.packets() {
                    let local = Some(server_address().ip());
                    let meta = RecvMeta { local, ..RecvMeta::new(UPLINK, client_address()) };
                    self.server.handle_packet(self.now, &meta, packet);
                }
            }
            self.server.handle_timeout(self.now);
            while let Some(packets) = self.server.poll_transmit() {
                // Nothing ever comes from the anchor.
                for (route, packet) in packets.packets() {
                    if route.uplink != Some(LEG_SOCKET) {
                        let (remote, local) = (server_address(), Local::Uplink(UPLINK));
                        let source = Source { remote, local, ecn: None, received: None };
                        self.endpoint.handle_packet(self.now, source, BytesMut::from(packet));
                    }
                }
            }
            while let Some(event) = self.connection().and_then(Connection::poll_event) {
                match event {
                    Event::Message(message) => self.said.push(Control::parse(message).unwrap()),
                    Event::Closed(_) => self.is_closed = true,
                    Event::Received { datagram, .. } if Load::is_load(&datagram) => {
                        self.load += datagram.len();
                    }
                    _ => {}
                }
            }
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.endpoint.connection_mut(self.id)
    }

    fn say(&mut self, role: Role) {
        let hello = Control::Hello(Hello { name: "box".into(), role, ..Hello::default() });
        if let Some(connection) = self.connection() {
            let _ = connection.send_message(hello.to_bytes());
        }
        self.run(20);
    }

    fn send_inner(&mut self) -> Bytes {
        let mut packet = vec![0x45, 0, 0, 200, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend(INNER);
        packet.extend([198, 51, 100, 1, 0, 9, 0, 9, 0, 0, 0, 0]);
        packet.resize(200, 7);
        let datagram = SourceDatagram::of_packet(LaneId(0), false, None, &packet);
        let datagram = datagram.finish(PacketId(0));
        let now = self.now;
        if let Some(connection) = self.connection() {
            let _ = connection.send_on(now, PathId(0), datagram, 0);
        }
        self.run(20);
        packet.into()
    }

    fn has_joined(&mut self) -> bool {
        std::iter::from_fn(|| self.server.poll_event())
            .any(|event| matches!(event, ServerEvent::Joined { .. }))
    }
}

#[test]
fn what_overtakes_the_hello_of_one_that_stood_by_is_not_lost() {
    let mut visit = Visit::new(None);
    visit.say(Role::Standby);
    assert!(matches!(visit.said[..], [Control::Welcome(_)]), "{:?}", visit.said);
    assert!(!visit.has_joined());
    let sent = visit.send_inner();
    assert_eq!(visit.server.poll_inner(), Some(sent));
    visit.say(Role::Join);
    assert!(visit.has_joined() && !visit.has_joined(), "once");
}

#[test]
fn who_stands_by_is_let_go_when_its_configuration_changes() {
    let mut visit = Visit::new(None);
    visit.say(Role::Standby);
    let changed = [(identity(1).public_key(), peer("", [10, 77, 0, 9]))];
    let former = PeerTable::new([(identity(1).public_key(), peer("", INNER))]).peers();
    visit.server.replace_peers(Peers::after(&former, changed));
    visit.run(20);
    assert!(visit.is_closed && visit.server.standbys() == 0);
}

#[test]
fn a_proxy_names_the_inner_network_of_its_tenant() {
    let mut visit = Visit::new(Some("acme"));
    visit.say(Role::Standby);
    let [Control::Welcome(welcome)] = &visit.said[..] else { panic!("{:?}", visit.said) };
    assert_eq!(welcome.gateways, [IpAddr::from([10, 77, 0, 1])]);
    assert_eq!(welcome.networks, ["10.77.0.0/16".parse().unwrap()]);
}

#[test]
fn who_was_refused_has_no_session_and_stays_no_longer_by_asking_again() {
    for role in [Role::Join, Role::Standby] {
        let mut visit = Visit::new(Some("acme"));
        // The anchor has not answered for long enough.
        visit.run(1_500);
        visit.say(role);
        assert!(matches!(visit.said[..], [Control::Refuse { .. }]), "{:?}", visit.said);
        assert_eq!(visit.server.standbys(), 0);
        visit.send_inner();
        assert!(!visit.has_joined(), "{role:?}");
        for again in [Role::Join, Role::Standby].into_iter().cycle().take(8) {
            visit.run(500);
            visit.say(again);
        }
        assert!(visit.is_closed && !visit.has_joined(), "{role:?}, at {}", visit.now);
    }
}

impl Visit {
    fn joined() -> Self {
        let mut visit = Self::new(None);
        visit.say(Role::Join);
        visit.send_inner();
        visit.said.clear();
        visit
    }

    fn say_of_test(&mut self, test: u32, word: TestWord) -> Vec<TestWord> {
        let said = Control::Speedtest(Speedtest { test: TestId(test), word });
        self.connection().unwrap().send_message(said.to_bytes()).unwrap();
        self.run(20);
        self.answers()
    }

    fn answers(&mut self) -> Vec<TestWord> {
        let said = self.said.drain(..).filter_map(|said| match said {
            Control::Speedtest(said) => Some(said.word),
            _ => None,
        });
        said.collect()
    }

    fn send_load(&mut self, test: u32, count: u32) {
        for number in 0..count {
            let load = Load::datagram(TestId(test), number, 920);
            let now = self.now;
            let _ = self.connection().unwrap().send_through(now, PathId(0), load, 0);
            self.run(1);
        }
        self.run(20);
    }

    fn counted(&self) -> (u64, u64) {
        let stats = self.server.status().remove(0).stats;
        (stats.load.received_datagrams, stats.drops.get(DropReason::UnaskedLoad))
    }
}

fn ask(direction: LoadDirection, path: u32) -> TestWord {
    let bounds = TestBounds { direction, duration: Duration::from_secs(60), bytes: u64::MAX };
    TestWord::Ask { bounds, paths: vec![PathId(path)] }
}

#[test]
fn a_client_that_sends_more_load_than_it_was_granted_is_cut_and_has_one_test_at_a_time() {
    use LoadDirection::Up;
    let mut visit = Visit::joined();
    visit.send_load(1, 5);
    assert_eq!(visit.counted(), (0, 5), "nobody asked");
    let (duration, bytes) = (Duration::from_secs(2), 50_000);
    let granted = TestBounds { direction: Up, duration, bytes };
    assert_eq!(visit.say_of_test(1, ask(Up, 0)), [TestWord::Grant(granted)]);
    let again = visit.say_of_test(2, ask(Up, 0));
    assert_eq!(again, [TestWord::Refuse(TestRefusal::UnderWay)]);
    visit.send_load(1, 80);
    assert_eq!(visit.counted(), (50, 35), "1,000 bytes each with headers");
    let sent = LoadCounts { packets: 80, ..LoadCounts::default() };
    assert_eq!(visit.say_of_test(1, TestWord::Sent(sent)), []);
    visit.run(600);
    let [TestWord::Received(counts)] = visit.answers()[..] else { panic!("an answer") };
    assert_eq!((counts.packets, counts.bytes), (50, 46_000));
    visit.send_load(1, 5);
    assert_eq!(visit.counted(), (50, 40), "it is over");
    // A test whose end is never reported ends by its time.
    assert!(matches!(visit.say_of_test(3, ask(Up, 0))[..], [TestWord::Grant(_)]));
    visit.run(2_000 + 6_000);
    assert!(matches!(visit.answers()[..], [TestWord::Received(_)]));
    assert!(matches!(visit.say_of_test(4, ask(Up, 0))[..], [TestWord::Grant(_)]));
    visit.run(8_000);
    visit.answers();
    let last = visit.say_of_test(5, ask(Up, 0));
    assert_eq!(last, [TestWord::Refuse(TestRefusal::TooOften)]);
    let refusals = visit.server.refusals();
    assert_eq!((refusals["speedtest-under-way"], refusals["speedtest-too-often"]), (1, 1));
    assert!(!visit.is_closed);
}

#[test]
fn a_client_gets_no_more_load_than_it_was_granted_and_none_that_it_did_not_ask_for() {
    let mut visit = Visit::joined();
    visit.run(3_000);
    assert_eq!(visit.load, 0);
    visit.say_of_test(1, ask(LoadDirection::Down, 0));
    visit.run(3_000);
    assert!((40_000..50_000).contains(&visit.load), "{}", visit.load);
    visit.run(10_000);
    assert!(visit.load < 50_000, "and no more");
}

#[test]
fn what_a_later_version_may_send_is_counted_and_the_session_continues() {
    let mut visit = Visit::joined();
    let now = visit.now;
    let connection = visit.connection().unwrap();
    connection.send_message(Bytes::from_static(&[77])).unwrap();
    connection.send_on(now, PathId(0), Bytes::from_static(&[0x7f, 1]), 0).unwrap();
    visit.run(100);
    let status = &visit.server.status()[0];
    let unknown = |drops: &DropCounters| drops.get(DropReason::UnknownMessage);
    assert_eq!((unknown(visit.server.drops()), unknown(&status.stats.drops)), (1, 1));
    assert!(!visit.is_closed && visit.has_joined());
}

#[test]
fn words_of_tests_that_make_no_sense_are_refused_or_counted() {
    let mut visit = Visit::joined();
    let unknown = visit.say_of_test(1, ask(LoadDirection::Down, 9));
    assert_eq!(unknown, [TestWord::Refuse(TestRefusal::UnknownPath)]);
    assert_eq!(visit.server.refusals()["speedtest-unknown-path"], 1);
    let before = visit.server.drops().get(DropReason::UnknownMessage);
    for word in [
        TestWord::Refuse(TestRefusal::Off),
        TestWord::Received(LoadCounts::default()),
        TestWord::Stop,
        TestWord::Sent(LoadCounts::default()),
    ] {
        assert_eq!(visit.say_of_test(1, word), []);
    }
    let counted = visit.server.drops().get(DropReason::UnknownMessage) - before;
    assert_eq!((counted, visit.load, visit.is_closed), (2, 0, false));
    let mut visit = Visit::new(None);
    assert_eq!(visit.say_of_test(1, ask(LoadDirection::Down, 0)), []);
    visit.run(1_000);
    assert_eq!(visit.load, 0);
}
