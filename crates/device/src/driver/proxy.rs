//! The proxy's role in the event loop: clients' sessions end here, and legs lead to their anchors.
//!
//! A proxy has no device and needs no privileges: it changes no routes, filters or interfaces.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, Marks, ServerName, UplinkId};
use roadweave_quic::Epoch;
use roadweave_tunnel::{LEG_SOCKET, Peer, PeerTable, ProxyConfig, Server, ServerConfig};
use serde_json::Value;

use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::serving::node::LearnedFile;
use super::serving::reload::{Reload, ServerReload};
use super::serving::{Serving, ServingOptions, listens_at, open_socket};
use super::{DriverError, needed_files, requests};
use crate::fleet::FleetOptions;
use crate::local::{LocalRequest, RpcError};
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::privileges::{self, Needs};
use crate::reset_salt::reset_salt;
use crate::status::{ProxyRoleStatus, RoleStatus, Status};
use crate::{Clock, DeviceError, StateFile, UdpOptions, UplinkSocket};

/// Options of a proxy.
pub struct ProxyOptions {
    /// The name of the instance.
    pub instance: String,
    /// Tunnel settings.
    pub config: ServerConfig,
    /// The tenants and their anchors.
    pub proxy: ProxyConfig,
    /// The addresses of the anchors.
    pub anchor_names: Vec<(PublicKey, Vec<ServerName>)>,
    /// The proxy's key pair.
    pub identity: Arc<Identity>,
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// Where metrics are served over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Directory of the state file that holds what strategies learned.
    pub state_directory: PathBuf,
    /// Further files that are read again later, such as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads the clients again on SIGHUP. An error changes nothing.
    pub reload: Reload,
    /// Fleet membership, if any.
    pub fleet: Option<FleetOptions<()>>,
}

impl fmt::Debug for ProxyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyOptions")
            .field("config", &self.config)
            .field("proxy", &self.proxy)
            .finish_non_exhaustive()
    }
}

/// Runs a proxy until SIGINT or SIGTERM.
pub fn run_proxy(options: ProxyOptions) -> Result<(), DriverError> {
    let mut proxy = start(options)?;
    proxy.run()?;
    let Running { driver, role, .. } = &mut proxy;
    role.stop(driver);
    Ok(())
}

struct ProxyRole {
    learned: LearnedFile,
    serving: Serving,
}

fn start(mut options: ProxyOptions) -> Result<Running<Server, ProxyRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.instance, Marks::default())?;
    let clock = options.fleet.as_ref().map_or_else(Clock::start, |fleet| fleet.membership.clock);
    let socket = open_socket(options.listen)?;
    let metrics = options.metrics.map(MetricsListener::bind);
    let leg_socket = open_leg_socket()?;
    // Before the first thread starts: threads inherit the restrictions.
    privileges::restrict(&Needs {
        only_sockets: true,
        files: needed_files(&options.files, &options.state_directory),
        ..Needs::default()
    })?;
    let peers = Arc::new(PeerTable::new(options.peers.clone()));
    options.config.transport.reset_salt = reset_salt(&options.state_directory, instance.name())?;
    let epoch = Epoch::new(clock.epoch());
    let ProxyOptions { config, proxy, identity, anchor_names, .. } = options;
    let of_file = ServerReload {
        peers: options.peers,
        tenants: proxy.tenants.clone(),
        anchors: anchor_names,
        ..ServerReload::default()
    };
    let mut server = Server::proxy(epoch, config, proxy, identity, peers.clone())?;
    let learned = StateFile::new(&options.state_directory, instance.name());
    let learned = LearnedFile::restore(learned, &mut server);
    let listen = socket.local_address();
    let mut driver = Driver::new(&instance, signals, Edge::without_tun(clock), server)?;
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    driver.add_socket(Some(LEG_SOCKET), leg_socket)?;
    // Scripts that wait for this line may use the local socket at once.
    tracing::info!(%listen, "the proxy runs");
    let serving = ServingOptions {
        clients: peers,
        proxies: None,
        of_file,
        reload: options.reload,
        own: None,
        host: None,
        fleet: options.fleet,
        state_directory: options.state_directory,
        instance: instance.name(),
    };
    let serving = Serving::start(&mut driver, serving)?;
    Ok(Running { driver, role: ProxyRole { learned, serving }, instance, lock })
}

fn open_leg_socket() -> Result<UplinkSocket, DeviceError> {
    let any = UdpOptions::server(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    match UplinkSocket::open(&any) {
        Err(DeviceError::NoIpv6 { .. }) => {
            UplinkSocket::open(&UdpOptions::server(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))
        }
        opened => opened,
    }
}

impl Role<Server> for ProxyRole {
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.serving.poll_timeout())
    }

    fn on_pause(&mut self, _: &mut Driver<Server>, _: Instant, pause: &Pause, discarded: u64) {
        self.serving.on_pause(pause, discarded);
    }

    fn before_packets(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if self.serving.tell_time_of_day(now) {
            driver.node.on_time_of_day();
            self.learned.tell_time_of_day(now, &mut driver.node);
        }
        self.serving.look_anchors_up(&mut driver.node, now);
    }

    fn on_hangup(&mut self, _: &mut Driver<Server>, _: Instant) {
        self.serving.on_hangup();
    }

    fn on_reload(&mut self, _: &mut Driver<Server>, _: Instant, request: LocalRequest) {
        self.serving.on_reload(request);
    }

    fn on_wake(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.serving.on_wake(&mut driver.node, now);
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

    fn handle_timeout(&mut self, _: &mut Driver<Server>, _: Instant) {}

    fn handle_events(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.serving.tell_fleet(now, &driver.node);
        self.serving.tell_events(now, || driver.node.poll_event());
    }

    fn in_a_line(&self, node: &Server) -> String {
        format!("sessions: {}", node.sessions())
    }

    fn status(&mut self, driver: &mut Driver<Server>) -> Status {
        let sessions = driver.node.status();
        let mut status = self.summary(driver);
        if let RoleStatus::Proxy(role) = &mut status.role {
            role.sessions = sessions;
        }
        status
    }

    fn summary(&mut self, driver: &mut Driver<Server>) -> Status {
        let proxy = &driver.node;
        let refusals = proxy.refusals().into_iter();
        let role = ProxyRoleStatus {
            sessions: Vec::new(),
            totals: proxy.totals(),
            memory_bytes: proxy.memory(),
            refusals: refusals.map(|(kind, count)| (kind.to_owned(), count)).collect(),
            passing: proxy.proxy_status().unwrap_or_default(),
        };
        let mut drops = proxy.drops().clone();
        drops.merge(&role.passing.drops());
        let fleet = self.serving.fleet_status(driver.edge.clock.now());
        Status { fleet, ..driver.status(listens_at(driver), drops, RoleStatus::Proxy(role)) }
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

impl ProxyRole {
    fn stop(&mut self, driver: &mut Driver<Server>) {
        // Say goodbye to clients before the disk writes, which may block.
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        self.serving.stop();
        self.learned.write_last(&mut driver.node);
        tracing::info!("the proxy stops");
    }
}
