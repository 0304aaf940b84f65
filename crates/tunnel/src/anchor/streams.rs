//! The streams of an anchor's clients: frames come and go over the legs of the clients' proxies.
//!
//! ```text
//! frames ─► attachment: of these streams? ─► [tenant's limit] ─► streams
//! streams ─► frames, while proxy, leg and limit take some ─► leg of the newest attachment
//! ```
//!
//! The room in a tenant's rate or a leg goes around among those that want it.
//!
//! A client that moves to another proxy keeps its streams: they stay the same while both ends use
//! their epochs, and unacknowledged data is repeated over the new leg. Frames count if they come by
//! an attachment of these streams: the newest and, for 2 s, the former one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{LEG_FRAMES_HEADER, LegFrames, LegRoom, MAX_SYMBOL_BODY, StreamsOffer};
use roadweave_proto::{Deadlines, DropReason, Instant, Urgency, earliest};
use roadweave_quic::{Connection, ConnectionId, Endpoint};
use roadweave_stream::{Event, Streams, Timing};

use super::Anchor;
use super::legs::Leg;
use crate::bindings::{At, DeviceId};
use crate::leg::{Accounts, TenantAccount};
use crate::peers::Peer;
use crate::rate::Direction;
use crate::session::SymbolQueue;
use crate::streams::{EndsStreams, StreamsConfig, StreamsOwner, StreamsTable};

#[derive(Debug)]
pub(super) struct AnchorStreams {
    pub(super) table: StreamsTable<DeviceId>,
    ways: BTreeMap<DeviceId, ClientRoute>,
    touched: BTreeSet<DeviceId>,
    timers: Deadlines<DeviceId>,
    served: u64,
    pub(super) held: usize,
    memory_max: usize,
}

/// What streams use of their anchor.
pub(super) struct LegsView<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) legs: &'a mut BTreeMap<ConnectionId, Leg>,
    pub(super) accounts: &'a mut Accounts,
    pub(super) touched: &'a mut BTreeSet<ConnectionId>,
}

#[derive(Debug)]
struct ClientRoute {
    at: At,
    former: Option<At>,
    sent: u64,
    room: LegRoom,
    asked: Instant,
    symbols: SymbolQueue,
    held: usize,
    /// When frames last passed, by [`Direction`], on a counter shared by all clients.
    served: [u64; 2],
}

impl ClientRoute {
    fn new(now: Instant, at: At) -> Self {
        let room = LegRoom { handle: at.handle, until: 0, size: 0, wait: WAIT };
        // The proxy reports it by itself once it has the streams' epoch.
        let (symbols, asked) = (SymbolQueue::default(), now);
        let (former, served) = (None, [0; 2]);
        Self { at, former, sent: 0, room, asked, symbols, held: 0, served }
    }

    fn frames(&self, urgency: Urgency, frames: Bytes) -> LegFrames {
        LegFrames { handle: self.at.handle, urgency, sent: self.sent, frames }
    }

    fn size(&self, leg: &Connection) -> usize {
        let of_leg = leg.max_datagram_size().saturating_sub(LEG_FRAMES_HEADER);
        usize::from(self.room.size).min(of_leg).clamp(SIZE_MIN, MAX_SYMBOL_BODY)
    }
}

impl AnchorStreams {
    pub(super) fn new(config: StreamsConfig, seed: &[u8; 32], memory_max: usize) -> Self {
        Self {
            table: StreamsTable::new(config, StreamsConfig::first_epoch(seed)),
            ways: BTreeMap::new(),
            touched: BTreeSet::new(),
            timers: Deadlines::default(),
            served: 0,
            held: 0,
            memory_max,
        }
    }

    pub(super) fn attach(
        &mut self,
        now: Instant,
        (device, at): (DeviceId, At),
        peer: &Arc<Peer>,
        client: Option<StreamsOffer>,
    ) -> Option<StreamsOffer> {
        let before = self.forget_way(&device);
        let Some(client) = client else {
            self.table.end(&device);
            return None;
        };
        if self.table.peer(&device).is_some_and(|before| !before.is_where(peer)) {
            self.table.end(&device);
        }
        let terms = self.table.agree(&device, client);
        self.table.begin(now, device, Some(terms), peer).ok()?;
        let mut way = ClientRoute::new(now, at);
        if let Some(before) = before.filter(|_| terms.goes_on) {
            (way.former, way.symbols) = (Some(before.at), before.symbols);
        }
        self.ways.insert(device, way);
        self.touched.insert(device);
        Some(terms.offer())
    }

    fn forget_way(&mut self, device: &DeviceId) -> Option<ClientRoute> {
        let way = self.ways.remove(device)?;
        self.held -= way.held;
        self.touched.remove(device);
        self.timers.set(*device, None);
        Some(way)
    }

