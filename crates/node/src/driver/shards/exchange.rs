//! Which shard has which client, and what shards hand over: misrouted packets, and keys of clients
//! whose session a newer one at another shard replaces. The newest session of a key was recorded
//! here last. A shard with a newer session when it reads of a replacement keeps it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use roadweave_identity::PublicKey;
use roadweave_linux::threads::lock;
use roadweave_linux::{DeviceError, Waker};
use roadweave_proto::{DropCounters, DropReason};
use roadweave_tunnel::{MisroutedPacket, MisroutedQueue};

#[derive(Debug)]
pub(super) struct ShardExchange {
    owners: Mutex<Owners>,
    inboxes: Vec<ShardInbox>,
}

#[derive(Debug, Default)]
struct Owners {
    by_key: HashMap<PublicKey, Owner>,
    begun: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    shard: u16,
    number: u64,
}

#[derive(Debug)]
struct ShardInbox {
    waiting: Mutex<Parcels>,
    waker: Waker,
    handed_over: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Parcels {
    pub(super) strays: MisroutedQueue,
    pub(super) replaced: BTreeSet<PublicKey>,
}

impl ShardExchange {
    pub(super) fn new(count: u16) -> Result<Self, DeviceError> {
        let inbox = |_| {
            let waker = Waker::new()?;
            Ok(ShardInbox { waiting: Mutex::default(), waker, handed_over: AtomicU64::new(0) })
        };
        let inboxes = (0..count).map(inbox).collect::<Result<_, DeviceError>>()?;
        Ok(Self { owners: Mutex::default(), inboxes })
    }

    pub(super) fn waker(&self, shard: u16) -> Waker {
        self.inboxes[usize::from(shard)].waker.clone()
    }

    pub(super) fn on_joined(&self, key: PublicKey, shard: u16) {
        let mut owners = lock(&self.owners);
        owners.begun += 1;
        let owner = Owner { shard, number: owners.begun };
        let before = owners.by_key.insert(key, owner).map(|owner| owner.shard);
        lock(&self.inboxes[usize::from(shard)].waiting).replaced.remove(&key);
        if let Some(other) = before.filter(|other| *other != shard) {
            let other = &self.inboxes[usize::from(other)];
            lock(&other.waiting).replaced.insert(key);
            other.waker.wake();
        }
    }

    pub(super) fn on_left(&self, key: &PublicKey, shard: u16) {
        let mut owners = lock(&self.owners);
        if owners.by_key.get(key).is_some_and(|owner| owner.shard == shard) {
            owners.by_key.remove(key);
        }
    }

    pub(super) fn has_owner(&self, key: &PublicKey) -> bool {
        lock(&self.owners).by_key.contains_key(key)
    }

    pub(super) fn on_failed(&self, shard: u16) -> DropCounters {
        lock(&self.owners).by_key.retain(|_, owner| owner.shard != shard);
        let mut drops = DropCounters::default();
        drops.add(DropReason::NoSession, self.take(shard).strays.len() as u64);
        drops
    }

    pub(super) fn hand_over(
        &self,
        from: u16,
        strays: impl Iterator<Item = MisroutedPacket>,
    ) -> DropCounters {
        let (mut drops, mut woken, mut handed) = (DropCounters::default(), BTreeSet::new(), 0);
        for stray in strays {
            let owner = match &stray {
                MisroutedPacket::Packet { shard, .. } => Some(*shard),
                MisroutedPacket::Inner { key, .. } => {
                    lock(&self.owners).by_key.get(key).map(|owner| owner.shard)
                }
            };
            let Some(to) = owner.filter(|to| *to != from) else {
                drops.count(DropReason::NoSession);
                continue;
            };
            let Some(inbox) = self.inboxes.get(usize::from(to)) else { continue };
            match lock(&inbox.waiting).strays.push(stray) {
                true => handed += 1,
                false => drops.count(DropReason::ShardFull),
            }
            woken.insert(to);
        }
        woken.iter().for_each(|to| self.inboxes[usize::from(*to)].waker.wake());
        self.inboxes[usize::from(from)].handed_over.fetch_add(handed, Ordering::Relaxed);
        drops
    }

