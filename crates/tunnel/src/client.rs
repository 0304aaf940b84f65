//! The client: brings a session up over the uplinks that there are, and keeps it up.
//!
//! ```text
//! racing ──── an attempt is welcomed ───► joined
//!   ▲  attempts on each pair of              │ a path per uplink
//!   │  uplink and server address,            │
//!   │  each with its own rests               ▼
//!   └──────────────── closed: reset, timeout; ended by the server: that address rests,
//!                     at once, then 1 s, doubling
//! ```
//!
//! The handshake is raced over all pairs of uplink and server address, since any of them may be
//! dead, hostile or misconfigured. An answer on one pair makes only that pair rest. When a
//! restarted server resets the connection, the race starts again at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::Identity;
use roadweave_proto::wire::Welcome;
use roadweave_proto::{DropCounters, Instant, PathSnapshot, UplinkId};
use roadweave_quic::{ConfigError, Connection, Endpoint, Epoch, Prober, TransportConfig};
use roadweave_recovery::Qoe;
use roadweave_stream::Streams;

use crate::lane::{EncoderTarget, LANES_MAX, LaneConfig, Strategy, Superseded, default_lanes};
use crate::learned::{Learned, keep_learned};
use crate::observe::PacketEvent;
use crate::session::{MEMORY_MAX, Session, SessionError, SetError, find_lane};
use crate::streams::{StreamsConfig, StreamsOwner};
use crate::uplink::UplinkPolicy;
use crate::usage::Usage;

mod attempt_backoff;
mod binding;
mod candidates;
mod changes;
mod choice;
mod connections;
mod current;
mod leaving;
mod node;
mod notices;
mod outages;
mod pairs;
mod paths;
mod ports;
mod race;
mod report;
mod sessions;
mod silence;
mod speedtest;
mod standby;
mod streams;
mod uplinks;

use binding::Bindings;
pub use candidates::{CANDIDATES_MAX, Candidate, admit};
use choice::Choice;
use current::Current;
use leaving::Leaving;
use notices::EventQueue;
pub use notices::Notice;
use outages::Outages;
use race::Race;
pub use report::{CandidatePlace, CandidateReport, PairReport, PairState, UplinkReport};
use silence::Silence;
use speedtest::Speedtests;
pub use speedtest::{
    LoadReport, SPEEDTEST_MAX, SpeedtestError, SpeedtestPlan, SpeedtestReport, SpeedtestRow,
    SpeedtestState,
};
use standby::Standby;
use streams::ClientStreams;
pub use uplinks::Portal;
use uplinks::Uplinks;

/// The smallest MTU that IPv6 allows (RFC 8200 section 5).
const MTU_MIN: u16 = 1280;

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The client's name, for the server's logs.
    pub name: String,
    /// The servers to choose from, at least one; the first is tried first. [`admit`] bounds them.
    pub candidates: Vec<Candidate>,
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// Settings of streams, if the client may open some.
    pub streams: Option<StreamsConfig>,
    /// The most bytes that the session may buffer, without streams.
    pub memory_max: usize,
}

impl ClientConfig {
    /// A client of one server, with the lanes of [`default_lanes`] and at most [`MEMORY_MAX`].
    pub fn new(name: impl Into<String>, transport: TransportConfig, server: Candidate) -> Self {
        let (name, candidates, lanes) = (name.into(), vec![server], default_lanes());
        Self { name, candidates, transport, lanes, streams: None, memory_max: MEMORY_MAX }
    }
}

/// An event for the driver of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// A session began, or replaced one with the same server.
    Joined {
        /// What the server granted.
        welcome: Welcome,
        /// The server's address.
        server: SocketAddr,
    },
    /// The session moved to another server; unfinished packets follow it.
    Moved {
        /// What that server granted.
        welcome: Welcome,
        /// Its address.
        server: SocketAddr,
        /// The server's name.
        name: String,
        /// The reason, as text.
        reason: String,
    },
    /// The session ended; the client starts another by itself.
    Left {
        /// The reason, as text.
        reason: String,
        /// How long until the next attempt.
        rest: Duration,
    },
    /// A notice for the operator.
    Notice(Notice),
}

