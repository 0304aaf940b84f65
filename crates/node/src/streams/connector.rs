//! The far end: streams of clients, each joined with a TCP connection to its destination.
//!
//! ```text
//! opened ─► within the client's limits? ─► name? look it up ─► may it lead there? ─► connect ─► accept
//!                  │ no                          │ none              │ no              │ in vain │
//!                  ▼                             ▼                   ▼                 ▼         ▼
//!            too many streams              unreachable           forbidden     refused, ...    splice
//! ```
//!
//! The rules are checked for each resolved address.

mod attempts;
mod names;
mod rules;
mod source;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_config::AllowedDestination;
use roadweave_linux::{DeviceError, Event, Poller, Token, Waker};
use roadweave_proto::wire::{Destination, ResetCode, StreamId};
use roadweave_proto::{Instant, ServerHost, TokenBucket};
use roadweave_stream::Event as StreamEvent;
use roadweave_tunnel::{EndsStreams, StreamsOwner};

use self::attempts::{AT_ONCE, AttemptOutcome, Attempts};
use self::names::Names;
pub use self::rules::ConnectorRules;
pub use self::source::Sources;
pub(crate) use self::source::check_rights;
use super::http_sniffer::{HttpFindings, HttpSniffer};
use super::splice::{self, Splice, SpliceEnd, SpliceTurn, break_off, stream_of};
use super::table::{Number, Table};
use super::{Ends, SCRATCH, TURN};
use crate::status::StreamsStatus;

/// Configuration of a connector.
#[derive(Clone, Debug)]
pub struct ConnectorSettings {
    /// The allowed destinations.
    pub rules: ConnectorRules,
    /// The source addresses of connections.
    pub sources: Sources,
    /// The maximum number of sockets of all clients; a connection being made may have two.
    pub sockets_max: usize,
    /// New connections of one client in a second.
    pub connects_per_second: u32,
    /// The destination ports at which plain HTTP is inspected.
    pub http_ports: Vec<u16>,
}

impl ConnectorSettings {
    /// Settings without inspection of HTTP.
    pub fn new(rules: ConnectorRules, sources: Sources, connects_per_second: u32) -> Self {
        let (sockets_max, http_ports) = (super::sockets_max(), Vec::new());
        Self { rules, sources, sockets_max, connects_per_second, http_ports }
    }
}

roadweave_proto::named! {
    /// How a stream of a client ended here.
    ConnectorEnd {
        /// In order, in both directions.
        Closed = "closed",
        /// The host broke its connection off.
        Aborted = "aborted",
        /// The client reset it, or its session is over.
        Reset = "reset",
        /// Like `Reset`, because its unread bytes took room that others needed.
        Unread = "unread",
        /// The host refused the connection.
        Refused = "refused",
        /// The name does not exist, or its addresses have no route.
        Unreachable = "unreachable",
        /// Nothing answered in time.
        TimedOut = "timed-out",
        /// The rules forbid the destination.
        Forbidden = "forbidden",
        /// The client opens streams too fast, or too many at once.
        TooMany = "too-many",
    }
}

impl ConnectorEnd {
    fn of_reset(code: ResetCode) -> Self {
        if code == ResetCode::Unread { Self::Unread } else { Self::Reset }
    }

    fn of_failure(code: ResetCode) -> Self {
        match code {
            ResetCode::Refused => Self::Refused,
            ResetCode::TimedOut => Self::TimedOut,
            ResetCode::Forbidden => Self::Forbidden,
            ResetCode::TooMany => Self::TooMany,
            _ => Self::Unreachable,
        }
    }
}

/// The far end of all streams of a server; see the [module](super).
#[derive(Debug)]
pub struct StreamConnector {
    settings: ConnectorSettings,
    names: Names,
    connections: Table<OutgoingConnection>,
    streams: BTreeMap<(StreamsOwner, StreamId), Number>,
    clients: BTreeMap<Account, ClientLimits>,
    connecting: usize,
    asked: BTreeMap<Number, Account>,
    accepted: u64,
    ends: Ends<ConnectorEnd>,
    findings: HttpFindings,
    scratch: Box<[u8]>,
}

/// The inner address of a client across its sessions, or the unspecified one.
type Account = IpAddr;

#[derive(Debug, Default)]
struct ClientLimits {
    connecting: usize,
    asking: usize,
    questions: VecDeque<(Number, String, u16)>,
    connects: TokenBucket,
}

#[derive(Debug)]
struct OutgoingConnection {
    owner: StreamsOwner,
    account: Account,
    stream: StreamId,
    until: Instant,
    closing: bool,
    finished: bool,
    is_http: bool,
    state: Option<ConnectorState>,
}

#[derive(Debug)]
enum ConnectorState {
    Asking,
    Connecting(Attempts),
    Joined(Splice),
}

