//! One direction's sender: its schedule, and the fill level of the link's queue.
//!
//! ```text
//!            report: highest number, bytes, times
//!                 │
//!                 v
//!  bytes that arrived in the last 250 ms ─────> pace: twice that, or the constant rate
//!  highest arrival rate within 2 s ───────────> window: that x (the loop's time without our
//!                                               own queue + 500 ms); beyond it only half of
//!                                               the arrival rate
//! ```
//!
//! A link is saturated while its queue is not empty. Twice the known rate fills it within a few
//! round trips when the capacity grows; the window limits it to half a second on links that would
//! buffer more, so that it drains before the probes. Beyond the window data continue at half the
//! arrival rate: when the capacity falls, a full queue has dropped many of the bytes that seem to
//! be in flight, and the link would run dry before the sender notices. (Saturator keeps a
//! round-trip time of 0.75 to 3 s; its reports use another link.) Only the queue of this direction
//! counts: if the other direction is saturated too, reports are late, and the window grows
//! accordingly.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use crate::arrivals::signed;
use crate::message::{PROBE_BYTES, Packet, PacketKind, Report};
use crate::plan::{Moment, Phase, PlanClock, RecordMode, RecordPlan};

#[derive(Debug)]
pub(crate) struct Sender {
    plan: RecordPlan,
    clock: PlanClock,
    saturates: bool,
    header_bytes: u16,
    finishing: bool,
    number: u32,
    highest: u32,
    cycle: u16,
    last_data: u32,
    probes: Option<Probes>,
    /// When the next data may be sent within the window, and beyond it.
    pace_at: Instant,
    trickle_at: Instant,
    /// When the next tail or, at the end, keep-alive may be sent.
    tail_at: Instant,
    /// When a packet or report of the other side last arrived.
    heard_at: Instant,
    estimate: Estimate,
    pub data_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Probes {
    total: u16,
    sent: u16,
    next: Instant,
}

#[derive(Debug, Default)]
struct Estimate {
    /// The last report's bytes and their time, us of the receiver.
    last: Option<(u64, u64)>,
    /// Rates by time, each later one lower.
    rates: VecDeque<(Instant, Rate)>,
    highest: Rate,
    /// The highest rate of the previous cycle, the estimate at the start of this one.
    before: Rate,
    /// The smallest difference of the receiver's and the sender's clock so far, us.
    difference_min: Option<i64>,
    /// The time from a packet's departure to its report.
    round_trip: Duration,
    /// The same without the queue of this direction.
    loop_time: Duration,
}

impl Sender {
    pub fn new(
        now: Instant,
        plan: RecordPlan,
        clock: PlanClock,
        saturates: bool,
        header_bytes: u16,
    ) -> Self {
        Self {
            plan,
            clock,
            saturates,
            header_bytes,
            finishing: false,
            number: 0,
            highest: 0,
            cycle: 0,
            last_data: 0,
            probes: None,
            pace_at: now,
            trickle_at: now,
            tail_at: now,
            heard_at: now,
            estimate: Estimate::default(),
            data_bytes: 0,
        }
    }

    /// Stops data and probes; keep-alives continue.
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    pub fn on_heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Handles a report; returns whether it acknowledges new packets.
    pub fn handle_report(&mut self, now: Instant, report: &Report) -> bool {
        if report.highest > self.number || report.highest < self.highest {
            return false; // It cannot know that, or it is an old one.
        }
        let is_newer = report.highest > self.highest;
        self.highest = report.highest;
        let held = Duration::from_micros(report.held_us.into());
        let since_sent =
            self.clock.elapsed(now).saturating_sub(Duration::from_micros(report.sent_us));
        let round_trip = since_sent.saturating_sub(held);
        self.estimate.add(now, report, round_trip);
        is_newer
    }

