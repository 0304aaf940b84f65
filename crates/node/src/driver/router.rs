//! The redundant router's role in the event loop: its sockets follow interfaces.

use std::time::Duration;

use ipnet::IpNet;
use roadweave_config::{LinkSocket, RouterFile};
use roadweave_linux::pauses::Pause;
use roadweave_linux::privileges::{self, Needs};
use roadweave_linux::{
    Clock, DeviceError, FilterKeeper, Forwarding, RouteKeeper, Routes, Tun, UdpOptions,
    UplinkSocket, Waker, cleanup, random_bytes,
};
use roadweave_proto::{Instant, Marks, PathStatus, UplinkId};
use roadweave_tunnel::{Router, RouterConfig, RouterEvent};

use super::edge::Edge;
use super::event_loop::{Driver, LoopRole, RunningNode, take_instance};
use super::from_config::tun_options;
use super::repeat_limiter::RepeatLimiter;
use super::{DriverError, filters_of, lead_into};
use crate::metrics::MetricsListener;
use crate::status::{RoleStatus, RouterRoleStatus, RouterSession, SocketStatus, Status};

const SOCKET_RETRY: Duration = Duration::from_secs(2);

/// Runs a router until SIGINT or SIGTERM. If it cannot start, everything it had set up is removed.
pub fn run_router(file: RouterFile) -> Result<(), DriverError> {
    start(file)?.run()?;
    tracing::info!("the router stops");
    Ok(())
}

struct RouterRole {
    options: Vec<LinkSocket>,
    next_retry: Option<Instant>,
    repeat_limiter: RepeatLimiter,
    addresses: Vec<IpNet>,
    // Fields are dropped in this order.
    _filters: FilterKeeper,
    routes: RouteKeeper,
}

fn start(file: RouterFile) -> Result<RunningNode<Router, RouterRole>, DriverError> {
    let (sockets, links) = file.links();
    let config = RouterConfig {
        vni: file.vni.get() as u32,
        epoch: u32::from_be_bytes(random_bytes()?),
        hello_begin_us: u32::from_be_bytes(random_bytes()?),
        order: file.order(),
        links,
        inner_sources: (!file.accept_sources.is_empty()).then_some(file.accept_sources),
    };
    let (signals, instance, lock) = take_instance(file.tun.name.as_str(), Marks::default())?;
    cleanup(&instance, &lock)?;
    let clock = Clock::start();
    let router = Router::new(config)?;
    let metrics = file.metrics.map(|metrics| MetricsListener::bind(metrics.listen));
    let tun = Tun::open(&tun_options(&file.tun, &file.addresses))?;
    // Sockets are reopened when their interface returns.
    let low_ports = sockets.iter().any(|socket| socket.listen.port() < 1024);
    // Before the first thread starts: threads inherit the restrictions.
    privileges::restrict(&Needs { low_ports, ..Needs::default() })?;
    let mut routes = Routes::open(&instance)?;
    lead_into(&mut routes, tun.index(), &file.into_tunnel);
    routes.keep_tun(&tun, &file.addresses);
    let routes = RouteKeeper::start(routes)?;
    let mut filters = FilterKeeper::start(&instance, None)?;
    // Clamps the MSS both ways (paper, section IV-A). Routes and firewall decide on forwarding.
    filters.set_and_wait(filters_of(&tun, Marks::default(), Forwarding::Open))?;
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let edge = Edge::new(clock, Some(tun));
    let mut driver = Driver::new(Some((&instance, signals, metrics)), Waker::new()?, edge, router)?;
    let mut role = RouterRole {
        options: sockets,
        next_retry: None,
        repeat_limiter: RepeatLimiter::default(),
        addresses: file.addresses,
        _filters: filters,
        routes,
    };
    role.open_first(&mut driver)?;
    tracing::warn!(
        "this tunnel neither encrypts nor authenticates packets: use it on a trusted network, or \
         for traffic that is protected itself"
    );
    tracing::info!(tun = driver.edge.tun_name(), mtu, ?offload, "the router runs");
    Ok(RunningNode { driver, role, instance, lock })
}

impl LoopRole<Router> for RouterRole {
    const DELIVERS_BY_SOCKET: bool = true;

    fn poll_timeout(&self) -> Option<Instant> {
        self.next_retry
    }

    fn on_pause(&mut self, _: &mut Driver<Router>, _: Instant, pause: &Pause, discarded: u64) {
        tracing::warn!(discarded, "{pause}; queued packets are discarded");
    }

    fn on_hangup(&mut self, _: &mut Driver<Router>, _: Instant) {
        tracing::warn!("SIGHUP is ignored: a router reads its configuration only when it starts");
    }

