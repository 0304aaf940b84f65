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
mod receiving;
mod stats;
mod streams;

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_proto::wire::{
    Control, Feedback, InnerPacket, MAX_SYMBOL_BODY, PREDECESSOR_HEADER, PlayerReport, STAMP_HEADER,
};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PathId, Promise};
use roadweave_recovery::Qoe;
use roadweave_schedule::AcknowledgedDatagram;

pub(crate) use self::config::find_lane;
pub use self::config::{MEMORY_MAX, SessionConfig, SessionError, SetError};
use self::config::{are_alike, needs_flows};
pub use self::load::LoadStats;
use self::load::Loads;
pub(crate) use self::load::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};
use self::memory::{Holder, MemoryShare};
use self::output::InnerOutput;
pub(crate) use self::output::check_inner;
use self::receiving::ReceivingLanes;
pub use self::stats::{LaneStats, SessionStats};
pub(crate) use self::streams::{StreamEnd, StreamTurn, SymbolQueue};
use crate::carrier::Carrier;
use crate::lane::{
    DatagramToken, EncoderTarget, FlowTable, LANES_MAX, LaneConfig, LaneSender, MemoryStats,
    Strategy, Superseded, TokenKind, Unfinished, classify,
};
use crate::observe::PacketEvent;
use crate::players::{Players, ReportLimiter, qoe_of, report_of};
use crate::rate::Limit;

/// Smaller datagrams are copied, so that at most three times the counted bytes are held.
const SLICE_MIN: usize = 512;

