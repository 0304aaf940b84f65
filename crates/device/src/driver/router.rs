//! The redundant router's event loop.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_tunnel::{Node as _, Router, RouterConfig, RouterEvent};
use roadweave_types::{DropCounters, DropReason, Instant, PathStatus, UplinkId};
use serde_json::{Value, json};

use super::complaints::Complaints;
use super::tun_name::TunName;
use super::{
    CONTROL, DriverError, SIGNALS, SOCKETS, TUN, TunSettings, discard_inner, lead_into_tun, meta,
    read_tun, send_all, status, to_prefix, wait, write_inner,
};
use crate::control::{ControlServer, RpcError};
use crate::pauses::{Pauses, Readings};
use crate::privileges::{self, Needs};
use crate::{
    Clock, DeviceError, FilterKeeper, FilterOptions, Forwarding, Instance, InstanceLock, Interest,
    Poller, Prefix, RouteKeeper, Routes, SendFailure, SendOutcome, Signal, Signals, Token, Tun,
    TunOptions, UdpOptions, UplinkSocket, Waker, cleanup,
};

/// Sockets that could not be opened, or whose interface is gone, are tried again this often.
const SOCKET_RETRY: Duration = Duration::from_secs(2);

/// A socket of the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSocket {
    /// The address that it is bound to.
    pub listen: SocketAddr,
    /// The interface that it is bound to, whatever the routes say.
    pub interface: Option<String>,
}

/// What a router is started with.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// The tunnel's own settings; links name their sockets by their place in `sockets`.
    pub config: RouterConfig,
    /// The sockets.
    pub sockets: Vec<RouterSocket>,
    /// This side's inner addresses.
    pub addresses: Vec<IpNet>,
    /// The TUN device.
    pub tun: TunSettings,
    /// Destinations that are routed into the tunnel.
    pub into_tunnel: Vec<IpNet>,
}

/// Runs a router until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start; what it set up by then is removed.
pub fn run_router(options: RouterOptions) -> Result<(), DriverError> {
    let mut driver = Driver::start(options)?;
    driver.run()?;
    tracing::info!("the router stops");
    Ok(())
}

struct Driver {
    clock: Clock,
    pauses: Pauses,
    poller: Poller,
    signals: Signals,
    control: ControlServer,
    waker: Waker,
    router: Router,
    options: Vec<RouterSocket>,
    /// By their place in `options`; `None` while one cannot be opened.
    sockets: Vec<Option<UplinkSocket>>,
    next_retry: Option<Instant>,
    complaints: Complaints,
    tun: Tun,
    tun_name: TunName,
    addresses: Vec<IpNet>,
    drops: DropCounters,
    // Dropped in this order: what they set up is removed before the instance's lock.
    _filters: FilterKeeper,
    routes: RouteKeeper,
    _lock: InstanceLock,
}

impl Driver {
    fn start(options: RouterOptions) -> Result<Self, DriverError> {
        // Before anything is changed, so that no signal leaves changes behind.
        let signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let instance = Instance::new(&options.tun.name)?;
        let lock = instance.lock()?;
        cleanup(&instance, &lock)?;
        let clock = Clock::start();
        let poller = Poller::new()?;
        let router = Router::new(options.config)?;
        let addresses: Vec<Prefix> = options.addresses.iter().copied().map(to_prefix).collect();
        let tun = Tun::open(&TunOptions {
            name: options.tun.name.clone(),
            mtu: options.tun.mtu,
            addresses: addresses.clone(),
            offload: options.tun.offload,
        })?;
        // Its sockets are opened again when their interface returns.
        let low_ports = options.sockets.iter().any(|socket| socket.listen.port() < 1024);
        // Before the first thread: those that follow inherit it.
        privileges::restrict(&Needs { low_ports, ..Needs::default() })?;
        let mut routes = Routes::open(&instance)?;
        let destinations: Vec<Prefix> = options.into_tunnel.into_iter().map(to_prefix).collect();
        lead_into_tun(&mut routes, &tun, &destinations);
        routes.keep_addresses(tun.index(), &addresses);
        let routes = RouteKeeper::start(routes)?;
        let mut filters = FilterKeeper::start(&instance)?;
        filters.set_and_wait(filter_options(&tun))?;
        let waker = Waker::new()?;
        let control = ControlServer::start(&instance, waker.clone())?;
        poller.add(&tun, TUN, Interest::Read)?;
        poller.add(&signals, SIGNALS, Interest::Read)?;
        poller.add(&waker, CONTROL, Interest::Read)?;
        let mut this = Self {
            clock,
            pauses: Pauses::new(Readings::take()),
            poller,
            signals,
            control,
            waker,
            router,
            sockets: options.sockets.iter().map(|_| None).collect(),
            options: options.sockets,
            next_retry: None,
            complaints: Complaints::default(),
            tun,
            tun_name: TunName::default(),
            addresses: options.addresses,
            drops: DropCounters::default(),
            _filters: filters,
            routes,
            _lock: lock,
        };
        this.open_first()?;
        tracing::warn!(
            "nothing that this tunnel carries is encrypted, and nothing proves who sent it: \
             use it where the networks between both routers are trusted, or carry what protects itself"
        );
        tracing::info!(
            tun = this.tun.name(),
            mtu = this.tun.mtu(),
            offload = ?this.tun.offload(),
            "the router runs"
        );
        Ok(this)
    }

