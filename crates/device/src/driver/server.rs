//! The server's role in the event loop: clients' sessions end here, behind one TUN device.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, Marks, UplinkId, earliest};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Peer, PeerTable, Peers, Server, ServerConfig};
use serde_json::Value;

use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::far_end::{FarEnd, FarEnds};
use super::serving::host::{Host, HostOptions, tun_options};
use super::serving::machine::Machine;
use super::serving::node::LearnedFile;
use super::serving::reload::{Destinations, Reload, ServerReload};
use super::serving::{Serving, ServingOptions, listens_at, open_socket};
use super::{DriverError, TunSettings, requests, shards};
use crate::fleet::FleetOptions;
use crate::local::{LocalRequest, RpcError};
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::reset_salt::reset_salt;
use crate::status::{RoleStatus, ServerStatus, Status};
use crate::streams::{ExitRules, Sources};
use crate::{Clock, Event, Instance, StateFile, Tun, cleanup};

/// Options of a server.
pub struct ServerOptions {
    /// Tunnel settings.
    pub config: ServerConfig,
    /// The server's key pair.
    pub identity: Arc<Identity>,
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// Where metrics are served over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The inner addresses, with the prefix length of the clients' network.
    pub addresses: Vec<IpNet>,
    /// The TUN device.
    pub tun: TunSettings,
    /// The bits of packet and connection marks that this instance may use.
    pub marks: Marks,
    /// Whether clients' packets leave with this machine's own address (source NAT).
    pub masquerade: bool,
    /// Maximum number of concurrent connections of one client through this machine.
    pub client_connections: u32,
    /// Where clients may go through this server.
    pub destinations: Destinations,
    /// Networks beyond `addresses` in which fleet members may have addresses.
    pub accepted: Vec<IpNet>,
    /// Directory of the state file that holds what strategies learned.
    pub state_directory: PathBuf,
    /// Further files that are read again later, such as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads the configuration again on SIGHUP. An error changes nothing.
    pub reload: Reload,
    /// Fleet membership, if any.
    pub fleet: Option<FleetOptions<()>>,
    /// Maximum rate of new connections from the streams of one client, per second.
    pub connects_per_second: u32,
    /// Destination ports whose streams are parsed as plain HTTP.
    pub http_ports: Vec<u16>,
    /// Number of threads that share the clients, up to [`SHARDS_MAX`](roadweave_quic::SHARDS_MAX).
    pub shards: u16,
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// Configures this machine for a server at `tun`. Returns the table of clients, and the routes
    /// and filters.
    pub(super) fn set_up(
        &mut self,
        instance: &Instance,
        tun: &Tun,
    ) -> Result<(Arc<PeerTable>, (Host, Machine)), DriverError> {
        let peers: Peers = self.peers.iter().cloned().collect();
        let hosted = HostOptions {
            addresses: &self.addresses,
            masquerade: self.masquerade,
            clients_reach_clients: self.config.clients_reach_clients,
            destinations: &self.destinations,
            client_connections: self.client_connections,
            has_neighbours: false,
            takes_streams: self.config.streams.is_some(),
            files: &self.files,
            state_directory: &self.state_directory,
        };
        let host = Host::start(instance, tun, hosted, &peers)?;
        let sources = host.0.sources();
        if !sources.clients && !sources.own {
            self.config.streams = None;
        }
        self.config.transport.reset_salt = reset_salt(&self.state_directory, instance.name())?;
        Ok((Arc::new(PeerTable::from(peers)), host))
    }

    /// Settings of the far ends of streams; `None` if the server takes no streams.
    pub(super) fn far_ends(&self, sources: Sources) -> Option<FarEnds> {
        self.config.streams.as_ref().map(|_| FarEnds {
            rules: ExitRules {
                denied: self.destinations.denied.clone(),
                allowed: self.destinations.allowed.clone(),
                clients_reach_clients: self.config.clients_reach_clients,
            },
            sources,
            connects_per_second: self.connects_per_second,
            http_ports: self.http_ports.clone(),
        })
    }

    pub(super) fn serving(
        self,
        clients: Arc<PeerTable>,
        host: (Host, Machine),
        instance: &str,
    ) -> ServingOptions<'_> {
        let of_file = ServerReload {
            peers: self.peers,
            destinations: self.destinations,
            accepted: self.accepted,
            ..ServerReload::default()
        };
        ServingOptions {
            clients,
            proxies: None,
            of_file,
            reload: self.reload,
            own: Some(self.addresses),
            host: Some(host),
            fleet: self.fleet,
            state_directory: self.state_directory,
            instance,
        }
    }
}

/// Runs a server until SIGINT or SIGTERM. If it cannot start, everything it had set up is removed.
pub fn run_server(options: ServerOptions) -> Result<(), DriverError> {
    if options.shards > 1 {
        return shards::run(options);
    }
    let mut server = start(options)?;
    server.run()?;
    let Running { driver, role, .. } = &mut server;
    role.stop(driver);
    Ok(())
}