/// One client: an endpoint, its uplinks, and at most one session.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    endpoint: Endpoint,
    bindings: Bindings,
    uplinks: Uplinks,
    choice: Choice,
    prober: Prober,
    standby: Standby,
    leaving: Leaving,
    race: Race,
    current: Option<Current>,
    silence: Silence,
    event_queue: EventQueue,
    outages: Outages,
    drops: DropCounters,
    observes: bool,
    learned: Learned,
    local_networks: Vec<IpNet>,
    streams: Option<ClientStreams>,
    speedtests: Speedtests,
    upkeep: node::Upkeep,
}

impl Client {
    /// A client without uplinks.
    ///
    /// # Errors
    /// When the transport settings or the lanes cannot be used.
    pub fn new(
        epoch: Epoch,
        mut config: ClientConfig,
        identity: Arc<Identity>,
    ) -> Result<Self, ClientError> {
        let bindings = Bindings::new(identity.clone());
        let endpoint = Endpoint::client(epoch, &config.transport, identity)?;
        let lanes = config.lanes.len();
        let lanes_max = LANES_MAX - usize::from(config.streams.is_some());
        if !(1..=lanes_max).contains(&lanes) {
            return Err(SessionError::Lanes(lanes).into());
        }
        let candidates = admit(std::mem::take(&mut config.candidates));
        if candidates.is_empty() {
            return Err(ClientError::NoCandidate);
        }
        let first = StreamsConfig::first_epoch(&config.transport.rng_seed);
        let streams = config.streams.clone().map(|streams| ClientStreams::new(streams, first));
        Ok(Self {
            race: Race::new(seed(&config.transport)),
            choice: Choice::new(candidates),
            prober: Prober::new(&config.transport.rng_seed),
            standby: Standby::default(),
            leaving: Leaving::default(),
            config,
            endpoint,
            bindings,
            uplinks: Uplinks::default(),
            current: None,
            silence: Silence::default(),
            event_queue: EventQueue::default(),
            outages: Outages::default(),
            drops: DropCounters::default(),
            observes: false,
            learned: Learned::new(),
            local_networks: Vec::new(),
            streams,
            speedtests: Speedtests::default(),
            upkeep: node::Upkeep::default(),
        })
    }

    /// Restores what [`Client::learned`] returned in an earlier run, for later sessions.
    pub fn restore(&mut self, learned: Learned) {
        self.learned = learned;
    }

    /// The server of the session, or the one that is tried first.
    pub fn server(&self) -> &Candidate {
        self.choice.home()
    }

    fn connection(&self) -> Option<&Connection> {
        self.endpoint.connection(self.current.as_ref()?.id)
    }

    fn paths(&self) -> &[PathSnapshot] {
        self.connection().map_or(&[][..], Connection::paths)
    }

    /// What the strategies have learned of the networks in all sessions so far.
    pub fn learned(&mut self) -> &Learned {
        if let Some(current) = &self.current {
            keep_learned(&mut self.learned, &self.choice.home().key, &current.session);
        }
        &self.learned
    }

    fn keep_learned(&mut self, session: &Session) {
        keep_learned(&mut self.learned, &self.choice.home().key, session);
    }

    fn apply_policies(&mut self) {
        if let Some(current) = &mut self.current {
            current.apply_policies(&self.uplinks, &mut self.endpoint);
        }
    }

    /// Sets the policy of the uplink called `name`.
    pub fn set_policy(&mut self, name: &str, policy: UplinkPolicy) {
        self.uplinks.policies.insert(name.to_owned(), policy);
        self.apply_policies();
    }

    /// Counts what the uplink called `name` carries under `account` instead of its name.
    pub fn set_account(&mut self, name: &str, account: String) {
        self.uplinks.accounts.insert(name.to_owned(), account);
    }

    /// Tries the uplink called `name` before those of a higher `rank`, until round trips are
    /// measured. The default rank is 0.
    pub fn set_rank(&mut self, name: &str, rank: u8) {
        self.uplinks.ranks.insert(name.to_owned(), rank);
    }

