//! The anchor's role in the event loop. It owns the TUN, routes, filters, source NAT and far end of
//! streams of one tenant, as a server does, but its sessions are those of proxies.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, Marks, UplinkId, earliest};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Anchor, AnchorConfig, AnchorEvent, Peer, PeerTable};
use serde_json::Value;

use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::far_end::FarEnd;
use super::serving::host::{Host, HostOptions, tun_options};
use super::serving::reload::{Destinations, Reload, ServerReload};
use super::serving::{Serving, ServingOptions, listens_at, open_socket};
use super::{DriverError, TunSettings};
use crate::fleet::FleetOptions;
use crate::local::{LocalRequest, RpcError};
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::reset_salt::reset_salt;
use crate::state::KeptBindings;
use crate::status::{AnchorRoleStatus, RoleStatus, Status};
use crate::streams::ExitRules;
use crate::{Clock, Event, StateFile, Tun, cleanup};

const BINDINGS_INTERVAL: Duration = Duration::from_secs(10);
/// Delay of the write after a change. A crash before the write restores older bindings.
const BINDINGS_SOON: Duration = Duration::from_millis(500);

/// Options of an anchor.
pub struct AnchorOptions {
    /// Tunnel settings with exactly one tenant, whose devices are in `devices`.
    pub config: AnchorConfig,
    /// The anchor's key pair.
    pub identity: Arc<Identity>,
    /// The clients of the tenant; the same table as in `config`.
    pub devices: Arc<PeerTable>,
    /// The proxies that may connect.
    pub proxies: Vec<(PublicKey, Peer)>,
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
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// Maximum number of concurrent connections of one client through this machine.
    pub client_connections: u32,
    /// Where clients may go.
    pub destinations: Destinations,
    /// Networks beyond `addresses` in which fleet members may have addresses.
    pub accepted: Vec<IpNet>,
    /// Directory of the state file that holds the newest binding of each client.
    pub state_directory: PathBuf,
    /// Further files that are read again later, such as the configuration.
    pub files: Vec<PathBuf>,
    /// Reads clients, proxies and destinations again on SIGHUP. An error changes nothing.
    pub reload: Reload,
    /// Fleet membership, if any.
    pub fleet: Option<FleetOptions<()>>,
    /// Maximum rate of new connections from the streams of one client, per second.
    pub connects_per_second: u32,
    /// Destination ports whose traffic is parsed as plain HTTP.
    pub http_ports: Vec<u16>,
}

impl fmt::Debug for AnchorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnchorOptions")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// Runs an anchor until SIGINT or SIGTERM. If it cannot start, everything it had set up is removed.
pub fn run_anchor(options: AnchorOptions) -> Result<(), DriverError> {
    let mut anchor = start(options)?;
    anchor.run()?;
    let Running { driver, role, .. } = &mut anchor;
    role.stop(driver);
    Ok(())
}

struct AnchorRole {
    bindings: StateFile<KeptBindings>,
    next_bindings: NextWrite,
    far_end: Option<FarEnd>,
    serving: Serving,
}

fn start(mut options: AnchorOptions) -> Result<Running<Anchor, AnchorRole>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.tun.name, options.marks)?;
    instance.check_tables()?;
    cleanup(&instance, &lock)?;
    let clock = options.fleet.as_ref().map_or_else(Clock::start, |fleet| fleet.membership.clock);
    let socket = open_socket(options.listen)?;
    let metrics = options.metrics.map(MetricsListener::bind);
    let devices = options.devices;
    let hosted = HostOptions {
        addresses: &options.addresses,
        masquerade: options.masquerade,
        clients_reach_clients: options.clients_reach_clients,
        destinations: &options.destinations,
        client_connections: options.client_connections,
        has_neighbours: true,
        takes_streams: options.config.streams.is_some(),
        files: &options.files,
        state_directory: &options.state_directory,
    };
    let tun = Tun::open(&tun_options(&options.tun, &options.addresses))?;
    let (host, machine) = Host::start(&instance, &tun, hosted, &devices.peers())?;
    let sources = host.sources();
    if !sources.clients {
        options.config.streams = None;
    }
    let takes_streams = options.config.streams.is_some();
    let proxies = Arc::new(PeerTable::new(options.proxies.clone()));
    options.config.transport.reset_salt = reset_salt(&options.state_directory, instance.name())?;
    let epoch = Epoch::new(clock.epoch());
    let anchor = Anchor::new(epoch, options.config, options.identity, proxies.clone())?;
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let mut driver = Driver::new(&instance, signals, Edge::new(clock, tun), anchor)?;
    let listen = socket.local_address();
    driver.add_socket(None, socket)?;
    driver.serve_metrics(metrics)?;
    // Scripts that wait for this line may use the local socket at once.
    tracing::info!(%listen, tun = driver.edge.tun_name(), mtu, ?offload, "the anchor runs");
    let far_end = takes_streams.then(|| {
        let rules = ExitRules {
            denied: options.destinations.denied.clone(),
            allowed: options.destinations.allowed.clone(),
            // The prefixes that neighbours' TUNs take are not known here.
            clients_reach_clients: false,
        };
        let http_ports = std::mem::take(&mut options.http_ports);
        FarEnd::start(rules, sources, options.connects_per_second, http_ports, &driver)
    });
    let far_end = far_end.transpose()?;
    let of_file = ServerReload {
        peers: devices.peers().iter().map(|(key, peer)| (*key, Peer::clone(peer))).collect(),
        destinations: options.destinations,
        proxies: options.proxies,
        accepted: options.accepted,
        ..ServerReload::default()
    };
    let serving = ServingOptions {
        clients: devices,
        proxies: Some(proxies),
        of_file,
        reload: options.reload,
        own: Some(options.addresses),
        host: Some((host, machine)),
        fleet: options.fleet,
        state_directory: options.state_directory.clone(),
        instance: instance.name(),
    };
    let serving = Serving::start(&mut driver, serving)?;
    let mut bindings: StateFile<KeptBindings> =
        StateFile::new(&options.state_directory, instance.name());
    // Bindings of fleet devices can be restored only now that these devices are known.
    driver.node.restore(bindings.read().0);
    let next_bindings = NextWrite(Instant::ZERO + BINDINGS_INTERVAL);
    let role = AnchorRole { bindings, next_bindings, far_end, serving };
    Ok(Running { driver, role, instance, lock })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextWrite(Instant);

