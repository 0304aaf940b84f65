//! The proxy's role in the event loop: sockets, the table of clients, the time of day.
//!
//! A proxy has no device and changes nothing of its machine: no routes, no filters, no interface.
//! It runs without any right that another program has not.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use roadweave_identity::{Identity, PublicKey};
use roadweave_quic::Epoch;
use roadweave_tunnel::{
    LEG_SOCKET, Peer, PeerTable, ProxyConfig, Server, ServerConfig, ServerEvent,
};
use roadweave_types::{Instant, UplinkId};
use serde_json::Value;

use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::reread::Reread;
use super::server::presence_log::PresenceLog;
use super::server::{REMINDER, TIME_OF_DAY, open_socket};
use super::{DriverError, STATE_INTERVAL, needed_files, requests};
use crate::local::RpcError;
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::privileges::{self, Needs};
use crate::reset_salt::reset_salt;
use crate::status::{ProxyRoleStatus, RoleStatus, Status};
use crate::{Clock, ClockReading, DeviceError, StateFile, TimeOfDay, UdpOptions, UplinkSocket};

/// Reads the clients again, in a thread of its own.
pub type ReloadProxy = Box<dyn FnMut() -> Result<Vec<(PublicKey, Peer)>, String> + Send>;

/// What a proxy is started with.
pub struct ProxyOptions {
    /// The name of the instance.
    pub instance: String,
    /// The tunnel's own settings.
    pub config: ServerConfig,
    /// The tenants and their anchors.
    pub proxy: ProxyConfig,
    /// The proxy's key pair.
    pub identity: Arc<Identity>,
    /// The clients that may connect.
    pub peers: Vec<(PublicKey, Peer)>,
    /// The UDP address to listen on.
    pub listen: SocketAddr,
    /// Where figures are told over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Where what strategies have learned is kept.
    pub state_directory: PathBuf,
    /// Files that are read again later, as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads the clients again, on SIGHUP; an error leaves everything as it is.
    pub reload: ReloadProxy,
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
///
/// # Errors
/// When it cannot start.
pub fn run_proxy(options: ProxyOptions) -> Result<(), DriverError> {
    let mut proxy = start(options)?;
    proxy.run()?;
    let Running { driver, role, .. } = &mut proxy;
    role.stop(driver);
    Ok(())
}

struct ProxyRole {
    peers: Arc<PeerTable>,
    reread: Reread<Vec<(PublicKey, Peer)>>,
    time_of_day: TimeOfDay,
    next_time_of_day: Instant,
    state: StateFile,
    next_state: Instant,
    presence_log: PresenceLog,
    next_receive_warning: Instant,
}

fn start(mut options: ProxyOptions) -> Result<Running<Server, ProxyRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.instance)?;
    let clock = Clock::start();
    let socket = open_socket(options.listen)?;
    let metrics = options.metrics.map(MetricsListener::bind).transpose()?;
    let leg_socket = open_leg_socket()?;
    // Before the first thread: those that follow inherit it.
    privileges::restrict(&Needs {
        only_sockets: true,
        files: needed_files(&options.files, &options.state_directory),
        ..Needs::default()
    })?;
    let peers = Arc::new(PeerTable::new(std::mem::take(&mut options.peers)));
    options.config.transport.reset_salt = reset_salt(&options.state_directory, instance.name())?;
    let epoch = Epoch::new(clock.epoch());
    let ProxyOptions { config, proxy, identity, .. } = options;
    let mut server = Server::proxy(epoch, config, proxy, identity, peers.clone())?;
    let mut time_of_day = TimeOfDay::new(&options.state_directory, instance.name());
    // Before anybody can connect.
    peers.set_unix_time(time_of_day.tell(Instant::ZERO, ClockReading::take()));
    let mut state = StateFile::new(&options.state_directory, instance.name());
    server.restore(state.read());
    let listen = socket.local_address();
    let mut driver = Driver::new(&instance, signals, Edge::without_tun(clock), server)?;
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    driver.add_socket(Some(LEG_SOCKET), leg_socket)?;
    let role = ProxyRole {
        peers,
        reread: Reread::start(options.reload, driver.waker())?,
        time_of_day,
        next_time_of_day: Instant::ZERO,
        state,
        next_state: Instant::ZERO + STATE_INTERVAL,
        presence_log: PresenceLog::default(),
        next_receive_warning: Instant::ZERO,
    };
    // Whoever reads this may ask by the local socket.
    tracing::info!(%listen, "the proxy runs");
    Ok(Running { driver, role, instance, lock })
}

/// The socket of the legs, at any port; without IPv6 where the kernel has none.
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
        Some(self.next_time_of_day)
    }

    /// Keys may have expired, which the time of day tells, and sessions, which tell by themselves.
    fn on_pause(&mut self, _: &mut Driver<Server>, _: Instant, pause: &Pause, _: u64) {
        tracing::warn!("{pause}");
        self.next_time_of_day = Instant::ZERO;
    }

    fn before_packets(&mut self, driver: &mut Driver<Server>, now: Instant) {
        if now >= self.next_time_of_day {
            self.tell_time_of_day(driver, now);
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Server>, _: Instant) {
        self.reread.begin();
    }

    fn on_wake(&mut self, driver: &mut Driver<Server>, _: Instant) {
        if let Some(read) = self.reread.poll() {
            let change = roadweave_tunnel::Peers::after(&self.peers.peers(), read);
            let (peers, changed) = (change.peers.len(), change.changed.len());
            tracing::info!(peers, changed, "the clients were read again");
            let former = driver.node.replace_peers(change);
            // To let go of thousands takes a while.
            std::thread::spawn(move || drop(former));
        }
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

    fn handle_timeout(&mut self, _: &mut Driver<Server>, _: Instant) {}

    fn handle_events(&mut self, driver: &mut Driver<Server>, now: Instant) {
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
        let listen = driver.edge.sockets.get(&None).map(UplinkSocket::local_address);
        let listen = listen.map(|listen| listen.to_string()).unwrap_or_default();
        driver.status(listen, drops, RoleStatus::Proxy(role))
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
    fn tell_time_of_day(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.next_time_of_day = now + TIME_OF_DAY;
        self.peers.set_unix_time(self.time_of_day.tell(now, ClockReading::take()));
        driver.node.on_time_of_day();
        while let Some((peer, times)) = self.presence_log.poll_suppressed(now) {
            tracing::warn!(peer, times, "joined and left more often than is told one by one");
        }
        driver.node.ask_learned();
        if self.next_state <= now {
            self.next_state = now + STATE_INTERVAL;
            self.state.write(driver.node.learned());
        }
    }

    fn stop(&mut self, driver: &mut Driver<Server>) {
        driver.node.ask_all_learned();
        self.state.write_last(driver.node.learned());
        self.time_of_day.write_last();
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        tracing::info!("the proxy stops");
    }
}
