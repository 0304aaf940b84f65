//! A session: the lanes between two peers, over one carrier.
//!
//! ```text
//! out: inner packet ─► handle_inner ─► lane ─► handle_timeout ─► carrier
//! in:  carrier ─► handle_datagram ─► lane ─► poll_inner ─► inner packet
//!                 on_acknowledged, on_lost ─► recovery
//! ```
//!
//! A session owns neither carrier nor clock. After any input, and at [`Session::poll_timeout`],
//! call [`Session::handle_timeout`] and take its output.

mod config;
mod load;
mod memory;
mod output;
mod settings;
mod stats;
mod streams;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_proto::wire::{
    Datagram, DatagramError, Feedback, InnerPacket, LaneReport, MAX_SYMBOL_BODY,
    PREDECESSOR_HEADER, STAMP_HEADER,
};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PacketId, PathId, Promise};
use roadweave_schedule::AcknowledgedDatagram;

pub(crate) use self::config::find_lane;
use self::config::needs_flows;
pub use self::config::{MEMORY_MAX, SessionConfig, SessionError, SetError};
pub use self::load::LoadStats;
use self::load::Loads;
pub(crate) use self::load::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};
use self::output::InnerOutput;
pub(crate) use self::output::check_inner;
pub use self::stats::{LaneStats, SessionStats};
pub(crate) use self::streams::{StreamEnd, StreamTurn, SymbolQueue};
use crate::carrier::Carrier;
use crate::lane::{
    Arrival, DatagramToken, Delivery, EncoderTarget, FlowTable, LANES_MAX, LaneConfig,
    LaneReceiver, LaneSender, Opening, Reassembly, ReceiveStats, TokenKind, Unfinished, classify,
};
use crate::observe::PacketEvent;
use crate::players::{Players, ReportLimiter};

/// How often feedback with acknowledgements also reports what was received.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Smaller datagrams are copied, so that at most three times the counted bytes are held.
const SLICE_MIN: usize = 512;

/// The lanes between two peers.
#[derive(Debug)]
pub struct Session {
    lane_configs: Vec<LaneConfig>,
    senders: Vec<LaneSender>,
    turn: usize,
    flows: Option<FlowTable>,
    receivers: BTreeMap<LaneId, LaneReceiver>,
    parts: Reassembly,
    pub(crate) opening: Opening,
    acknowledges_on_all: bool,
    past: BTreeMap<LaneId, ReceiveStats>,
    output: InnerOutput,
    peer_reports: BTreeMap<u8, LaneReport>,
    players: BTreeMap<LaneId, Players>,
    report_limiter: ReportLimiter,
    next_report: Instant,
    memory_max: usize,
    /// Bytes that came in since memory was last summed up.
    unchecked: usize,
    streams_due: Option<Instant>,
    loads: Loads,
}

impl Session {
    /// A session without traffic. `names_uplinks`: whether [`Session::name_path`] will be called,
    /// for strategies that name an uplink.
    ///
    /// # Errors
    /// If the number of lanes is out of bounds, or a strategy cannot be used.
    pub fn new(config: SessionConfig, names_uplinks: bool) -> Result<Self, SessionError> {
        let lanes_max = LANES_MAX - usize::from(config.streams.is_some());
        if config.lanes.is_empty() || config.lanes.len() > lanes_max {
            return Err(SessionError::Lanes(config.lanes.len()));
        }
        let senders = (0_u8..)
            .zip(config.lanes.iter().chain(&config.streams))
            .map(|(id, lane)| LaneSender::new(LaneId(id), lane.clone(), config.seed, names_uplinks))
            .collect::<Result<Vec<_>, _>>()?;
        let needs_flows = needs_flows(&config.lanes);
        Ok(Self {
            lane_configs: config.lanes,
            senders,
            turn: 0,
            flows: needs_flows.then(FlowTable::default),
            receivers: BTreeMap::new(),
            parts: Reassembly::default(),
            opening: Opening::default(),
            acknowledges_on_all: false,
            past: BTreeMap::new(),
            output: InnerOutput {
                sources: config.peer_sources,
                symbols: config.streams.is_some().then(SymbolQueue::default),
                ..InnerOutput::default()
            },
            peer_reports: BTreeMap::new(),
            players: BTreeMap::new(),
            report_limiter: ReportLimiter::default(),
            next_report: Instant::ZERO,
            memory_max: config.memory_max,
            unchecked: 0,
            streams_due: None,
            loads: Loads::default(),
        })
    }

