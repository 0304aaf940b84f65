//! The server's side of all recordings.
//!
//! ```text
//!  Hello ─> Pending: address, secret ─ Challenge ─>
//!  Open (secret) ─> RecordSession: address, Endpoint, LogSender ─ Welcome ─>
//!  packets and reports of that address ─> Endpoint ─> data, reports with the log
//! ```
//!
//! A client that opens a session has proved that it receives at its address. A session ends half a
//! minute after its plan, whatever arrives; a silent session gets no data after three seconds and
//! ends after two minutes. A network (an IPv4 address, or 64 bits of an IPv6 address) has limited
//! numbers of sessions and challenges, and does not evict those of others.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use crate::endpoint::{Endpoint, header_bytes};
use crate::log::LogSender;
use crate::message::{Message, Open, Packet, RecordRefusal, Report, Welcome};
use crate::plan::{PlanClock, RecordMode, RecordPlan};
use crate::token::RecordToken;

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLimits {
    /// Concurrent sessions, one for each link of a client; a network has 16 of them at most.
    pub sessions: usize,
    /// The longest plan.
    pub length: Duration,
    /// The highest rate towards one session.
    pub rate: Rate,
    /// The highest rate towards all sessions together, by their plans.
    pub rate_all: Rate,
}

/// The addresses of a client and of the server towards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPeer {
    pub remote: SocketAddr,
    /// The server's address in use by the client, if known: replies are sent from it.
    pub local: Option<IpAddr>,
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordServerStatistics {
    /// Current sessions.
    pub sessions: usize,
    pub opened: u64,
    pub refused: u64,
    /// Datagrams without a session or request.
    pub ignored: u64,
    /// Bytes of data sent, as IP packets, by ended sessions.
    pub bytes_sent: u64,
    /// Bytes of data received, as IP packets, by ended sessions.
    pub bytes_received: u64,
}

/// Takes part in any number of recordings.
pub struct RecordServer {
    limits: RecordLimits,
    token: Option<RecordToken>,
    /// Yields unpredictable secrets.
    secrets: Box<dyn FnMut() -> u64 + Send>,
    unix_epoch: Duration,
    /// Open challenges, the oldest first.
    pending: VecDeque<Pending>,
    sessions: BTreeMap<u64, RecordSession>,
    /// The session that sends next, round robin.
    turn: u64,
    answers: VecDeque<(RecordPeer, Vec<u8>)>,
    statistics: RecordServerStatistics,
}

struct Pending {
    peer: RecordPeer,
    token: u64,
    at: Instant,
}

struct RecordSession {
    peer: RecordPeer,
    /// The plan's start on the wall clock, us since 1970.
    start_unix_us: u64,
    ends_at: Instant,
    sends: Rate,
    endpoint: Endpoint,
    log: LogSender,
}

