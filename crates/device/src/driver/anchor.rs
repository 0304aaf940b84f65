//! The anchor's role in the event loop: the device of its tenant, its clients and proxies.
//!
//! It holds for its machine what a server does: the TUN, routes, filters, source NAT. Its sessions
//! are those of proxies.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Anchor, AnchorConfig, AnchorEvent, Peer, PeerTable, Peers, TenantId};
use roadweave_types::{Instant, UplinkId};
use serde_json::Value;

use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::server::presence_log::PresenceLog;
use super::server::reload::{Change, Reloaded, Reloader, beyond};
use super::server::{
    Machine, REMINDER, TIME_OF_DAY, filter_options, open_socket, set_destinations, with_clients,
};
use super::{
    Destinations, DriverError, Reload, ServerReload, TunSettings, lead_into, needed_files,
};
use crate::local::RpcError;
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::privileges::{self, Needs};
use crate::reset_salt::reset_salt;
use crate::state::KeptBindings;
use crate::status::{AnchorRoleStatus, RoleStatus, Status};
use crate::{
    Clock, ClockReading, FilterKeeper, FilterOptions, RouteKeeper, Routes, StateFile, TimeOfDay,
    Tun, TunOptions, UplinkSocket, cleanup,
};

/// How often it is looked whether the newest bindings are written.
const BINDINGS_INTERVAL: Duration = Duration::from_secs(10);
/// How soon after a change they are: a crash before that lets an older one count.
const BINDINGS_SOON: Duration = Duration::from_millis(500);
/// The only tenant of an anchor with one device.
const TENANT: TenantId = TenantId(0);

/// What an anchor is started with.
pub struct AnchorOptions {
    /// The tunnel's own settings, with one tenant, whose devices are in `devices`.
    pub config: AnchorConfig,
    /// The anchor's key pair.
    pub identity: Arc<Identity>,
    /// The clients of the tenant: the same table as that in `config`.
    pub devices: Arc<PeerTable>,
    /// The proxies that may connect.
    pub proxies: Vec<(PublicKey, Peer)>,
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
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// Where clients may go.
    pub destinations: Destinations,
    /// Where the newest binding of each client is kept.
    pub state_directory: PathBuf,
    /// Files that are read again later, as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads clients, proxies and destinations again, on SIGHUP; an error leaves all as it is.
    pub reload: Reload,
}

impl fmt::Debug for AnchorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnchorOptions")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// Runs an anchor until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start; what it set up by then is removed.
pub fn run_anchor(options: AnchorOptions) -> Result<(), DriverError> {
    let mut anchor = start(options)?;
    anchor.run()?;
    let Running { driver, role, .. } = &mut anchor;
    role.stop(driver);
    Ok(())
}

struct AnchorRole {
    devices: Arc<PeerTable>,
    proxies: Arc<PeerTable>,
    reloader: Reloader,
    time_of_day: TimeOfDay,
    next_time_of_day: Instant,
    bindings: StateFile<KeptBindings>,
    next_bindings: NextWrite,
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

fn start(mut options: AnchorOptions) -> Result<Running<Anchor, AnchorRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.tun.name)?;
    cleanup(&instance, &lock)?;
    let clock = Clock::start();
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
    let routed = beyond(&options.devices.peers(), &options.addresses);
    lead_into(&mut routes, tun.index(), &routed);
    let routes = RouteKeeper::start(routes)?;
    let filter_options = filter_options(
        &tun,
        &options.addresses,
        (options.masquerade, options.clients_reach_clients),
        &options.destinations,
    );
    let mut filters = FilterKeeper::start(&instance)?;
    filters.set_and_wait(with_clients(&filter_options, &routed))?;
    let AnchorOptions { devices, addresses, .. } = options;
    let proxies = Arc::new(PeerTable::new(options.proxies));
    options.config.transport.reset_salt = reset_salt(&options.state_directory, instance.name())?;
    let epoch = Epoch::new(clock.epoch());
    let mut anchor = Anchor::new(epoch, options.config, options.identity, proxies.clone())?;
    let mut time_of_day = TimeOfDay::new(&options.state_directory, instance.name());
    // Before anybody can connect.
    devices.set_unix_time(time_of_day.tell(Instant::ZERO, ClockReading::take()));
    let mut bindings: StateFile<KeptBindings> =
        StateFile::new(&options.state_directory, instance.name());
    anchor.restore(bindings.read().0);
    let (listen, tun_index) = (socket.local_address(), tun.index());
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let mut driver = Driver::new(&instance, signals, Edge::new(clock, tun), anchor)?;
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    // It is read before it counts.
    let unread = ServerReload {
        peers: Vec::new(),
        destinations: Destinations::default(),
        proxies: Vec::new(),
    };
    let reloader = Reloader::start(options.reload, unread, addresses.clone(), driver.waker())?;
    // Whoever reads this may ask by the local socket.
    tracing::info!(%listen, tun = driver.edge.tun_name(), mtu, ?offload, "the anchor runs");
    let role = AnchorRole {
        devices,
        proxies,
        reloader,
        time_of_day,
        next_time_of_day: Instant::ZERO,
        bindings,
        next_bindings: NextWrite(Instant::ZERO + BINDINGS_INTERVAL),
        presence_log: PresenceLog::default(),
        next_receive_warning: Instant::ZERO,
        machine: Some(Machine { routes: routes.share(), tun_index, addresses, routed }),
        filter_options,
        filters,
        _routes: routes,
    };
    Ok(Running { driver, role, instance, lock })
}