    pub(super) fn numbers(&self) -> HashMap<String, u64> {
        let owners = lock(&self.owners);
        owners.by_key.iter().map(|(key, owner)| (key.to_string(), owner.number)).collect()
    }

    pub(super) fn take(&self, shard: u16) -> Parcels {
        std::mem::take(&mut lock(&self.inboxes[usize::from(shard)].waiting))
    }

    pub(super) fn handed_over(&self, shard: u16) -> u64 {
        self.inboxes[usize::from(shard)].handed_over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use roadweave_identity::Identity;

    use super::*;

    fn key(number: u8) -> PublicKey {
        Identity::from_seed([number; 32]).public_key()
    }

    fn inner(client: u8) -> MisroutedPacket {
        MisroutedPacket::Inner { key: key(client), packet: Bytes::from_static(b"inner") }
    }

    fn exchange() -> ShardExchange {
        ShardExchange::new(3).expect("descriptors")
    }

    #[test]
    fn the_session_that_began_last_is_the_one_wherever_the_others_are() {
        let exchange = exchange();
        let replaced = |shard| exchange.take(shard).replaced.into_iter().collect::<Vec<_>>();
        exchange.on_joined(key(1), 0);
        exchange.on_joined(key(2), 0);
        exchange.on_joined(key(1), 1);
        assert_eq!((replaced(0), replaced(1)), (vec![key(1)], vec![]));
        exchange.on_joined(key(1), 2);
        exchange.on_joined(key(1), 1);
        assert_eq!((replaced(1), replaced(2)), (vec![], vec![key(1)]));
        exchange.on_left(&key(1), 2);
        assert!(exchange.hand_over(0, [inner(1)].into_iter()).iter().next().is_none());
        let mut handed = exchange.take(1).strays;
        assert_eq!((handed.pop(), handed.pop()), (Some(inner(1)), None));
        assert!(exchange.numbers()[&key(2).to_string()] < exchange.numbers()[&key(1).to_string()]);
        exchange.on_left(&key(1), 1);
        let drops = exchange.hand_over(0, [inner(1)].into_iter());
        assert_eq!(drops.get(DropReason::NoSession), 1);
        assert_eq!(exchange.handed_over(0), 1);
    }

    #[test]
    fn a_failed_shard_has_no_clients_and_others_keep_theirs() {
        let exchange = exchange();
        (0..6).for_each(|client| exchange.on_joined(key(client), u16::from(client % 2)));
        assert_eq!(exchange.hand_over(1, (0..6).map(inner)).get(DropReason::NoSession), 3);
        assert_eq!(exchange.on_failed(0).get(DropReason::NoSession), 3, "what waited is counted");
        assert!(exchange.take(0).strays.is_empty());
        assert_eq!(exchange.hand_over(2, (0..6).map(inner)).get(DropReason::NoSession), 3);
        assert_eq!(exchange.take(1).strays.len(), 3);
    }

    #[test]
    fn what_waits_for_a_shard_that_stands_still_is_bounded_and_counted() {
        let exchange = exchange();
        exchange.on_joined(key(1), 1);
        let payload = Bytes::from(vec![0; 1_000]);
        let stray = MisroutedPacket::Inner { key: key(1), packet: payload };
        let drops = exchange.hand_over(0, (0..10_000).map(|_| stray.clone()));
        let waits = exchange.take(1).strays.len();
        assert_eq!(waits, MisroutedQueue::BYTES_MAX / (1_000 + MisroutedQueue::OVERHEAD_BYTES));
        assert_eq!(drops.get(DropReason::ShardFull) as usize, 10_000 - waits);
        assert_eq!(exchange.handed_over(0) as usize, waits);
    }
}
