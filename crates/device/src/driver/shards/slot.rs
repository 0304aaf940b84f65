//! The slot of one shard: what is there before it begins, and stays when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use roadweave_identity::Identity;
use roadweave_proto::DropCounters;
use roadweave_quic::ShardMap;
use roadweave_tunnel::{DrainReason, Kept, PeerTable, Server, ServerConfig, ServerEvent};

use super::exchange::{Exchange, lock};
use super::told::Counters;
use crate::driver::DriverError;
use crate::driver::event_loop::Driver;
use crate::driver::far_end::FarEnds;
use crate::driver::serving::reload::Destinations;
use crate::status::StreamsStatus;
use crate::streams::ExitEnd;
use crate::{Clock, Tun, UplinkSocket, Waker};

/// Something that a shard is to do between two turns.
pub(super) type Order = Box<dyn FnOnce(&mut Driver<Server>) + Send>;

/// What all shards of a server have in common.
pub(super) struct Common {
    pub(super) map: ShardMap,
    pub(super) clock: Clock,
    pub(super) identity: Arc<Identity>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) kept: Kept,
    pub(super) exchange: Exchange,
    /// What a shard begins with, be it the first time or again.
    pub(super) standing: Mutex<Standing>,
    /// What has happened, for the log of the server.
    pub(super) events: SyncSender<ServerEvent>,
    /// Wakes who looks after them all.
    pub(super) waker: Waker,
    /// Whether the shards are to end.
    pub(super) ends: AtomicBool,
}

/// What was set while the server ran, and holds for a shard that begins anew as well.
pub(super) struct Standing {
    /// The settings of one shard.
    pub(super) config: ServerConfig,
    /// What the far ends of streams are like, if the server takes streams.
    pub(super) far_ends: Option<FarEnds>,
    /// Where clients may go: as [`Standing::far_ends`] have it, to be compared by its place.
    pub(super) destinations: Arc<Destinations>,
    pub(super) drains: Vec<DrainReason>,
}

/// Orders that wait for a shard, at most.
const ORDERS_MAX: usize = 1_024;

/// The slot of one shard, which its lives take one after the other.
pub(super) struct ShardSlot {
    pub(super) number: u16,
    pub(super) common: Arc<Common>,
    pub(super) socket: UplinkSocket,
    pub(super) tun: Tun,
    orders: SyncSender<Order>,
    /// Whether the shard has begun, and has not failed since.
    lives: AtomicBool,
    /// Whether its loop has turned since [`ShardSlot::forget_turn`].
    has_turned: AtomicBool,
    /// How often the shard has failed.
    failures: AtomicU64,
    past: Mutex<Past>,
    /// Why the program must end, if it must.
    error: Mutex<Option<DriverError>>,
}

/// What the lives of a shard have counted.
#[derive(Default)]
struct Past {
    /// What the lives that are over have counted.
    over: Counters,
    /// What the present life had counted a while ago.
    present: Counters,
    /// The same of streams.
    streams_over: StreamsStatus,
    streams: StreamsStatus,
}

impl ShardSlot {
    /// The slot of shard `number`, and the orders for the thread that takes it.
    pub(super) fn new(
        number: u16,
        common: Arc<Common>,
        socket: UplinkSocket,
        tun: Tun,
    ) -> (Self, Receiver<Order>) {
        let (orders, todo) = sync_channel(ORDERS_MAX);
        let slot = Self {
            number,
            common,
            socket,
            tun,
            orders,
            lives: AtomicBool::new(false),
            has_turned: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            past: Mutex::default(),
            error: Mutex::default(),
        };
        (slot, todo)
    }

    /// The loop of the shard turns.
    pub(super) fn on_turn(&self) {
        self.has_turned.store(true, Ordering::Relaxed);
    }

    /// Whether the loop of the shard has turned since [`ShardSlot::forget_turn`].
    pub(super) fn has_turned(&self) -> bool {
        self.has_turned.load(Ordering::Relaxed)
    }

    /// Begins a new wait for a turn.
    pub(super) fn forget_turn(&self) {
        self.has_turned.store(false, Ordering::Relaxed);
    }

    /// Lets the shard do something soon; one that stands still never will.
    pub(super) fn order(&self, order: Order) {
        match self.orders.try_send(order) {
            Ok(()) => self.common.exchange.waker(self.number).wake(),
            Err(TrySendError::Full(_)) => {
                tracing::error!(shard = self.number, "it takes no orders: it stands still");
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// How often the shard has failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether the shard has begun, and has not failed since: else it has no sessions.
    pub(super) fn lives(&self) -> bool {
        self.lives.load(Ordering::Acquire)
    }

    /// Why the program must end, if it must.
    pub(super) fn take_error(&self) -> Option<DriverError> {
        lock(&self.error).take()
    }

    /// What the present life has counted so far.
    pub(super) fn note(&self, counters: Counters) {
        lock(&self.past).present = counters;
    }

    /// How the streams of the present life are.
    pub(super) fn note_streams(&self, streams: StreamsStatus) {
        lock(&self.past).streams = streams;
    }

    /// How the streams of all lives are, as of the last second.
    pub(super) fn streams(&self) -> StreamsStatus {
        let past = lock(&self.past);
        let mut streams = past.streams_over.clone();
        streams.merge(&past.streams);
        streams
    }

    /// What earlier lives of the shard have counted, and `with_present` what was noted of this one.
    pub(super) fn counted(&self, with_present: bool) -> Counters {
        let past = lock(&self.past);
        let mut counters = past.over.clone();
        if with_present {
            counters.merge(&past.present);
        }
        counters
    }

    /// The present life has failed: what it had counted is the past's, and so is what was `lost`
    /// with it.
    pub(super) fn on_failed(&self, lost: &DropCounters) {
        self.lives.store(false, Ordering::Release);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut past = lock(&self.past);
        let present = std::mem::take(&mut past.present);
        past.over.merge(&present);
        past.over.drops.merge(lost);
        let mut streams = std::mem::take(&mut past.streams);
        // Its connections end with it.
        let open = std::mem::take(&mut streams.connections) as u64;
        if open > 0 {
            *streams.ends.entry(ExitEnd::Reset.name().to_owned()).or_default() += open;
        }
        past.streams_over.merge(&streams);
    }

    /// A life has begun.
    pub(super) fn on_begun(&self) {
        self.lives.store(true, Ordering::Release);
    }

    /// The program must end.
    pub(super) fn give_up(&self, error: DriverError) {
        *lock(&self.error) = Some(error);
        self.common.waker.wake();
    }
}