    /// Restores what [`Client::usage`] returned in an earlier run.
    pub fn restore_usage(&mut self, usage: Usage) {
        self.uplinks.usage = usage;
        self.apply_policies();
    }

    /// Bytes carried by uplinks with a cap, by day.
    pub fn usage(&self) -> &Usage {
        &self.uplinks.usage
    }

    /// Sets the time of day in seconds since 1970, and whether it is synchronised.
    pub fn on_time_of_day(&mut self, unix_seconds: u64, is_synchronised: bool) {
        self.uplinks.usage.on_time_of_day(unix_seconds, is_synchronised);
        self.apply_policies();
    }

    /// The targets of the encoders behind this box, by lane name; defaults without a session.
    pub fn encoder_targets(&mut self, now: Instant) -> BTreeMap<String, EncoderTarget> {
        let targets = self.current.as_mut().and_then(|current| {
            let connection = self.endpoint.connection_mut(current.id)?;
            Some(current.session.encoder_targets(now, connection))
        });
        let nothing = |lane: &LaneConfig| (lane.name.clone(), EncoderTarget::default());
        targets.unwrap_or_else(|| self.config.lanes.iter().map(nothing).collect())
    }

    /// Whether there is a session none of whose paths answers.
    pub fn is_silent(&self) -> bool {
        self.silence.since.is_some()
    }

    /// Since when the session carries only feedback: since its last packet or piece of a stream.
    /// `None` without a session, and while data without room waits for acknowledgements.
    pub fn feedback_alone_since(&self) -> Option<Instant> {
        let current = self.current.as_ref().filter(|current| !current.session.has_backlog())?;
        Some(self.connection()?.last_data().max(current.since))
    }

    /// Replaces the lanes of the uplink direction. If the session cannot take them up, because
    /// their names or their ordering differ, another session with the same server follows at once.
    /// A lane that names an absent uplink waits for it.
    ///
    /// # Errors
    /// When there are too many lanes, or none; nothing is changed then.
    pub fn set_lanes(&mut self, now: Instant, lanes: Vec<LaneConfig>) -> Result<(), SetError> {
        let lanes_max = LANES_MAX - usize::from(self.streams.is_some());
        if !(1..=lanes_max).contains(&lanes.len()) {
            return Err(SetError::Lanes(lanes.len()));
        }
        let takes_them = match &mut self.current {
            Some(current) if current.session.takes_lanes(&lanes) => {
                current.session.set_lanes(now, &lanes, true)?;
                true
            }
            other => other.is_none(),
        };
        self.config.lanes = lanes;
        self.renew(now, !takes_them);
        self.on_lanes_or_uplinks(now);
        self.on_change(now);
        Ok(())
    }

    /// Sets the strategy of a lane of the uplink direction, for this session and later ones. A lane
    /// that names an absent uplink waits for it, see [`Client::waiting_lanes`].
    ///
    /// # Errors
    /// When there is no such lane; nothing is changed then.
    pub fn set_strategy(
        &mut self,
        now: Instant,
        lane: &str,
        strategy: Strategy,
    ) -> Result<(), SetError> {
        let position = find_lane(&self.config.lanes, lane)?;
        if let Some(current) = self.current.as_mut().filter(|_| !self.race.renews) {
            current.session.set_strategy(lane, &strategy, true)?;
        }
        self.config.lanes[position].strategy = strategy;
        self.on_lanes_or_uplinks(now);
        self.on_change(now);
        Ok(())
    }