impl ClientLimits {
    fn is_idle(&self, now: Instant) -> bool {
        self.connecting + self.asking + self.questions.len() == 0 && self.connects.full_at() <= now
    }
}

fn account_of(owner: StreamsOwner, clients: &impl EndsStreams) -> Account {
    let address =
        clients.stream_address(owner, true).or_else(|| clients.stream_address(owner, false));
    address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

/// Resets the connections to hosts: a plain close would look like a complete transfer.
impl Drop for StreamConnector {
    fn drop(&mut self) {
        for connection in self.connections.iter() {
            if let Some(ConnectorState::Joined(splice)) = &connection.state {
                break_off(&splice.socket);
            }
        }
    }
}

impl StreamConnector {
    /// A connector without streams, with tokens from `token` on; `waker` wakes the owner.
    pub fn start(
        settings: ConnectorSettings,
        token: Token,
        waker: &Waker,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            settings,
            names: Names::start(waker)?,
            connections: Table::new(token),
            streams: BTreeMap::new(),
            clients: BTreeMap::new(),
            connecting: 0,
            asked: BTreeMap::new(),
            accepted: 0,
            ends: Ends::default(),
            findings: HttpFindings::default(),
            scratch: vec![0; SCRATCH].into(),
        })
    }

    /// Divides the limit of sockets by `count`, for as many connectors in this process.
    pub fn share_sockets(&mut self, count: u16) {
        let most = self.settings.sockets_max / usize::from(count.max(1));
        self.settings.sockets_max = most.max(1);
    }

    /// Replaces the denied destinations for new streams, and the exceptions; open ones stay.
    pub fn set_destinations(&mut self, denied: &[IpNet], allowed: &[AllowedDestination]) {
        let ConnectorRules { denied: old, allowed: exceptions, .. } = &mut self.settings.rules;
        denied.clone_into(old);
        allowed.clone_into(exceptions);
    }

    /// Takes an event of one of its tokens.
    pub fn on_ready(&mut self, event: &Event) {
        let Some(number) = self.connections.number_of(event.token) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        match &mut connection.state {
            Some(ConnectorState::Joined(splice)) => splice.on_ready(event),
            _ => connection.closing |= event.closing,
        }
        self.connections.wake(number);
    }

    /// Takes the events of the clients' streams.
    pub fn handle_events(&mut self, now: Instant, clients: &mut impl EndsStreams) {
        while let Some(owner) = clients.poll_streams_over() {
            self.on_streams_over(owner);
        }
        while let Some((owner, event)) = clients.poll_stream_event(now) {
            self.handle_event(now, owner, event, clients);
        }
    }

    fn handle_event(
        &mut self,
        now: Instant,
        owner: StreamsOwner,
        event: StreamEvent,
        clients: &mut impl EndsStreams,
    ) {
        let id = stream_of(&event);
        if let StreamEvent::Opened { destination, .. } = &event {
            return self.begin(now, owner, id, destination, clients);
        }
        let Some(&number) = self.streams.get(&(owner, id)) else { return };
        if let StreamEvent::Reset { code, .. } = event {
            return self.break_off(number, ConnectorEnd::of_reset(code));
        }
        let Some(connection) = self.connections.get_mut(number) else { return };
        let Some(ConnectorState::Joined(splice)) = &mut connection.state else {
            connection.finished |= matches!(event, StreamEvent::Finished(_));
            return;
        };
        splice.on_stream(&event);
        self.connections.wake(number);
    }

    fn on_streams_over(&mut self, owner: StreamsOwner) {
        let (first, last) = (StreamId(0), StreamId(u64::MAX));
        let of_owner = self.streams.range((owner, first)..=(owner, last));
        for number in of_owner.map(|(_, number)| *number).collect::<Vec<_>>() {
            self.break_off(number, ConnectorEnd::Reset);
        }
    }

    /// When [`StreamConnector::turn`] has work.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.connections.poll_timeout()
    }

    /// Takes what came for the streams, and does the pending work within the limits of a turn.
    pub fn turn(&mut self, now: Instant, poller: &Poller, clients: &mut impl EndsStreams) {
        clients.hand_over_symbols(now);
        self.handle_events(now, clients);
        for _ in 0..ANSWERS_AT_ONCE {
            let Some((number, addresses)) = self.names.poll() else { break };
            self.on_answer(now, number, addresses, clients);
        }
        while let Some(number) = self.connections.take_overdue(now) {
            self.connections.wake(number);
        }
        for _ in 0..TURN / splice::SHARE {
            let Some(number) = self.connections.take_ready() else { break };
            self.advance(now, number, poller, clients);
        }
    }

    /// The streams, for the status.
    pub fn status(&self) -> StreamsStatus {
        let ends = self.ends.iter();
        let findings = self.findings.counts.iter();
        StreamsStatus {
            connections: self.connections.len(),
            accepted: self.accepted,
            ends: ends.map(|(end, count)| (end.name().to_owned(), count)).collect(),
            http: findings.map(|(what, times)| ((*what).to_owned(), *times)).collect(),
            source: Some(self.settings.sources.name().to_owned()),
            split: None,
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        owner: StreamsOwner,
        id: StreamId,
        destination: &Destination,
        clients: &mut impl EndsStreams,
    ) {
        self.accepted += 1;
        let account = account_of(owner, clients);
        let sockets = self.connections.len() + self.connecting;
        if sockets + AT_ONCE > self.settings.sockets_max || !self.admit(now, account) {
            return self.refuse(now, owner, id, ResetCode::TooMany, clients);
        }
        let until = now + CONNECT_MAX;
        let (closing, finished, state) = (false, false, Some(ConnectorState::Asking));
        let is_http = self.settings.http_ports.contains(&destination.port());
        let connection = OutgoingConnection {
            owner,
            account,
            stream: id,
            until,
            closing,
            finished,
            is_http,
            state,
        };
        let number = self.connections.insert(connection);
        self.connections.set_deadline(number, Some(until));
        self.streams.insert((owner, id), number);
        self.connecting += 1;
        self.clients.entry(account).or_default().connecting += 1;
        match destination.host() {
            ServerHost::Address(address) => {
                let to = SocketAddr::new(address.to_canonical(), destination.port());
                self.on_addresses(now, number, vec![to], clients);
            }
            ServerHost::Name(name) => {
                let question = (number, name.to_string(), destination.port());
                self.clients.entry(account).or_default().questions.push_back(question);
                self.ask(now, account, clients);
            }
        }
    }

    fn admit(&mut self, now: Instant, account: Account) -> bool {
        if self.clients.len() > ACCOUNTS_MIN + 2 * self.connections.len() {
            self.clients.retain(|_, client| !client.is_idle(now));
        }
        let client = self.clients.entry(account).or_default();
        let each = Duration::from_secs(1) / self.settings.connects_per_second.max(1);
        client.connecting < CONNECTING_MAX && client.connects.take(now, each, BURST.max(each))
    }

    /// Slow names delay only their own client.
    fn ask(&mut self, now: Instant, account: Account, clients: &mut impl EndsStreams) {
        while let Some(client) = self.clients.get_mut(&account)
            && client.asking < ASKING_MAX
            && let Some((number, name, port)) = client.questions.pop_front()
        {
            if self.connections.get_mut(number).is_none() {
                continue;
            }
            if self.names.ask(number, &name, port) {
                client.asking += 1;
                self.asked.insert(number, account);
            } else {
                self.fail(now, number, ResetCode::TooMany, clients);
            }
        }
    }

    fn on_answer(
        &mut self,
        now: Instant,
        number: Number,
        addresses: Vec<SocketAddr>,
        clients: &mut impl EndsStreams,
    ) {
        if let Some(account) = self.asked.remove(&number) {
            if let Some(client) = self.clients.get_mut(&account) {
                client.asking = client.asking.saturating_sub(1);
            }
            self.ask(now, account, clients);
        }
        self.on_addresses(now, number, addresses, clients);
    }

    fn on_addresses(
        &mut self,
        now: Instant,
        number: Number,
        addresses: Vec<SocketAddr>,
        clients: &mut impl EndsStreams,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        if addresses.is_empty() {
            return self.fail(now, number, ResetCode::Unreachable, clients);
        }
        let is_clients = |address| clients.is_of_client(address);
        let may_lead = |to: &SocketAddr| self.settings.rules.allow(*to, is_clients);
        let plain = |to: SocketAddr| match to.ip().to_canonical() {
            address @ IpAddr::V4(_) => SocketAddr::new(address, to.port()),
            IpAddr::V6(_) => to,
        };
        let addresses = addresses.into_iter().map(plain);
        let allowed: VecDeque<SocketAddr> = addresses.filter(may_lead).collect();
        if allowed.is_empty() {
            return self.fail(now, number, ResetCode::Forbidden, clients);
        }
        connection.state = Some(ConnectorState::Connecting(Attempts::new(allowed)));
        self.connections.wake(number);
    }

    fn advance(
        &mut self,
        now: Instant,
        number: Number,
        poller: &Poller,
        clients: &mut impl EndsStreams,
    ) {
        let token = self.connections.token(number);
        let Some(connection) = self.connections.get_mut(number) else { return };
        let (owner, until) = (connection.owner, connection.until);
        let ConnectorSettings { rules, sources, .. } = &self.settings;
        let source = |to: SocketAddr| match rules.allow(to, |address| clients.is_of_client(address))
        {
            true => sources.choose(to, clients.stream_address(owner, to.is_ipv4())),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let Some(state) = connection.state.take() else { return };
        match state {
            ConnectorState::Asking | ConnectorState::Connecting(_) if until <= now => {
                self.fail(now, number, ResetCode::TimedOut, clients);
            }
            ConnectorState::Asking => connection.state = Some(ConnectorState::Asking),
            ConnectorState::Connecting(mut attempts) => {
                match attempts.advance(now, poller, token, &source) {
                    AttemptOutcome::Failed(code) => self.fail(now, number, code, clients),
                    AttemptOutcome::Pending => {
                        let next = attempts.poll_timeout().map_or(until, |at| at.min(until));
                        connection.state = Some(ConnectorState::Connecting(attempts));
                        self.connections.set_deadline(number, Some(next));
                    }
                    AttemptOutcome::Connected(socket) => self.join(now, number, socket, clients),
                }
            }
            ConnectorState::Joined(mut splice) => {
                let Some(streams) = clients.streams(owner) else {
                    connection.state = Some(ConnectorState::Joined(splice));
                    return self.break_off(number, ConnectorEnd::Reset);
                };
                match splice.turn(now, streams, &mut self.scratch, &mut self.findings) {
                    SpliceTurn::Over(SpliceEnd::Closed) => self.end(number, ConnectorEnd::Closed),
                    SpliceTurn::Over(SpliceEnd::Aborted) => self.end(number, ConnectorEnd::Aborted),
                    SpliceTurn::Over(SpliceEnd::Reset(code)) => {
                        break_off(&splice.socket);
                        self.end(number, ConnectorEnd::of_reset(code));
                    }
                    SpliceTurn::More => {
                        connection.state = Some(ConnectorState::Joined(splice));
                        self.connections.wake(number);
                    }
                    SpliceTurn::Idle => connection.state = Some(ConnectorState::Joined(splice)),
                }
            }
        }
    }

    fn join(
        &mut self,
        now: Instant,
        number: Number,
        socket: TcpStream,
        clients: &mut impl EndsStreams,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let (account, id) = (connection.account, connection.stream);
        let accepted = clients.streams(connection.owner).map(|all| all.accept(now, id));
        if !matches!(accepted, Some(Ok(()))) {
            return self.break_off(number, ConnectorEnd::Reset);
        }
        let http_sniffer = connection.is_http.then(HttpSniffer::of_host);
        let mut splice = Splice::new(socket, id, connection.closing).with_sniffer(http_sniffer);
        if connection.finished {
            splice.on_stream_finished();
        }
        connection.state = Some(ConnectorState::Joined(splice));
        self.connections.set_deadline(number, None);
        self.on_settled(account);
        self.connections.wake(number);
    }

    fn fail(
        &mut self,
        now: Instant,
        number: Number,
        code: ResetCode,
        clients: &mut impl EndsStreams,
    ) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let (owner, id) = (connection.owner, connection.stream);
        let account = connection.account;
        self.on_settled(account);
        self.forget(number);
        self.refuse(now, owner, id, code, clients);
    }

    fn refuse(
        &mut self,
        now: Instant,
        owner: StreamsOwner,
        id: StreamId,
        code: ResetCode,
        clients: &mut impl EndsStreams,
    ) {
        if let Some(streams) = clients.streams(owner) {
            let _ = streams.reset(now, id, code);
        }
        self.ends.count(ConnectorEnd::of_failure(code));
    }

    fn break_off(&mut self, number: Number, end: ConnectorEnd) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let account = connection.account;
        match &connection.state {
            Some(ConnectorState::Joined(splice)) => break_off(&splice.socket),
            _ => self.on_settled(account),
        }
        self.end(number, end);
    }

    fn on_settled(&mut self, account: Account) {
        self.connecting = self.connecting.saturating_sub(1);
        if let Some(client) = self.clients.get_mut(&account) {
            client.connecting = client.connecting.saturating_sub(1);
        }
    }

    fn end(&mut self, number: Number, end: ConnectorEnd) {
        self.forget(number);
        self.ends.count(end);
    }

    fn forget(&mut self, number: Number) {
        if let Some(connection) = self.connections.remove(number) {
            self.streams.remove(&(connection.owner, connection.stream));
        }
    }
}

const ACCOUNTS_MIN: usize = 1024;
const ASKING_MAX: usize = 2;
/// As many as a browser makes.
const CONNECTING_MAX: usize = 64;
/// Waiting for two more retransmissions of a SYN takes longer than people wait.
const CONNECT_MAX: Duration = Duration::from_secs(20);
const ANSWERS_AT_ONCE: usize = 32;
const BURST: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests;
