//! The role of a server, a proxy, an anchor, and of the loop that controls a server's shards.

use roadweave_linux::pauses::Pause;
use roadweave_linux::{
    Clock, Event, Instance, InstanceLock, Signals, Tun, UplinkSocket, Waker, cleanup,
};
use roadweave_proto::{Instant, UplinkId, earliest};
use roadweave_quic::ShardMap;
use roadweave_tunnel::{LEG_SOCKET, Peers, StreamsConfig};
use serde_json::Value;

use super::host::{Host, HostOptions};
use super::machine::Machine;
use super::node::Serves;
use super::reload::Destinations;
use super::{Serving, ServingOptions, Tables, log_receive_error, open_by};
use crate::driver::edge::Edge;
use crate::driver::event_loop::{Driver, LoopRole, RunningNode, STREAMS, take_instance};
use crate::driver::from_config::tun_options;
use crate::driver::shards::group;
use crate::driver::{DriverError, requests};
use crate::local::{LocalRequest, RpcError};
use crate::metrics::MetricsListener;
use crate::status::{RoleStatus, Status};
use crate::streams::{ConnectorRules, ConnectorSettings, StreamConnector};

pub(in crate::driver) trait Egress {
    type Node: Serves;

    /// Logs that the role runs. Scripts that wait for this line may use the local socket at once.
    fn log_start(&self, name: &str, listen: &str, driver: &Driver<Self::Node>) {
        let tun = driver.edge.tun();
        tracing::info!(
            %listen,
            tun = tun.map(Tun::name),
            mtu = tun.map(Tun::mtu),
            offload = tun.map(|tun| tracing::field::debug(tun.offload())),
            "the {name} runs"
        );
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// `is_second`: once a second.
    fn before_packets(&mut self, node: &mut Self::Node, now: Instant, is_second: bool);

    fn on_wake(&mut self, _node: &mut Self::Node, _destinations: Destinations) {}

    fn log_events(&mut self, node: &mut Self::Node, now: Instant, serving: &mut Serving);

    fn is_over(&self) -> bool {
        false
    }

    fn take_turns(&self, _node: &Self::Node) -> bool {
        true
    }

    fn status_line(&self, node: &Self::Node) -> String {
        format!("sessions: {}", node.sessions())
    }

    /// Without its name, absent clients, the far end, the drops of the filters and the fleet.
    fn status(&self, driver: &Driver<Self::Node>, with_sessions: bool) -> Status;

    fn close(&mut self, driver: &mut Driver<Self::Node>, serving: &mut Serving);

    fn write_last(&mut self, node: &mut Self::Node);
}

/// Dropped in this order: streams are reset while the filters and routes of their packets stand.
pub(in crate::driver) struct ServingRole<E> {
    name: &'static str,
    listen: String,
    far_end: Option<StreamConnector>,
    serving: Serving,
    pub(in crate::driver) egress: E,
}

/// What is opened before the node, in the order in which it is dropped.
pub(in crate::driver) struct Ground {
    pub(in crate::driver) far_ends: Option<ConnectorSettings>,
    host: Option<(Host, Machine)>,
    pub(in crate::driver) tuns: Vec<Tun>,
    pub(in crate::driver) sockets: Vec<UplinkSocket>,
    listen: String,
    metrics: Option<MetricsListener>,
    pub(in crate::driver) waker: Waker,
    pub(in crate::driver) clock: Clock,
    signals: Signals,
    pub(in crate::driver) instance: Instance,
    lock: InstanceLock,
}

impl Ground {
    pub(in crate::driver) fn new(
        taken: (Signals, Instance, InstanceLock),
        serving: &ServingOptions,
        sockets: Vec<UplinkSocket>,
    ) -> Result<Self, DriverError> {
        let (signals, instance, lock) = taken;
        let fleet = serving.fleet.as_ref();
        Ok(Self {
            far_ends: None,
            host: None,
            tuns: Vec::new(),
            listen: sockets[0].local_address().to_string(),
            sockets,
            metrics: serving.metrics.map(MetricsListener::bind),
            waker: Waker::new()?,
            clock: fleet.map_or_else(Clock::start, |fleet| fleet.membership.clock),
            signals,
            instance,
            lock,
        })
    }

