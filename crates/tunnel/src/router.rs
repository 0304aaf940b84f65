//! The redundant router: every inner packet on every link, the first copy wins, order is restored.
//!
//! ```text
//! out: inner packet ─► Session (redundant) ─► Links ─► GENEVE on each link
//! in:  GENEVE ─► which link? ─► which epoch? ─► Session (duplicates, order) ─► inner packet
//!      hello  ─► where the link's other end is, and whether it lives
//! ```
//!
//! Both sides are the same. There is no handshake: each side sends from its first packet on, and
//! accepts packets from the addresses of its configuration. Nothing is encrypted or authenticated:
//! who can forge the address of a link's other end can speak in its name.
//!
//! # When the peer restarts
//!
//! Its sequence numbers start again at 0, and could be old copies. So each packet and each hello
//! carries the epoch of its sender, drawn at random when it starts. The first packet of another
//! epoch begins a new sequence: at the next inner packet or hello, within a second. Packets of the
//! former epoch are late then. If the new epoch falls silent, as one from a corrupted packet does,
//! the former one may return, but numbers that already came remain old copies.
//!
//! # Who may move a link
//!
//! Behind a NAT the other end of a link is where its hellos come from. A peer whose binding changed
//! answers what was sent to its old address, which no other host has seen ([`Links::may_speak`]).
//! Only while a link is silent any address within its prefixes may take it, and only while all
//! links are silent may it begin another epoch.
//!
//! Source: redundant framework (Networking'24) section III; RFC 8926.

mod epochs;
mod jumps;
mod notices;
mod seen;
mod status;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ipnet::IpNet;
use roadweave_proto::wire::{
    FragmentPosition, GENEVE_VNI_MAX, Geneve, GeneveContent, GeneveError, GeneveHello,
    GeneveSequence, InnerPacket, MAX_SYMBOL_BODY, SYMBOL_HEADER, Symbol,
};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, Order, PacketId, PathStatus};
use roadweave_quic::Transmit;

use self::epochs::{Admission, Epochs, Sign};
use self::jumps::{Copy, Plausibility, SequenceJumps};
use self::notices::{Events, Notices};
use self::seen::DuplicateFilter;
pub use self::status::{LinkStatus, RouterStatus};
use crate::geneve::{Links, RouterLink};
use crate::lane::{Arrival, LaneConfig, Opening, Strategy};
use crate::node::{Node, RecvMeta};
use crate::session::{MEMORY_MAX, Session, SessionConfig, SessionError};

/// How often each link sends a hello: the paper's dummy packets (section III-B).
const HELLO_INTERVAL: Duration = Duration::from_secs(1);
/// The most links.
pub const ROUTER_LINKS_MAX: usize = 16;
/// How long a copy may be under way: the maximum segment lifetime of RFC 9293 section 3.4.1. Within
/// an epoch numbers never go back, so smaller ones are old copies until then.
const PACKET_LIFETIME: Duration = Duration::from_secs(120);
const LANE: LaneId = LaneId(0);

/// The settings of a router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// The virtual network identifier, 24 bits, the same at both ends.
    pub vni: u32,
    /// Random, different at each start.
    pub epoch: u32,
    /// Random as well: the start of the times in hellos. Only hosts that saw a hello can answer it.
    pub hello_begin_us: u32,
    /// How received packets are ordered.
    pub order: Order,
    /// The links, 1 to [`ROUTER_LINKS_MAX`].
    pub links: Vec<RouterLink>,
    /// Source addresses that the peer's inner packets may have; `None` for all.
    pub inner_sources: Option<Vec<IpNet>>,
}

/// Why a router cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// No link, or more than [`ROUTER_LINKS_MAX`].
    #[error("a router has 1 to {ROUTER_LINKS_MAX} links, not {0}")]
    Links(usize),
    /// The virtual network identifier has more than 24 bits.
    #[error("{0} is not a virtual network identifier, which has 24 bits")]
    Vni(u32),
    /// The session cannot be created.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// An event for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterEvent {
    /// The peer was heard for the first time.
    PeerHeard,
    /// The peer restarted.
    PeerRestarted,
    /// The other end of a link was learned, or moved.
    LinkMoved {
        /// The link.
        name: String,
        /// The present address of its other end.
        remote: SocketAddr,
        /// How often it moved since the last such event.
        times: u64,
    },
    /// A link answers, or no longer does.
    LinkStatus {
        /// The link.
        name: String,
        /// Its present status.
        status: PathStatus,
        /// How often it changed since the last such event.
        times: u64,
    },
}