    fn run(&mut self) -> Result<(), DriverError> {
        loop {
            let timeouts = [self.router.poll_timeout(), self.next_retry];
            let ready = wait(&mut self.poller, self.clock, timeouts.into_iter().flatten().min())
                .map_err(|error| DeviceError::system("wait for events", error))?;
            let now = self.clock.now();
            if let Some(pause) = self.pauses.on_turn(Readings::take()) {
                let discarded = discard_inner(&mut self.tun)?;
                self.drops.add(DropReason::QueueExpired, discarded);
                tracing::warn!(discarded, "{pause}; what waited is discarded");
            }
            for token in ready {
                match token {
                    TUN => self.read_tun(now)?,
                    SIGNALS => {
                        if self.take_signals() {
                            return Ok(());
                        }
                    }
                    CONTROL => self.answer(),
                    Token(number) => {
                        self.read_socket(now, number);
                        // Before the next socket, which most likely has the same once more.
                        self.deliver();
                    }
                }
            }
            if self.next_retry.is_some_and(|at| at <= now) {
                self.retry(now);
            }
            self.tun_name.service(now, &self.tun);
            self.router.handle_timeout(self.clock.now());
            self.flush(now);
            self.deliver();
            self.tell_events();
        }
    }

    fn read_tun(&mut self, now: Instant) -> Result<(), DriverError> {
        let router = &mut self.router;
        read_tun(&mut self.tun, |packet| router.handle_inner(now, packet))
    }

    fn read_socket(&mut self, now: Instant, number: u64) {
        let Some(at) = number.checked_sub(SOCKETS).and_then(|at| usize::try_from(at).ok()) else {
            return;
        };
        let Some(socket) = self.sockets.get_mut(at).and_then(Option::as_mut) else { return };
        let (router, socket_id) = (&mut self.router, UplinkId(at as u32));
        let received = socket.recv(|incoming| {
            router.handle_packet(now, &meta(socket_id, &incoming), incoming.payload);
        });
        if let Err(error) = received {
            tracing::warn!(%error, "a socket failed; it is opened again");
            self.close(now, at);
        }
    }

    /// Sends what waits. A packet that the kernel does not take is counted by its socket and lost,
    /// as on the network: the other links have it too.
    fn flush(&mut self, now: Instant) {
        let sockets = &mut self.sockets;
        let (mut homeless, mut gone) = (0, Vec::new());
        while let Some(outbox) = self.router.poll_transmit() {
            homeless += send_all(&outbox, |uplink, outgoing| {
                let at = uplink?.0 as usize;
                let outcome = sockets.get_mut(at)?.as_mut()?.send(outgoing);
                if outcome == SendOutcome::Failed(SendFailure::NoInterface) {
                    gone.push(at);
                }
                Some(outcome)
            });
        }
        self.drops.add(DropReason::SendFailed, homeless);
        gone.dedup();
        for at in gone {
            // An interface that comes back under its old name is a new one: the socket is dead.
            if self.options[at].interface.is_some() {
                tracing::warn!(interface = self.options[at].interface, "interface is gone");
                self.close(now, at);
            }
        }
    }

    /// Hands what came from the peer to the TUN.
    fn deliver(&mut self) {
        let router = &mut self.router;
        let refused = write_inner(&mut self.tun, || router.poll_inner());
        self.drops.add(DropReason::DeviceFull, refused);
    }

