//! The slot of one shard: it exists before the shard starts, and survives its failures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use roadweave_identity::Identity;
use roadweave_linux::threads::lock;
use roadweave_linux::{Clock, Tun, UplinkSocket, Waker};
use roadweave_proto::DropCounters;
use roadweave_quic::ShardMap;
use roadweave_tunnel::{DrainReason, PeerTable, Server, ServerConfig, ServerEvent, SharedState};

use super::exchange::ShardExchange;
use super::snapshot::Counters;
use crate::driver::DriverError;
use crate::driver::event_loop::Driver;
use crate::driver::serving::reload::Destinations;
use crate::status::StreamsStatus;
use crate::streams::{ConnectorEnd, ConnectorSettings};

pub(super) type ShardCommand = Box<dyn FnOnce(&mut Driver<Server>) + Send>;

pub(super) struct Common {
    pub(super) map: ShardMap,
    pub(super) clock: Clock,
    pub(super) identity: Arc<Identity>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) kept: SharedState,
    pub(super) exchange: ShardExchange,
    pub(super) standing: Mutex<Standing>,
    pub(super) events: SyncSender<ServerEvent>,
    pub(super) waker: Waker,
    pub(super) ends: AtomicBool,
}

/// Settings that changed at runtime, and also apply to a restarted shard.
pub(super) struct Standing {
    pub(super) config: ServerConfig,
    pub(super) far_ends: Option<ConnectorSettings>,
    /// Where clients may connect; changes are detected by pointer.
    pub(super) destinations: Arc<Destinations>,
    pub(super) drains: Vec<DrainReason>,
}

const COMMANDS_MAX: usize = 1_024;

pub(super) struct ShardSlot {
    pub(super) number: u16,
    pub(super) common: Arc<Common>,
    pub(super) socket: UplinkSocket,
    pub(super) tun: Tun,
    commands: SyncSender<ShardCommand>,
    pub(super) is_running: AtomicBool,
    has_turned: AtomicBool,
    pub(super) failures: AtomicU64,
    past: Mutex<Past>,
    pub(super) error: Mutex<Option<DriverError>>,
}

#[derive(Default)]
struct Past {
    over: Counters,
    present: Counters,
    streams_over: StreamsStatus,
    streams: StreamsStatus,
}

impl ShardSlot {
    pub(super) fn new(
        number: u16,
        common: Arc<Common>,
        socket: UplinkSocket,
        tun: Tun,
    ) -> (Self, Receiver<ShardCommand>) {
        let (commands, todo) = sync_channel(COMMANDS_MAX);
        let slot = Self {
            number,
            common,
            socket,
            tun,
            commands,
            is_running: AtomicBool::new(false),
            has_turned: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            past: Mutex::default(),
            error: Mutex::default(),
        };
        (slot, todo)
    }

    pub(super) fn on_turn(&self) {
        self.has_turned.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_turned(&self) -> bool {
        self.has_turned.load(Ordering::Relaxed)
    }

    pub(super) fn forget_turn(&self) {
        self.has_turned.store(false, Ordering::Relaxed);
    }

    pub(super) fn command(&self, command: ShardCommand) {
        match self.commands.try_send(command) {
            Ok(()) => self.common.exchange.waker(self.number).wake(),
            Err(TrySendError::Full(_)) => {
                tracing::error!(shard = self.number, "the shard hangs and takes no commands");
            }
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    pub(super) fn note(&self, counters: Counters) {
        lock(&self.past).present = counters;
    }

    pub(super) fn note_streams(&self, streams: StreamsStatus) {
        lock(&self.past).streams = streams;
    }

    pub(super) fn streams(&self) -> StreamsStatus {
        let past = lock(&self.past);
        let mut streams = past.streams_over.clone();
        streams.merge(&past.streams);
        streams
    }

    pub(super) fn counted(&self, with_present: bool) -> Counters {
        let past = lock(&self.past);
        let mut counters = past.over.clone();
        if with_present {
            counters.merge(&past.present);
        }
        counters
    }

    pub(super) fn on_failed(&self, lost: &DropCounters) {
        self.is_running.store(false, Ordering::Release);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut past = lock(&self.past);
        let present = std::mem::take(&mut past.present);
        past.over.merge(&present);
        past.over.drops.merge(lost);
        let mut streams = std::mem::take(&mut past.streams);
        let open = std::mem::take(&mut streams.connections) as u64;
        if open > 0 {
            *streams.ends.entry(ConnectorEnd::Reset.name().to_owned()).or_default() += open;
        }
        past.streams_over.merge(&streams);
    }
}