impl RecordServer {
    /// A server without sessions.
    ///
    /// `secrets` yields unpredictable numbers; `unix_epoch` is the wall clock, since 1970, at
    /// [`Instant::ZERO`].
    pub fn new(
        limits: RecordLimits,
        unix_epoch: Duration,
        secrets: impl FnMut() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            limits,
            token: None,
            secrets: Box::new(secrets),
            unix_epoch,
            pending: VecDeque::new(),
            sessions: BTreeMap::new(),
            turn: 0,
            answers: VecDeque::new(),
            statistics: RecordServerStatistics::default(),
        }
    }

    /// Sets the token that clients must prove to have.
    pub fn with_token(self, token: Option<RecordToken>) -> Self {
        Self { token, ..self }
    }

    pub fn handle_datagram(&mut self, now: Instant, peer: RecordPeer, payload: &[u8]) {
        match Message::decode(payload) {
            Some(Message::Hello { nonce }) => self.handle_hello(now, peer, nonce),
            Some(Message::Open(open)) => self.handle_open(now, peer, open),
            Some(Message::Packet(packet)) => self.handle_packet(now, peer, &packet),
            Some(Message::Report(report)) => self.handle_report(now, peer, &report, payload),
            Some(Message::Close { token }) if self.session(token, peer).is_some() => {
                self.end_session(token);
            }
            _ => match Message::foreign_hello(payload) {
                Some(nonce) => self.refuse(peer, nonce, RecordRefusal::Version),
                None => self.statistics.ignored += 1,
            },
        }
    }

    /// The next datagram to send, and its destination.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(RecordPeer, Vec<u8>)> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        // Round robin: each session sends one datagram.
        let turn = self.turn;
        let mut poll = |(&token, session): (&u64, &mut RecordSession)| {
            Some((token, session.peer, session.poll_transmit(now)?))
        };
        let later = self.sessions.range_mut(turn..).find_map(&mut poll);
        let sent = later.or_else(|| self.sessions.range_mut(..turn).find_map(poll));
        let (token, peer, datagram) = sent?;
        self.turn = token.wrapping_add(1);
        Some((peer, datagram))
    }

    /// When to call [`RecordServer::poll_transmit`] next; [`Instant::FAR_FUTURE`] for never.
    pub fn poll_timeout(&mut self, now: Instant) -> Instant {
        self.end_sessions(now);
        if !self.answers.is_empty() {
            return now;
        }
        let ends = self.sessions.values().map(RecordSession::kept_until);
        let due = self.sessions.values().map(|session| session.poll_timeout(now));
        due.chain(ends).min().unwrap_or(Instant::FAR_FUTURE)
    }

    pub fn statistics(&self) -> RecordServerStatistics {
        RecordServerStatistics { sessions: self.sessions.len(), ..self.statistics }
    }

    fn handle_hello(&mut self, now: Instant, peer: RecordPeer, nonce: u64) {
        self.pending.retain(|pending| now.since(pending.at) < PENDING_KEPT);
        // A repeated Hello gets the same answer, so that the first answer stays valid.
        let known = self.pending.iter().find(|pending| pending.peer == peer);
        let token = known.map_or_else(&mut self.secrets, |pending| pending.token);
        if known.is_none() {
            self.make_room(network_of(peer));
            self.pending.push_back(Pending { peer, token, at: now });
        }
        self.answer(peer, &Message::Challenge { nonce, token });
    }

    /// Makes room for a challenge to `network`: removes that network's oldest if it is at its
    /// limit, or, if there are too many in total, the oldest of the network with the most.
    fn make_room(&mut self, network: IpAddr) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for pending in &self.pending {
            *counts.entry(network_of(pending.peer)).or_default() += 1;
        }
        let own = counts.get(&network).copied().unwrap_or(0);
        let greatest = counts.into_iter().max_by_key(|(_, count)| *count);
        let from = match greatest {
            _ if own >= PENDING_PER_NETWORK => network,
            Some((greatest, _)) if self.pending.len() >= PENDING_MAX => greatest,
            _ => return,
        };
        let oldest = self.pending.iter().position(|pending| network_of(pending.peer) == from);
        if let Some(index) = oldest {
            self.pending.remove(index);
        }
    }

    fn handle_open(&mut self, now: Instant, peer: RecordPeer, open: Open) {
        // The Welcome may have been lost.
        for (token, resumed) in [(open.token, false), (open.resume, true)] {
            if let Some(session) = self.session(token, peer) {
                let start_unix_us = session.start_unix_us;
                let welcome = Welcome { token: open.token, resumed, start_unix_us };
                return self.answer(peer, &Message::Welcome(welcome));
            }
        }
        let is_pending = |pending: &Pending| pending.token == open.token && pending.peer == peer;
        let Some(index) = self.pending.iter().position(is_pending) else {
            self.statistics.ignored += 1;
            return;
        };
        self.pending.remove(index);
        let knows = |token: &RecordToken| token.verify(&open.request(), &open.proof);
        if !self.token.as_ref().is_none_or(knows) {
            return self.refuse(peer, open.token, RecordRefusal::Token);
        }
        if let Some(session) = self.sessions.get_mut(&open.resume) {
            // The client knows both the session's secret and that of its new address.
            session.peer = peer;
            session.endpoint.on_heard(now);
            let start_unix_us = session.start_unix_us;
            let welcome = Welcome { token: open.token, resumed: true, start_unix_us };
            return self.answer(peer, &Message::Welcome(welcome));
        }
        self.end_sessions(now);
        let network = network_of(peer);
        let of_network = |session: &&RecordSession| network_of(session.peer) == network;
        if self.sessions.len() >= self.limits.sessions
            || self.sessions.values().filter(of_network).count() >= SESSIONS_PER_NETWORK
        {
            return self.refuse(peer, open.token, RecordRefusal::Busy);
        }
        if !self.allows(&open.plan) {
            return self.refuse(peer, open.token, RecordRefusal::Plan);
        }
        let promised: u64 = self.sessions.values().map(|session| session.sends.as_bps()).sum();
        if promised + sends(&open.plan).as_bps() > self.limits.rate_all.as_bps() {
            return self.refuse(peer, open.token, RecordRefusal::Busy);
        }
        let session = self.new_session(now, peer, &open);
        let (token, start_unix_us) = (open.token, session.start_unix_us);
        self.sessions.insert(token, session);
        self.answer(peer, &Message::Welcome(Welcome { token, resumed: false, start_unix_us }));
    }

    fn new_session(&mut self, now: Instant, peer: RecordPeer, open: &Open) -> RecordSession {
        self.statistics.opened += 1;
        let elapsed = Duration::from_micros(open.elapsed_us).min(open.plan.duration());
        let start = (self.unix_epoch + now.since(Instant::ZERO)).saturating_sub(elapsed);
        let clock = PlanClock::new(now, elapsed);
        let endpoint = Endpoint::new(
            now,
            open.token,
            &open.plan,
            clock,
            open.plan.down,
            header_bytes(peer.remote.is_ipv4()),
        );
        RecordSession {
            peer,
            start_unix_us: u64::try_from(start.as_micros()).unwrap_or(u64::MAX),
            ends_at: clock.instant(open.plan.duration()) + FINISH_MAX,
            sends: sends(&open.plan),
            endpoint,
            log: LogSender::default(),
        }
    }

    fn allows(&self, plan: &RecordPlan) -> bool {
        plan.check().is_ok() && plan.length <= self.limits.length && sends(plan) <= self.limits.rate
    }

    fn handle_packet(&mut self, now: Instant, peer: RecordPeer, packet: &Packet) {
        let Some(session) = self.session(packet.token, peer) else {
            self.statistics.ignored += 1;
            return;
        };
        session.log.on_confirmed(now, packet.confirmed);
        let log = &mut session.log;
        session.endpoint.handle_packet(now, packet, &mut |entry| log.push(entry));
        if packet.finishing {
            session.endpoint.sender.finish();
        }
    }

    fn handle_report(&mut self, now: Instant, peer: RecordPeer, report: &Report, payload: &[u8]) {
        let Some(session) = self.session(report.token, peer) else {
            self.statistics.ignored += 1;
            return;
        };
        session.log.on_confirmed(now, report.confirmed);
        let log = &mut session.log;
        let log = &mut |entry| log.push(entry);
        session.endpoint.handle_report(now, report, payload.len(), log);
    }

    fn session(&mut self, token: u64, peer: RecordPeer) -> Option<&mut RecordSession> {
        self.sessions.get_mut(&token).filter(|session| session.peer == peer)
    }

    fn refuse(&mut self, peer: RecordPeer, to: u64, why: RecordRefusal) {
        self.statistics.refused += 1;
        self.answer(peer, &Message::Refuse { to, why });
    }

    fn answer(&mut self, peer: RecordPeer, message: &Message) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((peer, message.encode()));
        }
    }

    fn end_sessions(&mut self, now: Instant) {
        let over = self.sessions.iter().filter(|(_, session)| session.kept_until() <= now);
        let over: Vec<u64> = over.map(|entry| *entry.0).collect();
        over.into_iter().for_each(|token| self.end_session(token));
    }

    fn end_session(&mut self, token: u64) {
        if let Some(session) = self.sessions.remove(&token) {
            self.statistics.bytes_sent += session.endpoint.sender.data_bytes;
            self.statistics.bytes_received += session.endpoint.receiver.bytes;
        }
    }
}

