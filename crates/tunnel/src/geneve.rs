//! The carrier of the redundant router: tunnel links that carry inner packets in GENEVE.
//!
//! ```text
//! lane ─► source datagram: its inner packet and ID
//!           └─► GENEVE: sequence = id, inner packet ─► outbox of the link ─► its socket
//! ```
//!
//! Nothing is acknowledged and no capacity measured, so a link has no window: it takes what the
//! strategy gives it, and queues only in the kernel. The lane keeps no sent packets.
//!
//! Hellos, one a second in both directions, show the address of a link's other end, whether it is
//! alive, and its round trip.
//!
//! Source: redundant framework (Networking'24) section III.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_proto::wire::{
    GENEVE_OVERHEAD, Geneve, GeneveHello, GeneveSequence, MAX_SYMBOL_BODY, SOURCE_HEADER,
    SYMBOL_HEADER,
};
use roadweave_proto::{Delays, Instant, PathId, PathSnapshot, PathStatus, RttEstimator, UplinkId};
use roadweave_quic::{Outbox, Route, Transmit};
use serde::{Deserialize, Serialize};

use crate::carrier::{Carrier, SendError};
use crate::lane::LaneDatagram;

/// A link not heard for this long is silent: three hellos are missing.
const SILENCE: Duration = Duration::from_millis(3500);
/// A learned address is forgotten after this silence: it may belong to another host by then.
const FORGET: Duration = Duration::from_secs(30);
const INITIAL_RTT: Duration = Duration::from_millis(100);
const SAID_MAX: usize = 8;

/// One tunnel link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterLink {
    /// Its name in logs and statistics.
    pub name: String,
    /// Its number in hellos, the same at both ends, which identifies a link with a learned address.
    pub number: u8,
    /// Its socket; several links may share one.
    pub socket: u32,
    /// Where its other end is.
    pub peer: RouterPeer,
}

/// Where the other end of a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterPeer {
    /// At this address.
    At(SocketAddr),
    /// Behind a NAT in these prefixes: wherever the link's hellos come from.
    Within(Vec<IpNet>),
}

/// Counters of one link, in UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkCounters {
    /// UDP packets sent, hellos among them.
    pub packets_sent: u64,
    /// Bytes of UDP packets sent.
    pub bytes_sent: u64,
    /// UDP packets received from the peer, hellos among them.
    pub packets_received: u64,
    /// Bytes of UDP packets received from the peer.
    pub bytes_received: u64,
    /// Inner packets received.
    pub inner_received: u64,
    /// Inner packets received that had not come by this link before.
    pub inner_distinct: u64,
    /// Inner packets whose first copy came by this link, in time (table III of the paper).
    pub adopted: u64,
    /// Copies of packets that had come before.
    pub duplicates: u64,
    /// Packets whose turn was over (table IV: discarded), or too old to know.
    pub late: u64,
    /// How often the other end's address changed.
    pub rebindings: u64,
    /// How often the link fell silent.
    pub silences: u64,
}

#[derive(Debug)]
pub(crate) struct Links {
    vni: u32,
    epoch: u32,
    begin_us: u32,
    links: Vec<LinkState>,
    snapshots: Vec<PathSnapshot>,
}

#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) config: RouterLink,
    remote: Option<(SocketAddr, Option<IpAddr>)>,
    heard: Option<Instant>,
    /// The last hello: when it came, and its sending time by the peer's clock.
    hello: Option<(Instant, u32)>,
    /// Recent own hellos: when each left, and the time in it.
    said: VecDeque<(Instant, u32)>,
    rtt: RttEstimator,
    pub(crate) round_trips: Delays,
    pub(crate) counters: LinkCounters,
    outbox: Outbox,
}