    /// Takes an inner packet for the peer.
    pub fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        match InnerPacket::parse(packet) {
            Ok(view) => self.handle_parsed_inner(now, packet, &view),
            Err(_) => self.output.drops.count(DropReason::MalformedInner),
        }
    }

    pub(crate) fn handle_parsed_inner(
        &mut self,
        now: Instant,
        packet: &[u8],
        view: &InnerPacket<'_>,
    ) {
        if packet.len() > MAX_SYMBOL_BODY - PREDECESSOR_HEADER - STAMP_HEADER {
            self.output.drops.count(DropReason::OversizedInner);
            return;
        }
        let hash = view.flow_hash();
        let flow = self.flows.as_mut().map(|flows| flows.on_packet(now, hash, view));
        let lane = classify(&self.lane_configs, view, flow.map(|flow| flow.class));
        let sender = &mut self.senders[usize::from(lane.0)];
        if sender.config.rtp_frames && flow.is_some_and(|flow| flow.begins_frame) {
            sender.end_frame();
        }
        let rtp = flow.filter(|_| sender.config.rtp_frames).and_then(|flow| flow.rtp);
        sender.handle_inner(now, packet, hash, rtp);
        self.note_incoming(now, packet.len());
    }

    fn lane_senders(&mut self) -> impl Iterator<Item = &mut LaneSender> {
        self.senders.iter_mut().take(self.lane_configs.len())
    }

    pub(crate) fn keep_unfinished(&mut self) {
        self.lane_senders().for_each(LaneSender::keep_unfinished);
    }

    pub(crate) fn take_unfinished(&mut self, now: Instant) -> Vec<Unfinished> {
        let of_lane = |sender: &mut LaneSender| sender.take_unfinished(now);
        let mut packets: Vec<Unfinished> = self.lane_senders().flat_map(of_lane).collect();
        packets.sort_by_key(|unfinished| unfinished.since);
        packets
    }

    /// Ends the session: delivers what was received, drops what was not sent. Returns all drops.
    pub(crate) fn end(&mut self, now: Instant) -> DropCounters {
        self.reset(now);
        let mut drops = self.drops();
        let waiting = self.senders.iter().map(LaneSender::waiting_packets).sum();
        drops.add(DropReason::NoSession, waiting);
        drops
    }

    pub(crate) fn resume(&mut self, packets: Vec<Unfinished>) {
        for Unfinished { since, packet } in packets {
            self.handle_inner(since, &packet);
        }
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.output.drops.count(reason);
    }

    /// The peer makes a promise for one of its lanes.
    pub fn on_lane_promise(&mut self, now: Instant, lane: LaneId, promise: Promise) {
        self.receive(now, lane, |receiver, deliver| receiver.set_promise(now, promise, deliver));
        self.acknowledges_on_all =
            self.receivers.values().any(|receiver| receiver.promise.acknowledge_on_all);
    }

    /// The peer has restarted, with its IDs: delivers what waits, and forgets the receivers.
    pub(crate) fn reset(&mut self, now: Instant) {
        for (lane, mut receiver) in std::mem::take(&mut self.receivers) {
            let mut deliver = |delivery| self.output.deliver(now, lane, delivery);
            receiver.handle_timeout(now, &mut deliver);
            receiver.flush(now, &mut deliver);
            self.past.entry(lane).or_default().add_past(&receiver.stats());
        }
        self.acknowledges_on_all = false;
    }

    /// Takes a source datagram of a carrier with another format: `symbol` with `id` of `lane`.
    pub(crate) fn handle_source(
        &mut self,
        now: Instant,
        lane: LaneId,
        id: PacketId,
        symbol: Bytes,
    ) -> Arrival {
        let mut arrival = Arrival::Refused;
        self.receive(now, lane, |receiver, deliver| {
            arrival = receiver.handle_source(now, id, symbol, deliver);
        });
        arrival
    }

    /// Takes a datagram that the peer sent.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Bytes) {
        self.note_incoming(now, datagram.len());
        // A slice of a large packet would hold uncounted memory.
        let datagram = match datagram.len() < SLICE_MIN {
            true => Bytes::copy_from_slice(&datagram),
            false => datagram,
        };
        match Datagram::parse(datagram) {
            Ok(Datagram::Part(part)) => {
                if usize::from(part.lane.0) >= LANES_MAX {
                    self.output.drops.count(DropReason::UnknownMessage);
                    return;
                }
                let receiver = self.receivers.get(&part.lane);
                let age_max = receiver.map_or(Promise::DEFAULT_AGE, LaneReceiver::keeps_for);
                let whole = self.parts.insert(now, part, age_max, &mut self.output.drops);
                if let Some(whole) = whole {
                    self.handle_parsed(now, Datagram::parse(whole));
                }
            }
            whole => self.handle_parsed(now, whole),
        }
    }

    fn handle_parsed(&mut self, now: Instant, datagram: Result<Datagram, DatagramError>) {
        match datagram {
            Ok(Datagram::Source { lane, id, symbol }) => {
                self.handle_source(now, lane, id, symbol);
            }
            Ok(Datagram::Coded(coded)) => self.receive(now, coded.lane, |receiver, deliver| {
                receiver.handle_coded(now, coded, deliver);
            }),
            Ok(Datagram::Feedback(feedback)) => {
                for report in feedback.lanes {
                    if usize::from(report.lane) < LANES_MAX {
                        self.peer_reports.insert(report.lane, report);
                    }
                }
            }
            Ok(Datagram::Load(load)) => self.handle_load(now, &load),
            Err(DatagramError::UnknownKind(_)) => {
                self.output.drops.count(DropReason::UnknownMessage);
            }
            // Parts are not nested.
            Ok(Datagram::Part(_)) | Err(_) => {
                self.output.drops.count(DropReason::MalformedMessage);
            }
        }
    }

    /// The datagram sent with `token` was acknowledged.
    pub fn on_acknowledged(
        &mut self,
        now: Instant,
        token: u64,
        acknowledged: &AcknowledgedDatagram,
    ) {
        let DatagramToken { kind, lane, id } = DatagramToken::parse(token);
        if kind == TokenKind::Load {
            self.on_load_acknowledged(acknowledged.rtt);
        } else if let Some(sender) = self.senders.get_mut(usize::from(lane.0)) {
            sender.on_acknowledged(now, kind, id, acknowledged);
        }
        for sender in &mut self.senders {
            sender.hear_acknowledged(now, acknowledged);
        }
    }

    /// The carrier declares the datagram sent with `token` on `path` lost.
    pub fn on_lost(&mut self, now: Instant, path: PathId, token: u64) {
        let DatagramToken { kind, lane, id } = DatagramToken::parse(token);
        let sender = self.senders.get_mut(usize::from(lane.0));
        if let Some(sender) = sender.filter(|_| kind != TokenKind::Load) {
            sender.on_lost(now, kind, id, path);
        }
    }

    /// Sends repairs, then waiting packets, then acknowledgements, which may wait for a
    /// millisecond. Delivers what has waited long enough.
    pub fn handle_timeout(&mut self, now: Instant, carrier: &mut impl Carrier) {
        self.turn(now, carrier, None);
    }

    pub(crate) fn turn(
        &mut self,
        now: Instant,
        carrier: &mut impl Carrier,
        mut streams: Option<StreamTurn<'_>>,
    ) {
        if let Some(streams) = &mut streams {
            self.hand_over_symbols(now, streams);
        }
        let lanes = self.senders.len();
        self.turn = (self.turn + 1) % lanes;
        let mut order: [usize; LANES_MAX] = std::array::from_fn(|at| (at + self.turn) % lanes);
        let order = &mut order[..lanes];
        order.sort_by_key(|lane| self.senders[*lane].config.rank);
        for lane in order {
            match &mut streams {
                Some(streams) if *lane >= self.lane_configs.len() => {
                    self.transmit_streams(now, streams, carrier);
                }
                _ => self.senders[*lane].transmit(now, carrier),
            }
        }
        self.insure(now, carrier);
        self.streams_due = streams.and_then(|streams| streams.due());
        carrier.acknowledge_on_all(self.acknowledges_on_all);
        if let Some(path) = carrier.feedback_due(now) {
            match self.feedback(now) {
                Some(feedback) => carrier.send_feedback_on(now, path, feedback.to_bytes()),
                None => carrier.acknowledge_on(now, path, Feedback::default().to_bytes()),
            }
        }
        for (lane, receiver) in &mut self.receivers {
            receiver.handle_timeout(now, &mut |delivery| self.output.deliver(now, *lane, delivery));
        }
        self.keep_to_share(now);
    }

    fn insure(&mut self, now: Instant, carrier: &mut impl Carrier) {
        let waits = self.senders.iter().any(LaneSender::has_backlog);
        for sender in &mut self.senders {
            match waits {
                true => sender.put_off_insurance(now),
                false => sender.insure(now, carrier),
            }
        }
    }

    /// An inner packet from the peer, for this side's device.
    pub fn poll_inner(&mut self) -> Option<Bytes> {
        self.poll_routed_inner().map(|(_, packet)| packet)
    }

    pub(crate) fn poll_routed_inner(&mut self) -> Option<(IpAddr, Bytes)> {
        self.output.inbox.pop_front()
    }

    /// When [`Session::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sending = self.senders.iter().filter_map(LaneSender::poll_timeout);
        let receiving = self.receivers.values().filter_map(LaneReceiver::poll_timeout);
        sending.chain(receiving).chain(self.streams_due).chain(self.load_timeout()).min()
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.loads.sending.is_some() || self.senders.iter().any(LaneSender::has_backlog)
    }

    /// Forbids packets of the peer from these networks.
    pub fn refuse_sources(&mut self, networks: Vec<IpNet>) {
        self.output.refused_sources = networks;
    }

    /// Turns the log of packet events on or off.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.output.log.switch(is_on);
        self.senders.iter_mut().for_each(|sender| sender.log.switch(is_on));
    }

    /// The next event, if [`Session::observe_packets`] is on; in order by lane and direction.
    pub fn poll_packet_event(&mut self) -> Option<PacketEvent> {
        let sent = self.senders.iter_mut().find_map(|sender| sender.log.poll());
        sent.or_else(|| self.output.log.poll())
    }

    /// Sets the name of the network of `path`, by which strategies recognize it.
    pub fn name_path(&mut self, path: PathId, name: &str) {
        self.senders.iter_mut().for_each(|sender| sender.name_path(path, name));
    }

    /// Forgets the name of a closed path.
    pub fn forget_path(&mut self, path: PathId) {
        self.senders.iter_mut().for_each(|sender| sender.forget_path(path));
    }

    /// What the strategies have learned of the networks, as JSON by lane name.
    pub fn learned(&self) -> BTreeMap<String, String> {
        let lane = |sender: &LaneSender| Some((sender.config.name.clone(), sender.learned()?));
        self.senders.iter().filter_map(lane).collect()
    }

    /// Takes up what [`Session::learned`] returned before; skips what cannot be read.
    pub fn restore(&mut self, learned: &BTreeMap<String, String>) {
        for sender in &mut self.senders {
            let lane = sender.config.name.clone();
            let Some(learned) = learned.get(&lane) else { continue };
            if let Err(error) = sender.restore(learned) {
                tracing::warn!(lane, "{error}");
            }
        }
    }

    /// The targets of the encoders behind the lanes, by lane name; `carrier` is the session's.
    pub fn encoder_targets(
        &mut self,
        now: Instant,
        carrier: &mut impl Carrier,
    ) -> BTreeMap<String, EncoderTarget> {
        let target = |sender: &mut LaneSender| {
            Some((sender.config.name.clone(), sender.encoder_target(now, carrier)?))
        };
        self.lane_senders().filter_map(target).collect()
    }

    fn receive(
        &mut self,
        now: Instant,
        lane: LaneId,
        handle: impl FnOnce(&mut LaneReceiver, &mut dyn FnMut(Delivery)),
    ) {
        if usize::from(lane.0) >= LANES_MAX {
            self.output.drops.count(DropReason::UnknownMessage);
            return;
        }
        let receiver =
            self.receivers.entry(lane).or_insert_with(|| LaneReceiver::new(lane, self.opening));
        handle(receiver, &mut |delivery| self.output.deliver(now, lane, delivery));
    }

    fn feedback(&mut self, now: Instant) -> Option<Feedback> {
        if now < self.next_report {
            return None;
        }
        self.next_report = now + REPORT_INTERVAL;
        Some(Feedback { lanes: self.receivers.values().map(LaneReceiver::report).collect() })
    }
}