    fn on_socket_failed(
        &mut self,
        driver: &mut Driver<Router>,
        now: Instant,
        uplink: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        tracing::warn!(%error, "a socket failed; it is reopened");
        self.close(driver, now, uplink);
    }

    fn on_interface_gone(&mut self, driver: &mut Driver<Router>, now: Instant, uplink: UplinkId) {
        let interface = &self.options[uplink.0 as usize].interface;
        if interface.is_some() {
            tracing::warn!(interface, "interface is gone");
            self.close(driver, now, Some(uplink));
        }
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Router>, now: Instant) {
        if self.next_retry.is_some_and(|at| at <= now) {
            self.retry(driver, now);
        }
    }

    fn handle_events(&mut self, driver: &mut Driver<Router>, _: Instant) {
        while let Some(event) = driver.node.poll_event() {
            log_event(event);
        }
    }

    fn status(&mut self, driver: &mut Driver<Router>) -> Status {
        let session = RouterSession {
            peer: "the other router".to_owned(),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            status: driver.node.status(),
        };
        let socket =
            |(at, options)| socket_status(driver.edge.sockets.get(&Some(UplinkId(at))), options);
        let sockets = (0..).zip(&self.options).map(socket).collect();
        let role = RouterRoleStatus { sessions: vec![session], sockets };
        let (name, drops) = (driver.edge.tun_name().to_owned(), driver.node.drops().clone());
        driver.status(name, drops, RoleStatus::Router(role))
    }
}

impl RouterRole {
    /// Waits for missing interfaces and addresses; other failures are errors.
    fn open_first(&mut self, driver: &mut Driver<Router>) -> Result<(), DeviceError> {
        for at in 0..self.options.len() {
            match self.open(driver, at) {
                Err(error) if is_away(&error) => {
                    tracing::warn!("{error}; waiting for it");
                    self.next_retry = Some(Instant::ZERO + SOCKET_RETRY);
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn open(&mut self, driver: &mut Driver<Router>, at: usize) -> Result<(), DeviceError> {
        let LinkSocket { listen, interface } = &self.options[at];
        // A link's packets arrive by its own interface, even if the route to the peer uses another.
        if let Some(interface) = interface
            && let Err(error) = self.routes.lock().loosen_reverse_path_filter(interface)
        {
            tracing::debug!(%error, "the reverse path filter of an interface is unchanged");
        }
        let options = UdpOptions { interface: interface.clone(), ..UdpOptions::server(*listen) };
        driver.add_socket(Some(UplinkId(at as u32)), UplinkSocket::open(&options)?)?;
        tracing::info!(%listen, interface, "listening");
        Ok(())
    }

    fn close(&mut self, driver: &mut Driver<Router>, now: Instant, socket: Option<UplinkId>) {
        driver.edge.sockets.remove(&socket);
        self.next_retry = Some(now + SOCKET_RETRY);
    }

    fn retry(&mut self, driver: &mut Driver<Router>, now: Instant) {
        self.next_retry = None;
        for at in 0..self.options.len() {
            if driver.edge.sockets.contains_key(&Some(UplinkId(at as u32))) {
                continue;
            }
            match self.open(driver, at) {
                Ok(()) => self.repeat_limiter.settle(at as u32),
                Err(error) => {
                    let text = error.to_string();
                    if !is_away(&error) && self.repeat_limiter.admit(now, at as u32, &text) {
                        tracing::warn!("{error}; trying again");
                    }
                    self.next_retry = Some(now + SOCKET_RETRY);
                }
            }
        }
    }
}

fn is_away(error: &DeviceError) -> bool {
    matches!(error, DeviceError::NoInterface { .. } | DeviceError::AddressNotHere { .. })
}

fn log_event(event: RouterEvent) {
    match event {
        RouterEvent::PeerHeard => tracing::info!("the other router answers"),
        RouterEvent::PeerRestarted => tracing::info!("the other router restarted"),
        RouterEvent::LinkMoved { name, remote, times } => {
            tracing::info!(
                link = name,
                %remote,
                times,
                "learned the address of the other end of a link"
            );
        }
        RouterEvent::LinkStatus { name, status: PathStatus::Usable, times } => {
            tracing::info!(link = name, times, event = "path-back", "link answers");
        }
        RouterEvent::LinkStatus { name, times, .. } => {
            tracing::warn!(link = name, times, event = "path-silent", "link is silent");
        }
    }
}

fn socket_status(socket: Option<&UplinkSocket>, options: &LinkSocket) -> SocketStatus {
    let statistics = socket.map(UplinkSocket::statistics);
    SocketStatus {
        listen: options.listen.to_string(),
        interface: options.interface.clone(),
        open: socket.is_some(),
        sends: statistics.map(|counts| counts.sends),
        receives: statistics.map(|counts| counts.receives),
        send_failures: statistics.map(|counts| counts.failed.iter().sum()),
    }
}
