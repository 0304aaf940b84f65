//! The agent, its controller connection and its disk, driven by a thread or by `roadweave join`.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{Agent, AgentEvent, Down, FrameError, Role, Up};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::{Clock, DeviceError, random_bytes};
use roadweave_proto::{Instant, ServerName};

use super::controller_route::ControllerRoute;
use super::line::{Controllers, Line, LineEvent, LineOptions};
use super::store::Store;
use crate::driver::RepeatLimiter;

/// 9 MB a month.
const KEEP_ALIVE_BOX: Duration = Duration::from_secs(50);
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
const WRITE_SHARE: u32 = 20;
const WRITE_AGAIN: Duration = Duration::from_secs(30);
const WRITE_AGAIN_URGENT: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    pub(super) clock: Clock,
    pub(super) agent: Agent,
    pub(super) line: Line,
    pub(super) store: Store,
    controllers: Arc<Controllers>,
    unproved: Option<PublicKey>,
    events: VecDeque<AgentEvent>,
    limiter: RepeatLimiter,
    unsent: u64,
    is_dirty: bool,
    is_urgent: bool,
    writing: (Instant, bool, u64),
    mark: u64,
    next_write: Instant,
    written_at: Instant,
    write_took: Duration,
    pub(super) contact: Option<(SocketAddr, String)>,
    pub(super) has_met: bool,
    pub(super) failure: Option<String>,
    pub(super) rounds_failed: u32,
    pub(super) warning: Option<String>,
    has_asked: bool,
    pub(super) is_in_step: bool,
}

impl Worker {
    pub(super) fn start(
        clock: Clock,
        agent: Agent,
        store: Store,
        identity: Arc<Identity>,
        ways: Vec<ControllerRoute>,
        keep_alive: Duration,
    ) -> Result<Self, DeviceError> {
        let controllers = Arc::new(Controllers::default());
        controllers.set(agent.kept().trust().controllers().collect());
        let names = names(agent.kept().addresses());
        let options = LineOptions {
            identity,
            controllers: controllers.clone(),
            names,
            seed: u64::from_be_bytes(random_bytes()?),
            keep_alive,
        };
        let line = Line::new(clock.now(), options, ways)?;
        Ok(Self {
            clock,
            agent,
            line,
            store,
            controllers,
            unproved: None,
            events: VecDeque::new(),
            limiter: RepeatLimiter::default(),
            unsent: 0,
            is_dirty: false,
            is_urgent: false,
            writing: (Instant::ZERO, false, 0),
            mark: 0,
            next_write: Instant::ZERO,
            written_at: Instant::ZERO,
            write_took: Duration::ZERO,
            contact: None,
            has_met: false,
            failure: None,
            rounds_failed: 0,
            warning: None,
            has_asked: false,
            is_in_step: false,
        })
    }

    /// The caller takes all events afterwards, then calls [`Worker::write_due`].
    pub(super) fn turn(&mut self, now: Instant) {
        self.line.turn(now);
        while let Some(event) = self.line.poll_event() {
            self.on_line(now, event);
        }
        self.agent.handle_timeout(now);
        self.send(now);
        while let Some(event) = self.agent.poll_event() {
            self.on_agent(now, event);
        }
    }

    /// Returns the `mark` of the last call whose state is entirely on the disk.
    pub(super) fn write_due(&mut self, now: Instant, mark: u64) -> u64 {
        if let Some(is_written) = self.store.poll() {
            let (began, was_urgent, mark) = self.writing;
            match is_written {
                true => self.mark = mark,
                false => (self.is_dirty, self.is_urgent) = (true, self.is_urgent || was_urgent),
            }
            self.on_written(began, is_written);
        }
        if self.is_dirty && !self.store.is_writing() && now >= self.next_write {
            self.writing = (now, std::mem::take(&mut self.is_urgent), mark);
            self.is_dirty = false;
            let waker = self.line.waker();
            self.store.begin(self.agent.kept(), move || waker.wake());
        }
        if self.is_written() {
            self.mark = mark;
        }
        self.mark
    }

    pub(super) fn is_written(&self) -> bool {
        !self.is_dirty && !self.store.is_writing()
    }

    pub(super) fn poll_event(&mut self) -> Option<AgentEvent> {
        self.events.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let is_due = self.is_dirty && !self.store.is_writing();
        let write = is_due.then_some(self.next_write);
        [write, self.agent.poll_timeout()].into_iter().flatten().min()
    }