impl Links {
    /// `epoch`: changes when sequence numbers restart; `begin_us`: offset of the times in hellos.
    pub(crate) fn new(vni: u32, epoch: u32, begin_us: u32, links: Vec<RouterLink>) -> Self {
        let link = |config: RouterLink| LinkState {
            remote: match config.peer {
                RouterPeer::At(address) => Some((address, None)),
                RouterPeer::Within(_) => None,
            },
            config,
            heard: None,
            hello: None,
            said: VecDeque::new(),
            rtt: RttEstimator::new(INITIAL_RTT),
            round_trips: Delays::default(),
            counters: LinkCounters::default(),
            outbox: Outbox::default(),
        };
        let links: Vec<LinkState> = links.into_iter().map(link).collect();
        let mut this = Self { vni, epoch, begin_us, links, snapshots: Vec::new() };
        this.snapshots = this.links.iter().enumerate().map(snapshot).collect();
        this
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LinkState, PathStatus)> {
        self.links.iter().zip(self.snapshots.iter().map(|snapshot| snapshot.status))
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut LinkState {
        &mut self.links[at]
    }

    pub(crate) fn find(&self, socket: u32, remote: SocketAddr) -> Option<usize> {
        let here = |link: &LinkState| link.config.socket == socket;
        let exact = |link: &LinkState| here(link) && link.remote() == Some(remote);
        let by_ip = |link: &LinkState| {
            here(link) && matches!(link.config.peer, RouterPeer::At(at) if at.ip() == remote.ip())
        };
        self.links.iter().position(exact).or_else(|| self.links.iter().position(by_ip))
    }

    /// The link of a hello with number `id` from `remote`, behind NAT even if another was there.
    pub(crate) fn find_by_number(&self, socket: u32, remote: SocketAddr, id: u8) -> Option<usize> {
        let may = |link: &LinkState| link.config.number == id && link.may_be_at(socket, remote);
        self.links.iter().position(may)
    }

    /// Whether `hello` from `remote` is accepted for the link at `at`: from its other end, always;
    /// from elsewhere, if it answers a hello sent to the other end, or if the link is silent and
    /// its epoch is that of the live links (`is_present`).
    pub(crate) fn may_speak(
        &self,
        now: Instant,
        at: usize,
        remote: SocketAddr,
        hello: &GeneveHello,
        is_present: bool,
    ) -> bool {
        let link = &self.links[at];
        matches!(link.config.peer, RouterPeer::At(_))
            || link.remote() == Some(remote)
            || link.answered_by(hello).is_some()
            || !link.is_heard(now)
                && (is_present || !self.links.iter().any(|link| link.is_heard(now)))
    }

    pub(crate) fn may_be_peer(&self, socket: u32, remote: SocketAddr) -> bool {
        self.links.iter().any(|link| link.may_be_at(socket, remote))
    }

    pub(crate) fn take_from_others(&mut self, at: usize) {
        let (socket, remote) = (self.links[at].config.socket, self.links[at].remote());
        for (other, link) in self.links.iter_mut().enumerate() {
            let is_learned = matches!(link.config.peer, RouterPeer::Within(_));
            if other != at && is_learned && link.config.socket == socket && link.remote() == remote
            {
                link.remote = None;
            }
        }
    }

    pub(crate) fn send_hellos(&mut self, now: Instant) {
        for link in &mut self.links {
            let Some(route) = link.route() else { continue };
            let (echoed_us, held_us) = match link.hello {
                Some((at, sent_us)) => (sent_us, micros(now.since(at))),
                None => (0, u32::MAX),
            };
            let sent_us = micros(now.since(Instant::ZERO)).wrapping_add(self.begin_us);
            if link.said.len() == SAID_MAX {
                link.said.pop_front();
            }
            link.said.push_back((now, sent_us));
            let (epoch, number) = (self.epoch, link.config.number);
            let hello = GeneveHello { epoch, link: number, sent_us, echoed_us, held_us };
            link.push(route, &[&Geneve::hello(self.vni, &hello)]);
        }
    }

    pub(crate) fn refresh(&mut self, now: Instant) -> Vec<usize> {
        let mut changed = Vec::new();
        for (at, (link, snapshot)) in self.links.iter_mut().zip(&mut self.snapshots).enumerate() {
            link.forget(now);
            let status = link.status(now);
            if status != snapshot.status {
                link.counters.silences += u64::from(status == PathStatus::Suspect);
                snapshot.status = status;
                changed.push(at);
            }
            snapshot.smoothed_rtt = link.rtt.smoothed();
            snapshot.expected_rtt = link.rtt.smoothed();
            snapshot.min_rtt = link.rtt.min();
            snapshot.latest_rtt = link.rtt.latest();
            snapshot.rtt_deviation = link.rtt.variation();
        }
        changed
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        let waiting = self.links.iter_mut().find(|link| !link.outbox.is_empty());
        waiting.map(|link| Transmit::new(&mut link.outbox))
    }
}

impl Carrier for Links {
    fn paths(&mut self, _now: Instant) -> &[PathSnapshot] {
        &self.snapshots
    }

    /// Large enough that nothing is fragmented here: the TUN's MTU fits the links.
    fn max_datagram_size(&self) -> usize {
        // With room for a repair's header, which the lane leaves.
        2 * SOURCE_HEADER + SYMBOL_HEADER + MAX_SYMBOL_BODY
    }