/// The lanes between two peers.
#[derive(Debug)]
pub struct Session {
    lane_configs: Vec<LaneConfig>,
    senders: Vec<LaneSender>,
    turn: usize,
    flows: Option<FlowTable>,
    pub(crate) receiving: ReceivingLanes,
    players: BTreeMap<LaneId, Players>,
    report_limiter: ReportLimiter,
    memory: MemoryShare,
    streams_due: Option<Instant>,
    pub(crate) loads: Loads,
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
        let output = InnerOutput {
            sources: config.peer_sources,
            symbols: config.streams.is_some().then(SymbolQueue::default),
            ..InnerOutput::default()
        };
        Ok(Self {
            flows: needs_flows(&config.lanes).then(FlowTable::default),
            lane_configs: config.lanes,
            senders,
            turn: 0,
            receiving: ReceivingLanes::new(output),
            players: BTreeMap::new(),
            report_limiter: ReportLimiter::default(),
            memory: MemoryShare::new(config.memory_max),
            streams_due: None,
            loads: Loads::default(),
        })
    }

    /// Takes an inner packet for the peer.
    pub fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        match InnerPacket::parse(packet) {
            Ok(view) => self.handle_parsed_inner(now, packet, &view),
            Err(_) => self.receiving.output.drops.count(DropReason::MalformedInner),
        }
    }

    pub(crate) fn handle_parsed_inner(&mut self, now: Instant, raw: &[u8], view: &InnerPacket<'_>) {
        if raw.len() > MAX_SYMBOL_BODY - PREDECESSOR_HEADER - STAMP_HEADER {
            return self.receiving.output.drops.count(DropReason::OversizedInner);
        }
        let hash = view.flow_hash();
        let flow = self.flows.as_mut().map(|flows| flows.on_packet(now, hash, view));
        let lane = classify(&self.lane_configs, view, flow.map(|flow| flow.class));
        let sender = &mut self.senders[usize::from(lane.0)];
        if sender.config.rtp_frames && flow.is_some_and(|flow| flow.begins_frame) {
            sender.end_frame();
        }
        let rtp = flow.filter(|_| sender.config.rtp_frames).and_then(|flow| flow.rtp);
        sender.handle_inner(now, raw, hash, rtp);
        self.note_incoming(now, raw.len());
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
        self.receiving.reset(now);
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
        self.receiving.output.drops.count(reason);
    }

    /// The peer makes a promise for one of its lanes.
    pub fn on_lane_promise(&mut self, now: Instant, lane: LaneId, promise: Promise) {
        self.receiving.set_promise(now, lane, promise);
    }

    /// Takes a datagram that the peer sent.
    pub fn handle_datagram(&mut self, now: Instant, datagram: Bytes) {
        self.note_incoming(now, datagram.len());
        // A slice of a large packet would hold uncounted memory.
        let datagram = match datagram.len() < SLICE_MIN {
            true => Bytes::copy_from_slice(&datagram),
            false => datagram,
        };
        if let Some(load) = self.receiving.handle_datagram(now, datagram)
            && !self.loads.handle(now, &load)
        {
            self.count_drop(DropReason::UnaskedLoad);
        }
    }

    /// The datagram sent with `token` was acknowledged.
    pub fn on_acknowledged(&mut self, now: Instant, token: u64, datagram: &AcknowledgedDatagram) {
        let DatagramToken { kind, lane, id } = DatagramToken::parse(token);
        if kind == TokenKind::Load {
            self.loads.on_acknowledged(datagram.rtt);
        } else if let Some(sender) = self.senders.get_mut(usize::from(lane.0)) {
            sender.on_acknowledged(now, kind, id, datagram);
        }
        let senders = self.senders.iter_mut();
        senders.for_each(|sender| sender.chooser.hear_acknowledged(now, datagram));
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
                    streams.transmit(now, &mut self.senders[*lane], carrier);
                }
                _ => self.senders[*lane].transmit(now, carrier),
            }
        }
        self.insure(now, carrier);
        self.streams_due = streams.and_then(|streams| streams.due());
        carrier.acknowledge_on_all(self.receiving.acknowledges_on_all);
        if let Some(path) = carrier.feedback_due(now) {
            match self.receiving.poll_feedback(now) {
                Some(feedback) => carrier.send_feedback_on(now, path, feedback.to_bytes()),
                None => carrier.acknowledge_on(now, path, Feedback::default().to_bytes()),
            }
        }
        self.receiving.handle_timeout(now);
        self.keep_to_share(now);
    }

    fn insure(&mut self, now: Instant, carrier: &mut impl Carrier) {
        let waits = self.lanes_wait();
        for sender in &mut self.senders {
            if waits { sender.put_off_insurance(now) } else { sender.insure(now, carrier) }
        }
    }

    /// An inner packet from the peer, for this side's device.
    pub fn poll_inner(&mut self) -> Option<Bytes> {
        self.poll_routed_inner().map(|(_, packet)| packet)
    }

    pub(crate) fn poll_routed_inner(&mut self) -> Option<(IpAddr, Bytes)> {
        self.receiving.output.inbox.pop_front()
    }

    /// When [`Session::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sending = self.senders.iter().filter_map(LaneSender::poll_timeout);
        let receiving = self.receiving.poll_timeout();
        sending.chain(receiving).chain(self.streams_due).chain(self.loads.poll_timeout()).min()
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.loads.is_sending() || self.lanes_wait()
    }

    fn lanes_wait(&self) -> bool {
        self.senders.iter().any(LaneSender::has_backlog)
    }

    pub(crate) fn send_load(
        &mut self,
        now: Instant,
        carrier: &mut impl Carrier,
        limit: Option<&mut Limit>,
    ) {
        let lanes_wait = self.loads.is_sending() && self.lanes_wait();
        self.loads.send(now, carrier, limit, lanes_wait);
    }

    /// Hands over the symbols that came for the streams, as far as their limit allows.
    pub(crate) fn hand_over_symbols(&mut self, now: Instant, turn: &mut StreamTurn<'_>) {
        turn.hand_over(now, &mut self.receiving.output);
    }

    /// Forbids packets of the peer from these networks.
    pub fn refuse_sources(&mut self, networks: Vec<IpNet>) {
        self.receiving.output.refused_sources = networks;
    }

    /// Turns the log of packet events on or off.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.receiving.output.log.switch(is_on);
        self.senders.iter_mut().for_each(|sender| sender.log.switch(is_on));
    }

    /// The next event, if [`Session::observe_packets`] is on; in order by lane and direction.
    pub fn poll_packet_event(&mut self) -> Option<PacketEvent> {
        let sent = self.senders.iter_mut().find_map(|sender| sender.log.poll());
        sent.or_else(|| self.receiving.output.log.poll())
    }

    /// Sets the name of the network of `path`, by which strategies recognize it.
    pub fn name_path(&mut self, path: PathId, name: &str) {
        self.senders.iter_mut().for_each(|sender| sender.chooser.name_path(path, name));
    }

    /// Forgets the name of a closed path.
    pub fn forget_path(&mut self, path: PathId) {
        self.senders.iter_mut().for_each(|sender| sender.chooser.forget_path(path));
    }

    /// What the strategies have learned of the networks, as JSON by lane name.
    pub fn learned(&self) -> BTreeMap<String, String> {
        let lane = |it: &LaneSender| Some((it.config.name.clone(), it.chooser.learned()?));
        self.senders.iter().filter_map(lane).collect()
    }

    /// Takes up what [`Session::learned`] returned before; skips what cannot be read.
    pub fn restore(&mut self, learned: &BTreeMap<String, String>) {
        for sender in &mut self.senders {
            let lane = sender.config.name.clone();
            let Some(learned) = learned.get(&lane) else { continue };
            if let Err(error) = sender.chooser.restore(learned) {
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

    /// Sets the strategy of a sending lane, from its next packet on. `names_uplinks`: whether
    /// [`Session::name_path`] will be called.
    ///
    /// # Errors
    /// If there is no such lane, or the strategy cannot be used here; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        lane: &str,
        strategy: &Strategy,
        names_uplinks: bool,
    ) -> Result<(), SetError> {
        self.lane(lane)?.set_strategy(strategy.clone(), names_uplinks).map_err(SetError::Strategy)
    }

    /// Whether [`Session::set_lanes`] accepts the lanes: same names, same kinds of order.
    pub(crate) fn takes_lanes(&self, lanes: &[LaneConfig]) -> bool {
        are_alike(&self.lane_configs, lanes)
    }

    /// Replaces the settings of the sending lanes, if [`Session::takes_lanes`] allows. Fails if a
    /// strategy cannot be used here; earlier lanes are changed then.
    pub(crate) fn set_lanes(
        &mut self,
        now: Instant,
        lanes: &[LaneConfig],
        names_uplinks: bool,
    ) -> Result<(), SetError> {
        let senders = self.senders.iter_mut().zip(&mut self.lane_configs);
        for ((sender, config), lane) in senders.zip(lanes) {
            sender.set_config(now, lane.clone(), names_uplinks)?;
            *config = lane.clone();
        }
        if self.flows.is_none() && needs_flows(&self.lane_configs) {
            self.flows = Some(FlowTable::default());
        }
        Ok(())
    }

    /// Sets the buffer state of the application behind a lane, for strategies that use it.
    ///
    /// # Errors
    /// If there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        self.lane(lane).map(|sender| sender.set_qoe(now, qoe))
    }

    /// Gives up the older packets of a restarted video in a lane. Returns how many.
    ///
    /// # Errors
    /// If there is no such lane.
    pub fn supersede(&mut self, now: Instant, lane: &str, by: Superseded) -> Result<u64, SetError> {
        self.lane(lane).map(|sender| sender.supersede(now, by))
    }

    /// Takes a report of one of the peer's players. Returns whether its lane exists.
    pub(crate) fn on_player(&mut self, now: Instant, report: &PlayerReport) -> bool {
        let mut senders = (0_u8..).map(LaneId).zip(&mut self.senders);
        let of = senders.find(|(_, sender)| sender.config.name == report.lane);
        let Some((id, sender)) = of else { return false };
        let players = self.players.entry(id).or_default();
        let (at, qoe) = players.on_report(now, report.player, qoe_of(report));
        sender.set_qoe(at, qoe);
        true
    }

    pub(crate) fn report_player(
        &mut self,
        now: Instant,
        lane: &str,
        player: u64,
        qoe: Qoe,
        carrier: &mut impl Carrier,
    ) -> bool {
        let report = Control::Player(report_of(lane, player, qoe));
        self.report_limiter.allows(now, player, &qoe) && carrier.send_message(report.to_bytes())
    }

    fn lane(&mut self, name: &str) -> Result<&mut LaneSender, SetError> {
        let position = find_lane(&self.lane_configs, name)?;
        Ok(&mut self.senders[position])
    }

    /// The memory that the session holds, by use.
    pub fn memory(&self) -> MemoryStats {
        let mut sum = self.receiving.memory();
        sum.flow_bytes += self.flows.as_ref().map_or(0, |flows| flows.memory() as u64);
        self.senders.iter().for_each(|sender| sum.add(&sender.memory()));
        sum
    }

    fn note_incoming(&mut self, now: Instant, bytes: usize) {
        if self.memory.on_incoming(bytes) {
            self.keep_to_share(now);
        }
    }

    fn keep_to_share(&mut self, now: Instant) {
        let held = self.memory().total();
        if let Some(bytes) = self.memory.on_sum(held) {
            self.shrink_to(now, bytes);
        }
    }

    pub(crate) fn shrink_to(&mut self, now: Instant, bytes: u64) {
        // Each holder once: what is left after that cannot be freed.
        let senders = self.senders.iter().map(|sender| sender.memory().total());
        let senders = senders.enumerate().map(|(at, held)| (held, Holder::Sender(at)));
        let mut holders: Vec<_> = senders.chain(self.receiving.holders()).collect();
        holders.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
        for (_, holder) in holders {
            let excess = self.memory().total().saturating_sub(bytes);
            if excess == 0 {
                return;
            }
            match holder {
                Holder::Sender(at) => self.senders[at].shed(now, excess),
                holder => self.receiving.shed(now, &holder, excess),
            }
        }
    }

    /// The statistics so far.
    pub fn stats(&self) -> SessionStats {
        let sending = (0..).zip(&self.senders).map(|(id, sender)| {
            let report = self.receiving.peer_reports.get(&id).copied().unwrap_or_default();
            LaneStats::sending(sender, report, self.receiving.stats(LaneId(id)))
        });
        let beyond = self.receiving.lanes.range(LaneId(self.senders.len() as u8)..);
        let others = beyond.map(|(id, _)| LaneStats::only_received(*id, self.receiving.stats(*id)));
        let (load, drops) = (self.loads.stats, self.receiving.output.drops.clone());
        SessionStats { lanes: sending.chain(others).collect(), memory: self.memory(), load, drops }
    }

    pub(crate) fn drops(&self) -> DropCounters {
        let mut drops = self.receiving.drops();
        self.senders.iter().for_each(|sender| drops.merge(&sender.stats().drops));
        drops
    }
}

#[cfg(test)]
mod tests;
