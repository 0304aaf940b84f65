//! The lab's world for tests: one-line plans, numbered packets, streams, and arrivals in order.

pub mod apps;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, GilbertElliott, LinkSettings, Trace};
use roadweave_lab::strategies;
use roadweave_lab::world::{Hostility, Machine, Strangers, Trust, World as Inner, WorldConfig};
use roadweave_proto::{Instant, Rate};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{
    ClientEvent, LaneConfig, ServerEvent, SessionStatus, SpeedtestLimits, StreamsConfig,
    UplinkPolicy,
};

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

#[derive(Clone)]
pub struct Plan {
    pub strategy: &'static str,
    pub links: Vec<LinkPlan>,
    pub seed: u64,
    pub wrong_client: bool,
    pub wrong_server: bool,
    pub congestion: CongestionControl,
    pub policies: BTreeMap<String, UplinkPolicy>,
    pub strangers: Strangers,
    pub machine: Machine,
    pub streams: Option<StreamsConfig>,
    pub speedtest: Option<SpeedtestLimits>,
}

#[derive(Clone)]
pub struct LinkPlan {
    pub trace: Trace,
    pub burst_loss: Option<GilbertElliott>,
}

impl LinkPlan {
    pub fn lossy(self, share: f64, burst: f64) -> Self {
        Self { burst_loss: Some(GilbertElliott::bursts(share, burst)), ..self }
    }
}

pub fn link(rate_mbps: u64, one_way_ms: u64) -> LinkPlan {
    LinkPlan {
        trace: Trace::constant(Rate::from_kbps(rate_mbps * 1000), ms(one_way_ms)),
        burst_loss: None,
    }
}

impl Plan {
    pub fn new(strategy: &'static str, links: Vec<LinkPlan>) -> Self {
        Self {
            strategy,
            links,
            seed: 1,
            wrong_client: false,
            wrong_server: false,
            congestion: CongestionControl::Bbr,
            policies: BTreeMap::new(),
            strangers: Strangers::default(),
            machine: Machine::default(),
            streams: None,
            speedtest: None,
        }
    }

    pub fn build(self) -> World {
        let lane = |strategy: &str| {
            vec![LaneConfig::new("default", strategies::strategy(strategy).expect("known"))]
        };
        let lanes = lane(self.strategy);
        self.build_with(lanes, lane("xnc"))
    }

    /// Uses these lanes up and down instead of the strategy.
    pub fn build_with(self, lanes_up: Vec<LaneConfig>, lanes_down: Vec<LaneConfig>) -> World {
        let link = |(index, link): (usize, &LinkPlan)| {
            let make = |direction: u64| {
                let seed = self.seed.wrapping_mul(1000) + index as u64 * 2 + direction;
                let settings = LinkSettings::new(link.trace.clone(), seed);
                LinkSettings { burst_loss: link.burst_loss, ..settings }
            };
            DuplexLink { name: name(index), up: make(0), down: make(1) }
        };
        let links = self.links.iter().enumerate().map(link).collect();
        let mut inner = Inner::new(WorldConfig {
            lanes_down,
            streams: self.streams.clone(),
            congestion: self.congestion,
            speedtest: self.speedtest,
            policies: self.policies,
            strangers: self.strangers,
            machine: self.machine,
            trust: Trust {
                client_is_known: !self.wrong_client,
                server_is_right: !self.wrong_server,
            },
            ..WorldConfig::plain(links, lanes_up, self.seed)
        })
        .expect("plans make worlds");
        inner.flush();
        let mut world = World {
            inner,
            now: Instant::ZERO,
            up: Vec::new(),
            down: Vec::new(),
            client_events: Vec::new(),
            server_events: Vec::new(),
        };
        world.look();
        world
    }
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub packet: Bytes,
}

/// The lab's world, and all packets that it delivered so far.
pub struct World {
    pub inner: Inner,
    pub now: Instant,
    pub up: Vec<Arrival>,
    pub down: Vec<Arrival>,
    pub client_events: Vec<(Instant, ClientEvent)>,
    pub server_events: Vec<(Instant, ServerEvent)>,
}

impl World {
    pub fn join(mut self) -> Self {
        let end = self.now + Duration::from_secs(10);
        while self.now < end && !self.inner.is_joined() {
            self.run(ms(10));
        }
        assert!(self.inner.is_joined(), "no session: {:?}", self.client_events);
        self.run(ms(1500));
        self
    }

    pub fn restart_server(&mut self) {
        self.inner.restart_server().expect("it could be made before");
    }

    pub fn close_server(&mut self) {
        let now = self.now;
        self.inner.ends_mut().1.close(now);
        self.flush();
    }

    pub fn set_hostility(&mut self, index: usize, hostility: Option<Hostility>) {
        self.inner.set_hostility(index, hostility).expect("it could be made before");
    }

    /// How often the server accepted a session, and how often the client lost one.
    pub fn sessions(&self) -> (usize, usize) {
        let joined =
            |(_, event): &&(Instant, ServerEvent)| matches!(event, ServerEvent::Joined { .. });
        let left = |(_, event): &&(Instant, ClientEvent)| matches!(event, ClientEvent::Left { .. });
        (
            self.server_events.iter().filter(joined).count(),
            self.client_events.iter().filter(left).count(),
        )
    }