    /// Opens all sockets. One whose interface is not there yet is waited for; what will not get
    /// better by waiting is an error.
    fn open_first(&mut self) -> Result<(), DeviceError> {
        for at in 0..self.options.len() {
            match self.open(at) {
                Err(
                    error @ (DeviceError::NoInterface { .. } | DeviceError::AddressNotHere { .. }),
                ) => {
                    tracing::warn!("{error}; it is waited for");
                    self.next_retry = Some(Instant::ZERO + SOCKET_RETRY);
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn open(&mut self, at: usize) -> Result<(), DeviceError> {
        let RouterSocket { listen, interface } = &self.options[at];
        // A link's packets come by its own interface, though the peer may be nearer by another.
        if let Some(interface) = interface
            && let Err(error) = self.routes.lock().loosen_reverse_path_filter(interface)
        {
            tracing::debug!(%error, "the reverse path filter of an interface stays as it is");
        }
        let options = UdpOptions { interface: interface.clone(), ..UdpOptions::server(*listen) };
        let socket = UplinkSocket::open(&options)?;
        self.poller.add(&socket, Token(SOCKETS + at as u64), Interest::Read)?;
        tracing::info!(%listen, interface, "listening");
        self.sockets[at] = Some(socket);
        Ok(())
    }

    /// That an interface is away was told when it went.
    fn tell_waiting(&mut self, now: Instant, at: usize, error: &DeviceError) {
        let is_away =
            matches!(error, DeviceError::NoInterface { .. } | DeviceError::AddressNotHere { .. });
        if !is_away && self.complaints.admit(now, at as u32, &error.to_string()) {
            tracing::warn!("{error}; trying again");
        }
    }

    fn close(&mut self, now: Instant, at: usize) {
        self.sockets[at] = None;
        self.next_retry = Some(now + SOCKET_RETRY);
    }

    fn retry(&mut self, now: Instant) {
        self.next_retry = None;
        for at in 0..self.options.len() {
            if self.sockets[at].is_some() {
                continue;
            }
            match self.open(at) {
                Ok(()) => self.complaints.settle(at as u32),
                Err(error) => {
                    self.tell_waiting(now, at, &error);
                    self.next_retry = Some(now + SOCKET_RETRY);
                }
            }
        }
    }

    fn take_signals(&mut self) -> bool {
        while let Some(signal) = self.signals.take() {
            match signal {
                Signal::Interrupt | Signal::Terminate => return true,
                Signal::Hangup => tracing::warn!(
                    "SIGHUP changes nothing: a router reads its configuration when it starts"
                ),
                Signal::Child => {}
            }
        }
        false
    }

    fn answer(&mut self) {
        self.waker.clear();
        while let Some(request) = self.control.poll_request() {
            let answer = match request.method.as_str() {
                "status" => Ok(self.status()),
                other => Err(RpcError::method_not_found(other)),
            };
            request.answer(answer);
        }
    }

    fn status(&self) -> Value {
        let mut drops = self.router.drops().clone();
        drops.merge(&self.drops);
        let mut session = json!(self.router.status());
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        session["peer"] = json!("the other router");
        session["addresses"] = json!(addresses);
        let sockets: Vec<Value> =
            self.sockets.iter().zip(&self.options).map(socket_status).collect();
        let rest = json!({ "sessions": [session], "sockets": sockets, "drops": drops });
        let uptime = self.clock.now().since(Instant::ZERO);
        status("router", self.tun.name(), &self.tun, uptime, rest)
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.router.poll_event() {
            match event {
                RouterEvent::PeerHeard => tracing::info!("the other router answers"),
                RouterEvent::PeerRestarted => tracing::info!("the other router has started anew"),
                RouterEvent::LinkMoved { name, remote, times } => {
                    tracing::info!(link = name, %remote, times, "the other end of a link was learned");
                }
                RouterEvent::LinkStatus { name, status: PathStatus::Usable, times } => {
                    tracing::info!(link = name, times, "link answers");
                }
                RouterEvent::LinkStatus { name, times, .. } => {
                    tracing::warn!(link = name, times, "link is silent");
                }
            }
        }
    }
}

fn socket_status((socket, options): (&Option<UplinkSocket>, &RouterSocket)) -> Value {
    let statistics = socket.as_ref().map(UplinkSocket::statistics);
    json!({
        "listen": options.listen.to_string(),
        "interface": options.interface,
        "open": socket.is_some(),
        "sends": statistics.map(|counts| counts.sends),
        "receives": statistics.map(|counts| counts.receives),
        "send_failures": statistics.map(|counts| counts.failed.iter().sum::<u64>()),
    })
}

/// Segments are clamped in both directions (section IV-A of the paper); what is forwarded is the
/// machine's own routes' and firewall's affair, as on any router.
fn filter_options(tun: &Tun) -> FilterOptions {
    FilterOptions {
        tun: tun.name().to_owned(),
        mtu: tun.mtu(),
        own_addresses: Vec::new(),
        inner: Vec::new(),
        masquerade: false,
        masquerade_into_tun: None,
        forwarding: Forwarding::Open,
        forward: true,
    }
}
