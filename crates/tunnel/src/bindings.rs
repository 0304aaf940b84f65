//! Where an anchor's devices are: the newest binding of each, and the attachment it made.
//!
//! ```text
//! binding ─► tenant known? device known? for this anchor, by this proxy? newer? signed? ─► attachment
//!             unknown-device             forged-binding                  old      forged
//!
//! attachment: (tenant, device) ─► (leg, handle)      the one before it may send for 2 s more
//! ```
//!
//! The number alone decides which binding is the newest, without a clock or controller. The costly
//! signature is checked last. A refused old binding is answered with the newest one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use roadweave_identity::{PublicKey, Signature};
use roadweave_proto::Instant;
use roadweave_proto::wire::{Binding, Detached};
use roadweave_quic::ConnectionId;

use crate::leg::TenantId;

pub(crate) type DeviceId = (TenantId, PublicKey);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) leg: ConnectionId,
    pub(crate) handle: u32,
}

#[derive(Debug)]
struct Held {
    newest: Binding,
    now_at: Option<At>,
    former: Option<(At, Instant)>,
    /// Its place in the eviction order, if the device may not connect.
    forgotten: Option<u64>,
}

impl Held {
    fn new(newest: Binding) -> Self {
        Self { newest, now_at: None, former: None, forgotten: None }
    }
}

#[derive(Debug)]
pub(crate) struct Attach {
    pub(crate) at: At,
    pub(crate) device: DeviceId,
    pub(crate) proxy: PublicKey,
    pub(crate) binding: Binding,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    Yes {
        former: Option<At>,
    },
    /// Refused; with the newest binding if this one is old.
    No(Detached, Option<Binding>),
}

#[derive(Debug)]
pub(crate) struct Bindings {
    anchor: PublicKey,
    devices: BTreeMap<DeviceId, Held>,
    senders: HashMap<At, DeviceId>,
    counts: BTreeMap<ConnectionId, usize>,
    forgotten: BTreeMap<u64, DeviceId>,
}

impl Bindings {
    pub(crate) fn new(anchor: PublicKey) -> Self {
        let (devices, senders, counts) = (BTreeMap::new(), HashMap::new(), BTreeMap::new());
        Self { anchor, devices, senders, counts, forgotten: BTreeMap::new() }
    }

    pub(crate) fn attach(&mut self, now: Instant, attach: Attach) -> Attached {
        let Attach { at, device, proxy, binding } = attach;
        let is_for_here =
            binding.anchor == *self.anchor.as_bytes() && binding.proxy == *proxy.as_bytes();
        if !is_for_here {
            return Attached::No(Detached::Forged, None);
        }
        if self.senders.contains_key(&at) {
            return Attached::No(Detached::Busy, None);
        }
        match self.devices.get(&device).map(|held| &held.newest) {
            // The leg came up again, and the proxy repeats its attachments.
            Some(newest) if *newest == binding => {}
            Some(newest) if newest.number >= binding.number => {
                return Attached::No(Detached::Old, Some(newest.clone()));
            }
            _ => {
                if !is_signed(&device.1, &binding) {
                    return Attached::No(Detached::Forged, None);
                }
            }
        }
        let held = self.devices.entry(device).or_insert_with(|| Held::new(binding.clone()));
        held.forgotten.take().iter().for_each(|turn| _ = self.forgotten.remove(turn));
        held.newest = binding;
        let before = held.now_at.replace(at);
        let gone = before.and_then(|it| held.former.replace((it, now + FORMER_COUNTS)));
        if let Some((gone, _)) = gone {
            self.forget_sender(gone);
        }
        self.senders.insert(at, device);
        *self.counts.entry(at.leg).or_default() += 1;
        Attached::Yes { former: before }
    }

    pub(crate) fn detach(&mut self, at: At) {
        let Some(sender) = self.forget_sender(at) else { return };
        if let Some(held) = self.devices.get_mut(&sender) {
            held.now_at.take_if(|now_at| *now_at == at);
            held.former.take_if(|(former, _)| *former == at);
        }
    }

    pub(crate) fn detach_leg(&mut self, leg: ConnectionId) {
        let all = self.devices.values();
        let all = all.flat_map(|held| [held.now_at, held.former.map(|(at, _)| at)]);
        let gone: Vec<At> = all.flatten().filter(|at| at.leg == leg).collect();
        gone.into_iter().for_each(|at| self.detach(at));
        self.counts.remove(&leg);
    }

    /// Detaches a device that may not connect any more. Its newest binding is kept while there is
    /// room, so that no older one counts if it is admitted again.
    pub(crate) fn forget(&mut self, device: &DeviceId) -> Option<At> {
        let held = self.devices.get_mut(device)?;
        let (now_at, former) = (held.now_at.take(), held.former.take().map(|(at, _)| at));
        if held.forgotten.is_none() {
            let turn = self.forgotten.last_key_value().map_or(0, |(last, _)| last + 1);
            held.forgotten = Some(turn);
            self.forgotten.insert(turn, *device);
        }
        [now_at, former].into_iter().flatten().for_each(|at| _ = self.forget_sender(at));
        while self.forgotten.len() > FORGOTTEN_MAX
            && let Some((_, device)) = self.forgotten.pop_first()
        {
            self.devices.remove(&device);
        }
        now_at
    }

    /// The device of an attachment; `None` once it has been elsewhere for 2 s.
    pub(crate) fn sender(&self, now: Instant, at: At) -> Option<DeviceId> {
        let sender = self.senders.get(&at)?;
        let held = self.devices.get(sender)?;
        let is_former = || held.former.is_some_and(|(former, until)| former == at && now < until);
        (held.now_at == Some(at) || is_former()).then_some(*sender)
    }

    pub(crate) fn at(&self, device: &DeviceId) -> Option<At> {
        self.devices.get(device)?.now_at
    }

    pub(crate) fn attached(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.iter().filter(|(_, held)| held.now_at.is_some()).map(|(device, _)| *device)
    }

    pub(crate) fn count_of(&self, leg: ConnectionId) -> usize {
        self.counts.get(&leg).copied().unwrap_or_default()
    }

    pub(crate) fn newest(&self) -> impl Iterator<Item = (&PublicKey, &Binding)> {
        self.devices.iter().map(|((_, device), held)| (device, &held.newest))
    }

    pub(crate) fn restore(&mut self, device: DeviceId, newest: Binding) {
        let is_ours = newest.anchor == *self.anchor.as_bytes() && is_signed(&device.1, &newest);
        if is_ours && !self.devices.contains_key(&device) {
            self.devices.insert(device, Held::new(newest));
        }
    }

    fn forget_sender(&mut self, at: At) -> Option<DeviceId> {
        let sender = self.senders.remove(&at)?;
        if let Some(count) = self.counts.get_mut(&at.leg) {
            *count -= 1;
        }
        Some(sender)
    }
}

fn is_signed(device: &PublicKey, binding: &Binding) -> bool {
    device.verifies(&binding.signed(), &Signature::from_bytes(binding.signature))
}

/// Covers packets in flight, and those of the session that a client leaves.
const FORMER_COUNTS: Duration = Duration::from_secs(2);
const FORGOTTEN_MAX: usize = 1 << 13;

#[cfg(test)]
mod tests;
