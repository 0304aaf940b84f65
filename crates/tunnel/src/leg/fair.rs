//! The queue of a leg, fair in bytes among waiting tenants.
//!
//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). When the queue is full, the tenant
//! with the most bytes loses its oldest datagram; old datagrams are dropped for all.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant};

use super::TenantId;

/// A datagram, and whether it is kept until it is acknowledged.
type Queued = (Bytes, bool);
pub(super) type Drop<'a> = &'a mut dyn FnMut(TenantId, DropReason);

#[derive(Debug, Default)]
pub(super) struct FairQueue {
    flows: BTreeMap<TenantId, Flow>,
    turns: VecDeque<TenantId>,
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
struct Flow {
    datagrams: VecDeque<(Instant, Queued)>,
    bytes: usize,
    deficit: usize,
}

impl Flow {
    fn take(&mut self) -> Option<Queued> {
        let (_, it) = self.datagrams.pop_front()?;
        self.bytes -= cost(&it.0);
        Some(it)
    }
}

impl FairQueue {
    pub(super) fn push(&mut self, now: Instant, tenant: TenantId, it: Queued, drop: Drop<'_>) {
        let flow = self.flows.entry(tenant).or_insert_with(|| {
            self.turns.push_back(tenant);
            Flow::default()
        });
        let bytes = cost(&it.0);
        flow.bytes += bytes;
        self.bytes += bytes;
        flow.datagrams.push_back((now, it));
        while self.bytes > BYTES_MAX
            && let Some((tenant, flow)) = self.flows.iter_mut().max_by_key(|(_, flow)| flow.bytes)
        {
            let tenant = *tenant;
            self.bytes -= flow.take().map_or(0, |(datagram, _)| cost(&datagram));
            drop(tenant, DropReason::QueueFull);
        }
    }

    pub(super) fn pop(&mut self, now: Instant, drop: Drop<'_>) -> Option<(TenantId, Queued)> {
        while let Some(tenant) = self.turns.front().copied() {
            let Some(flow) = self.flows.get_mut(&tenant) else {
                self.turns.pop_front();
                continue;
            };
            while flow.datagrams.front().is_some_and(|(since, _)| now.since(*since) > AGE_MAX) {
                self.bytes -= flow.take().map_or(0, |(datagram, _)| cost(&datagram));
                drop(tenant, DropReason::QueueExpired);
            }
            let Some((_, (next, _))) = flow.datagrams.front() else {
                // An idle tenant saves nothing for later.
                self.flows.remove(&tenant);
                self.turns.pop_front();
                continue;
            };
            if flow.deficit < next.len() {
                flow.deficit += QUANTUM;
                self.turns.rotate_left(1);
                continue;
            }
            flow.deficit -= next.len();
            let it = flow.take()?;
            self.bytes -= cost(&it.0);
            return Some((tenant, it));
        }
        None
    }

    pub(super) fn clear(&mut self, drop: Drop<'_>) {
        for (tenant, flow) in std::mem::take(&mut self.flows) {
            flow.datagrams.iter().for_each(|_| drop(tenant, DropReason::LegAway));
        }
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

pub(super) fn cost(datagram: &Bytes) -> usize {
    datagram.len() + OVERHEAD_BYTES
}

/// Waiting bytes, at most: a tenth of a second at 600 Mbit/s.
const BYTES_MAX: usize = 8 << 20;
const OVERHEAD_BYTES: usize = 64;
/// Older datagrams are useless to video, and other traffic does without such a queue.
const AGE_MAX: Duration = Duration::from_millis(250);
/// Bytes per turn: at least a packet.
const QUANTUM: usize = 1_600;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREEDY: TenantId = TenantId(0);
    const MODEST: TenantId = TenantId(1);

    fn nothing(_: TenantId, reason: DropReason) {
        panic!("dropped by {reason:?}");
    }

    fn push(queue: &mut FairQueue, tenant: TenantId, length: usize) {
        let datagram = (vec![0_u8; length].into(), false);
        queue.push(Instant::ZERO, tenant, datagram, &mut nothing);
    }

    #[test]
    fn tenants_that_wait_get_equal_bytes_whatever_their_packets() {
        let mut queue = FairQueue::default();
        (0..1_000).for_each(|_| push(&mut queue, GREEDY, 1_400));
        (0..1_000).for_each(|_| push(&mut queue, MODEST, 200));
        let mut sent = BTreeMap::new();
        while sent.values().sum::<usize>() < 300_000 {
            let next = queue.pop(Instant::ZERO, &mut nothing);
            let (tenant, (datagram, _)) = next.expect("both wait");
            *sent.entry(tenant).or_default() += datagram.len();
        }
        assert!(sent[&GREEDY].abs_diff(sent[&MODEST]) <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn only_the_tenant_that_fills_the_queue_loses_packets() {
        let mut queue = FairQueue::default();
        let now = Instant::ZERO;
        push(&mut queue, MODEST, 1_000);
        let mut lost = 0;
        for _ in 0..20_000 {
            queue.push(now, GREEDY, (vec![0; 1_000].into(), false), &mut |tenant, reason| {
                assert_eq!((tenant, reason), (GREEDY, DropReason::QueueFull));
                lost += 1;
            });
            assert!(queue.bytes <= BYTES_MAX);
        }
        assert!(lost > 10_000, "{lost}");
        let rest = std::iter::from_fn(|| queue.pop(now, &mut nothing));
        assert_eq!(rest.filter(|(tenant, _)| *tenant == MODEST).count(), 1);
        assert_eq!((queue.bytes, queue.is_empty()), (0, true));
    }

    #[test]
    fn what_is_old_goes_and_is_counted() {
        let mut queue = FairQueue::default();
        queue.push(Instant::ZERO, MODEST, (vec![1; 10].into(), false), &mut nothing);
        queue.push(Instant::from_millis(200), MODEST, (vec![2; 10].into(), true), &mut nothing);
        let mut drops = Vec::new();
        let next = queue.pop(Instant::from_millis(300), &mut |id, why| drops.push((id, why)));
        assert_eq!(next.map(|(_, (datagram, kept))| (datagram[0], kept)), Some((2, true)));
        assert_eq!(drops, [(MODEST, DropReason::QueueExpired)]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_uncounted(
            steps in prop::collection::vec((0_u16..4, 0_usize..3_000, any::<bool>()), 1..300),
        ) {
            let mut queue = FairQueue::default();
            let (mut pushed, mut popped, mut dropped) = (0, 0, 0);
            for (ms, (tenant, length, pops)) in steps.into_iter().enumerate() {
                let now = Instant::from_millis(ms as u64 * 7);
                let mut drop = |_: TenantId, _: DropReason| dropped += 1;
                queue.push(now, TenantId(tenant), (vec![0; length].into(), false), &mut drop);
                pushed += 1;
                popped += usize::from(pops && queue.pop(now, &mut drop).is_some());
            }
            let waiting: usize = queue.flows.values().map(|flow| flow.datagrams.len()).sum();
            prop_assert_eq!(pushed, popped + dropped + waiting);
            let bytes: usize = queue.flows.values().map(|flow| flow.bytes).sum();
            prop_assert_eq!(bytes, queue.bytes);
        }
    }
}
