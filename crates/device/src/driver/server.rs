//! The server's role in the event loop: the table of clients, the time of day, the filters.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Peer, PeerTable, Peers, Server, ServerConfig, ServerEvent};
use roadweave_types::{Instant, UplinkId};
use serde_json::Value;

use self::fleet::InFleet;
use self::presence_log::PresenceLog;
use self::reload::{Change, Reloaded, Reloader, beyond};
use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::requests;
use super::{DriverError, STATE_INTERVAL, TunSettings, lead_into, needed_files};
use crate::fleet::FleetOptions;
use crate::local::RpcError;
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::privileges::{self, Needs};
use crate::reset_salt::reset_salt;
use crate::routes::lock;
use crate::status::{RoleStatus, ServerStatus, Status};
use crate::{
    Allowed, Clock, ClockReading, DeviceError, FilterKeeper, FilterOptions, Forwarding,
    RouteKeeper, Routes, StateFile, TimeOfDay, Tun, TunOptions, UdpOptions, UplinkSocket, cleanup,
};

mod fleet;
pub(super) mod presence_log;
pub(super) mod reload;

/// How often the time of day is told to the table of peers.
pub(super) const TIME_OF_DAY: Duration = Duration::from_secs(1);
/// How often the user is told that the socket fails.
pub(super) const REMINDER: Duration = Duration::from_secs(60);

/// What of the configuration may change while the server runs.
#[derive(Clone, Debug)]
pub struct ServerReload {
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// Where clients may go.
    pub destinations: Destinations,
    /// The proxies of an anchor that may connect.
    pub proxies: Vec<(PublicKey, Peer)>,
}

/// Where clients may go through a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Where they may not, besides the server's own addresses other than inner ones.
    pub denied: Vec<IpNet>,
    /// Where they may go all the same: addresses, with one port or all.
    pub allowed: Vec<(IpNet, Option<u16>)>,
}

/// Reads the configuration again, in a thread of its own.
pub type Reload = Box<dyn FnMut() -> Result<ServerReload, String> + Send>;

