//! What links can carry, as slots: stretches of time of one rate and one delay.
//!
//! ```text
//!   capacity  ______/~~~~\__/~~~~~~~      a slot ends wherever capacity, delay or loss changes;
//!   delay     ─────────┐  ┌──────────     stretches without capacity have no slot; stretches with
//!   loss      ____________|^^^|______     total loss have one only at their end
//!   slots          [   ][ ]  [x][   ]
//! ```
//!
//! A byte sent at `t` within a slot arrives at `t + delay` or later, with one exception: delay and
//! loss of a packet are those of the moment at which its *last* byte departs. The last bytes of a
//! stretch, up to the size of a packet, therefore count as arriving with the best stretch that the
//! packet could reach. That is optimistic by one packet per change, never pessimistic.

use std::time::Duration;

use roadweave_emulate::{Capacity, Opportunities, Timeline, Trace};
use roadweave_proto::Rate;

/// The largest packet on a link, bytes: Ethernet's. Packets of the tunnel are smaller.
pub const LINK_PACKET_BYTES_MAX: u64 = 1_500;

/// Bytes in units of bit/s x ns, which needs no rounding.
pub(super) type Budget = u128;

pub(super) fn budget_of(bytes: u64) -> Budget {
    Budget::from(bytes) * 8 * 1_000_000_000
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub from: u64,
    pub to: u64,
    pub bps: u64,
    /// The least delay of a byte, ns; negative at an opportunity, whose bytes leave at its start.
    pub delay: i64,
}

impl Slot {
    pub fn budget(&self, from: u64, to: u64) -> Budget {
        Budget::from(to - from) * Budget::from(self.bps)
    }

    pub fn arrival(&self, time: u64) -> u64 {
        time.saturating_add_signed(self.delay)
    }

    pub fn departure(&self, time: u64) -> u64 {
        time.saturating_sub_signed(self.delay)
    }
}

pub(super) fn slots(links: &[&Trace], horizon: Duration) -> Vec<Slot> {
    let mut slots: Vec<Slot> =
        links.iter().flat_map(|trace| relaxed(&stretches(trace, horizon))).collect();
    slots.sort_unstable_by_key(|slot| (slot.from, slot.to, slot.delay, slot.bps));
    slots
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u64,
    to: u64,
    bps: u64,
    delay: Option<i64>,
}

impl Stretch {
    fn budget(&self) -> Budget {
        Budget::from(self.to - self.from) * Budget::from(self.bps)
    }
}

fn stretches(trace: &Trace, horizon: Duration) -> Vec<Stretch> {
    match &**trace.capacity() {
        Capacity::Rates(rates) => stretches_of_rates(trace, rates, horizon),
        Capacity::Opportunities(opportunities) => {
            stretches_of_opportunities(trace, opportunities, horizon)
        }
    }
}

fn stretches_of_rates(trace: &Trace, rates: &Timeline<Rate>, horizon: Duration) -> Vec<Stretch> {
    let mut changes = begins(rates, horizon);
    changes.extend(begins(trace.delay(), horizon));
    changes.extend(begins(trace.loss(), horizon));
    changes.sort_unstable();
    changes.dedup();
    let ends = changes.iter().copied().skip(1).chain([horizon]);
    let stretch = |(&at, to): (&Duration, Duration)| Stretch {
        from: nanos(at),
        to: nanos(to),
        bps: rates.at(at).as_bps(),
        delay: delay_at(trace, at),
    };
    changes.iter().zip(ends).map(stretch).collect()
}

/// When the values of a timeline begin, up to `horizon`.
///
/// A timeline that holds its last value counts as repeating; the additional entries do no harm.
pub(super) fn begins<V: Copy>(timeline: &Timeline<V>, horizon: Duration) -> Vec<Duration> {
    let Some(length) = timeline.length() else { return vec![Duration::ZERO] };
    let mut begins = Vec::new();
    let mut pass = Duration::ZERO;
    while pass < horizon {
        let mut at = pass;
        for (lasting, _) in timeline.iter() {
            begins.push(at);
            at += lasting;
        }
        pass += length;
    }
    begins.retain(|&at| at < horizon);
    begins
}

fn stretches_of_opportunities(
    trace: &Trace,
    opportunities: &Opportunities,
    horizon: Duration,
) -> Vec<Stretch> {
    let mut lumps: Vec<(u64, u64)> = Vec::new();
    for (at, bytes) in opportunities.until(horizon) {
        match lumps.last_mut().filter(|last| last.0 == nanos(at)) {
            Some(last) => last.1 += bytes,
            None => lumps.push((nanos(at), bytes)),
        }
    }
    let lumps = lumps.into_iter().filter(|lump| lump.0 < nanos(horizon));
    let stretch = |(from, bytes): (u64, u64)| Stretch {
        from,
        to: from + LUMP_NANOS,
        bps: (bytes * 8).saturating_mul(1_000_000_000).div_ceil(LUMP_NANOS),
        // A byte sent at the end of the stretch arrives as if sent at its beginning.
        delay: delay_at(trace, Duration::from_nanos(from)).map(|delay| delay - LUMP_NANOS as i64),
    };
    lumps.map(stretch).collect()
}

const LUMP_NANOS: u64 = 10_000;

/// `None` if the loss is certain. Partial loss counts as no loss.
fn delay_at(trace: &Trace, at: Duration) -> Option<i64> {
    let delay = || i64::try_from(nanos(trace.delay().at(at))).unwrap_or(i64::MAX);
    (trace.loss().at(at) < 1.0).then(delay)
}

/// The slots of one link, whose last bytes before a change may profit from the change.
fn relaxed(stretches: &[Stretch]) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(stretches.len());
    for (index, stretch) in stretches.iter().enumerate() {
        let Stretch { from, to, bps, delay } = *stretch;
        if bps == 0 {
            continue;
        }
        let slot = |from, to, delay| Slot { from, to, bps, delay };
        let best = best_arrival_after(stretches, index)
            .filter(|&at| delay.is_none_or(|delay| at < to.saturating_add_signed(delay)));
        let Some(best) = best else {
            slots.extend(delay.map(|delay| slot(from, to, delay)));
            continue;
        };
        let packet = budget_of(LINK_PACKET_BYTES_MAX).div_ceil(Budget::from(bps));
        let tail = to.saturating_sub(u64::try_from(packet).unwrap_or(u64::MAX)).max(from);
        if let Some(delay) = delay
            && from < tail
        {
            slots.push(slot(from, tail, delay));
        }
        slots.push(slot(tail, to, difference(best, to)));
    }
    slots
}

/// The earliest arrival of a packet that is in transmission at the end of stretch `index` and
/// departs in a later stretch.
fn best_arrival_after(stretches: &[Stretch], index: usize) -> Option<u64> {
    let mut between = 0;
    let mut best: Option<u64> = None;
    for stretch in &stretches[index + 1..] {
        if between > budget_of(LINK_PACKET_BYTES_MAX)
            || best.is_some_and(|best| best <= stretch.from)
        {
            break;
        }
        let arrival = stretch.delay.map(|delay| stretch.from.saturating_add_signed(delay));
        best = [best, arrival].into_iter().flatten().min();
        between += stretch.budget();
    }
    best
}

fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