/// One side of a redundant tunnel.
#[derive(Debug)]
pub struct Router {
    vni: u32,
    session: Session,
    links: Links,
    epochs: Epochs,
    jumps: SequenceJumps,
    max_buffer: Duration,
    seen: Vec<DuplicateFilter>,
    notices: Notices,
    next_hello: Instant,
    events: Events,
    drops: DropCounters,
}

impl Router {
    /// A router that has heard nothing.
    ///
    /// # Errors
    /// When the number of links or the virtual network identifier is out of bounds.
    pub fn new(config: RouterConfig) -> Result<Self, RouterError> {
        if config.links.is_empty() || config.links.len() > ROUTER_LINKS_MAX {
            return Err(RouterError::Links(config.links.len()));
        }
        if config.vni > GENEVE_VNI_MAX {
            return Err(RouterError::Vni(config.vni));
        }
        let mut lane = LaneConfig::new("default", Strategy::redundant());
        lane.rtp_frames = false;
        let (lanes, streams, memory_max) = (vec![lane], None, MEMORY_MAX);
        let (peer_sources, seed) = (config.inner_sources, u64::from(config.epoch));
        let settings = SessionConfig { lanes, peer_sources, streams, memory_max, seed };
        let mut session = Session::new(settings, false)?;
        // No control message announces this, and there is no coding.
        let rewind_after = PACKET_LIFETIME;
        session.receiving.opening = Opening { order: config.order, coded: false, rewind_after };
        Ok(Self {
            vni: config.vni,
            session,
            epochs: Epochs::default(),
            jumps: SequenceJumps::default(),
            max_buffer: config.order.max_buffer(),
            seen: config.links.iter().map(|_| DuplicateFilter::default()).collect(),
            notices: Notices::new(config.links.len()),
            links: Links::new(config.vni, config.epoch, config.hello_begin_us, config.links),
            next_hello: Instant::ZERO,
            events: Events::default(),
            drops: DropCounters::default(),
        })
    }

    /// The next event for the operator.
    pub fn poll_event(&mut self) -> Option<RouterEvent> {
        self.events.0.pop_front()
    }

    /// Packets dropped before their link or lane was known.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// The status.
    pub fn status(&self) -> RouterStatus {
        let stats = self.session.stats();
        let peer_packets = self.epochs.packets;
        let received = stats.lanes.first().map(|lane| &lane.received);
        let known = received.map_or(0, |received| received.source_datagrams);
        let adopted: u64 = self.links.iter().map(|(link, _)| link.counters.adopted).sum();
        let links = self.links.iter().enumerate();
        RouterStatus {
            paths: links.map(|link| LinkStatus::of(link, peer_packets, adopted)).collect(),
            peer_packets,
            peer_packets_lost: peer_packets.saturating_sub(known),
            peer_restarts: self.epochs.restarts,
            stats,
        }
    }

    fn handle_hello(
        &mut self,
        now: Instant,
        link: Option<usize>,
        hello: &GeneveHello,
        remote: SocketAddr,
        local: Option<IpAddr>,
        bytes: usize,
    ) {
        let Some(at) = link else {
            return self.drops.count(DropReason::UnknownPeer);
        };
        let is_present = self.epochs.is_present(hello.epoch);
        if !self.links.may_speak(now, at, remote, hello, is_present) {
            return self.drops.count(DropReason::UnknownPeer);
        }
        let answered = self.links.get_mut(at).answered_by(hello);
        // An old hello must not lead packets to a former address of the peer.
        if !self.admit(now, hello.epoch, Sign::Hello(answered)) {
            return;
        }
        let link = self.links.get_mut(at);
        link.on_heard(now, bytes);
        if link.on_hello(now, hello, remote, local) {
            self.links.take_from_others(at);
            self.notices.moved[at].times += 1;
        }
        self.refresh(now);
    }

    fn handle_copy(&mut self, now: Instant, link: usize, sequence: GeneveSequence, packet: &[u8]) {
        if packet.len() > MAX_SYMBOL_BODY {
            return self.drops.count(DropReason::OversizedInner);
        }
        if InnerPacket::parse(packet).is_err() {
            return self.drops.count(DropReason::MalformedInner);
        }
        let id = PacketId(sequence.number);
        if !self.admit(now, sequence.epoch, Sign::Packet(id)) {
            return;
        }
        match self.jumps.judge(id) {
            Plausibility::Near => self.take_copy(now, link, id, packet),
            Plausibility::Jump => {
                for Copy { link, id, packet, .. } in self.jumps.take_copies(now, self.max_buffer) {
                    self.take_copy(now, link, id, &packet);
                }
                self.take_copy(now, link, id, packet);
            }
            Plausibility::Doubt => {
                let packet = Bytes::copy_from_slice(packet);
                self.jumps.keep(Copy { came: now, link, id, packet });
            }
        }
        self.drops.add(DropReason::IdJump, std::mem::take(&mut self.jumps.forgotten));
    }