#[cfg(test)]
mod tests {
    use roadweave_proto::wire::{FragmentPosition, Part, SourceDatagram, Symbol};

    use super::*;
    use crate::lane::Strategy;

    pub(super) fn session() -> Session {
        let lanes = vec![LaneConfig::new("default", Strategy::xnc())];
        let (peer_sources, streams, memory_max) = (None, None, MEMORY_MAX);
        let config = SessionConfig { lanes, peer_sources, streams, memory_max, seed: 1 };
        Session::new(config, false).expect("usable settings")
    }

    pub(super) fn inner(bytes: u16) -> Vec<u8> {
        let mut packet = vec![0; bytes.into()];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&bytes.to_be_bytes());
        packet[12..16].copy_from_slice(&[192, 168, 50, 9]);
        packet
    }

    #[test]
    fn a_small_datagram_does_not_hold_the_packet_that_brought_it() {
        let symbol = Symbol { position: FragmentPosition::Whole, body: &inner(40) };
        let datagram = SourceDatagram::new(LaneId(0), &symbol).finish(PacketId(0));
        let brought = Bytes::from([&datagram[..], &[0; 1400]].concat());
        let mut session = session();
        session.handle_datagram(Instant::ZERO, brought.slice(..datagram.len()));
        assert!(brought.is_unique(), "nobody else holds it");
        assert_eq!(session.poll_inner(), Some(inner(40).into()));
    }

    #[test]
    fn what_one_lane_asks_of_acknowledgements_holds_until_the_peer_restarts() {
        let mut session = session();
        for (lane, acknowledge_on_all, expected) in [(0, true, true), (1, false, true)] {
            let promise = Promise { acknowledge_on_all, ..Promise::default() };
            session.on_lane_promise(Instant::ZERO, LaneId(lane), promise);
            assert_eq!(session.acknowledges_on_all, expected);
        }
        session.on_lane_promise(Instant::ZERO, LaneId(0), Promise::default());
        assert!(!session.acknowledges_on_all);
        let promise = Promise { acknowledge_on_all: true, ..Promise::default() };
        session.on_lane_promise(Instant::ZERO, LaneId(0), promise);
        session.reset(Instant::ZERO);
        assert!(!session.acknowledges_on_all);
    }

    #[test]
    fn parts_are_waited_for_as_long_as_the_lane_promises() {
        for (promised, comes) in [(None, false), (Some(10_000), true)] {
            let mut session = session();
            if let Some(age) = promised {
                let promise = Promise { age_max: Duration::from_millis(age), ..Promise::default() };
                session.on_lane_promise(Instant::ZERO, LaneId(0), promise);
            }
            let symbol = Symbol { position: FragmentPosition::Whole, body: &inner(1000) };
            let datagram = SourceDatagram::new(LaneId(0), &symbol).finish(PacketId(0));
            let parts = Part::cut(LaneId(0), 0, &datagram, 700).expect("it is cut");
            for (part, ms) in parts.into_iter().zip([0, 5_000]) {
                session.handle_datagram(Instant::from_millis(ms), part);
            }
            assert_eq!(session.poll_inner().is_some(), comes, "{promised:?}");
        }
    }
}