/// What a server is started with.
pub struct ServerOptions {
    /// The tunnel's own settings.
    pub config: ServerConfig,
    /// The server's key pair.
    pub identity: Arc<Identity>,
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// Where figures are told over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The inner addresses, with the length of the network that clients are in.
    pub addresses: Vec<IpNet>,
    /// The TUN device.
    pub tun: TunSettings,
    /// Whether what clients send leaves with this machine's own address.
    pub masquerade: bool,
    /// Where clients may go through this server.
    pub destinations: Destinations,
    /// Where what strategies have learned is kept.
    pub state_directory: PathBuf,
    /// Files that are read again later, as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads it again, on SIGHUP; an error leaves everything as it is.
    pub reload: Reload,
    /// How it takes part in a fleet, if it belongs to one.
    pub fleet: Option<FleetOptions<()>>,
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// Runs a server until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start; what it set up by then is removed.
pub fn run_server(options: ServerOptions) -> Result<(), DriverError> {
    let mut server = start(options)?;
    server.run()?;
    let Running { driver, role, .. } = &mut server;
    role.stop(driver);
    Ok(())
}

struct ServerRole {
    peers: Arc<PeerTable>,
    reloader: Reloader,
    fleet: Option<InFleet>,
    time_of_day: TimeOfDay,
    next_time_of_day: Instant,
    state: StateFile,
    next_state: Instant,
    presence_log: PresenceLog,
    next_receive_warning: Instant,
    /// What the filters are made of, but for the clients.
    filter_options: FilterOptions,
    // Dropped in this order.
    filters: FilterKeeper,
    _routes: RouteKeeper,
    /// `None` while a thread changes it.
    machine: Option<Machine>,
}

/// What of this machine's settings depends on the clients.
pub(super) struct Machine {
    pub(super) routes: Arc<Mutex<Routes>>,
    pub(super) tun_index: u32,
    pub(super) addresses: Vec<IpNet>,
    /// What of the clients lies beyond the server's own inner networks.
    pub(super) routed: Vec<IpNet>,
}

impl Machine {
    /// Changes what is different with `peers` in the place of those before.
    fn lead(&mut self, peers: &Peers) {
        let routed = beyond(peers, &self.addresses);
        let is_in = |list: &[IpNet]| -> BTreeSet<IpNet> { list.iter().copied().collect() };
        let (before, after) = (is_in(&self.routed), is_in(&routed));
        let gone: Vec<IpNet> = before.difference(&after).copied().collect();
        let new: Vec<IpNet> = after.difference(&before).copied().collect();
        if gone.is_empty() && new.is_empty() {
            return;
        }
        let mut routes = lock(&self.routes);
        if let Err(error) = routes.route_out_of_tun(self.tun_index, &gone) {
            tracing::warn!(%error, "routes to what lay behind some clients are left");
        }
        lead_into(&mut routes, self.tun_index, &new);
        drop(routes);
        self.routed = routed;
    }
}

fn start(mut options: ServerOptions) -> Result<Running<Server, ServerRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.tun.name)?;
    cleanup(&instance, &lock)?;
    let clock = options.fleet.as_ref().map_or_else(Clock::start, |fleet| fleet.membership.clock);
    let socket = open_socket(options.listen)?;
    let metrics = options.metrics.map(MetricsListener::bind).transpose()?;
    let tun = Tun::open(&TunOptions {
        name: options.tun.name.clone(),
        mtu: options.tun.mtu,
        addresses: options.addresses.clone(),
        offload: options.tun.offload,
    })?;
    // Before the first thread: those that follow inherit it.
    privileges::restrict(&Needs {
        files: needed_files(&options.files, &options.state_directory),
        ..Needs::default()
    })?;
    let mut routes = Routes::open(&instance)?;
    routes.keep_addresses(tun.index(), &options.addresses);
    let of_file = ServerReload {
        peers: std::mem::take(&mut options.peers),
        destinations: options.destinations.clone(),
        proxies: Vec::new(),
    };
    let peers: Peers = of_file.peers.iter().cloned().collect();
    let routed = beyond(&peers, &options.addresses);
    lead_into(&mut routes, tun.index(), &routed);
    let routes = RouteKeeper::start(routes)?;
    let filter_options = filter_options(
        &tun,
        &options.addresses,
        (options.masquerade, options.config.clients_reach_clients),
        &options.destinations,
    );
    let mut filters = FilterKeeper::start(&instance)?;
    filters.set_and_wait(with_clients(&filter_options, &routed))?;
    let peers = Arc::new(PeerTable::from(peers));
    let epoch = Epoch::new(clock.epoch());
    options.config.transport.reset_salt = reset_salt(&options.state_directory, instance.name())?;
    let mut server = Server::new(epoch, options.config, options.identity, peers.clone())?;
    let mut time_of_day = TimeOfDay::new(&options.state_directory, instance.name());
    // Before anybody can connect.
    peers.set_unix_time(time_of_day.tell(Instant::ZERO, ClockReading::take()));
    let mut state = StateFile::new(&options.state_directory, instance.name());
    server.restore(state.read());
    let (listen, tun_index) = (socket.local_address(), tun.index());
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let mut driver = Driver::new(&instance, signals, Edge::new(clock, tun), server)?;
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    let keys = of_file.peers.iter().map(|(key, _)| *key).collect();
    let own = options.addresses.clone();
    let reloader = Reloader::start(options.reload, of_file, own, driver.waker())?;
    let start_fleet = |fleet| InFleet::start(fleet, keys, driver.waker());
    let fleet = options.fleet.map(start_fleet).transpose()?;
    // Whoever reads this may ask by the local socket.
    tracing::info!(
        %listen,
        tun = driver.edge.tun_name(),
        mtu,
        ?offload,
        "the server runs"
    );
    let addresses = options.addresses;
    let mut role = ServerRole {
        reloader,
        fleet,
        peers,
        time_of_day,
        next_time_of_day: Instant::ZERO,
        state,
        next_state: Instant::ZERO + STATE_INTERVAL,
        presence_log: PresenceLog::default(),
        next_receive_warning: Instant::ZERO,
        machine: Some(Machine { routes: routes.share(), tun_index, addresses, routed }),
        filter_options,
        filters,
        _routes: routes,
    };
    // Before the first packet is read: who was withdrawn is not let in, and who is a member is.
    role.begin_in_fleet(&mut driver);
    Ok(Running { driver, role, instance, lock })
}