struct ServerRole {
    learned: LearnedFile,
    far_end: Option<FarEnd>,
    serving: Serving,
}

fn start(mut options: ServerOptions) -> Result<Running<Server, ServerRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.tun.name, options.marks)?;
    cleanup(&instance, &lock)?;
    let clock = options.fleet.as_ref().map_or_else(Clock::start, |fleet| fleet.membership.clock);
    let socket = open_socket(options.listen)?;
    let metrics = options.metrics.map(MetricsListener::bind);
    let tun = Tun::open(&tun_options(&options.tun, &options.addresses))?;
    let (peers, host) = options.set_up(&instance, &tun)?;
    let sources = host.0.sources();
    let epoch = Epoch::new(clock.epoch());
    let (config, identity) = (options.config.clone(), options.identity.clone());
    let mut server = Server::new(epoch, config, identity, peers.clone())?;
    server.set_forwards(options.destinations.forwarded());
    let learned = StateFile::new(&options.state_directory, instance.name());
    let learned = LearnedFile::restore(learned, &mut server);
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let mut driver = Driver::new(&instance, signals, Edge::new(clock, tun), server)?;
    let listen = socket.local_address();
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    // Scripts that wait for this line may use the local socket at once.
    tracing::info!(
        %listen,
        tun = driver.edge.tun_name(),
        mtu,
        ?offload,
        "the server runs"
    );
    let far_end = options.far_ends(sources).map(|far_ends| far_ends.start(1, &driver));
    let far_end = far_end.transpose()?;
    let serving = options.serving(peers, host, instance.name());
    let serving = Serving::start(&mut driver, serving)?;
    Ok(Running { driver, role: ServerRole { learned, far_end, serving }, instance, lock })
}

impl Role<Server> for ServerRole {
    fn poll_timeout(&self) -> Option<Instant> {
        let streams = self.far_end.as_ref().and_then(FarEnd::poll_timeout);
        earliest([Some(self.serving.poll_timeout()), streams])
    }

    fn on_ready(&mut self, _: &mut Driver<Server>, _: Instant, event: &Event) {
        self.far_end.iter_mut().for_each(|far_end| far_end.on_ready(event));
    }

    fn on_pause(&mut self, _: &mut Driver<Server>, _: Instant, pause: &Pause, discarded: u64) {
        self.serving.on_pause(pause, discarded);
    }

    fn before_packets(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if self.serving.tell_time_of_day(now) {
            driver.node.on_time_of_day();
            self.learned.tell_time_of_day(now, &mut driver.node);
            self.serving.forget_long_gone(now, &driver.node);
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Server>, _: Instant) {
        self.serving.on_hangup();
    }

    fn on_reload(&mut self, _: &mut Driver<Server>, _: Instant, request: LocalRequest) {
        self.serving.on_reload(request);
    }

    fn on_wake(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.serving.on_wake(&mut driver.node, now);
        let destinations = self.serving.destinations();
        driver.node.set_forwards(destinations.forwarded());
        if let Some(far_end) = &mut self.far_end {
            far_end.set_destinations(destinations);
        }
    }

    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Server>,
        now: Instant,
        _: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        self.serving.on_socket_failed(now, error);
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.far_end.iter_mut().for_each(|far_end| far_end.turn(driver, now));
    }

    fn handle_events(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.far_end.iter_mut().for_each(|far_end| far_end.handle_events(driver, now));
        self.serving.tell_fleet(now, &driver.node);
        self.serving.tell_events(now, || driver.node.poll_event());
    }

    fn in_a_line(&self, node: &Server) -> String {
        format!("sessions: {}", node.sessions())
    }

    fn status(&mut self, driver: &mut Driver<Server>) -> Status {
        let sessions = driver.node.status();
        let mut status = self.summary(driver);
        if let RoleStatus::Server(role) = &mut status.role {
            role.sessions = sessions;
            role.absent = self.serving.absent(driver.edge.clock.now());
        }
        status
    }

    fn summary(&mut self, driver: &mut Driver<Server>) -> Status {
        let server = &driver.node;
        let mut drops = server.drops().clone();
        drops.merge(&self.serving.filter_drops());
        let refusals = server.refusals().into_iter();
        let role = ServerStatus {
            sessions: Vec::new(),
            absent: Vec::new(),
            totals: server.totals(),
            memory_bytes: server.memory(),
            refusals: refusals.map(|(kind, count)| (kind.to_owned(), count)).collect(),
            shards: Vec::new(),
            streams: self.far_end.as_ref().map(FarEnd::status),
        };
        let fleet = self.serving.fleet_status(driver.edge.clock.now());
        Status { fleet, ..driver.status(listens_at(driver), drops, RoleStatus::Server(role)) }
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
    fn stop(&mut self, driver: &mut Driver<Server>) {
        // Say goodbye to clients before the disk writes, which may block.
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        self.serving.stop();
        self.learned.write_last(&mut driver.node);
        tracing::info!("the server stops");
    }
}
