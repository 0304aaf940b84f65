//! The event loop: it joins a sans-IO node with TUN, sockets and clock.
//!
//! ```text
//! Poller ─► TUN readable     ─► handle_inner  ┐
//!        ─► socket readable  ─► handle_packet ├─► turn: TUN ◄─ handle_timeout ─► sockets
//!        ─► timeout          ─────────────────┘
//!        ─► monitor, signals, requests ─► role: uplinks, routes, settings, status
//! ```
//!
//! One thread does all of it. Work comes in batches: everything that is readable is taken first,
//! then the node is turned once, so that what leaves can leave in runs (GSO).

use std::os::fd::AsFd;
use std::time::Duration;

use roadweave_proto::{DropCounters, Instant, Marks, UplinkId};
use roadweave_tunnel::{Node, deliver, flush, turn};
use serde_json::Value;

use super::DriverError;
use super::cadence::Cadence;
use super::courtesy::Courtesy;
use super::edge::Edge;
use super::service_manager::ServiceManager;
use super::tun_name::TunName;
use crate::local::{LocalRequest, LocalServer, RpcError, Subscribers};
use crate::metrics::MetricsListener;
use crate::pauses::{Pause, Pauses, Readings, TURN_MAX};
use crate::poll::wait_readable;
use crate::status::{DeviceCounters, LogCounters, RoleStatus, Status};
use crate::{
    Clock, DeviceError, Event, Instance, InstanceLock, Interest, Poller, Signal, Signals, Token,
    Tun, UplinkSocket, Waker,
};

/// What a client, a server and a router each do beyond turning their node.
pub(super) trait Role<N: Node> {
    /// Whether the inner packets that one socket brought go to the TUN before the next socket is
    /// read.
    const DELIVERS_BY_SOCKET: bool = false;

    /// The loop begins.
    fn on_start(&mut self, _driver: &mut Driver<N>) {}

    /// When [`Role::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Since when the network has brought nothing but feedback that may wait a little, if that is
    /// known.
    fn feedback_alone_since(&self, _node: &N) -> Option<Instant> {
        None
    }

    /// The machine slept, or the program stood still; `discarded` inner packets waited then.
    fn on_pause(&mut self, driver: &mut Driver<N>, now: Instant, pause: &Pause, discarded: u64);

    /// A turn begins; nothing of it has been read.
    fn before_packets(&mut self, _driver: &mut Driver<N>, _now: Instant) {}

    /// The user wants the configuration to be read again (SIGHUP).
    fn on_hangup(&mut self, driver: &mut Driver<N>, now: Instant);

    /// A thread of the role has woken the loop, or somebody asks by the local socket.
    fn on_wake(&mut self, _driver: &mut Driver<N>, _now: Instant) {}

    /// A source is ready that is neither the loop's own nor a socket of the tunnel.
    fn on_ready(&mut self, _driver: &mut Driver<N>, _now: Instant, _event: &Event) {}

    /// A socket can be used no more.
    fn on_socket_failed(
        &mut self,
        driver: &mut Driver<N>,
        now: Instant,
        uplink: Option<UplinkId>,
        error: &std::io::Error,
    );

    /// The interface of a socket was gone when something was to be sent by it.
    fn on_interface_gone(&mut self, _driver: &mut Driver<N>, _now: Instant, _uplink: UplinkId) {}

    /// All of a turn has been read: lets what is due happen before the node is turned.
    fn handle_timeout(&mut self, driver: &mut Driver<N>, now: Instant);

    /// Whether the loop is to end by itself.
    fn is_over(&self) -> bool {
        false
    }

    /// The node was turned and may have events.
    fn handle_events(&mut self, driver: &mut Driver<N>, now: Instant);

    /// Whether all other threads that the program depends on have turned since this last returned
    /// `true`: the service manager's watchdog is notified only then.
    fn take_turns(&self, _node: &N) -> bool {
        true
    }

    /// What the program is doing, in a line, for the service manager.
    fn in_a_line(&self, _node: &N) -> String {
        String::new()
    }

    /// The whole status, as `roadweave show` is told it.
    fn status(&mut self, driver: &mut Driver<N>) -> Status;

    /// The status without what is told of each session, for those who ask often.
    fn summary(&mut self, driver: &mut Driver<N>) -> Status {
        self.status(driver)
    }

    /// Somebody asks by the local socket for the configuration to be read again, and is answered
    /// once it is.
    fn on_reload(&mut self, _driver: &mut Driver<N>, _now: Instant, request: LocalRequest) {
        let none = RpcError::method_not_found(&request.method);
        request.answer(Err(none));
    }

