//! The event loop: it connects a sans-IO node with the TUN, sockets and the clock, in one thread.
//!
//! ```text
//! Poller ─► TUN readable     ─► handle_inner  ┐
//!        ─► socket readable  ─► handle_packet ├─► turn: TUN ◄─ handle_timeout ─► sockets
//!        ─► timeout          ─────────────────┘
//!        ─► monitor, signals, requests ─► role: uplinks, routes, settings, status
//! ```
//!
//! A turn reads everything readable, then turns the node once, so that packets leave in runs (GSO).

use std::os::fd::AsFd;
use std::time::Duration;

use roadweave_linux::pauses::{Pause, Pauses, Readings, TURN_MAX};
use roadweave_linux::{
    Clock, DeviceError, Event, Instance, InstanceLock, Interest, Poller, Signal, Signals, Token,
    Tun, UplinkSocket, Waker, wait_readable,
};
use roadweave_proto::{DropCounters, Instant, Marks, UplinkId};
use roadweave_tunnel::{Node, deliver, flush, turn};
use serde_json::Value;

use super::DriverError;
use super::ack_coalescing::AckCoalescing;
use super::edge::Edge;
use super::service_manager::ServiceManager;
use super::tun_name::TunName;
use super::yield_policy::YieldPolicy;
use crate::local::{LocalRequest, LocalServer, RpcError, Subscribers};
use crate::metrics::MetricsListener;
use crate::status::{LogCounters, RoleStatus, Status};

pub(super) trait LoopRole<N: Node> {
    /// Whether each socket's inner packets go to the TUN before the next socket is read.
    const DELIVERS_BY_SOCKET: bool = false;

    fn on_start(&mut self, _driver: &mut Driver<N>) {}

    fn poll_timeout(&self) -> Option<Instant>;

    /// Since when only feedback has arrived, which may be read a little later; `None` if unknown.
    fn feedback_alone_since(&self, _node: &N) -> Option<Instant> {
        None
    }

    /// The machine slept or the program stalled; `discarded` inner packets were queued by then.
    fn on_pause(&mut self, driver: &mut Driver<N>, now: Instant, pause: &Pause, discarded: u64);

    fn before_packets(&mut self, _driver: &mut Driver<N>, _now: Instant) {}

    fn on_hangup(&mut self, driver: &mut Driver<N>, now: Instant);

    fn on_wake(&mut self, _driver: &mut Driver<N>, _now: Instant) {}

    fn on_ready(&mut self, _driver: &mut Driver<N>, _now: Instant, _event: &Event) {}

    fn on_socket_failed(
        &mut self,
        driver: &mut Driver<N>,
        now: Instant,
        uplink: Option<UplinkId>,
        error: &std::io::Error,
    );

    fn on_interface_gone(&mut self, _driver: &mut Driver<N>, _now: Instant, _uplink: UplinkId) {}

    fn handle_timeout(&mut self, driver: &mut Driver<N>, now: Instant);

    fn is_over(&self) -> bool {
        false
    }

    fn handle_events(&mut self, driver: &mut Driver<N>, now: Instant);

    /// Whether all other required threads have turned since the last `true`, for the watchdog.
    fn take_turns(&self, _node: &N) -> bool {
        true
    }

    fn status_line(&self, _node: &N) -> String {
        String::new()
    }

    fn status(&mut self, driver: &mut Driver<N>) -> Status;

    fn summary(&mut self, driver: &mut Driver<N>) -> Status {
        self.status(driver)
    }

    fn on_reload(&mut self, _driver: &mut Driver<N>, _now: Instant, request: LocalRequest) {
        let none = RpcError::method_not_found(&request.method);
        request.answer(Err(none));
    }

    fn handle_request(
        &mut self,
        _driver: &mut Driver<N>,
        _now: Instant,
        method: &str,
        _params: &Value,
    ) -> Result<Value, RpcError> {
        Err(RpcError::method_not_found(method))
    }
}

pub(super) struct Driver<N> {
    pub(super) node: N,
    pub(super) edge: Edge,
    pub(super) poller: Poller,
    pub(super) restarts: bool,
    pauses: Pauses,
    yield_policy: YieldPolicy,
    ack_coalescing: AckCoalescing,
    waker: Waker,
    /// `None` in a loop that another loop of the program controls.
    outside: Option<Outside>,
}

struct Outside {
    signals: Signals,
    local: LocalServer,
    tun_name: TunName,
    manager: ServiceManager,
}

/// A running node. Fields are dropped in this order, so that the lock is released last.
pub(super) struct RunningNode<N, R> {
    pub(super) driver: Driver<N>,
    pub(super) role: R,
    pub(super) instance: Instance,
    pub(super) lock: InstanceLock,
}

impl<N: Node, R: LoopRole<N>> RunningNode<N, R> {
    pub(super) fn run(&mut self) -> Result<(), DriverError> {
        self.driver.run(&mut self.role)
    }
}

