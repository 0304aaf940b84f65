//! A server with several shards: threads behind one address and one TUN.
//!
//! ```text
//! network ─► socket 0 ─► thread: Driver<Server> ─► queue 0 ┐
//!        └─► socket 1 ─► thread: Driver<Server> ─► queue 1 ┴─ one device: addresses, routes, filters
//!              found by the connection ID    │ ▲
//!                                   strays ──┘ │ orders, answers
//! signals, local socket, metrics ─► thread: Driver<Front>: reload, fleet, log, common status
//! ```
//!
//! A client has its session with one shard. Its packets reach that shard by their connection IDs
//! ([`ShardMap`]) on any path. The TUN has one queue for each shard, so addresses, routes and
//! filters are those of one server, and a joining client changes nothing in the kernel. The kernel
//! returns a flow's answers to the queue that its packets came from; misrouted packets are handed
//! over ([`exchange`]).
//!
//! Shards are threads: a panic is caught at the start of its thread ([`life`]), and the tables of
//! clients are shared. A failure of the process ends all shards.

mod exchange;
mod faults;
mod front;
mod life;
mod slot;
#[cfg(test)]
mod tests;
mod told;
mod worker;

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::ShardMap;
use roadweave_tunnel::Kept;
use serde_json::Value;

use self::exchange::Exchange;
use self::front::Front;
use self::slot::{Common, Order, ShardSlot, Standing};
use super::edge::Edge;
use super::event_loop::{Driver, Role, Running, take_instance};
use super::requests::Governed;
use super::serving::host::tun_options;
use super::serving::node::LearnedFile;
use super::serving::{Serving, open_by};
use super::tun_name::TunName;
use super::{DriverError, ServerOptions, requests};
use crate::local::{LocalRequest, RpcError};
use crate::metrics::MetricsListener;
use crate::pauses::Pause;
use crate::random::random_bytes;
use crate::status::{RoleStatus, Status};
use crate::{Clock, StateFile, Tun, UplinkSocket, Waker, cleanup};

/// Capacity of the event queue to the log: 4,000 clients may leave and join at once.
const EVENTS_MAX: usize = 16_384;

/// Runs a server with several shards until SIGINT or SIGTERM, or until the system fails a shard.
pub(super) fn run(options: ServerOptions) -> Result<(), DriverError> {
    let mut server = start(options)?;
    let outcome = server.run();
    let Running { driver, role, .. } = &mut server;
    role.stop(driver);
    outcome.and(role.error.take().map_or(Ok(()), Err))
}

/// The role of the loop that controls all shards.
struct Supervisor {
    learned: LearnedFile,
    serving: Serving,
    listen: String,
    tun: Tun,
    tun_name: TunName,
    error: Option<DriverError>,
}

fn start(mut options: ServerOptions) -> Result<Running<Front, Supervisor>, DriverError> {
    let (signals, instance, lock) = take_instance(&options.tun.name, options.marks)?;
    cleanup(&instance, &lock)?;
    let clock = options.fleet.as_ref().map_or_else(Clock::start, |fleet| fleet.membership.clock);
    let map = ShardMap::new(options.shards, &random_bytes()?);
    // All sockets stay open: if one leaves the reuseport group, packets reach wrong shards.
    let sockets = open_by(options.listen, |udp| UplinkSocket::open_group(udp, &map))?;
    let listen = sockets[0].local_address().to_string();
    let metrics = options.metrics.map(MetricsListener::bind);
    let tuns = Tun::open_queues(&tun_options(&options.tun, &options.addresses), map.count())?;
    let tun = tuns[0].try_clone()?;
    let (peers, host) = options.set_up(&instance, &tun)?;
    let waker = Waker::new()?;
    let (events, happened) = sync_channel(EVENTS_MAX);
    let common = Arc::new(Common {
        map,
        clock,
        identity: options.identity.clone(),
        peers: peers.clone(),
        kept: Kept::default(),
        exchange: Exchange::new(map.count())?,
        standing: Mutex::new(Standing {
            config: options.config.of_shard(map.count()),
            far_ends: options.far_ends(host.0.sources()),
            destinations: Arc::new(options.destinations.clone()),
            drains: Vec::new(),
        }),
        events,
        waker: waker.clone(),
        ends: AtomicBool::new(false),
    });
    let (slots, orders) = slots(&common, sockets, tuns);
    let mut front = Front::new(common, slots, happened);
    let learned = StateFile::new(&options.state_directory, instance.name());
    let learned = LearnedFile::restore(learned, &mut front);
    let (mtu, offload) = (tun.mtu(), tun.offload());
    let edge = Edge::without_tun(clock);
    let mut driver = Driver::with_waker(&instance, signals, waker, edge, front)?;
    driver.serve_metrics(metrics)?;
    // Scripts that wait for this line may use the local socket at once.
    tracing::info!(
        listen,
        tun = tun.name(),
        mtu,
        ?offload,
        shards = map.count(),
        "the server runs"
    );
    let serving = options.serving(peers, host, instance.name());
    let serving = Serving::start(&mut driver, serving)?;
    driver.node.begin(orders)?;
    let tun_name = TunName::default();
    let role = Supervisor { learned, serving, listen, tun, tun_name, error: None };
    Ok(Running { driver, role, instance, lock })
}