    /// Reports the buffer of the application behind a lane of the uplink direction. Without a
    /// session it is ignored.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn set_qoe(&mut self, now: Instant, lane: &str, qoe: Qoe) -> Result<(), SetError> {
        find_lane(&self.config.lanes, lane)?;
        let current = self.current.as_mut().filter(|_| !self.race.renews);
        current.map_or(Ok(()), |current| current.session.set_qoe(now, lane, qoe))
    }

    /// An encoder behind this box started again with a later frame: older packets of its video are
    /// neither repaired nor sent any more. Returns how many packets were given up.
    ///
    /// # Errors
    /// When there is no such lane.
    pub fn supersede(
        &mut self,
        now: Instant,
        lane: &str,
        superseded: Superseded,
    ) -> Result<u64, SetError> {
        find_lane(&self.config.lanes, lane)?;
        let current = self.current.as_mut().filter(|_| !self.race.renews);
        current.map_or(Ok(0), |current| current.session.supersede(now, lane, superseded))
    }

    /// Reports the buffer of a player at this side to the server (XLINK section 5.2.1). `lane` is
    /// the server's lane that carries its video, or [`StreamsConfig::LANE`] for streams; `player`
    /// distinguishes the players of this side. Returns whether it was sent: not without a session,
    /// and about ten times a second at most for each of 16 players.
    pub fn report_player(&mut self, now: Instant, lane: &str, player: u64, qoe: Qoe) -> bool {
        let Some(current) = &mut self.current else { return false };
        let Some(connection) = self.endpoint.connection_mut(current.id) else { return false };
        current.session.report_player(now, lane, player, qoe, connection)
    }

    /// Sets the connected networks behind this end: no packet from the tunnel may have a source
    /// address in them.
    pub fn set_local_networks(&mut self, networks: impl Iterator<Item = IpNet> + Clone) {
        if !networks.clone().eq(self.local_networks.iter().copied()) {
            self.local_networks = networks.collect();
            if let Some(current) = &mut self.current {
                current.refuse_sources(&self.local_networks);
            }
        }
    }

    /// Starts or stops recording what happens to each packet, in this session and later ones.
    pub fn observe_packets(&mut self, is_on: bool) {
        self.observes = is_on;
        if let Some(current) = &mut self.current {
            current.session.observe_packets(is_on);
        }
    }

    /// The next packet event, if [`Client::observe_packets`] is on.
    pub fn poll_packet_event(&mut self) -> Option<PacketEvent> {
        self.current.as_mut()?.session.poll_packet_event()
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.event_queue.events.pop_front()
    }

    /// Closes the connections to servers; [`flush`](crate::flush) it afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the client stops");
    }

    /// The next uplink whose packets should leave from another local port. What comes for the
    /// former port must be handed over until the next change: it may be a late answer.
    pub fn take_stale_port(&mut self) -> Option<UplinkId> {
        let mut uplinks = self.uplinks.all.iter_mut();
        uplinks.find_map(|(id, uplink)| uplink.port.take_stale().then_some(*id))
    }

    /// The streams with everything that came for them, if the server takes any. When the owner
    /// changes, the former streams are over. Without a session streams wait.
    /// [`handle_timeout`](crate::Node::handle_timeout) sends what was written.
    pub fn streams(&mut self, now: Instant) -> Option<(StreamsOwner, &mut Streams)> {
        let session = self.current.as_mut().map(|current| &mut current.session);
        self.streams.as_mut()?.poll(now, session)
    }

    /// Starts a test and forgets the last one; [`Client::speedtest`] reports its progress.
    ///
    /// # Errors
    /// When there is no session, another test is under way, or nothing is left to measure.
    pub fn begin_speedtest(
        &mut self,
        now: Instant,
        plan: &SpeedtestPlan,
    ) -> Result<(), SpeedtestError> {
        let current = self.current.as_mut().ok_or(SpeedtestError::NoSession)?;
        self.speedtests.begin(now, plan, current, &mut self.endpoint, &self.uplinks)
    }

    /// The report of the running or last test, if any. A test that is not polled ends.
    pub fn speedtest(&mut self, now: Instant) -> Option<SpeedtestReport> {
        self.speedtests.report(now)
    }

    /// Stops the running test, if any.
    pub fn stop_speedtest(&mut self, now: Instant) {
        let current = self.current.as_mut();
        self.speedtests.fail(now, "it was stopped", current, &mut self.endpoint);
    }
}

fn seed(transport: &TransportConfig) -> u64 {
    transport.rng_seed.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}

/// Why a client cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no candidate.
    #[error("a client needs a server")]
    NoCandidate,
    /// The transport settings cannot be used.
    #[error(transparent)]
    Transport(#[from] ConfigError),
    /// The lanes cannot be used.
    #[error(transparent)]
    Session(#[from] SessionError),
}