/// Comes before any change to the machine, so that no signal leaves changes behind.
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
    pub(super) fn new(
        outside: Option<(&Instance, Signals, Option<MetricsListener>)>,
        waker: Waker,
        edge: Edge,
        node: N,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        let open = |(instance, signals, metrics): (_, Signals, Option<MetricsListener>)| {
            let local = LocalServer::start(instance, waker.clone())?;
            poller.add(&signals, SIGNALS, Interest::Read)?;
            metrics.map(|listener| listener.start(local.sender())).transpose()?;
            let (tun_name, manager) = (
                TunName::default(),
                ServiceManager::of(|name| std::env::var(name).unwrap_or_default()),
            );
            Ok::<_, DeviceError>(Outside { signals, local, tun_name, manager })
        };
        let outside = outside.map(open).transpose()?;
        if let Some(tun) = edge.tun() {
            poller.add(tun, TUN, Interest::Read)?;
        }
        poller.add(&waker, WAKER, Interest::Read)?;
        let (yield_policy, ack_coalescing) = (YieldPolicy::default(), AckCoalescing::default());
        let pauses = Pauses::new(Readings::take());
        let restarts = false;
        Ok(Self {
            node,
            edge,
            poller,
            restarts,
            pauses,
            yield_policy,
            ack_coalescing,
            waker,
            outside,
        })
    }

    pub(super) fn subscribers(&self) -> Option<&Subscribers> {
        self.outside.as_ref().map(|outside| outside.local.subscribers())
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub(super) fn watch(&self, source: impl AsFd, token: Token) -> Result<(), DeviceError> {
        self.poller.add(source, token, Interest::Read)
    }

    pub(super) fn add_socket(
        &mut self,
        uplink: Option<UplinkId>,
        socket: UplinkSocket,
    ) -> Result<(), DeviceError> {
        self.poller.add(&socket, token_of(uplink), Interest::Read)?;
        self.edge.sockets.insert(uplink, socket);
        Ok(())
    }

    /// Replaces the socket of `uplink`. The former one is still read until the next change.
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

    pub(super) fn flush(&mut self) {
        flush(&mut self.node, &mut self.edge);
    }

    pub(super) fn deliver(&mut self) {
        deliver(&mut self.node, &mut self.edge);
    }

    pub(super) fn run(&mut self, role: &mut impl LoopRole<N>) -> Result<(), DriverError> {
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
                outside.manager.handle_timeout(now, turns, || role.status_line(&self.node));
            }
            if role.is_over() {
                return Ok(());
            }
        }
    }

    /// Waits at most [`TURN_MAX`]. `alone` is [`LoopRole::feedback_alone_since`].
    fn wait(
        &mut self,
        timeout: Option<Instant>,
        alone: Option<Instant>,
    ) -> Result<Vec<Event>, DeviceError> {
        let failed = |error| DeviceError::system("wait for events", error);
        let now = self.edge.clock.now();
        let timeout = timeout.and_then(|at| Clock::until(now, at)).unwrap_or(TURN_MAX);
        let mut timeout = timeout.min(TURN_MAX);
        let delay = alone.map_or(Duration::ZERO, |since| self.ack_coalescing.delay(now, since));
        if let Some(tun) = self.edge.tun().filter(|_| !delay.is_zero()) {
            wait_readable(tun, delay.min(timeout)).map_err(failed)?;
            timeout = timeout.saturating_sub(self.edge.clock.now().since(now));
        }
        Ok(self.poller.wait(Some(timeout)).map_err(failed)?.to_vec())
    }

    fn read_tun(&mut self, now: Instant) -> Result<(), DriverError> {
        self.ack_coalescing.on_packets(now);
        if self.yield_policy.is_due(now) {
            // What came with the first packet is read with what comes meanwhile.
            self.edge.read_tun(1, |packet| self.node.handle_inner(now, packet))?;
            let began = self.edge.clock.now();
            rustix::thread::sched_yield();
            self.yield_policy.on_yielded(began, self.edge.clock.now());
        }
        self.edge.read_tun(Tun::READS_MAX, |packet| self.node.handle_inner(now, packet))
    }

    fn read_socket<R: LoopRole<N>>(
        &mut self,
        now: Instant,
        uplink: Option<UplinkId>,
        role: &mut R,
    ) {
        if let Err(error) = self.edge.read_socket(now, uplink, &mut self.node) {
            role.on_socket_failed(self, now, uplink, &error);
        }
        if R::DELIVERS_BY_SOCKET {
            self.deliver();
        }
    }

    /// Reads again if this turn was interrupted, or waiting packets would pass for silence.
    fn catch_up<R: LoopRole<N>>(&mut self, began: Instant, role: &mut R) {
        let now = self.edge.clock.now();
        if now.since(began) < TURN_LATE {
            return;
        }
        let sockets: Vec<_> = self.edge.sockets.keys().copied().collect();
        sockets.into_iter().for_each(|uplink| self.read_socket(now, uplink, role));
    }

    fn take_signals(&mut self, now: Instant, role: &mut impl LoopRole<N>) -> bool {
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

    fn answer(&mut self, now: Instant, role: &mut impl LoopRole<N>) {
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

    pub(super) fn status(&self, name: String, mut drops: DropCounters, role: RoleStatus) -> Status {
        drops.merge(&self.edge.drops);
        Status {
            name,
            version: roadweave_proto::VERSION.to_owned(),
            uptime_seconds: self.edge.clock.now().since(Instant::ZERO).as_secs_f64(),
            tun: self.edge.tun_name().to_owned(),
            device: self.edge.device_counters(),
            log: LogCounters { lines_lost: roadweave_log::lines_lost() },
            drops,
            fleet: None,
            role,
        }
    }
}

/// A longer read means that the turn was interrupted, or has read much.
const TURN_LATE: Duration = Duration::from_millis(1);

const TUN: Token = Token(0);
const SIGNALS: Token = Token(1);
const WAKER: Token = Token(2);
pub(super) const MONITOR: Token = Token(3);
pub(super) const ROUTERS: Token = Token(4);
pub(super) const STREAMS: Token = Token(1 << 57);
const ONLY_SOCKET: Token = Token(5);
const SOCKETS: u64 = 16;

fn token_of(uplink: Option<UplinkId>) -> Token {
    uplink.map_or(ONLY_SOCKET, |uplink| Token(SOCKETS + u64::from(uplink.0)))
}

fn uplink_of(token: Token) -> Option<UplinkId> {
    let number = token.0.checked_sub(SOCKETS)?;
    u32::try_from(number).ok().map(UplinkId)
}
