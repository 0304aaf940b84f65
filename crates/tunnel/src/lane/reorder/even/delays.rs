//! The delay of a lane that delivers evenly: as long as 99 of 100 packets of late took.
//!
//! ```text
//!  packets of the last 10 to 20 s, by (came - sent), whole milliseconds
//!  least ▁▅█▅▃▂▁▁▁  ▁ ▁│  ▁      │ least + max_buffer: what is beyond is counted there
//!                      └ 99 %: the delay rises to it at once, and falls to it slowly
//! ```
//!
//! The clocks of the two ends have begun anywhere, and a time on the way that is known to nobody
//! is in each difference. All of them have the same of both, so that none of it matters: the delay
//! is one of these differences, and so is the least of them, from which the longest wait counts.
//!
//! - Clocks drift apart: old differences are forgotten, and the delay goes with the new ones. It
//!   falls by a hundredth of the time that passes: forty times what clocks drift, and nothing to a
//!   receiver that looks for growing queues.
//! - A clock that leaps makes packets come sooner or later than the longest wait allows for.
//!   Sooner: all begins anew with the first. Later: they go out as they come, as late ones, and if
//!   all do for a second it begins anew. Leaps that are smaller are as good as another path.
//! - A peer that lies about its times has its packets delayed, never for longer than the longest
//!   wait: the delay is at most that above the least difference, and no packet's is smaller.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::Stamp;

/// What the packets of a lane took of late, and the delay that follows from it.
#[derive(Debug)]
pub(super) struct Delays {
    wait_max: Duration,
    /// The newest packet's stamp, and what it stands for, ms.
    clock: Option<(Stamp, i64)>,
    /// How many packets took so many ms by both clocks, in this period and the one before.
    took: BTreeMap<i64, [u32; 2]>,
    /// How many packets these are.
    total: u64,
    period_began: Instant,
    /// What comes out is so much later than it was sent, µs by both clocks.
    delay: i64,
    /// When it was looked whether it may fall.
    looked: Instant,
    /// Since when all packets came beyond the longest wait.
    beyond: Option<Instant>,
}

/// What a packet is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    InTime,
    /// It came after the delay had passed.
    Late,
    /// It is the first by this clock.
    Anew,
}

impl Delays {
    pub(super) fn new(wait_max: Duration) -> Self {
        Self {
            wait_max,
            clock: None,
            took: BTreeMap::new(),
            total: 0,
            period_began: Instant::ZERO,
            delay: 0,
            looked: Instant::ZERO,
            beyond: None,
        }
    }

    pub(super) fn set_wait_max(&mut self, wait_max: Duration) {
        self.wait_max = wait_max;
        self.bound();
    }

    pub(super) fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// When a packet goes out that was sent at `sent` µs of the peer's clock.
    pub(super) fn due(&self, sent: i64) -> Instant {
        let micros = sent.saturating_add(self.delay).max(0).unsigned_abs();
        Instant::ZERO + Duration::from_micros(micros.min(u64::MAX / 1_000))
    }

    /// How long a packet would wait that was as quick as the quickest of late.
    pub(super) fn spread(&self) -> Duration {
        let least = self.took.first_key_value().map(|(least, _)| self.delay - least * MILLI);
        Duration::from_micros(least.unwrap_or(0).max(0).unsigned_abs()).min(self.wait_max)
    }

    pub(super) fn memory(&self) -> usize {
        self.took.len() * BIN_BYTES
    }

    /// Takes note of a packet that comes `now`; returns when it was sent, µs of the peer's clock.
    pub(super) fn on_packet(&mut self, now: Instant, stamp: Stamp) -> (i64, Seen) {
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
        let seen = if took > self.delay { Seen::Late } else { Seen::InTime };
        self.count(took.div_euclid(MILLI));
        self.bound();
        if seen == Seen::Late && self.delay < self.delay_max() {
            self.delay = self.delay.max(self.covering()).min(self.delay_max());
        }
        (sent, seen)
    }

    /// Forgets all but this packet: it has come at its time.
    fn begin(&mut self, now: Instant, stamp: Stamp) -> (i64, Seen) {
        *self = Self { period_began: now, looked: now, ..Self::new(self.wait_max) };
        // Whatever its clock is, it began when ours did: numbers stay small.
        let sent = micros(now).div_euclid(MILLI);
        self.clock = Some((stamp, sent));
        self.count(0);
        self.delay = micros(now) - sent * MILLI;
        (sent * MILLI, Seen::Anew)
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

    /// The longest wait above the least.
    fn delay_max(&self) -> i64 {
        let least = self.took.first_key_value().map(|(least, _)| least * MILLI);
        least.map_or(i64::MAX, |least| least + self.wait_max.as_micros() as i64)
    }

    /// Keeps the delay, and what is remembered, within the longest wait of the least.
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

    /// Forgets what is older than a period when the next one begins.
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

    /// The delay may fall a little, to what covers the packets of late.
    fn fall(&mut self, now: Instant) {
        let passed = now.since(self.looked);
        if passed < LOOK_EVERY || self.took.is_empty() {
            return;
        }
        self.looked = now;
        let step = (passed.min(FALL_AT_ONCE) / FALL_SHARE).as_micros() as i64;
        self.delay = self.covering().max(self.delay - step).min(self.delay);
    }

    /// What covers all packets of late but a few, µs.
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

/// Microseconds of the unit in which packets tell their times.
const MILLI: i64 = 1_000;
/// Of a thousand packets so many may be late.
const LATE_PER_MILLE: u64 = 10;
/// What packets took is remembered for one to two of these.
const PERIOD: Duration = Duration::from_secs(10);
/// How often it is looked whether the delay may fall.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The delay falls by one part in so many of the time that passes. WebRTC's detector, which
/// multiplies a slope by at most 60 groups and 4, and reacts beyond 6, does not see it.
const FALL_SHARE: u32 = 100;
/// Silence counts for so much, at most.
const FALL_AT_ONCE: Duration = Duration::from_secs(1);
/// For how long all must come beyond the longest wait until it was a clock.
const LEAP_TIME: Duration = Duration::from_secs(1);
/// A number of ms and its counts, with its part of a tree's node.
const BIN_BYTES: usize = 32;