    /// A client is at no proxy any more; `stays`: it may come back to its former place.
    pub(super) fn on_away(&mut self, now: Instant, device: &DeviceId, stays: bool) {
        if self.forget_way(device).is_some() || !stays {
            self.table.on_away(now, device, stays);
        }
    }

    pub(super) fn by_leg(&self, leg: ConnectionId) -> Vec<DeviceId> {
        let by_leg = self.ways.iter().filter(|(_, way)| way.at.leg == leg);
        by_leg.map(|(device, _)| *device).collect()
    }

    pub(super) fn take(
        &mut self,
        (device, at): (DeviceId, At),
        frames: Bytes,
        account: &mut TenantAccount,
    ) {
        let way = self.ways.get_mut(&device);
        let way = way.filter(|way| way.at == at || way.former == Some(at));
        let Some(way) = way else { return account.drop(DropReason::Unbound) };
        self.touched.insert(device);
        if !way.symbols.push(frames) {
            account.drop(DropReason::ReceiveMemory);
        }
    }

    fn hand_over(&mut self, now: Instant, accounts: &mut Accounts) {
        for device in self.turns(&self.touched, Direction::Up) {
            if let Some(way) = self.ways.get_mut(&device)
                && let Some(streams) = self.table.get_mut(&device)
            {
                let account = &mut accounts[usize::from(device.0.0)];
                while let Some(bytes) = way.symbols.next_bytes()
                    && account.frames_pass_at(Direction::Up, bytes) <= now
                    && account.allows(now, Direction::Up, bytes)
                    && let Some(symbol) = way.symbols.pop()
                {
                    self.served += 1;
                    way.served[Direction::Up as usize] = self.served;
                    if streams.handle_symbol(now, symbol).is_err() {
                        account.drop(DropReason::MalformedMessage);
                    }
                }
                self.table.on_turned(&device);
            }
        }
    }

    fn turns(&self, devices: &BTreeSet<DeviceId>, direction: Direction) -> Vec<DeviceId> {
        let mut turns: Vec<DeviceId> = devices.iter().copied().collect();
        let served = |way: &ClientRoute| way.served[direction as usize];
        turns.sort_by_key(|device| self.ways.get(device).map_or(0, served));
        turns
    }

    pub(super) fn on_room(&mut self, device: DeviceId, at: At, room: LegRoom) {
        let Some(way) = self.ways.get_mut(&device).filter(|way| way.at == at) else { return };
        way.room = LegRoom { until: room.until.max(way.room.until), ..room };
        self.touched.insert(device);
    }

    fn keep_to_budget(&mut self, now: Instant, device: &DeviceId, accounts: &mut Accounts) {
        self.note_held(device);
        while self.held > self.memory_max
            && let Some((largest, way)) = self.ways.iter_mut().max_by_key(|(_, way)| way.held)
        {
            let (largest, before) = (*largest, way.held);
            let most = before.saturating_sub(self.held - self.memory_max);
            // Received data that is dropped here is sent again.
            let streams = self.table.memory(&largest) as usize;
            let gone = way.symbols.shed(most.saturating_sub(streams));
            let account = &mut accounts[usize::from(largest.0.0)];
            (0..gone).for_each(|_| account.drop(DropReason::ReceiveMemory));
            let most = most.saturating_sub(way.symbols.memory());
            self.table.shed(now, &largest, most as u64);
            self.table.on_turned(&largest);
            self.touched.insert(largest);
            self.note_held(&largest);
            if self.ways.get(&largest).is_none_or(|way| way.held >= before) {
                return;
            }
        }
    }

    fn note_held(&mut self, device: &DeviceId) {
        let held = self.table.memory(device) as usize;
        if let Some(way) = self.ways.get_mut(device) {
            let held = held + way.symbols.memory();
            self.held = self.held - std::mem::replace(&mut way.held, held) + held;
        }
    }

    /// Sends and delivers what may pass now. Returns the clients that broke the rules, without
    /// their streams.
    pub(super) fn turn(&mut self, now: Instant, legs: &mut LegsView<'_>) -> Vec<DeviceId> {
        self.table.handle_timeout(now, self.memory_max / AWAY_SHARE);
        while let Some(device) = self.timers.pop_due(now) {
            self.touched.insert(device);
        }
        self.hand_over(now, legs.accounts);
        let touched = std::mem::take(&mut self.touched);
        let mut turn = self.turns(&touched, Direction::Down);
        let mut room = TURN_MAX;
        while !turn.is_empty() && room > 0 {
            turn.retain(|device| match self.turn_client(now, device, room, legs) {
                TurnOutcome::More(bytes) => {
                    room = room.saturating_sub(bytes);
                    true
                }
                TurnOutcome::Until(at) => {
                    self.timers.set(*device, at);
                    false
                }
            });
        }
        // The rest has its turn as soon as these are on the network.
        self.touched.extend(turn);
        let settled = touched.into_iter();
        settled.filter(|device| self.is_violated(now, device, legs.accounts)).collect()
    }

