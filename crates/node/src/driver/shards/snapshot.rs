//! Status of each shard, and its sum as the status of one server.

use std::collections::{BTreeMap, HashMap};

use roadweave_proto::DropCounters;
use roadweave_tunnel::{Server, SessionStatus, Tally};

use crate::driver::event_loop::Driver;
use crate::status::{DeviceCounters, ServerStatus, ShardStatus, StreamsStatus};

#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) drops: DropCounters,
    refusals: BTreeMap<String, u64>,
    pub(super) device: DeviceCounters,
}

#[derive(Debug, Default)]
pub(super) struct ShardSnapshot {
    pub(super) counters: Counters,
    tally: Tally,
    memory_bytes: u64,
    sessions: Vec<SessionStatus>,
    count: u64,
}

impl Counters {
    pub(super) fn of(driver: &Driver<Server>) -> Self {
        let mut drops = driver.node.drops().clone();
        drops.merge(&driver.edge.drops);
        let refusals = driver.node.own_refusals().into_iter();
        Self {
            drops,
            refusals: refusals.map(|(kind, count)| (kind.to_owned(), count)).collect(),
            device: driver.edge.device_counters(),
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.drops.merge(&other.drops);
        for (kind, count) in &other.refusals {
            *self.refusals.entry(kind.clone()).or_default() += count;
        }
        let (device, more) = (&mut self.device, &other.device);
        device.packets_read += more.packets_read;
        device.bytes_read += more.bytes_read;
        device.packets_written += more.packets_written;
        device.bytes_written += more.bytes_written;
    }
}

impl ShardSnapshot {
    pub(super) fn of(driver: &Driver<Server>, with_sessions: bool) -> Self {
        let server = &driver.node;
        Self {
            counters: Counters::of(driver),
            tally: server.tally(),
            memory_bytes: server.memory(),
            sessions: if with_sessions { server.status() } else { Vec::new() },
            count: server.sessions() as u64,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Gathered {
    counters: Counters,
    tally: Tally,
    role: ServerStatus,
}

impl Gathered {
    pub(super) fn of_all(refusals: BTreeMap<&'static str, u64>) -> Self {
        let refusals = refusals.into_iter().map(|(kind, count)| (kind.to_owned(), count));
        let counters = Counters { refusals: refusals.collect(), ..Counters::default() };
        Self { counters, ..Self::default() }
    }

    pub(super) fn add(
        &mut self,
        snapshot: Option<ShardSnapshot>,
        before: &Counters,
        shard: ShardStatus,
    ) {
        self.counters.merge(before);
        let runs = snapshot.is_some();
        let ShardSnapshot { counters, tally, memory_bytes, sessions, count } =
            snapshot.unwrap_or_default();
        self.counters.merge(&counters);
        self.tally.merge(tally);
        self.role.memory_bytes += memory_bytes;
        self.role.sessions.extend(sessions);
        self.role.shards.push(ShardStatus { runs, sessions: count, ..shard });
    }

    pub(super) fn add_streams(&mut self, streams: impl Iterator<Item = StreamsStatus>) {
        let all = self.role.streams.get_or_insert_default();
        streams.for_each(|streams| all.merge(&streams));
    }

    pub(super) fn order_by(&mut self, numbers: &HashMap<String, u64>) {
        self.role.sessions.sort_by_key(|session| numbers.get(&session.public_key).copied());
    }

    pub(super) fn into_status(self) -> (Counters, ServerStatus) {
        let Self { counters, tally, role } = self;
        let refusals = counters.refusals.clone();
        (counters, ServerStatus { totals: tally.into(), refusals, ..role })
    }
}