    /// The packet to send at `now`; the caller adds the token and its confirmation.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        let moment = self.moment(now);
        if self.finishing || moment.phase == Phase::Done {
            return self.poll_tail(now);
        }
        if moment.cycle != self.cycle {
            self.cycle = moment.cycle;
            self.last_data = 0;
            self.probes = None;
            self.estimate.begin_cycle();
        }
        match moment.phase {
            Phase::Done => None,
            Phase::Saturate => match self.data_due(now) {
                Some(at) if at <= now => Some(self.data(now)),
                Some(_) => None,
                None => self.poll_tail(now),
            },
            Phase::Probe => {
                if !self.is_drained(now) {
                    return self.poll_tail(now);
                }
                self.poll_probe(now, moment.until)
            }
        }
    }

    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let moment = self.moment(now);
        let ends = self.clock.instant(moment.until);
        if self.finishing {
            return self.tail_at;
        }
        let next = match moment.phase {
            Phase::Done => self.tail_at,
            Phase::Saturate => self.data_due(now).unwrap_or(self.tail_at),
            Phase::Probe => match self.probes.filter(|_| moment.cycle == self.cycle) {
                Some(probes) if probes.sent < probes.total => probes.next,
                Some(_) => ends,
                None if self.is_drained(now) => now,
                None => self.tail_at.min(self.drained_at_last()),
            },
        };
        next.min(ends)
    }

    pub fn moment(&self, now: Instant) -> Moment {
        self.plan.moment(self.clock.elapsed(now), self.saturates)
    }

    pub fn round_trip(&self) -> Duration {
        self.estimate.round_trip
    }

    /// When the next data may be sent; `None` while the other side is silent.
    fn data_due(&self, now: Instant) -> Option<Instant> {
        let is_open = match self.plan.mode {
            RecordMode::Saturate => self.in_flight_bytes() < self.estimate.window(now, &self.plan),
            RecordMode::Constant(_) => true,
        };
        let due = if is_open { self.pace_at } else { self.trickle_at };
        (now.since(self.heard_at) < SILENCE_MAX).then_some(due)
    }

    fn in_flight_bytes(&self) -> u64 {
        u64::from(self.number - self.highest) * u64::from(self.plan.packet_bytes)
    }

    fn data(&mut self, now: Instant) -> Packet {
        let bytes = self.plan.packet_bytes;
        let rate = match self.plan.mode {
            RecordMode::Constant(rate) => rate,
            RecordMode::Saturate => self.estimate.pace(now, &self.plan),
        };
        self.pace_at = self.pace_at.max(now - BURST) + rate.time_for(bytes.into());
        // Half of the arrival rate is a quarter of the pace.
        self.trickle_at = now + rate.time_for(bytes.into()) * 4;
        self.tail_at = now + TAIL_INTERVAL;
        self.data_bytes += u64::from(bytes);
        let packet =
            self.packet(now, PacketKind::Data, bytes.saturating_sub(self.header_bytes).into());
        self.last_data = packet.number;
        packet
    }

    fn poll_tail(&mut self, now: Instant) -> Option<Packet> {
        if now < self.tail_at {
            return None;
        }
        self.tail_at = now + TAIL_INTERVAL;
        Some(self.packet(now, PacketKind::Tail, PROBE_BYTES))
    }

    fn poll_probe(&mut self, now: Instant, until: Duration) -> Option<Packet> {
        let left = self.clock.instant(until).since(now);
        let probes = self.probes.get_or_insert_with(|| {
            let total = left.as_nanos() / RecordPlan::PROBE_INTERVAL.as_nanos();
            Probes { total: u16::try_from(total).unwrap_or(u16::MAX), sent: 0, next: now }
        });
        if probes.sent >= probes.total || now < probes.next {
            return None;
        }
        probes.sent += 1;
        probes.next =
            probes.next.max(now - RecordPlan::PROBE_INTERVAL) + RecordPlan::PROBE_INTERVAL;
        Some(self.packet(now, PacketKind::Probe, PROBE_BYTES))
    }

    /// Whether the cycle's data have left the queue, or its time is over.
    fn is_drained(&self, now: Instant) -> bool {
        self.last_data == 0 || self.highest > self.last_data || now >= self.drained_at_last()
    }

    /// When probes begin even if the queue is not empty.
    fn drained_at_last(&self) -> Instant {
        let counted = self.plan.counts_from(self.cycle) + self.plan.counted();
        self.clock.instant(counted + self.plan.drain_max())
    }

    fn packet(&mut self, now: Instant, kind: PacketKind, payload_bytes: usize) -> Packet {
        self.number = self.number.saturating_add(1);
        Packet {
            token: 0,
            kind,
            finishing: self.finishing,
            number: self.number,
            cycle: self.cycle,
            sent_us: self.clock.elapsed_us(now),
            confirmed: 0,
            probes: self.probes.map_or(0, |probes| probes.total),
            payload_bytes,
        }
    }
}