    fn turn_client(
        &mut self,
        now: Instant,
        device: &DeviceId,
        room: usize,
        legs: &mut LegsView<'_>,
    ) -> TurnOutcome {
        if room == 0 {
            return TurnOutcome::More(0);
        }
        let (Some(way), Some(streams)) = (self.ways.get_mut(device), self.table.get_mut(device))
        else {
            return TurnOutcome::Until(None);
        };
        let account = &mut legs.accounts[usize::from(device.0.0)];
        streams.handle_timeout(now);
        let passes = |bytes| account.frames_pass_at(Direction::Up, bytes);
        let passes_at = way.symbols.next_bytes().map(passes);
        let own = earliest([streams.poll_timeout(), passes_at]);
        let connection = legs.endpoint.connection_mut(way.at.leg);
        let (Some(leg), Some(connection)) = (legs.legs.get_mut(&way.at.leg), connection) else {
            return TurnOutcome::Until(own);
        };
        let round_trip = connection.paths().first().map_or(WAIT, |path| path.smoothed_rtt);
        streams.set_timing(Timing { round_trip, age_max: way.room.wait });
        if !streams.has_frames() {
            return TurnOutcome::Until(own);
        }
        if way.sent >= way.room.until {
            if now >= way.asked + ASK {
                way.asked = now;
                let frames = way.frames(Urgency::FIRST, Bytes::new());
                leg.end.push_frames(now, device.0, &frames, legs.accounts);
                legs.touched.insert(way.at.leg);
            }
            return TurnOutcome::Until(earliest([own, Some(way.asked + ASK)]));
        }
        let size = way.size(connection);
        let until = account.frames_pass_at(Direction::Down, size).max(leg.end.takes_frames_at(now));
        if until > now {
            return TurnOutcome::Until(earliest([own, Some(until)]));
        }
        let urgency = streams.next_urgency();
        let Some(symbol) = streams.poll_transmit(now, size) else {
            return TurnOutcome::Until(earliest([streams.poll_timeout(), passes_at]));
        };
        account.allows(now, Direction::Down, symbol.len());
        self.served += 1;
        way.served[Direction::Down as usize] = self.served;
        let frames = way.frames(urgency, symbol);
        let bytes = frames.frames.len();
        way.sent += bytes as u64;
        leg.end.push_frames(now, device.0, &frames, legs.accounts);
        leg.end.transmit(now, connection, legs.accounts);
        legs.touched.insert(way.at.leg);
        TurnOutcome::More(bytes)
    }

    /// After a client's turn; its streams are over if it broke their rules.
    fn is_violated(&mut self, now: Instant, device: &DeviceId, accounts: &mut Accounts) -> bool {
        self.table.on_turned(device);
        self.keep_to_budget(now, device, accounts);
        if self.table.violation(device).is_none() {
            return false;
        }
        self.forget_way(device);
        self.table.end(device);
        true
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let touched = (!self.touched.is_empty()).then_some(Instant::ZERO);
        earliest([touched, self.timers.earliest(), self.table.poll_timeout()])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnOutcome {
    More(usize),
    /// Nothing can leave before then, if ever.
    Until(Option<Instant>),
}

impl EndsStreams for Anchor {
    fn hand_over_symbols(&mut self, now: Instant) {
        if let Some(all) = &mut self.streams {
            all.hand_over(now, &mut self.accounts);
        }
    }

    fn poll_stream_event(&mut self, now: Instant) -> Option<(StreamsOwner, Event)> {
        self.streams.as_mut()?.table.poll_event(now)
    }

    fn poll_streams_over(&mut self) -> Option<StreamsOwner> {
        self.streams.as_mut()?.table.over.pop_front()
    }

    fn streams(&mut self, owner: StreamsOwner) -> Option<&mut Streams> {
        let all = self.streams.as_mut()?;
        let (device, streams) = all.table.of(owner)?;
        if all.ways.contains_key(&device) {
            all.touched.insert(device);
        }
        Some(streams)
    }

    fn is_of_client(&self, address: IpAddr) -> bool {
        self.tenants.iter().any(|tenant| tenant.devices.route(address).is_some())
    }

    fn stream_address(&self, owner: StreamsOwner, ipv4: bool) -> Option<IpAddr> {
        self.streams.as_ref()?.table.address(owner, ipv4)
    }
}

/// Streams without a session may hold this part of the streams' memory.
const AWAY_SHARE: usize = 8;
const TURN_MAX: usize = 1 << 20;
const ASK: Duration = Duration::from_millis(100);
/// How long frames may be under way at a proxy that has not reported it yet.
const WAIT: Duration = Duration::from_millis(900);
/// Frames are never smaller: one that opens a stream has a name in it.
const SIZE_MIN: usize = 300;

#[cfg(test)]
mod tests;