impl NextWrite {
    /// Schedules a write soon; later changes until then share it.
    fn on_change(&mut self, now: Instant) {
        self.0 = self.0.min(now + BINDINGS_SOON);
    }

    /// Reschedules. `is_written` is false if the write failed or an earlier one is still running.
    fn on_written(&mut self, now: Instant, is_written: bool) {
        self.0 = now + if is_written { BINDINGS_INTERVAL } else { BINDINGS_SOON };
    }
}

impl Role<Anchor> for AnchorRole {
    fn poll_timeout(&self) -> Option<Instant> {
        let own = self.serving.poll_timeout().min(self.next_bindings.0);
        earliest([Some(own), self.far_end.as_ref().and_then(FarEnd::poll_timeout)])
    }

    fn on_ready(&mut self, _: &mut Driver<Anchor>, _: Instant, event: &Event) {
        self.far_end.iter_mut().for_each(|far_end| far_end.on_ready(event));
    }

    fn on_pause(&mut self, _: &mut Driver<Anchor>, _: Instant, pause: &Pause, discarded: u64) {
        self.serving.on_pause(pause, discarded);
    }

    fn before_packets(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        if self.serving.tell_time_of_day(now) {
            driver.node.on_time_of_day(now);
        }
        if self.next_bindings.0 <= now {
            let is_written = self.bindings.write(&KeptBindings(driver.node.bindings()));
            self.next_bindings.on_written(now, is_written);
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Anchor>, _: Instant) {
        self.serving.on_hangup();
    }

    fn on_reload(&mut self, _: &mut Driver<Anchor>, _: Instant, request: LocalRequest) {
        self.serving.on_reload(request);
    }

    fn on_wake(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        self.serving.on_wake(&mut driver.node, now);
        if let Some(far_end) = &mut self.far_end {
            far_end.set_destinations(self.serving.destinations());
        }
    }

    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Anchor>,
        now: Instant,
        _: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        self.serving.on_socket_failed(now, error);
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        self.far_end.iter_mut().for_each(|far_end| far_end.turn(driver, now));
    }

    fn handle_events(&mut self, driver: &mut Driver<Anchor>, now: Instant) {
        self.far_end.iter_mut().for_each(|far_end| far_end.handle_events(driver, now));
        self.serving.tell_fleet(now, &driver.node);
        while let Some(event) = driver.node.poll_event() {
            match event {
                AnchorEvent::LegUp { proxy, key } => tracing::info!(proxy, %key, "a leg is up"),
                AnchorEvent::LegDown { proxy, reason } => {
                    tracing::warn!(proxy, reason, "a leg is down");
                }
                AnchorEvent::Attached { device, key, proxy } => {
                    self.next_bindings.on_change(now);
                    if self.serving.may_tell(now, key, &device) {
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
        drops.merge(&self.serving.filter_drops());
        let streams = self.far_end.as_ref().map(FarEnd::status);
        let role = RoleStatus::Anchor(AnchorRoleStatus { passing, streams });
        let fleet = self.serving.fleet_status(driver.edge.clock.now());
        Status { fleet, ..driver.status(listens_at(driver), drops, role) }
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
    fn stop(&mut self, driver: &mut Driver<Anchor>) {
        // Say goodbye to proxies before the disk writes, which may block.
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        self.serving.stop();
        self.bindings.write_last(&KeptBindings(driver.node.bindings()));
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