    pub fn set_dead(&mut self, index: usize, dead: bool) {
        self.inner.set_dead(index, dead);
    }

    pub fn send_up(&mut self, packet: &[u8]) {
        self.inner.handle_inner(Direction::Up, packet);
        self.flush();
    }

    pub fn send_down(&mut self, packet: &[u8]) {
        self.inner.handle_inner(Direction::Down, packet);
        self.flush();
    }

    pub fn flush(&mut self) {
        self.inner.flush();
        self.look();
    }

    pub fn run(&mut self, time: Duration) {
        self.inner.run_until(self.now + time);
        self.look();
    }

    pub fn client_status(&self) -> SessionStatus {
        self.inner.client_status().expect("the session is up")
    }

    fn look(&mut self) {
        self.now = self.inner.now();
        while let Some(arrival) = self.inner.poll_arrival() {
            let came = match arrival.direction {
                Direction::Up => &mut self.up,
                Direction::Down => &mut self.down,
            };
            came.push(Arrival { at: arrival.at, packet: arrival.packet });
        }
        self.client_events
            .extend_from_slice(&self.inner.client_events()[self.client_events.len()..]);
        self.server_events
            .extend_from_slice(&self.inner.server_events()[self.server_events.len()..]);
    }
}

pub fn name(index: usize) -> String {
    format!("wwan{index}")
}

/// A UDP packet from the client of `length` bytes, with a number in its payload.
pub fn packet_up(number: u64, length: usize) -> Vec<u8> {
    udp_v4([10, 77, 0, 2], [198, 51, 100, 1], number, length)
}

pub fn packet_down(number: u64, length: usize) -> Vec<u8> {
    udp_v4([198, 51, 100, 1], [10, 77, 0, 2], number, length)
}

pub fn udp_v4(source: [u8; 4], destination: [u8; 4], number: u64, length: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((length as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
    fill(&mut packet, number, length);
    packet
}

pub fn udp_v6(source: Ipv6Addr, destination: Ipv6Addr, number: u64, length: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((length - 40) as u16).to_be_bytes());
    packet.extend([17, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
    fill(&mut packet, number, length);
    packet
}

/// Fills the payload with the number, as far as it fits, and a pattern that depends on it.
fn fill(packet: &mut Vec<u8>, number: u64, length: usize) {
    assert!(packet.len() <= length, "a packet has room for its headers");
    packet.extend(number.to_be_bytes());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while packet.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        packet.push(state as u8);
    }
    packet.truncate(length);
}

pub fn number(packet: &[u8]) -> u64 {
    u64::from_be_bytes(packet[28..36].try_into().expect("a numbered packet"))
}

/// When each numbered packet arrived; panics on a duplicate.
pub fn arrivals(arrived: &[Arrival]) -> BTreeMap<u64, Instant> {
    let mut first = BTreeMap::new();
    for arrival in arrived {
        let before = first.insert(number(&arrival.packet), arrival.at);
        assert_eq!(before, None, "packet {} was delivered twice", number(&arrival.packet));
    }
    first
}

/// Sends frames at 30 fps and `mbps`; returns when each packet was sent.
pub fn stream(world: &mut World, frames: u64, mbps: u64) -> BTreeMap<u64, Instant> {
    stream_with(world, frames, mbps, |_, _| {})
}

pub fn stream_with(
    world: &mut World,
    frames: u64,
    mbps: u64,
    before_frame: impl FnMut(&mut World, u64),
) -> BTreeMap<u64, Instant> {
    stream_of(world, frames, mbps, 1240, before_frame)
}

pub fn stream_of(
    world: &mut World,
    frames: u64,
    mbps: u64,
    length: usize,
    mut before_frame: impl FnMut(&mut World, u64),
) -> BTreeMap<u64, Instant> {
    let per_frame = mbps * 1_000_000 / 8 / 30 / length as u64;
    let mut sent = BTreeMap::new();
    let start = world.up.len() as u64 + 1_000_000 * (world.now.as_nanos() / 1_000_000_000 + 1);
    for frame in 0..frames {
        before_frame(world, frame);
        for packet in 0..per_frame {
            let number = start + frame * per_frame + packet;
            sent.insert(number, world.now);
            world.inner.handle_inner(Direction::Up, &packet_up(number, length));
        }
        world.flush();
        world.run(Duration::from_nanos(33_333_333));
    }
    world.run(ms(1500));
    sent
}

/// Delays of arrived packets, ascending, in ms.
pub fn delays(sent: &BTreeMap<u64, Instant>, arrived: &BTreeMap<u64, Instant>) -> Vec<f64> {
    let mut delays: Vec<f64> = sent
        .iter()
        .filter_map(|(number, at)| Some(arrived.get(number)?.since(*at).as_secs_f64() * 1e3))
        .collect();
    delays.sort_by(f64::total_cmp);
    delays
}

pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}