impl Role<Server> for ServerRole {
    fn poll_timeout(&self) -> Option<Instant> {
        let figures = self.fleet.as_ref().map(InFleet::poll_timeout);
        [Some(self.next_time_of_day), figures].into_iter().flatten().min()
    }

    /// Keys may have expired, which the time of day tells, and sessions, which tell by themselves.
    fn on_pause(&mut self, _: &mut Driver<Server>, _: Instant, pause: &Pause, discarded: u64) {
        tracing::warn!(discarded, "{pause}; what waited is discarded");
        self.next_time_of_day = Instant::ZERO;
    }

    fn before_packets(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if now >= self.next_time_of_day {
            self.tell_time_of_day(driver, now);
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Server>, _: Instant) {
        self.begin_reload(true);
    }

    fn on_wake(&mut self, driver: &mut Driver<Server>, _: Instant) {
        self.take_news(&mut driver.node);
        self.take_reloaded(&mut driver.node);
    }

    /// The clients' sessions are worth more than one failure; the next call may succeed.
    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Server>,
        now: Instant,
        _: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        if now >= self.next_receive_warning {
            self.next_receive_warning = now + REMINDER;
            tracing::error!(%error, "cannot receive from the network; trying again");
        }
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if let Some(fleet) = &mut self.fleet {
            fleet.handle_timeout(now, &driver.node);
        }
    }

    fn handle_events(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if let Some(fleet) = &mut self.fleet {
            fleet.confirm(&driver.node);
        }
        while let Some(event) = driver.node.poll_event() {
            match event {
                ServerEvent::Joined { peer, key, .. } => {
                    if self.presence_log.may_tell(now, key, &peer) {
                        tracing::info!(peer, %key, "joined");
                    }
                }
                ServerEvent::Left { peer, key, reason } => {
                    if self.presence_log.may_tell(now, key, &peer) {
                        tracing::info!(peer, reason, "left");
                    }
                }
                ServerEvent::Leg { told } => tracing::warn!("{told}"),
                ServerEvent::Refused { reason } => tracing::warn!("refused {reason}"),
            }
        }
    }

    fn status(&mut self, driver: &mut Driver<Server>) -> Status {
        let sessions = driver.node.status();
        let mut status = self.summary(driver);
        if let RoleStatus::Server(role) = &mut status.role {
            role.sessions = sessions;
        }
        status
    }

    fn summary(&mut self, driver: &mut Driver<Server>) -> Status {
        let server = &driver.node;
        let mut drops = server.drops().clone();
        drops.merge(&self.filters.drops());
        let refusals = server.refusals().into_iter();
        let role = ServerStatus {
            sessions: Vec::new(),
            totals: server.totals(),
            memory_bytes: server.memory(),
            refusals: refusals.map(|(kind, count)| (kind.to_owned(), count)).collect(),
        };
        let listen = driver.edge.sockets.values().map(UplinkSocket::local_address).next();
        let listen = listen.map(|listen| listen.to_string()).unwrap_or_default();
        let now = driver.edge.clock.now();
        let fleet = self.fleet.as_ref().map(|fleet| fleet.status(now));
        Status { fleet, ..driver.status(listen, drops, RoleStatus::Server(role)) }
    }

    fn handle_request(
        &mut self,
        driver: &mut Driver<Server>,
        now: Instant,
        method: &str,
        params: &Value,
    ) -> Result<Value, RpcError> {
        requests::handle(&mut driver.node, now, method, params)
    }
}

impl ServerRole {
    /// Takes what was read again.
    fn take_reloaded(&mut self, server: &mut Server) {
        if let Some(reloaded) = self.reloader.poll(&mut self.machine) {
            self.use_reloaded(server, reloaded);
        }
        if let Some(rereads) = self.reloader.take_due_again(&self.machine) {
            self.begin_reload(rereads);
        }
    }

