//! A server with several shards: threads behind one address and one TUN.
//!
//! ```text
//! network ─► socket 0 ─► thread: Driver<Server> ─► queue 0 ┐
//!        └─► socket 1 ─► thread: Driver<Server> ─► queue 1 ┴─ one device: addresses, routes, filters
//!              found by the connection ID    │ ▲
//!                                   strays ──┘ │ commands, answers
//! signals, local socket, metrics ─► thread: Driver<Front>: reload, fleet, log, common status
//! ```
//!
//! A client has its session with one shard. Its packets reach that shard by their connection IDs
//! ([`ShardMap`]) on any path. The TUN has one queue for each shard, so a joining client changes
//! nothing in the kernel. The kernel returns a flow's answers to the queue that its packets came
//! from; misrouted packets are handed over ([`exchange`]). A panic is caught at the start of its
//! thread ([`restart`]). Tables of clients are shared; a failure of the process ends all shards.

mod exchange;
mod faults;
mod front;
pub(super) mod group;
mod restart;
mod slot;
mod snapshot;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use roadweave_linux::{Tun, UplinkSocket, random_bytes};
use roadweave_proto::Instant;
use roadweave_quic::ShardMap;
use roadweave_tunnel::SharedState;

use self::exchange::ShardExchange;
use self::front::Front;
use self::slot::{Common, ShardCommand, ShardSlot, Standing};
use super::DriverError;
use super::event_loop::Driver;
use super::server::options::ServerOptions;
use super::serving::node::LearnedFile;
use super::serving::reload::Destinations;
use super::serving::role::{Egress, Served};
use super::serving::{Serving, Tables};
use super::tun_name::TunName;
use crate::status::{RoleStatus, Status};

/// Capacity of the event queue to the log: 4,000 clients may leave and join at once.
const EVENTS_MAX: usize = 16_384;

pub(super) fn run(options: ServerOptions) -> Result<(), DriverError> {
    let mut served = start(options)?;
    let outcome = served.run();
    served.role.stop(&mut served.driver);
    outcome.and(served.role.egress.error.take().map_or(Ok(()), Err))
}

struct Supervisor {
    shards: u16,
    learned: LearnedFile,
    tun: Tun,
    tun_name: TunName,
    error: Option<DriverError>,
}

fn start(mut options: ServerOptions) -> Result<Served<Supervisor>, DriverError> {
    let map = ShardMap::new(options.shards, &random_bytes()?);
    let (clients, mut ground) = options.open(Some(&map))?;
    let ServerOptions { config, serving, .. } = options;
    let (sockets, tuns) = (std::mem::take(&mut ground.sockets), std::mem::take(&mut ground.tuns));
    let tun = tuns[0].try_clone()?;
    let kept = SharedState::default();
    let (events, happened) = sync_channel(EVENTS_MAX);
    let common = Arc::new(Common {
        map,
        clock: ground.clock,
        identity: serving.identity.clone(),
        peers: clients.clone(),
        kept: kept.clone(),
        exchange: ShardExchange::new(map.count())?,
        standing: Mutex::new(Standing {
            config: config.of_shard(map.count()),
            far_ends: ground.far_ends.take(),
            destinations: Arc::new(serving.of_file.destinations.clone()),
            drains: Vec::new(),
        }),
        events,
        waker: ground.waker.clone(),
        ends: AtomicBool::new(false),
    });
    let (slots, commands) = slots(&common, sockets, tuns);
    let front = Front::new(common, slots, happened);
    let learned = LearnedFile::restore(&serving.state_directory, ground.instance.name(), kept);
    let (shards, tun_name) = (map.count(), TunName::default());
    let egress = Supervisor { shards, learned, tun, tun_name, error: None };
    let tables = Tables { clients, proxies: None };
    let mut served = ground.start("server", front, egress, tables, serving)?;
    served.driver.node.begin(commands)?;
    Ok(served)
}

fn slots(
    common: &Arc<Common>,
    sockets: Vec<UplinkSocket>,
    tuns: Vec<Tun>,
) -> (Vec<Arc<ShardSlot>>, Vec<Receiver<ShardCommand>>) {
    let slot = |(number, (socket, tun))| {
        let (slot, commands) = ShardSlot::new(number, common.clone(), socket, tun);
        (Arc::new(slot), commands)
    };
    (0..).zip(sockets.into_iter().zip(tuns)).map(slot).unzip()
}

impl Egress for Supervisor {
    type Node = Front;

    fn log_start(&self, _: &str, listen: &str, _: &Driver<Front>) {
        tracing::info!(
            listen,
            tun = self.tun.name(),
            mtu = self.tun.mtu(),
            offload = ?self.tun.offload(),
            shards = self.shards,
            "the server runs"
        );
    }

    fn before_packets(&mut self, _: &mut Front, now: Instant, is_second: bool) {
        if is_second {
            self.learned.handle_timeout(now);
        }
        self.tun_name.handle_timeout(now, &self.tun);
    }

    fn on_wake(&mut self, front: &mut Front, destinations: Destinations) {
        front.set_destinations(destinations);
        self.error = self.error.take().or_else(|| front.take_error());
    }

    fn log_events(&mut self, front: &mut Front, now: Instant, serving: &mut Serving) {
        serving.log_events(now, || front.poll_event());
    }

    fn is_over(&self) -> bool {
        self.error.is_some()
    }

    fn take_turns(&self, front: &Front) -> bool {
        front.take_turns()
    }

    fn status(&self, driver: &Driver<Front>, with_sessions: bool) -> Status {
        let (counters, role) = driver.node.gather(with_sessions);
        let status = driver.status(String::new(), counters.drops, RoleStatus::Server(role));
        Status { tun: self.tun.name().to_owned(), device: counters.device, ..status }
    }

    fn close(&mut self, driver: &mut Driver<Front>, serving: &mut Serving) {
        driver.node.stop();
        let now = driver.edge.clock.now();
        self.log_events(&mut driver.node, now, serving);
    }

    fn write_last(&mut self, _: &mut Front) {
        self.learned.write_last();
    }
}