    /// Sets this machine up for `clients`. With a `map`, each shard has socket and queue.
    /// `has_neighbours`: others may have equal addresses. `streams` need a source address.
    pub(in crate::driver) fn with_host(
        options: &HostOptions,
        serving: &ServingOptions,
        clients: &Peers,
        streams: &mut Option<StreamsConfig>,
        has_neighbours: bool,
        map: Option<&ShardMap>,
    ) -> Result<Self, DriverError> {
        let taken = take_instance(options.tun.name.as_str(), options.marks)?;
        if has_neighbours {
            taken.1.check_tables()?;
        }
        cleanup(&taken.1, &taken.2)?;
        let sockets = match map {
            // All stay open: if one leaves the reuseport group, packets reach wrong shards.
            Some(map) => open_by(serving.listen, |udp| group::open_group(udp, map))?,
            None => vec![open_by(serving.listen, UplinkSocket::open)?],
        };
        let mut ground = Self::new(taken, serving, sockets)?;
        let tun = tun_options(&options.tun, &options.addresses);
        ground.tuns = match map {
            Some(map) => Tun::open_queues(&tun, map.count())?,
            None => vec![Tun::open(&tun)?],
        };
        let (instance, tun) = (&ground.instance, &ground.tuns[0]);
        let takes_streams = streams.is_some();
        let host =
            Host::start(instance, tun, options, serving, clients, takes_streams, has_neighbours)?;
        let sources = host.0.sources;
        if !sources.clients && !sources.own {
            *streams = None;
        }
        let destinations = &serving.of_file.destinations;
        let rules = ConnectorRules {
            denied: destinations.denied.clone(),
            allowed: destinations.allowed.clone(),
            // The prefixes that neighbours' TUNs take are not known here.
            clients_reach_clients: options.clients_reach_clients && !has_neighbours,
        };
        ground.far_ends = streams.as_ref().map(|_| ConnectorSettings {
            http_ports: options.http_ports.clone(),
            ..ConnectorSettings::new(rules, sources, options.connects_per_second)
        });
        ground.host = Some(host);
        Ok(ground)
    }

    pub(in crate::driver) fn start<E: Egress>(
        self,
        name: &'static str,
        node: E::Node,
        egress: E,
        tables: Tables,
        options: ServingOptions,
    ) -> Result<Served<E>, DriverError> {
        // On an error these are dropped from the last to the first, so that the lock goes last.
        let Self { lock, instance, signals, clock, waker, metrics, listen, sockets, .. } = self;
        let (tuns, host, far_ends) = (self.tuns, self.host, self.far_ends);
        let edge = Edge::new(clock, tuns.into_iter().next());
        let mut driver = Driver::new(Some((&instance, signals, metrics)), waker, edge, node)?;
        for (uplink, socket) in [None, Some(LEG_SOCKET)].into_iter().zip(sockets) {
            driver.add_socket(uplink, socket)?;
        }
        egress.log_start(name, &listen, &driver);
        let far_end = far_ends
            .map(|settings| StreamConnector::start(settings, STREAMS, &driver.waker()))
            .transpose()?;
        let serving = Serving::start(&mut driver, options, tables, host, instance.name())?;
        let role = ServingRole { name, listen, far_end, serving, egress };
        Ok(RunningNode { driver, role, instance, lock })
    }
}

pub(in crate::driver) type Served<E> = RunningNode<<E as Egress>::Node, ServingRole<E>>;

pub(in crate::driver) fn run<E: Egress>(mut served: Served<E>) -> Result<(), DriverError> {
    served.run()?;
    served.role.stop(&mut served.driver);
    Ok(())
}

impl<E: Egress> ServingRole<E> {
    pub(in crate::driver) fn stop(&mut self, driver: &mut Driver<E::Node>) {
        // Say goodbye to peers before the disk writes, which may block.
        self.egress.close(driver, &mut self.serving);
        driver.flush();
        self.serving.stop();
        self.egress.write_last(&mut driver.node);
        tracing::info!("the {} stops", self.name);
    }

