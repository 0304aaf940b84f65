//! The lab's world for tests: one-line plans, numbered packets, and arrivals in order.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, GilbertElliott, LinkSettings, Trace};
use roadweave_lab::strategies;
use roadweave_lab::world::World as Inner;
pub use roadweave_lab::world::WorldConfig;
use roadweave_proto::{Instant, Rate};
use roadweave_tunnel::{ClientEvent, LaneConfig, ServerEvent, SessionStatus};

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

pub fn link(rate_mbps: u64, one_way_ms: u64) -> LinkSettings {
    LinkSettings::new(Trace::constant(Rate::from_kbps(rate_mbps * 1000), ms(one_way_ms)), 0)
}

/// The link with a share of lost packets, in bursts of this length.
pub fn lossy(link: LinkSettings, share: f64, burst: f64) -> LinkSettings {
    LinkSettings { burst_loss: Some(GilbertElliott::bursts(share, burst)), ..link }
}

pub fn lane(strategy: &str) -> LaneConfig {
    LaneConfig::new("default", strategies::strategy(strategy).expect("known"))
}

/// A lane with `strategy` up, and one with `xnc` down.
pub fn plan(strategy: &str, links: Vec<LinkSettings>) -> WorldConfig {
    let link = |(index, link): (usize, LinkSettings)| {
        let way = |way| LinkSettings { seed: 1_000 + index as u64 * 2 + way, ..link.clone() };
        DuplexLink { name: name(index), up: way(0), down: way(1) }
    };
    let links = links.into_iter().enumerate().map(link).collect();
    WorldConfig {
        lanes_down: vec![lane("xnc")],
        ..WorldConfig::plain(links, vec![lane(strategy)], 1)
    }
}

/// The same lanes both ways.
pub fn plan_with(lanes: Vec<LaneConfig>, links: Vec<LinkSettings>) -> WorldConfig {
    WorldConfig { lanes_up: lanes.clone(), lanes_down: lanes, ..plan("xnc", links) }
}

pub fn two_links() -> WorldConfig {
    plan("xnc", vec![link(20, 20), link(20, 30)])
}

pub fn count<E>(events: &[(Instant, E)], is_it: impl Fn(&E) -> bool) -> usize {
    events.iter().filter(|(_, event)| is_it(event)).count()
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub packet: Bytes,
}

/// The lab's world, and all packets that it delivered so far.
pub struct World {
    inner: Inner,
    pub up: Vec<Arrival>,
    pub down: Vec<Arrival>,
}

impl Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl World {
    pub fn new(config: WorldConfig) -> Self {
        let inner = Inner::new(config).expect("plans make worlds");
        let mut world = Self { inner, up: Vec::new(), down: Vec::new() };
        world.flush();
        world
    }

    pub fn joined(config: WorldConfig) -> Self {
        Self::new(config).join()
    }

    pub fn join(mut self) -> Self {
        let end = self.now() + Duration::from_secs(10);
        while self.now() < end && !self.is_joined() {
            self.run(ms(10));
        }
        assert!(self.is_joined(), "no session: {:?}", self.client_events());
        self.run(ms(1500));
        self
    }

    pub fn set_all_dead(&mut self, dead: bool) {
        (0..self.links()).for_each(|link| self.set_dead(link, dead));
    }

    pub fn why_no_session(&mut self) -> Option<String> {
        let now = self.now();
        self.ends_mut().0.why_no_session(now)
    }

    /// Attempts at the first server over a link.
    pub fn attempts(&self, link: usize) -> u64 {
        self.uplinks()[link].servers[0].attempts
    }

    /// Events of both sides and notices of the client, a line each.
    pub fn log(&self) -> String {
        let client = self.client_events().iter().map(|(at, event)| match event {
            ClientEvent::Joined { server, .. } => (at, format!("joined {server}")),
            ClientEvent::Left { reason, rest } => (at, format!("left: {reason}; rests {rest:.1?}")),
            other => (at, format!("{other:?}")),
        });
        let server = self.server_events().iter().map(|(at, event)| match event {
            ServerEvent::Joined { peer, .. } => (at, format!("server: joined {peer}")),
            ServerEvent::Left { peer, reason, .. } => {
                (at, format!("server: left {peer}: {reason}"))
            }
            other => (at, format!("{other:?}")),
        });
        let notices = self.notices().iter();
        let notices = notices.map(|(at, notice)| (at, format!("{}: {notice}", notice.name())));
        let mut lines: Vec<_> = client.chain(server).chain(notices).collect();
        lines.sort();
        let seconds = |at: &Instant| at.since(Instant::ZERO).as_secs_f64();
        lines.iter().map(|(at, text)| format!("{:.1} {text}\n", seconds(at))).collect()
    }

    pub fn close_server(&mut self) {
        let now = self.now();
        self.ends_mut().1.close(now);
        self.flush();
    }

    /// How often the server accepted a session, and how often the client lost one.
    pub fn sessions(&self) -> (usize, usize) {
        (
            count(self.server_events(), |event| matches!(event, ServerEvent::Joined { .. })),
            count(self.client_events(), |event| matches!(event, ClientEvent::Left { .. })),
        )
    }

    pub fn send(&mut self, direction: Direction, packet: &[u8]) {
        self.handle_inner(direction, packet);
        self.flush();
    }

    pub fn send_up(&mut self, packet: &[u8]) {
        self.send(Direction::Up, packet);
    }

    pub fn flush(&mut self) {
        self.inner.flush();
        self.look();
    }

    pub fn run(&mut self, time: Duration) {
        self.inner.run_until(self.now() + time);
        self.look();
    }

    pub fn client_status(&self) -> SessionStatus {
        self.inner.client_status().expect("the session is up")
    }

    fn look(&mut self) {
        while let Some(arrival) = self.inner.poll_arrival() {
            let came = match arrival.direction {
                Direction::Up => &mut self.up,
                Direction::Down => &mut self.down,
            };
            came.push(Arrival { at: arrival.at, packet: arrival.packet });
        }
    }
}

pub fn name(index: usize) -> String {
    format!("wwan{index}")
}

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
    fill(&mut packet, number, length);
    packet
}

pub fn udp_v6(source: Ipv6Addr, destination: Ipv6Addr, number: u64, length: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((length - 40) as u16).to_be_bytes());
    packet.extend([17, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    fill(&mut packet, number, length);
    packet
}

/// Appends the UDP header, the number, as far as it fits, and a pattern that depends on it.
fn fill(packet: &mut Vec<u8>, number: u64, length: usize) {
    assert!(packet.len() + 8 <= length, "a packet has room for its headers");
    packet.extend([0x13, 0x88, 0x13, 0x89]);
    packet.extend(((length - packet.len() + 4) as u16).to_be_bytes());
    packet.extend([0, 0]);
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
    let start = world.up.len() as u64 + 1_000_000 * (world.now().as_nanos() / 1_000_000_000 + 1);
    for frame in 0..frames {
        before_frame(world, frame);
        for packet in 0..per_frame {
            let number = start + frame * per_frame + packet;
            sent.insert(number, world.now());
            world.handle_inner(Direction::Up, &packet_up(number, length));
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