/// When the newest bindings are written next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextWrite(Instant);

impl NextWrite {
    /// There is a newer one: soon, and with those that follow meanwhile.
    fn on_change(&mut self, now: Instant) {
        self.0 = self.0.min(now + BINDINGS_SOON);
    }

    /// They were written, or the last time is not over.
    fn on_written(&mut self, now: Instant, is_written: bool) {
        self.0 = now + if is_written { BINDINGS_INTERVAL } else { BINDINGS_SOON };
    }
}

impl Role<Anchor> for AnchorRole {
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next_time_of_day.min(self.next_bindings.0))
    }

    fn on_pause(&mut self, _: &mut Driver<Anchor>, _: Instant, pause: &Pause, discarded: u64) {
        tracing::warn!(discarded, "{pause}; what waited is discarded");
        self.next_time_of_day = Instant::ZERO;
    }

    fn before_packets(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        if now >= self.next_time_of_day {
            self.tell_time_of_day(driver, now);
        }
        if self.next_bindings.0 <= now {
            let is_written = self.bindings.write(&KeptBindings(driver.node.bindings()));
            self.next_bindings.on_written(now, is_written);
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Anchor>, _: Instant) {
        self.reloader.begin(&mut self.machine, Change::of_file(self.devices.peers()));
    }

    fn on_wake(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        self.take_reloaded(driver, now);
    }

    /// What the proxies bring is worth more than one failure; the next call may succeed.
    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Anchor>,
        now: Instant,
        _: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        if now >= self.next_receive_warning {
            self.next_receive_warning = now + REMINDER;
            tracing::error!(%error, "cannot receive from the network; trying again");
        }
    }

    fn handle_timeout(&mut self, _: &mut Driver<Anchor>, _: Instant) {}

    fn handle_events(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        while let Some(event) = driver.node.poll_event() {
            match event {
                AnchorEvent::LegUp { proxy, key } => tracing::info!(proxy, %key, "a leg is up"),
                AnchorEvent::LegDown { proxy, reason } => {
                    tracing::warn!(proxy, reason, "a leg is down");
                }
                AnchorEvent::Attached { device, key, proxy } => {
                    self.next_bindings.on_change(now);
                    if self.presence_log.may_tell(now, key, &device) {
                        tracing::info!(device, proxy, "attached");
                    }
                }
                AnchorEvent::Refused { reason } => tracing::warn!("refused {reason}"),
            }
        }
    }

    fn status(&mut self, driver: &mut Driver<Anchor>) -> Status {
        let anchor = &driver.node;
        let passing = anchor.status();
        let mut drops = anchor.drops().clone();
        drops.merge(&passing.drops());
        drops.merge(&self.filters.drops());
        let listen = driver.edge.sockets.values().map(UplinkSocket::local_address).next();
        let listen = listen.map(|listen| listen.to_string()).unwrap_or_default();
        driver.status(listen, drops, RoleStatus::Anchor(AnchorRoleStatus { passing }))
    }

    fn handle_request(
        &mut self,
        _: &mut Driver<Anchor>,
        _: Instant,
        method: &str,
        _: &Value,
    ) -> Result<Value, RpcError> {
        Err(RpcError::method_not_found(method))
    }
}

impl AnchorRole {
    /// Takes what was read again.
    fn take_reloaded(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        if let Some(Reloaded { change, destinations, proxies, .. }) =
            self.reloader.poll(&mut self.machine)
        {
            set_destinations(&mut self.filter_options, &destinations);
            let (devices, changed) = (change.peers.len(), change.changed.len());
            tracing::info!(devices, changed, proxies = proxies.len(), "read again");
            if let Some(machine) = &self.machine {
                self.filters.set(with_clients(&self.filter_options, &machine.routed));
            }
            let former = driver.node.replace_devices(now, TENANT, change);
            let change = Peers::after(&self.proxies.peers(), proxies);
            driver.node.replace_proxies(now, change);
            // To let go of thousands takes a while as well.
            std::thread::spawn(move || drop(former));
        }
        if self.reloader.take_due_again(&self.machine).is_some() {
            self.reloader.begin(&mut self.machine, Change::of_file(self.devices.peers()));
        }
    }

    fn tell_time_of_day(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        self.next_time_of_day = now + TIME_OF_DAY;
        self.devices.set_unix_time(self.time_of_day.tell(now, ClockReading::take()));
        driver.node.on_time_of_day(now);
        while let Some((device, times)) = self.presence_log.poll_suppressed(now) {
            tracing::warn!(device, times, "was attached more often than is told one by one");
        }
    }

    fn stop(&mut self, driver: &mut Driver<Anchor>) {
        self.reloader.stop(&mut self.machine);
        self.bindings.write_last(&KeptBindings(driver.node.bindings()));
        self.time_of_day.write_last();
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        tracing::info!("the anchor stops");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_binding_is_written_within_half_a_second_and_many_at_once() {
        let at = Instant::from_millis;
        let mut next = NextWrite(at(10_000));
        next.on_change(at(1_000));
        next.on_change(at(1_400));
        assert_eq!(next, NextWrite(at(1_500)));
        next.on_written(at(1_500), false);
        assert_eq!(next, NextWrite(at(2_000)), "the write before is under way");
        next.on_written(at(2_000), true);
        next.on_change(at(11_900));
        assert_eq!(next, NextWrite(at(12_000)));
    }
}