    fn build_status(&mut self, driver: &Driver<E::Node>, with_sessions: bool) -> Status {
        let now = driver.edge.clock.now();
        let streams = self.far_end.as_ref().map(StreamConnector::status);
        let mut status = self.egress.status(driver, with_sessions);
        match &mut status.role {
            RoleStatus::Server(role) => {
                if with_sessions {
                    role.absent = self.serving.absent.status(now);
                }
                role.streams = role.streams.take().or(streams);
            }
            RoleStatus::Anchor(role) => role.streams = streams,
            _ => {}
        }
        status.drops.merge(&self.serving.filter_drops());
        Status {
            name: self.listen.clone(),
            fleet: self.serving.fleet.as_ref().map(|fleet| fleet.status(now)),
            ..status
        }
    }
}

impl<E: Egress> LoopRole<E::Node> for ServingRole<E> {
    fn poll_timeout(&self) -> Option<Instant> {
        let streams = self.far_end.as_ref().and_then(StreamConnector::poll_timeout);
        earliest([Some(self.serving.poll_timeout()), self.egress.poll_timeout(), streams])
    }

    fn on_ready(&mut self, _: &mut Driver<E::Node>, _: Instant, event: &Event) {
        self.far_end.iter_mut().for_each(|far_end| far_end.on_ready(event));
    }

    fn on_pause(&mut self, _: &mut Driver<E::Node>, _: Instant, pause: &Pause, discarded: u64) {
        self.serving.on_pause(pause, discarded);
    }

    fn before_packets(&mut self, driver: &mut Driver<E::Node>, now: Instant) {
        let is_second = self.serving.update_time_of_day(now);
        self.egress.before_packets(&mut driver.node, now, is_second);
        if is_second {
            self.serving.forget_long_gone(now, &driver.node);
        }
        self.serving.anchors.handle_timeout(now, &mut driver.node);
    }

    fn on_hangup(&mut self, _: &mut Driver<E::Node>, _: Instant) {
        self.serving.begin_reload(true);
    }

    fn on_reload(&mut self, _: &mut Driver<E::Node>, _: Instant, request: LocalRequest) {
        self.serving.on_reload(request);
    }

    fn on_wake(&mut self, driver: &mut Driver<E::Node>, now: Instant) {
        self.serving.on_wake(&mut driver.node, now);
        let destinations = self.serving.destinations();
        let (denied, allowed) = (&destinations.denied, &destinations.allowed);
        self.far_end.iter_mut().for_each(|far_end| far_end.set_destinations(denied, allowed));
        self.egress.on_wake(&mut driver.node, destinations);
    }

    fn on_socket_failed(
        &mut self,
        _: &mut Driver<E::Node>,
        now: Instant,
        _: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        log_receive_error(&mut self.serving.receive_failed, now, error);
    }

    fn handle_timeout(&mut self, driver: &mut Driver<E::Node>, now: Instant) {
        let Driver { node, poller, .. } = driver;
        self.far_end.iter_mut().for_each(|far_end| far_end.turn(now, poller, node));
    }

    fn is_over(&self) -> bool {
        self.egress.is_over()
    }

    fn handle_events(&mut self, driver: &mut Driver<E::Node>, now: Instant) {
        self.far_end.iter_mut().for_each(|it| it.handle_events(now, &mut driver.node));
        self.serving.report_to_fleet(now, &mut driver.node);
        self.egress.log_events(&mut driver.node, now, &mut self.serving);
    }

    fn take_turns(&self, node: &E::Node) -> bool {
        self.egress.take_turns(node)
    }

    fn status_line(&self, node: &E::Node) -> String {
        self.egress.status_line(node)
    }

    fn status(&mut self, driver: &mut Driver<E::Node>) -> Status {
        self.build_status(driver, true)
    }

    fn summary(&mut self, driver: &mut Driver<E::Node>) -> Status {
        self.build_status(driver, false)
    }

    fn handle_request(
        &mut self,
        driver: &mut Driver<E::Node>,
        now: Instant,
        method: &str,
        params: &Value,
    ) -> Result<Value, RpcError> {
        match driver.node.governed() {
            Some(server) => requests::handle(server, now, method, params),
            None => Err(RpcError::method_not_found(method)),
        }
    }
}
