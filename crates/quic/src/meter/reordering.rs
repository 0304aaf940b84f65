//! How late packets arrive that others have overtaken.
//!
//! ```text
//! sent     1   2   3   4   5
//! answered     2               1 was overtaken, and comes after all: so late a packet may be
//!                  3   5       4 was overtaken; it may come yet, or is lost
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use super::rtt::{GRANULARITY, Samples};

#[derive(Debug, Default)]
pub(super) struct Reordering {
    began: Option<Instant>,
    spans: [ReorderingSpan; 2],
    /// Recent mean age and mean deviation.
    usual: Option<(Duration, Duration)>,
    newest: Option<u64>,
    /// Packets taken for lost that may still arrive, ascending by number.
    pub(super) missing: VecDeque<(u64, Instant)>,
    batch: Samples,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReorderingSpan {
    most: Duration,
    late: u32,
    all: u32,
}

impl Reordering {
    /// Zero where packets keep their order.
    pub(super) fn most(&self) -> Duration {
        self.spans[0].most.max(self.spans[1].most)
    }

    pub(super) fn is_common(&self) -> bool {
        let [late, all] = [|span: &ReorderingSpan| span.late, |span: &ReorderingSpan| span.all]
            .map(|count| self.spans.iter().map(count).fold(0, u32::saturating_add));
        late > 0 && late.saturating_mul(LATE_SHARE) >= all
    }

    /// Whether no overtaken packet arrived in the last seconds, of [`ORDERED_MIN`] or more.
    pub(super) fn keeps_order(&self) -> bool {
        self.spans[1].all >= ORDERED_MIN && self.spans.iter().all(|span| span.late == 0)
    }

    fn is_known(&self) -> bool {
        self.spans.iter().map(|span| span.late).fold(0, u32::saturating_add) >= LATE_MIN
    }

    fn note(&mut self, age: Duration) {
        let age = age.min(LATENESS_MAX);
        let span = &mut self.spans[0];
        span.most = span.most.max(age);
        span.late = span.late.saturating_add(1);
        self.batch.add(age);
        let (mean, deviation) = self.usual.unwrap_or((age, Duration::ZERO));
        let deviation = (deviation * (USUAL_MEMORY - 1) + mean.abs_diff(age)) / USUAL_MEMORY;
        self.usual = Some(((mean * (USUAL_MEMORY - 1) + age) / USUAL_MEMORY, deviation));
    }

    pub(super) fn turn(&mut self, now: Instant, late_ack_wait: Duration) {
        let elapsed = now.since(*self.began.get_or_insert(now));
        if elapsed >= LATENESS_MEMORY {
            let before =
                if elapsed < LATENESS_MEMORY * 2 { self.spans[0] } else { Default::default() };
            self.spans = [ReorderingSpan::default(), before];
            self.began = Some(now);
            self.usual = self.usual.filter(|_| self.most() > Duration::ZERO);
        }
        while self.missing.len() > MISSING_MAX
            || self.missing.front().is_some_and(|(_, sent)| *sent + late_ack_wait < now)
        {
            self.missing.pop_front();
        }
    }

    pub(super) fn miss(&mut self, pn: u64, sent: Instant) {
        let at = self.missing.partition_point(|(other, _)| *other < pn);
        self.missing.insert(at, (pn, sent));
    }

    fn find(&mut self, pn: u64) -> bool {
        let found = self.missing.binary_search_by_key(&pn, |(missing, _)| *missing);
        found.is_ok_and(|at| self.missing.remove(at).is_some())
    }

    /// `was_in_flight`: not taken for lost. Returns whether it was missing.
    pub(super) fn on_acknowledged(&mut self, pn: u64, age: Duration, was_in_flight: bool) -> bool {
        let was_missing = !was_in_flight && self.find(pn);
        if !was_in_flight && !was_missing {
            return false;
        }
        self.spans[0].all = self.spans[0].all.saturating_add(1);
        if self.newest.is_some_and(|newest| pn < newest) {
            self.note(age);
        }
        was_missing
    }

    /// Ends a batch up to number `newest`; returns the ages of its overtaken packets.
    pub(super) fn end_batch(&mut self, newest: Option<u64>) -> Samples {
        self.newest = newest;
        std::mem::take(&mut self.batch)
    }

    /// The rate beyond which over [`OVERTAKEN_MAX`] packets overtake a late one, which a receiver
    /// then discards; `None` where packets keep their order.
    pub(super) fn rate_max(&self, mtu: u16, min_rtt: Duration) -> Option<Rate> {
        let (mean, deviation) = self.usual.filter(|_| self.is_common() && self.is_known())?;
        let late = mean + deviation * LATE_DEVIATIONS;
        let span = late.saturating_sub(min_rtt).max(GRANULARITY);
        Some(Rate::of(u64::from(mtu) * OVERTAKEN_MAX, span))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) packets: Vec<LostPacket>,
    /// Whether all packets over a long time were lost (RFC 9002 section 7.6).
    pub(crate) is_persistent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostPacket {
    pub(crate) pn: u64,
    pub(crate) bytes: u16,
    pub(crate) sent: Instant,
}

const LATE_SHARE: u32 = 64;
const LATE_MIN: u32 = 16;
/// Packets of a whole span.
const ORDERED_MIN: u32 = 64;
const LATENESS_MEMORY: Duration = Duration::from_secs(5);
/// Bounds what a peer's acknowledgements can make this side wait for.
const LATENESS_MAX: Duration = Duration::from_secs(2);
const MISSING_MAX: usize = 4096;
/// How many packets may overtake one: the length of the library's window of duplicates.
const OVERTAKEN_MAX: u64 = 128;
/// A packet that this many overtook is lost for certain.
pub(crate) const PACKET_THRESHOLD: u64 = OVERTAKEN_MAX + 2;
/// Mean deviations above the mean age: hardly any packet is later.
const LATE_DEVIATIONS: u32 = 3;
const USUAL_MEMORY: u32 = 256;