impl RecordSession {
    fn kept_until(&self) -> Instant {
        self.ends_at.min(self.endpoint.heard_at + SESSION_KEPT)
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let round_trip = self.endpoint.sender.round_trip();
        if self.log.poll_timeout(round_trip).is_some_and(|due| due <= now) {
            self.endpoint.receiver.due_at(now);
        }
        // Probes precede reports.
        if let Some(packet) = self.endpoint.poll_packet(now, 0) {
            return Some(packet);
        }
        let log = &mut self.log;
        let report = self.endpoint.receiver.poll_report(now, &mut |entry| log.push(entry));
        let mut report = report?;
        report.token = self.endpoint.token;
        (report.log_first, report.entries) = self.log.take(now, round_trip);
        report.log_end = self.log.end();
        report.log_discarded = self.log.discarded;
        if self.log.has_unsent() {
            self.endpoint.receiver.due_at(now);
        }
        Some(Message::Report(report).encode())
    }

    fn poll_timeout(&self, now: Instant) -> Instant {
        // An overdue log has already made a report due.
        let round_trip = self.endpoint.sender.round_trip();
        let log = self.log.poll_timeout(round_trip).filter(|&due| due > now);
        self.endpoint.poll_timeout(now).min(log.unwrap_or(Instant::FAR_FUTURE))
    }
}

fn sends(plan: &RecordPlan) -> Rate {
    match plan.mode {
        _ if !plan.down => Rate::ZERO,
        RecordMode::Constant(rate) => rate,
        RecordMode::Saturate => plan.rate_max,
    }
}

/// The unit of limits: an IPv4 address, or an IPv6 network, in which a host may choose addresses.
fn network_of(peer: RecordPeer) -> IpAddr {
    match peer.remote.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Session limit of one network: the links of a vehicle may share a carrier's address.
const SESSIONS_PER_NETWORK: usize = 16;
/// How long a challenge is valid: clients wait for their slowest link.
const PENDING_KEPT: Duration = Duration::from_secs(30);
const PENDING_MAX: usize = 1_024;
const PENDING_PER_NETWORK: usize = 32;
const ANSWERS_MAX: usize = 256;
/// How long a client may fetch the rest of the log after its plan.
const FINISH_MAX: Duration = Duration::from_secs(30);
/// How long a silent session is kept: links return after tunnels.
const SESSION_KEPT: Duration = Duration::from_secs(120);