    fn take_copy(&mut self, now: Instant, link: usize, id: PacketId, packet: &[u8]) {
        let mut symbol = BytesMut::with_capacity(SYMBOL_HEADER + packet.len());
        Symbol { position: FragmentPosition::Whole, body: packet }.write(&mut symbol);
        let arrival = self.session.receiving.handle_source(now, LANE, id, symbol.freeze());
        if matches!(arrival, Arrival::First | Arrival::Late) {
            self.epochs.note(id);
            self.jumps.note(id);
        }
        // Other copies may not be the peer's.
        let is_of_sequence = !matches!(arrival, Arrival::Old | Arrival::Refused);
        let is_new = is_of_sequence && self.seen[link].note(id);
        let counters = &mut self.links.get_mut(link).counters;
        counters.inner_received += u64::from(is_of_sequence);
        counters.inner_distinct += u64::from(is_new);
        match arrival {
            Arrival::First => counters.adopted += 1,
            Arrival::Duplicate => counters.duplicates += 1,
            Arrival::Late | Arrival::Old => counters.late += 1,
            // Counted by the lane.
            Arrival::Refused => {}
        }
    }

    /// Whether packets of `epoch` count; a new epoch begins here.
    fn admit(&mut self, now: Instant, epoch: u32, sign: Sign) -> bool {
        match self.epochs.admit(now, epoch, sign) {
            Admission::Present => true,
            Admission::Past => {
                self.drops.count(DropReason::Late);
                false
            }
            Admission::First => {
                self.events.push(RouterEvent::PeerHeard);
                true
            }
            Admission::Restarted => {
                self.session.receiving.reset(now);
                self.jumps.reset();
                self.seen.fill_with(DuplicateFilter::default);
                self.notices.restart.times += 1;
                if self.notices.restart.poll(now).is_some() {
                    self.events.push(RouterEvent::PeerRestarted);
                }
                true
            }
        }
    }

    fn refresh(&mut self, now: Instant) {
        for at in self.links.refresh(now) {
            self.notices.status[at].times += 1;
        }
        for (at, (link, status)) in self.links.iter().enumerate() {
            let name = || link.config.name.clone();
            if let Some(remote) = link.remote()
                && let Some(times) = self.notices.moved[at].poll(now)
            {
                self.events.push(RouterEvent::LinkMoved { name: name(), remote, times });
            }
            if let Some(times) = self.notices.status[at].poll(now) {
                self.events.push(RouterEvent::LinkStatus { name: name(), status, times });
            }
        }
    }
}

impl Node for Router {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        self.session.handle_inner(now, packet);
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let RecvMeta { socket, remote, local, .. } = *meta;
        let link = self.links.find(socket.0, remote);
        if link.is_none() && !self.links.may_be_peer(socket.0, remote) {
            return self.drops.count(DropReason::UnknownPeer);
        }
        match Geneve::parse(payload) {
            Ok(it) if it.vni != self.vni => self.drops.count(DropReason::UnknownMessage),
            Ok(Geneve { content: GeneveContent::Hello(hello), .. }) => {
                let link = self.links.find_by_number(socket.0, remote, hello.link).or(link);
                self.handle_hello(now, link, &hello, remote, local, payload.len());
            }
            Ok(Geneve { content: GeneveContent::Inner { sequence, packet }, .. }) => match link {
                Some(link) => {
                    self.links.get_mut(link).on_heard(now, payload.len());
                    self.handle_copy(now, link, sequence, packet);
                }
                None => self.drops.count(DropReason::UnknownPeer),
            },
            Err(error) if error.is_malformed() => self.drops.count(DropReason::MalformedMessage),
            Err(GeneveError::Family(_)) => self.drops.count(DropReason::MalformedInner),
            Err(_) => self.drops.count(DropReason::UnknownMessage),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if now >= self.next_hello {
            self.next_hello = now + HELLO_INTERVAL;
            self.links.send_hellos(now);
            self.refresh(now);
        }
        self.session.handle_timeout(now, &mut self.links);
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.links.poll_transmit()
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        self.session.poll_inner()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.session.poll_timeout().into_iter().chain([self.next_hello]).min()
    }
}

#[cfg(test)]
mod tests;