fn slots(
    common: &Arc<Common>,
    sockets: Vec<UplinkSocket>,
    tuns: Vec<Tun>,
) -> (Vec<Arc<ShardSlot>>, Vec<Receiver<Order>>) {
    let slot = |(number, (socket, tun))| {
        let (slot, orders) = ShardSlot::new(number, common.clone(), socket, tun);
        (Arc::new(slot), orders)
    };
    (0..).zip(sockets.into_iter().zip(tuns)).map(slot).unzip()
}

impl Role<Front> for Supervisor {
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.serving.poll_timeout())
    }

    fn on_pause(&mut self, _: &mut Driver<Front>, _: Instant, pause: &Pause, discarded: u64) {
        self.serving.on_pause(pause, discarded);
    }

    fn before_packets(&mut self, driver: &mut Driver<Front>, now: Instant) {
        if self.serving.tell_time_of_day(now) {
            self.learned.tell_time_of_day(now, &mut driver.node);
            self.serving.forget_long_gone(now, &driver.node);
        }
        self.tun_name.handle_timeout(now, &self.tun);
    }

    fn on_hangup(&mut self, _: &mut Driver<Front>, _: Instant) {
        self.serving.on_hangup();
    }

    fn on_reload(&mut self, _: &mut Driver<Front>, _: Instant, request: LocalRequest) {
        self.serving.on_reload(request);
    }

    fn on_wake(&mut self, driver: &mut Driver<Front>, now: Instant) {
        self.serving.on_wake(&mut driver.node, now);
        driver.node.set_destinations(self.serving.destinations());
        self.error = self.error.take().or_else(|| driver.node.take_error());
    }

    /// The shards have the sockets.
    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Front>,
        _: Instant,
        _: Option<UplinkId>,
        _: &std::io::Error,
    ) {
    }

    fn handle_timeout(&mut self, _: &mut Driver<Front>, _: Instant) {}

    fn is_over(&self) -> bool {
        self.error.is_some()
    }

    fn handle_events(&mut self, driver: &mut Driver<Front>, now: Instant) {
        self.serving.tell_fleet(now, &driver.node);
        self.serving.tell_events(now, || driver.node.poll_event());
    }

    fn take_turns(&self, node: &Front) -> bool {
        node.take_turns()
    }

    fn in_a_line(&self, node: &Front) -> String {
        format!("sessions: {}", Governed::sessions(node))
    }

    fn status(&mut self, driver: &mut Driver<Front>) -> Status {
        self.tell(driver, true)
    }

    fn summary(&mut self, driver: &mut Driver<Front>) -> Status {
        self.tell(driver, false)
    }

    fn handle_request(
        &mut self,
        driver: &mut Driver<Front>,
        now: Instant,
        method: &str,
        params: &Value,
    ) -> Result<Value, RpcError> {
        requests::handle(&mut driver.node, now, method, params)
    }
}

impl Supervisor {
    fn tell(&mut self, driver: &Driver<Front>, with_sessions: bool) -> Status {
        let (counters, mut role) = driver.node.gather(with_sessions);
        if with_sessions {
            role.absent = self.serving.absent(driver.edge.clock.now());
        }
        let mut drops = counters.drops;
        drops.merge(&self.serving.filter_drops());
        let fleet = self.serving.fleet_status(driver.edge.clock.now());
        let status = driver.status(self.listen.clone(), drops, RoleStatus::Server(role));
        Status { fleet, tun: self.tun.name().to_owned(), device: counters.device, ..status }
    }

    fn stop(&mut self, driver: &mut Driver<Front>) {
        // Say goodbye to clients before the disk writes, which may block.
        driver.node.stop();
        let now = driver.edge.clock.now();
        self.serving.tell_events(now, || driver.node.poll_event());
        self.serving.stop();
        self.learned.write_last(&mut driver.node);
        tracing::info!("the server stops");
    }
}