    /// Answers a request by the local socket that is not for the status.
    ///
    /// # Errors
    /// What the caller is told when there is no such method or it cannot be done.
    fn handle_request(
        &mut self,
        driver: &mut Driver<N>,
        now: Instant,
        method: &str,
        params: &Value,
    ) -> Result<Value, RpcError>;
}

/// A node between its clock, its TUN and its sockets.
pub(super) struct Driver<N> {
    pub(super) node: N,
    pub(super) edge: Edge,
    pub(super) poller: Poller,
    /// The program ends for another start of it.
    pub(super) restarts: bool,
    pauses: Pauses,
    courtesy: Courtesy,
    cadence: Cadence,
    waker: Waker,
    /// `None` in a loop that another one of the same program starts and ends.
    outside: Option<Outside>,
}

/// How a loop is spoken to from outside of the program, and what it does for all of the program.
struct Outside {
    signals: Signals,
    local: LocalServer,
    tun_name: TunName,
    manager: ServiceManager,
}

/// A node that runs. The fields are dropped in this order: what was set up is removed before the
/// instance's lock.
pub(super) struct Running<N, R> {
    pub(super) driver: Driver<N>,
    pub(super) role: R,
    pub(super) instance: Instance,
    pub(super) lock: InstanceLock,
}

impl<N: Node, R: Role<N>> Running<N, R> {
    /// Runs until SIGINT, SIGTERM or SIGUSR1.
    ///
    /// # Errors
    /// When the system fails or the TUN goes away.
    pub(super) fn run(&mut self) -> Result<(), DriverError> {
        self.driver.run(&mut self.role)
    }
}

/// Catches the signals that the loop handles and takes the instance of the TUN `name`, which may
/// use `marks`, before anything is changed, so that no signal leaves changes behind.
///
/// # Errors
/// When the instance runs already, or the name is none.
pub(super) fn take_instance(
    name: &str,
    marks: Marks,
) -> Result<(Signals, Instance, InstanceLock), DeviceError> {
    let signals =
        Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Restart, Signal::Hangup])?;
    let instance = Instance::new(name)?.with_marks(marks);
    let lock = instance.lock()?;
    Ok((signals, instance, lock))
}

impl<N: Node> Driver<N> {
    /// Joins `node` with `edge`, and opens the local socket of `instance`.
    ///
    /// # Errors
    /// When the local socket cannot be opened, or the system has no more of what it takes.
    pub(super) fn new(
        instance: &Instance,
        signals: Signals,
        edge: Edge,
        node: N,
    ) -> Result<Self, DeviceError> {
        Self::with_waker(instance, signals, Waker::new()?, edge, node)
    }

    /// As [`Driver::new`], where somebody has had the waker before.
    ///
    /// # Errors
    /// As there.
    pub(super) fn with_waker(
        instance: &Instance,
        signals: Signals,
        waker: Waker,
        edge: Edge,
        node: N,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        let local = LocalServer::start(instance, waker.clone())?;
        poller.add(&signals, SIGNALS, Interest::Read)?;
        let (tun_name, manager) = (TunName::default(), ServiceManager::of_environment());
        let outside = Outside { signals, local, tun_name, manager };
        Self::join(node, edge, poller, waker, Some(outside))
    }

    /// Joins `node` with `edge` in a thread beside the one that signals and callers speak to;
    /// `waker` wakes it.
    ///
    /// # Errors
    /// When the system has no more of what it takes.
    pub(super) fn inside(waker: Waker, edge: Edge, node: N) -> Result<Self, DeviceError> {
        Self::join(node, edge, Poller::new()?, waker, None)
    }

    fn join(
        node: N,
        edge: Edge,
        poller: Poller,
        waker: Waker,
        outside: Option<Outside>,
    ) -> Result<Self, DeviceError> {
        if let Some(tun) = edge.tun() {
            poller.add(tun, TUN, Interest::Read)?;
        }
        poller.add(&waker, WAKER, Interest::Read)?;
        let (courtesy, cadence) = (Courtesy::default(), Cadence::default());
        let pauses = Pauses::new(Readings::take());
        let restarts = false;
        Ok(Self { node, edge, poller, restarts, pauses, courtesy, cadence, waker, outside })
    }

    /// Tells figures over HTTP from now on, if there is a listener for them.
    ///
    /// # Errors
    /// When the system has no thread.
    pub(super) fn serve_metrics(
        &self,
        listener: Option<MetricsListener>,
    ) -> Result<(), DeviceError> {
        match (listener, &self.outside) {
            (Some(listener), Some(outside)) => listener.start(outside.local.sender()),
            _ => Ok(()),
        }
    }