impl Estimate {
    fn begin_cycle(&mut self) {
        if self.highest > Rate::ZERO {
            self.before = self.highest;
        }
        self.highest = Rate::ZERO;
        self.rates.clear();
        self.last = None;
    }

    fn add(&mut self, now: Instant, report: &Report, round_trip: Duration) {
        let difference = signed(report.received_us).saturating_sub(signed(report.sent_us));
        let least = self.difference_min.map_or(difference, |least| least.min(difference));
        self.difference_min = Some(least);
        let own_queue = difference.saturating_sub(least).unsigned_abs();
        self.round_trip = round_trip;
        self.loop_time = round_trip.saturating_sub(Duration::from_micros(own_queue));

        let here = (report.bytes, report.received_us);
        let (bytes, at) = self.last.unwrap_or(here);
        let elapsed = report.received_us.saturating_sub(at);
        let is_more = report.bytes > bytes;
        if is_more && elapsed < RATE_OVER_US {
            return; // Too short for a rate.
        }
        self.last = Some(here);
        // Without data, the gap between two cycles is not a rate.
        if is_more {
            let bits = u128::from(report.bytes - bytes) * 8 * 1_000_000 / u128::from(elapsed);
            self.add_rate(now, Rate::from_bps(u64::try_from(bits).unwrap_or(u64::MAX)));
        }
    }

    fn add_rate(&mut self, now: Instant, rate: Rate) {
        while self.rates.front().is_some_and(|&(at, _)| now.since(at) > RATE_KEPT) {
            self.rates.pop_front();
        }
        while self.rates.back().is_some_and(|&(_, lower)| lower <= rate) {
            self.rates.pop_back();
        }
        if self.rates.len() < RATES_MAX {
            self.rates.push_back((now, rate));
        }
        self.highest = self.highest.max(rate);
    }

    /// The highest rate within `period` before `until`, or else of all known rates.
    fn rate(&self, until: Instant, period: Duration) -> Rate {
        let recent = self.rates.iter().find(|&&(at, _)| until.since(at) <= period);
        match recent {
            Some(&(_, rate)) => rate.max(RATE_MIN),
            None if self.highest > Rate::ZERO => self.highest.max(RATE_MIN),
            None if self.before > Rate::ZERO => self.before.max(RATE_MIN),
            None => RATE_FIRST,
        }
    }

    fn pace(&self, now: Instant, plan: &RecordPlan) -> Rate {
        // Without arrivals the last rate holds: the link may have paused.
        let last = self.rates.back().filter(|&&(at, _)| now.since(at) <= RATE_KEPT);
        let rate = self.rate(last.map_or(now, |last| last.0), RATE_LATE);
        Rate::from_bps(rate.as_bps().saturating_mul(2)).min(plan.sending_rate_max())
    }

    fn window(&self, now: Instant, plan: &RecordPlan) -> u64 {
        let rate = self.rate(now, RATE_KEPT).min(plan.sending_rate_max());
        let window = rate.bytes_in(self.loop_time + REPORT_TIME + QUEUE_TARGET);
        window.max(PACKETS_MIN * u64::from(plan.packet_bytes))
    }
}

/// After this silence the other side gets no data.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(3);
const TAIL_INTERVAL: Duration = Duration::from_millis(100);
/// Burst of a sender that woke late.
const BURST: Duration = Duration::from_millis(5);
/// Target of the link's queue.
const QUEUE_TARGET: Duration = Duration::from_millis(500);
/// Holding time of a report, and a margin.
const REPORT_TIME: Duration = Duration::from_millis(30);
/// Initial estimate.
const RATE_FIRST: Rate = Rate::from_kbps(1_000);
/// Lower bound of the estimate.
const RATE_MIN: Rate = Rate::from_kbps(50);
/// How long a rate counts for the pace: longer than a radio's schedule.
const RATE_LATE: Duration = Duration::from_millis(250);
/// How long a rate counts for the window.
const RATE_KEPT: Duration = Duration::from_secs(2);
/// Limit of the rates in the window; with one each 15 ms it is never reached.
const RATES_MAX: usize = 256;
const RATE_OVER_US: u64 = 15_000;
const PACKETS_MIN: u64 = 8;