    fn use_reloaded(&mut self, server: &mut Server, reloaded: Reloaded) {
        let Reloaded { change, destinations, of_file, .. } = reloaded;
        if set_destinations(&mut self.filter_options, &destinations) {
            let Destinations { denied, allowed } = &destinations;
            tracing::info!(
                denied = denied.len(),
                allowed = allowed.len(),
                "the destinations that clients may reach were read again"
            );
        }
        let (peers, changed) = (change.peers.len(), change.changed.len());
        tracing::info!(peers, changed, "the clients were read again");
        if let Some(machine) = &self.machine {
            self.filters.set(with_clients(&self.filter_options, &machine.routed));
        }
        let former = server.replace_peers(change);
        if let Some(fleet) = &mut self.fleet {
            fleet.set_of_file(of_file, &self.peers);
        }
        // To let go of thousands takes a while as well.
        std::thread::spawn(move || drop(former));
    }

    /// Begins to bring the clients in line with the file, which is read again if `rereads`, and the
    /// members of the fleet.
    fn begin_reload(&mut self, rereads: bool) {
        let members = self.fleet.as_ref().map(InFleet::members).unwrap_or_default();
        let change = Change { rereads, members, peers: self.peers.peers() };
        self.reloader.begin(&mut self.machine, change);
    }

    fn tell_time_of_day(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.next_time_of_day = now + TIME_OF_DAY;
        self.peers.set_unix_time(self.time_of_day.tell(now, ClockReading::take()));
        driver.node.on_time_of_day();
        self.tell_suppressed(now);
        driver.node.ask_learned();
        if self.next_state <= now {
            self.next_state = now + STATE_INTERVAL;
            self.state.write(driver.node.learned());
        }
    }

    /// Tells of clients that came and went more often than was told.
    fn tell_suppressed(&mut self, now: Instant) {
        while let Some((peer, times)) = self.presence_log.poll_suppressed(now) {
            tracing::warn!(peer, times, "joined and left more often than is told one by one");
        }
    }

    fn stop(&mut self, driver: &mut Driver<Server>) {
        self.reloader.stop(&mut self.machine);
        driver.node.ask_all_learned();
        self.state.write_last(driver.node.learned());
        self.time_of_day.write_last();
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        tracing::info!("the server stops");
    }
}

/// The filters of a server without clients: an open router only for those.
pub(super) fn filter_options(
    tun: &Tun,
    addresses: &[IpNet],
    (masquerade, clients_reach_clients): (bool, bool),
    destinations: &Destinations,
) -> FilterOptions {
    let mut filters = FilterOptions {
        tun: tun.name().to_owned(),
        mtu: tun.mtu(),
        own_addresses: addresses.iter().map(IpNet::addr).collect(),
        inner: addresses.to_vec(),
        masquerade,
        masquerade_into_tun: None,
        forwarding: Forwarding::Server {
            // Without masquerade the clients' addresses are known outside, and meant to be reached.
            outside_to_tunnel: !masquerade,
            clients_reach_clients,
            denied: Vec::new(),
            allowed: Vec::new(),
        },
        forward: true,
    };
    set_destinations(&mut filters, destinations);
    filters
}

/// Lets clients reach other destinations; returns whether they are others than before.
pub(super) fn set_destinations(options: &mut FilterOptions, destinations: &Destinations) -> bool {
    let Forwarding::Server { denied, allowed, .. } = &mut options.forwarding else { return false };
    let now_denied = destinations.denied.clone();
    let to_allowed = |(network, port): &(IpNet, _)| Allowed { prefix: *network, port: *port };
    let now_allowed = destinations.allowed.iter().map(to_allowed).collect();
    let others = *denied != now_denied || *allowed != now_allowed;
    (*denied, *allowed) = (now_denied, now_allowed);
    others
}

/// The filters that `options` describe, with what lies behind clients, beyond the server's own
/// inner networks, in `routed`.
pub(super) fn with_clients(options: &FilterOptions, routed: &[IpNet]) -> FilterOptions {
    let inner = options.inner.iter().chain(routed).copied().collect();
    FilterOptions { inner, ..options.clone() }
}

/// The socket at `listen`; one for all addresses does without IPv6 where the kernel has none.
pub(super) fn open_socket(listen: SocketAddr) -> Result<UplinkSocket, DeviceError> {
    match UplinkSocket::open(&UdpOptions::server(listen)) {
        Err(error @ DeviceError::NoIpv6 { .. }) if listen.ip().is_unspecified() => {
            tracing::warn!("{error}; listening for IPv4 alone");
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, listen.port()));
            UplinkSocket::open(&UdpOptions::server(any))
        }
        result => result,
    }
}
