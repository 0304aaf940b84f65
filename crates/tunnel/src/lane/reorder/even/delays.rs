//! The delay of a lane with even delivery: that of 99 of 100 recent packets.
//!
//! ```text
//!  packets of the last 10 to 20 s, by (came - sent), whole milliseconds
//!  least ▁▅█▅▃▂▁▁▁  ▁ ▁│  ▁      │ least + max_buffer: what is beyond is counted there
//!                      └ 99 %: the delay rises to it at once, and falls to it slowly
//! ```
//!
//! The offset of the clocks and the unknown transit time are the same in all differences, so only
//! the differences between them matter. The longest wait counts from the least.
//!
//! - Clocks drift: old differences are forgotten. The delay falls by a hundredth of the time that
//!   passes, forty times the drift of clocks, and invisible to a receiver that looks for queues.
//! - A clock that leaps makes packets come sooner or later than the longest wait allows. Sooner:
//!   all starts again. Later: packets go out as they come; all starts again after such a second.
//! - A peer with wrong times delays its own packets by the longest wait at most.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::Stamp;

#[derive(Debug, Default)]
pub(crate) struct Delays {
    pub(super) wait_max: Duration,
    /// The newest packet's stamp, and its time, ms.
    clock: Option<(Stamp, i64)>,
    /// Packets by delay, ms by both clocks: in this period, and in the one before.
    took: BTreeMap<i64, [u32; 2]>,
    total: u64,
    period_began: Instant,
    /// The delay by both clocks, µs.
    delay: i64,
    looked: Instant,
    beyond: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    InTime,
    Late,
    Restarted,
}

impl Delays {
    pub(super) fn new(wait_max: Duration) -> Self {
        Self { wait_max, ..Self::default() }
    }

    pub(crate) fn set_wait_max(&mut self, wait_max: Duration) {
        self.wait_max = wait_max;
        self.bound();
    }

    pub(super) fn due(&self, sent: i64) -> Instant {
        let micros = sent.saturating_add(self.delay).max(0).unsigned_abs();
        Instant::ZERO + Duration::from_micros(micros.min(u64::MAX / 1_000))
    }

    pub(crate) fn spread(&self) -> Duration {
        let least = self.took.first_key_value().map(|(least, _)| self.delay - least * MILLI);
        Duration::from_micros(least.unwrap_or(0).max(0).unsigned_abs()).min(self.wait_max)
    }

    pub(crate) fn memory(&self) -> usize {
        self.took.len() * BIN_BYTES
    }

    /// Notes a packet that comes `now`; returns when it was sent, µs of the peer's clock.
    pub(super) fn on_packet(&mut self, now: Instant, stamp: Stamp) -> (i64, Timing) {
        let sent = match self.clock {
            Some((newest, ms)) => ms.saturating_add(stamp.since(newest)),
            None => return self.begin(now, stamp),
        };
        self.clock = Some((stamp, sent));
        let sent = sent.saturating_mul(MILLI);
        let took = micros(now).saturating_sub(sent);
        self.turn(now);
        let wait_max = self.wait_max.as_micros() as i64;
        let least = self.took.first_key_value().map(|(least, _)| *least);
        if least.is_some_and(|least| took < least * MILLI - wait_max) {
            return self.begin(now, stamp);
        }
        if least.is_some_and(|least| took > (least + 1) * MILLI + wait_max) {
            let since = *self.beyond.get_or_insert(now);
            if now.since(since) >= LEAP_TIME {
                return self.begin(now, stamp);
            }
        } else {
            self.beyond = None;
        }
        self.fall(now);
        let seen = if took > self.delay { Timing::Late } else { Timing::InTime };
        self.count(took.div_euclid(MILLI));
        self.bound();
        if seen == Timing::Late && self.delay < self.delay_max() {
            self.delay = self.delay.max(self.covering()).min(self.delay_max());
        }
        (sent, seen)
    }

    fn begin(&mut self, now: Instant, stamp: Stamp) -> (i64, Timing) {
        *self = Self { period_began: now, looked: now, ..Self::new(self.wait_max) };
        // The peer's clock counts as started with ours, to keep numbers small.
        let sent = micros(now).div_euclid(MILLI);
        self.clock = Some((stamp, sent));
        self.count(0);
        self.delay = micros(now) - sent * MILLI;
        (sent * MILLI, Timing::Restarted)
    }

    fn count(&mut self, took_ms: i64) {
        let at_most = match self.took.first_key_value() {
            Some((least, _)) => least.saturating_add(self.wait_ms() + 1),
            None => took_ms,
        };
        let [present, _] = self.took.entry(took_ms.min(at_most)).or_default();
        *present = present.saturating_add(1);
        self.total += 1;
    }

    fn wait_ms(&self) -> i64 {
        self.wait_max.as_millis() as i64
    }

    fn delay_max(&self) -> i64 {
        let least = self.took.first_key_value().map(|(least, _)| least * MILLI);
        least.map_or(i64::MAX, |least| least + self.wait_max.as_micros() as i64)
    }

    fn bound(&mut self) {
        let Some((least, _)) = self.took.first_key_value() else { return };
        let beyond = *least + self.wait_ms() + 1;
        while let Some(last) = self.took.last_entry()
            && *last.key() > beyond
        {
            let counts = last.remove();
            let sum = self.took.entry(beyond).or_default();
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        }
        self.delay = self.delay.min(self.delay_max());
    }

    fn turn(&mut self, now: Instant) {
        let age = now.since(self.period_began);
        if age < PERIOD {
            return;
        }
        self.period_began = now;
        self.took.retain(|_, counts| {
            let [present, before] = counts;
            *before = if age < 2 * PERIOD { std::mem::take(present) } else { 0 };
            *present = 0;
            *before > 0
        });
        self.total = self.took.values().map(|[_, before]| u64::from(*before)).sum();
    }

    fn fall(&mut self, now: Instant) {
        let passed = now.since(self.looked);
        if passed < LOOK_EVERY || self.took.is_empty() {
            return;
        }
        self.looked = now;
        let step = (passed.min(FALL_AT_ONCE) / FALL_SHARE).as_micros() as i64;
        self.delay = self.covering().max(self.delay - step).min(self.delay);
    }

    /// The delay that covers all recent packets but a few, µs.
    fn covering(&self) -> i64 {
        let mut spare = self.total * LATE_PER_MILLE / 1_000;
        for (ms, [present, before]) in self.took.iter().rev() {
            let count = u64::from(*present) + u64::from(*before);
            let Some(left) = spare.checked_sub(count) else { return (ms + 1) * MILLI };
            spare = left;
        }
        self.delay
    }
}

fn micros(at: Instant) -> i64 {
    (at.as_nanos() / 1_000) as i64
}

const MILLI: i64 = 1_000;
const LATE_PER_MILLE: u64 = 10;
const PERIOD: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The delay falls by one part in this many of the time that passes: WebRTC's detector misses it.
const FALL_SHARE: u32 = 100;
const FALL_AT_ONCE: Duration = Duration::from_secs(1);
const LEAP_TIME: Duration = Duration::from_secs(1);
const BIN_BYTES: usize = 32;