    fn send_on(&mut self, _: Instant, path: PathId, data: LaneDatagram) -> Result<(), SendError> {
        let link = self.links.get_mut(path.0 as usize);
        let Some((link, route)) = link.and_then(|link| link.route().map(|route| (link, route)))
        else {
            return Err(SendError::Blocked(data));
        };
        // The format carries whole packets only, and the router's strategies make no others.
        let Some((id, packet)) = data.whole_packet() else {
            return Err(SendError::TooLarge(data));
        };
        let sequence = GeneveSequence { epoch: self.epoch, number: id.0 };
        let first = packet.first().copied().unwrap_or_default();
        link.push(route, &[&Geneve::inner_header(self.vni, first, sequence), packet]);
        Ok(())
    }

    /// Not supported: each side is configured by itself.
    fn send_message(&mut self, _message: Bytes) -> bool {
        false
    }

    fn reports_fates(&self) -> bool {
        false
    }
}

impl LinkState {
    pub(crate) fn on_heard(&mut self, now: Instant, bytes: usize) {
        self.heard = Some(now);
        self.counters.packets_received += 1;
        self.counters.bytes_received += bytes as u64;
    }

    pub(crate) fn on_hello(
        &mut self,
        now: Instant,
        hello: &GeneveHello,
        remote: SocketAddr,
        local: Option<IpAddr>,
    ) -> bool {
        let answered = self.answered_by(hello);
        let may_move = matches!(self.config.peer, RouterPeer::Within(_));
        let before = self.remote.map(|(address, _)| address);
        let moved = may_move && before != Some(remote);
        if may_move {
            self.remote = Some((remote, local));
            self.counters.rebindings += u64::from(moved && before.is_some());
        }
        self.hello = Some((now, hello.sent_us));
        if let Some(said) = answered {
            let held = Duration::from_micros(hello.held_us.into());
            // The clock is read once for several packets, so a hello may seem held for too long.
            let sample = now.since(said).checked_sub(held).filter(|sample| !sample.is_zero());
            if let Some(sample) = sample {
                self.rtt.update(sample);
                self.round_trips.add(sample);
            }
        }
        moved
    }

    pub(crate) fn answered_by(&self, hello: &GeneveHello) -> Option<Instant> {
        let said = self.said.iter().find(|(_, sent_us)| *sent_us == hello.echoed_us);
        said.filter(|_| hello.held_us != u32::MAX).map(|(at, _)| *at)
    }

    fn may_be_at(&self, socket: u32, remote: SocketAddr) -> bool {
        let is_there = match &self.config.peer {
            RouterPeer::At(address) => address.ip() == remote.ip(),
            RouterPeer::Within(prefixes) => prefixes.iter().any(|it| it.contains(&remote.ip())),
        };
        self.config.socket == socket && is_there
    }

    fn is_heard(&self, now: Instant) -> bool {
        self.remote.is_some() && self.heard.is_some_and(|heard| now.since(heard) <= SILENCE)
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        self.remote.map(|(address, _)| address)
    }

    pub(crate) fn rtt(&self) -> Option<RttEstimator> {
        self.rtt.is_sampled().then_some(self.rtt)
    }

    fn route(&self) -> Option<Route> {
        let (destination, source) = self.remote?;
        let uplink = Some(UplinkId(self.config.socket));
        Some(Route { uplink, destination, source, ecn: None })
    }

    fn push(&mut self, route: Route, parts: &[&[u8]]) {
        self.outbox.push_parts(route, parts);
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += parts.iter().map(|part| part.len() as u64).sum::<u64>();
    }

    fn forget(&mut self, now: Instant) {
        let is_old = self.heard.is_some_and(|heard| now.since(heard) > FORGET);
        if is_old && matches!(self.config.peer, RouterPeer::Within(_)) {
            (self.remote, self.heard, self.hello) = (None, None, None);
            self.said.clear();
        }
    }

    fn status(&self, now: Instant) -> PathStatus {
        match self.remote {
            None => PathStatus::Validating,
            Some(_) if self.is_heard(now) => PathStatus::Usable,
            // Packets are sent there all the same, since that costs nothing.
            Some(_) => PathStatus::Suspect,
        }
    }
}

fn snapshot((at, link): (usize, &LinkState)) -> PathSnapshot {
    let mut snapshot = PathSnapshot::idle(PathId(at as u32), INITIAL_RTT, u64::MAX);
    snapshot.uplink = Some(UplinkId(at as u32));
    snapshot.status = link.status(Instant::ZERO);
    snapshot.mtu = (GENEVE_OVERHEAD + MAX_SYMBOL_BODY) as u16;
    snapshot
}

fn micros(duration: Duration) -> u32 {
    duration.as_micros() as u32
}