    pub(super) fn wait(&mut self, now: Instant, until: Option<Instant>) {
        let until = [until, self.poll_timeout()].into_iter().flatten().min();
        self.line.wait(now, until);
    }

    pub(super) fn write(&mut self, now: Instant) -> bool {
        let is_written = self.store.write(self.agent.kept());
        self.is_dirty = !is_written;
        self.is_urgent &= !is_written;
        self.on_written(now, is_written);
        is_written
    }

    fn on_written(&mut self, began: Instant, is_written: bool) {
        self.written_at = self.clock.now();
        self.write_took = self.written_at.since(began);
        self.next_write = self.written_at + self.rest(is_written);
    }

    fn rest(&self, is_written: bool) -> Duration {
        let rest = (self.write_took * WRITE_SHARE).max(WRITE_INTERVAL);
        match (is_written, self.is_urgent) {
            (true, false) => rest,
            // After a restart a proxy must not admit keys whose sessions it has reported as ended.
            (true, true) => WRITE_INTERVAL,
            (false, false) => WRITE_AGAIN,
            (false, true) => rest.clamp(WRITE_AGAIN_URGENT, WRITE_AGAIN),
        }
    }

    fn on_urgent(&mut self) {
        (self.is_dirty, self.is_urgent) = (true, true);
        let rest = self.rest(!self.store.is_failing);
        self.next_write = self.next_write.min(self.written_at + rest);
    }

    fn on_line(&mut self, now: Instant, event: LineEvent) {
        match event {
            LineEvent::Up { address, way, controller } => {
                let away = self.agent.away_since().map(|since| now.since(since).as_secs());
                if self.limiter.admit(now, UP, "") {
                    let away_seconds = away.unwrap_or_default();
                    let over = &way;
                    tracing::info!(%address, over, %controller, away_seconds, "the controller is there");
                }
                self.limiter.settle(DOWN);
                self.contact = Some((address, way));
                (self.failure, self.has_met) = (None, true);
                (self.has_asked, self.is_in_step) = (false, false);
                self.agent.on_stream_up(now);
            }
            LineEvent::Frame(frame) => {
                self.is_in_step |= self.has_asked && frame == Down::Alive;
                self.agent.handle_frame(now, frame);
                self.follow_trust(now);
            }
            LineEvent::Down { reason } => {
                if self.limiter.admit(now, DOWN, &reason) {
                    tracing::warn!("the controller is away: {reason}; trying again");
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
        self.line.set_names(names);
        self.unproved = Some(controller);
        self.controllers.set(self.speaks_with());
    }

    pub(super) fn has_proved_peer(&self) -> bool {
        let peer = self.line.peer();
        self.agent.kept().trust().controllers().any(|key| peer == Some(key))
    }

    fn speaks_with(&self) -> BTreeSet<PublicKey> {
        self.agent.kept().trust().controllers().chain(self.unproved).collect()
    }

    fn follow_trust(&mut self, now: Instant) {
        let keys = self.speaks_with();
        let is_lost = self.line.peer().is_some_and(|peer| !keys.contains(&peer));
        self.controllers.set(keys);
        if is_lost {
            self.line.end(now, "its key counts no more".to_owned());
        }
    }

    fn send(&mut self, now: Instant) {
        while self.line.has_room() {
            if let Some(frame) = self.agent.poll_frame() {
                if frame == Up::Alive {
                    self.line.ask(now);
                } else if let Err(error) = self.line.send(now, &frame) {
                    self.on_unsent(now, &error);
                }
            } else if !std::mem::replace(&mut self.has_asked, true) {
                self.line.ask(now);
            } else {
                return;
            }
        }
    }

    fn on_unsent(&mut self, now: Instant, error: &FrameError) {
        self.unsent += 1;
        if self.limiter.admit(now, UNSENT, "") {
            let so_far = self.unsent;
            tracing::error!(so_far, "what is too large for the controller is left out: {error}");
        }
    }

    fn on_agent(&mut self, now: Instant, event: AgentEvent) {
        match event {
            AgentEvent::Keep => self.is_dirty = true,
            AgentEvent::Seek => self.line.seek(now),
            AgentEvent::Warning(text) => {
                if self.limiter.admit(now, WARNING, &text) {
                    tracing::warn!("from the controller: {text}");
                }
                self.warning = Some(text);
            }
            event => {
                if matches!(event, AgentEvent::Revoked(_)) {
                    self.on_urgent();
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
