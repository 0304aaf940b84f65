//! The agent, its controller connection and its disk, driven by a thread or by `roadweave join`.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{Agent, AgentEvent, Down, FrameError, Role, Up};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::{Clock, DeviceError, random_bytes};
use roadweave_proto::{Instant, ServerName};

use super::controller_connection::{
    ConnectionEvent, ConnectionOptions, ControllerConnection, Controllers,
};
use super::controller_route::ControllerRoute;
use super::state_writer::StateWriter;
use super::store::StateStore;
use crate::driver::RepeatLimiter;

/// 9 MB a month.
const KEEP_ALIVE_BOX: Duration = Duration::from_secs(50);
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) struct FleetWorker {
    pub(super) clock: Clock,
    pub(super) agent: Agent,
    pub(super) connection: ControllerConnection,
    pub(super) state: StateWriter,
    controllers: Arc<Controllers>,
    unproved: Option<PublicKey>,
    events: VecDeque<AgentEvent>,
    limiter: RepeatLimiter,
    unsent: u64,
    pub(super) contact: Option<(SocketAddr, String)>,
    pub(super) has_met: bool,
    pub(super) failure: Option<String>,
    pub(super) rounds_failed: u32,
    pub(super) warning: Option<String>,
    has_asked: bool,
    pub(super) is_in_step: bool,
}

impl FleetWorker {
    pub(super) fn start(
        clock: Clock,
        agent: Agent,
        store: StateStore,
        identity: Arc<Identity>,
        ways: Vec<ControllerRoute>,
        keep_alive: Duration,
    ) -> Result<Self, DeviceError> {
        let controllers = Arc::new(Controllers::default());
        controllers.set(agent.persisted().trust().controllers().collect());
        let names = names(agent.persisted().addresses());
        let options = ConnectionOptions {
            identity,
            controllers: controllers.clone(),
            names,
            seed: u64::from_be_bytes(random_bytes()?),
            keep_alive,
        };
        let connection = ControllerConnection::new(clock.now(), options, ways)?;
        Ok(Self {
            state: StateWriter::new(clock, store),
            clock,
            agent,
            connection,
            controllers,
            unproved: None,
            events: VecDeque::new(),
            limiter: RepeatLimiter::default(),
            unsent: 0,
            contact: None,
            has_met: false,
            failure: None,
            rounds_failed: 0,
            warning: None,
            has_asked: false,
            is_in_step: false,
        })
    }

    /// The caller takes all events afterwards, then calls [`FleetWorker::write_due`].
    pub(super) fn turn(&mut self, now: Instant) {
        self.connection.turn(now);
        while let Some(event) = self.connection.poll_event() {
            self.on_connection_event(now, event);
        }
        self.agent.handle_timeout(now);
        self.send(now);
        while let Some(event) = self.agent.poll_event() {
            self.on_agent(now, event);
        }
    }

    pub(super) fn write_due(&mut self, now: Instant, mark: u64) -> u64 {
        let waker = self.connection.waker();
        self.state.write_due(now, mark, self.agent.persisted(), move || waker.wake())
    }

    /// Writes now, and waits for the disk.
    pub(super) fn write(&mut self, now: Instant) -> bool {
        self.state.write(now, self.agent.persisted())
    }

    pub(super) fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.state.poll_timeout(), self.agent.poll_timeout()].into_iter().flatten().min()
    }

    pub(super) fn wait(&mut self, now: Instant, until: Option<Instant>) {
        let until = [until, self.poll_timeout()].into_iter().flatten().min();
        self.connection.wait(now, until);
    }

    fn on_connection_event(&mut self, now: Instant, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Up { address, way, controller } => {
                let away = self.agent.away_since().map(|since| now.since(since).as_secs());
                if self.limiter.admit(now, UP, "") {
                    let away_seconds = away.unwrap_or_default();
                    let over = &way;
                    tracing::info!(
                        %address,
                        over,
                        %controller,
                        away_seconds,
                        "connected to the controller"
                    );
                }
                self.limiter.settle(DOWN);
                self.contact = Some((address, way));
                (self.failure, self.has_met) = (None, true);
                (self.has_asked, self.is_in_step) = (false, false);
                self.agent.on_stream_up(now);
            }
            ConnectionEvent::Frame(frame) => {
                self.is_in_step |= self.has_asked && frame == Down::Alive;
                self.agent.handle_frame(now, frame);
                self.follow_trust(now);
            }
            ConnectionEvent::Down { reason } => {
                if self.limiter.admit(now, DOWN, &reason) {
                    tracing::warn!("not connected to the controller: {reason}; trying again");
                }
                self.contact = None;
                self.failure = Some(reason);
                self.rounds_failed = self.rounds_failed.saturating_add(1);
                self.agent.on_stream_down(now);
            }
        }
    }

    /// Until a root proves the controller, its messages count only if they are signed.
    pub(super) fn seek_at(&mut self, names: Vec<ServerName>, controller: PublicKey) {
        self.connection.set_names(names);
        self.unproved = Some(controller);
        self.controllers.set(self.speaks_with());
    }

    pub(super) fn has_proved_peer(&self) -> bool {
        let peer = self.connection.peer();
        self.agent.persisted().trust().controllers().any(|key| peer == Some(key))
    }

    fn speaks_with(&self) -> BTreeSet<PublicKey> {
        self.agent.persisted().trust().controllers().chain(self.unproved).collect()
    }

    fn follow_trust(&mut self, now: Instant) {
        let keys = self.speaks_with();
        let is_lost = self.connection.peer().is_some_and(|peer| !keys.contains(&peer));
        self.controllers.set(keys);
        if is_lost {
            self.connection.end(now, "its key is no longer trusted".to_owned());
        }
    }

    fn send(&mut self, now: Instant) {
        while self.connection.has_room() {
            if let Some(frame) = self.agent.poll_frame() {
                if frame == Up::Alive {
                    self.connection.ask(now);
                } else if let Err(error) = self.connection.send(now, &frame) {
                    self.on_unsent(now, &error);
                }
            } else if !std::mem::replace(&mut self.has_asked, true) {
                self.connection.ask(now);
            } else {
                return;
            }
        }
    }

    fn on_unsent(&mut self, now: Instant, error: &FrameError) {
        self.unsent += 1;
        if self.limiter.admit(now, UNSENT, "") {
            let so_far = self.unsent;
            tracing::error!(
                so_far,
                "a message is too large for the controller and is not sent: {error}"
            );
        }
    }

    fn on_agent(&mut self, now: Instant, event: AgentEvent) {
        match event {
            AgentEvent::Persist => self.state.on_changed(),
            AgentEvent::Seek => self.connection.seek(now),
            AgentEvent::Warning(text) => {
                if self.limiter.admit(now, WARNING, &text) {
                    tracing::warn!("from the controller: {text}");
                }
                self.warning = Some(text);
            }
            event => {
                if matches!(event, AgentEvent::Revoked(_)) {
                    self.state.on_urgent();
                }
                self.events.push_back(event);
            }
        }
    }
}

pub(super) fn keep_alive(role: Role) -> Duration {
    match role {
        Role::Box => KEEP_ALIVE_BOX,
        _ => KEEP_ALIVE,
    }
}

pub(super) fn names(addresses: &[String]) -> Vec<ServerName> {
    addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

const UP: u32 = 0;
const DOWN: u32 = 1;
const WARNING: u32 = 2;
const UNSENT: u32 = 3;