    /// Those who want to be told without asking, if any may.
    pub(super) fn subscribers(&self) -> Option<&Subscribers> {
        self.outside.as_ref().map(|outside| outside.local.subscribers())
    }

    /// What wakes the loop, for a thread of the role.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Calls [`Role::on_ready`] when `source` is readable.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn watch(&self, source: impl AsFd, token: Token) -> Result<(), DeviceError> {
        self.poller.add(source, token, Interest::Read)
    }

    /// Sends and receives by `socket` for an uplink from now on; a server's only socket is of none.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn add_socket(
        &mut self,
        uplink: Option<UplinkId>,
        socket: UplinkSocket,
    ) -> Result<(), DeviceError> {
        self.poller.add(&socket, token_of(uplink), Interest::Read)?;
        self.edge.sockets.insert(uplink, socket);
        Ok(())
    }

    /// Sends by `socket` for `uplink` from now on, and listens at the one before until the next
    /// change.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn change_socket(
        &mut self,
        uplink: UplinkId,
        socket: UplinkSocket,
    ) -> Result<(), DeviceError> {
        self.poller.add(&socket, token_of(Some(uplink)), Interest::Read)?;
        let former = self.edge.sockets.insert(Some(uplink), socket);
        self.edge.former_sockets.extend(former.map(|former| (uplink, former)));
        Ok(())
    }

    /// Sends what the node has for the network, without a turn.
    pub(super) fn flush(&mut self) {
        flush(&mut self.node, &mut self.edge);
    }

    /// Gives the TUN what the node has for it, without a turn.
    pub(super) fn deliver(&mut self) {
        deliver(&mut self.node, &mut self.edge);
    }

    /// Runs until SIGINT, SIGTERM or SIGUSR1, or until the role says that it is over.
    ///
    /// # Errors
    /// When the system fails or the TUN goes away.
    pub(super) fn run(&mut self, role: &mut impl Role<N>) -> Result<(), DriverError> {
        role.on_start(self);
        self.outside.iter_mut().for_each(|outside| outside.manager.on_ready());
        loop {
            let timeouts = [self.node.poll_timeout(), role.poll_timeout()];
            let alone = role.feedback_alone_since(&self.node);
            let ready = self.wait(timeouts.into_iter().flatten().min(), alone)?;
            let now = self.edge.clock.now();
            if let Some(pause) = self.pauses.on_turn(Readings::take()) {
                let discarded = self.edge.discard_inner()?;
                role.on_pause(self, now, &pause, discarded);
            }
            role.before_packets(self, now);
            for event in ready {
                match event.token {
                    TUN => self.read_tun(now)?,
                    SIGNALS => {
                        if self.take_signals(now, role) {
                            self.outside.iter_mut().for_each(|outside| outside.manager.on_stop());
                            return Ok(());
                        }
                    }
                    WAKER => {
                        self.waker.clear();
                        role.on_wake(self, now);
                        self.answer(now, role);
                    }
                    ONLY_SOCKET => self.read_socket(now, None, role),
                    token => match uplink_of(token) {
                        Some(uplink) => self.read_socket(now, Some(uplink), role),
                        None => role.on_ready(self, now, &event),
                    },
                }
            }
            self.catch_up(now, role);
            if let (Some(outside), Some(tun)) = (&mut self.outside, self.edge.tun()) {
                outside.tun_name.handle_timeout(now, tun);
            }
            role.handle_timeout(self, now);
            turn(&mut self.node, &mut self.edge);
            for uplink in std::mem::take(&mut self.edge.gone) {
                role.on_interface_gone(self, now, uplink);
            }
            role.handle_events(self, now);
            if let Some(outside) = &mut self.outside {
                let turns = || role.take_turns(&self.node);
                outside.manager.handle_timeout(now, turns, || role.in_a_line(&self.node));
            }
            if role.is_over() {
                return Ok(());
            }
        }
    }

    /// Waits until something is ready, or until `timeout`, and no longer than a turn may take;
    /// returns what is. `alone` is that of [`Role::feedback_alone_since`].
    fn wait(
        &mut self,
        timeout: Option<Instant>,
        alone: Option<Instant>,
    ) -> Result<Vec<Event>, DeviceError> {
        let failed = |error| DeviceError::system("wait for events", error);
        let now = self.edge.clock.now();
        let timeout = timeout.and_then(|at| Clock::until(now, at)).unwrap_or(TURN_MAX);
        let mut timeout = timeout.min(TURN_MAX);
        let patience = alone.map_or(Duration::ZERO, |since| self.cadence.patience(now, since));
        if let Some(tun) = self.edge.tun().filter(|_| !patience.is_zero()) {
            wait_readable(tun, patience.min(timeout)).map_err(failed)?;
            timeout = timeout.saturating_sub(self.edge.clock.now().since(now));
        }
        Ok(self.poller.wait(Some(timeout)).map_err(failed)?.to_vec())
    }

    /// Reads what came from the TUN, and what comes while others have the core.
    fn read_tun(&mut self, now: Instant) -> Result<(), DriverError> {
        self.cadence.on_packets(now);
        self.edge.read_tun(|packet| self.node.handle_inner(now, packet))?;
        let began = self.edge.clock.now();
        if self.courtesy.is_due(began) {
            rustix::thread::sched_yield();
            self.courtesy.on_yielded(began, self.edge.clock.now());
            self.edge.read_tun(|packet| self.node.handle_inner(now, packet))?;
        }
        Ok(())
    }

    fn read_socket<R: Role<N>>(&mut self, now: Instant, uplink: Option<UplinkId>, role: &mut R) {
        if let Err(error) = self.edge.read_socket(now, uplink, &mut self.node) {
            role.on_socket_failed(self, now, uplink, &error);
        }
        if R::DELIVERS_BY_SOCKET {
            self.deliver();
        }
    }

    /// Reads what has come since the turn began at `began`, if others have had the core meanwhile:
    /// the node takes the silence of a packet that lies here for the network's.
    fn catch_up<R: Role<N>>(&mut self, began: Instant, role: &mut R) {
        let now = self.edge.clock.now();
        if now.since(began) < TURN_LATE {
            return;
        }
        let sockets: Vec<_> = self.edge.sockets.keys().copied().collect();
        sockets.into_iter().for_each(|uplink| self.read_socket(now, uplink, role));
    }

    /// Returns whether the program is to end.
    fn take_signals(&mut self, now: Instant, role: &mut impl Role<N>) -> bool {
        while let Some(signal) = self.outside.as_mut().and_then(|it| it.signals.take()) {
            match signal {
                Signal::Interrupt | Signal::Terminate => return true,
                Signal::Restart => {
                    self.restarts = true;
                    return true;
                }
                Signal::Hangup => role.on_hangup(self, now),
                Signal::Child => {}
            }
        }
        false
    }

    fn answer(&mut self, now: Instant, role: &mut impl Role<N>) {
        // One in a turn, so that whoever asks often keeps no packet waiting.
        let request = self.outside.as_mut().and_then(|it| it.local.poll_request());
        if let Some(request) = request {
            match request.method.as_str() {
                "status" => request.answer_status(role.status(self)),
                "summary" => request.answer_status(role.summary(self)),
                "reload" => role.on_reload(self, now, request),
                method => {
                    let answer = role.handle_request(self, now, method, &request.params);
                    request.answer(answer);
                }
            }
            self.waker.wake();
        }
    }

    /// The status of this node, with what it shares with those of other roles. `drops` are those
    /// that the role has counted.
    pub(super) fn status(&self, name: String, mut drops: DropCounters, role: RoleStatus) -> Status {
        drops.merge(&self.edge.drops);
        let device = self.edge.tun().map(Tun::statistics).unwrap_or_default();
        Status {
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.edge.clock.now().since(Instant::ZERO).as_secs_f64(),
            tun: self.edge.tun_name().to_owned(),
            device: DeviceCounters {
                packets_read: device.packets_read,
                bytes_read: device.bytes_read,
                packets_written: device.packets_written,
                bytes_written: device.bytes_written,
            },
            log: LogCounters { lines_lost: roadweave_log::lines_lost() },
            drops,
            fleet: None,
            role,
        }
    }
}

/// A turn that takes so long to read what has come was stopped, or has read much.
const TURN_LATE: Duration = Duration::from_millis(1);

const TUN: Token = Token(0);
const SIGNALS: Token = Token(1);
const WAKER: Token = Token(2);
/// The interface monitor of a client.
pub(super) const MONITOR: Token = Token(3);
/// What the routers of a client's uplinks say.
pub(super) const ROUTERS: Token = Token(4);
/// From here on the tokens of connections of applications.
pub(super) const STREAMS: Token = Token(1 << 57);
/// A server's socket.
const ONLY_SOCKET: Token = Token(5);
/// Sockets of uplinks have this and the numbers after it.
const SOCKETS: u64 = 16;

fn token_of(uplink: Option<UplinkId>) -> Token {
    uplink.map_or(ONLY_SOCKET, |uplink| Token(SOCKETS + u64::from(uplink.0)))
}

fn uplink_of(token: Token) -> Option<UplinkId> {
    let number = token.0.checked_sub(SOCKETS)?;
    u32::try_from(number).ok().map(UplinkId)
}
