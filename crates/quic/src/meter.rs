//! The record of one path: what was sent, what became of it, and what follows from that.
//!
//! ```text
//! on_sent ----> [ 17 | 18 | 20 | 21 ]  packets in flight by number, some with a cargo
//! claim            ^ datagram 900 rides on 18
//! on_acknowledged, on_lost ---> signals (cargo, fate)      round-trip time, delivery rate, loss
//! ```
//!
//! Times are those of the library; [`Path`](crate::path) translates them.

mod forecast;
mod loss;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use noq_proto::congestion::ControllerMetrics;
use roadweave_types::Rate;

pub(crate) use self::loss::PACKET_THRESHOLD;
use self::loss::{Batch, Lateness};

/// What a packet carries that somebody wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cargo {
    /// A user's datagram with this token.
    Datagram(u64),
    /// The fragment of a message with this number.
    Fragment(u32),
}

/// What became of a packet's cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledged(Answer),
    Lost,
}

/// What the acknowledgement of a packet tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) sent: Instant,
    pub(crate) bytes: u16,
    /// Its round trip, without what the peer waited for the newer packets that it acknowledged
    /// together with this one: no longer than they left after it, and no longer than a peer waits.
    pub(crate) rtt: Duration,
}

/// How the sender did in the time that a batch of acknowledgements covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) app_limited: bool,
    pub(crate) window_limited: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    pn: u64,
    /// Whether its fate is known; settled packets leave when they are the oldest.
    settled: bool,
    at: Instant,
    bytes: u16,
    /// Bytes in flight when it left, its own included.
    in_flight: u64,
    /// Whether it is larger than what the path was known to take: a probe of its MTU.
    is_probe: bool,
    cargo: Option<Cargo>,
}

/// The record of one path.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Off during the handshake, whose three packet number spaces count from the same numbers.
    tracking: bool,
    /// In flight, ascending by number. There are gaps: the library skips numbers, and what asks for
    /// no acknowledgement is not reported.
    sent: VecDeque<Sent>,
    in_flight: u64,
    last_sent: Option<u64>,
    signals: Vec<(Cargo, Fate)>,
    /// How many of the signals are older than the present batch of acknowledgements.
    settled_signals: usize,
    /// The newest packet that was acknowledged, by number and by the time it was sent.
    newest_acknowledged: Option<(u64, Instant)>,
    last_acknowledged: Option<Instant>,
    lateness: Lateness,
    pub(crate) rtt: RoundTrip,
    pub(crate) delivery: DeliveryRate,
    /// What was in flight when the packet acknowledged last left, by its round-trip time: what the
    /// path passed in that time (Little's law).
    passed: Option<(Instant, Rate)>,
    pub(crate) window: u64,
    /// The rate that the controller paces at.
    pub(crate) pacing_rate: Option<Rate>,
    pub(crate) mtu: u16,
    loss: f32,
    limited_until: Option<Instant>,
    /// Since when the path is used to the full, short pauses left aside.
    busy_since: Option<Instant>,
    window_limited: bool,
}

impl Meter {
    pub(crate) fn new(initial_rtt: Duration, mtu: u16) -> Self {
        Self {
            tracking: false,
            sent: VecDeque::new(),
            in_flight: 0,
            last_sent: None,
            signals: Vec::new(),
            settled_signals: 0,
            newest_acknowledged: None,
            last_acknowledged: None,
            lateness: Lateness::default(),
            rtt: RoundTrip::new(initial_rtt),
            delivery: DeliveryRate::default(),
            passed: None,
            window: u64::from(mtu) * 10,
            pacing_rate: None,
            mtu,
            loss: 0.0,
            limited_until: None,
            busy_since: None,
            window_limited: false,
        }
    }

    /// Begins to keep the record; from now on all packets must be of one number space.
    pub(crate) fn start_tracking(&mut self) {
        if !std::mem::replace(&mut self.tracking, true) {
            self.newest_acknowledged = None;
            self.lateness = Lateness::default();
            self.rtt.newest = None;
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if !self.tracking || self.sent.back().is_some_and(|newest| newest.pn >= pn) {
            return;
        }
        self.sent.push_back(Sent {
            pn,
            settled: false,
            at: now,
            bytes,
            in_flight: self.in_flight + u64::from(bytes),
            is_probe: bytes > self.mtu,
            cargo: None,
        });
        self.in_flight += u64::from(bytes);
        self.last_sent = Some(pn);
    }

    /// Says what the packet sent last carries; `false` if none was sent since the last call.
    pub(crate) fn claim(&mut self, cargo: Option<Cargo>) -> bool {
        let Some(pn) = self.last_sent.take() else { return false };
        match self.sent.back_mut() {
            Some(sent) if sent.pn == pn => sent.cargo = cargo,
            _ => return false,
        }
        true
    }

    /// Forgets which packet was sent last.
    pub(crate) fn disclaim(&mut self) {
        self.last_sent = None;
    }

    /// Returns whether all that was taken for lost has come after all.
    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
    ) -> bool {
        self.last_acknowledged = Some(now);
        self.delivery.on_delivered(bytes);
        if self.newest_acknowledged.is_none_or(|(newest, _)| pn > newest) {
            self.newest_acknowledged = Some((pn, sent));
        }
        let rtt = now.saturating_duration_since(sent);
        let answer = Answer { sent, bytes: bytes as u16, rtt };
        let settled = self.settle(pn, Fate::Acknowledged(answer));
        if let Some(sent) = settled
            && self.newest_acknowledged.is_some_and(|(newest, _)| newest == pn)
        {
            self.passed = Some((now, Rate::of(sent.in_flight, rtt.max(GRANULARITY))));
        }
        self.note_order(pn, rtt, settled.is_some())
    }

    /// Ends a batch of acknowledgements that arrived at `now`.
    pub(crate) fn on_acks_end(&mut self, now: Instant) -> Progress {
        let mut batch = self.end_order();
        if let Some((_, sent)) = self.newest_acknowledged
            && self.last_acknowledged == Some(now)
            && self.rtt.newest != Some(sent)
        {
            self.rtt.newest = Some(sent);
            batch.add(now.saturating_duration_since(sent));
        }
        self.rtt.update(now, &batch);
        self.take_waits_off();
        self.delivery.update(now, self.rtt.smoothed);
        self.detect_losses(now);
        self.settled_signals = self.signals.len();
        let window_limited = std::mem::take(&mut self.window_limited);
        Progress { app_limited: self.is_app_limited(now), window_limited }
    }

    /// Takes what the peer waited off the round trips of the present batch.
    fn take_waits_off(&mut self) {
        let batch = &mut self.signals[self.settled_signals..];
        let newest = batch.iter().filter_map(|(_, fate)| match fate {
            Fate::Acknowledged(answer) => Some(answer.sent),
            Fate::Lost => None,
        });
        let Some(newest) = newest.max() else { return };
        for (_, fate) in batch {
            if let Fate::Acknowledged(answer) = fate {
                let waited = newest.saturating_duration_since(answer.sent).min(ACK_DELAY_MAX);
                answer.rtt = answer.rtt.saturating_sub(waited);
            }
        }
    }

    pub(crate) fn on_metrics(&mut self, metrics: &ControllerMetrics, window: u64) {
        self.window = window;
        self.pacing_rate = metrics.pacing_rate.map(Rate::from_bytes_per_second);
    }

    /// Notes that the path could take no more at `now`, for the window's sake, or the pacer's,
    /// which lets a packet through each `interval`. A sender that has more will come back as soon
    /// as it may.
    pub(crate) fn on_limited(&mut self, now: Instant, by_window: bool, interval: Duration) {
        let memory = match by_window {
            true => (self.rtt.smoothed / 4).max(LIMITED_MEMORY_WINDOW),
            false => interval * 2 + LIMITED_MEMORY_PACER,
        };
        if self.limited_until.is_none_or(|until| now > until + BUSY_PAUSE) {
            self.busy_since = Some(now);
        }
        self.limited_until = Some(now + memory);
        self.window_limited |= by_window;
    }

    /// Whether the sender has of late left room unused, so that the rate of acknowledgements says
    /// nothing about what the path could carry.
    pub(crate) fn is_app_limited(&self, now: Instant) -> bool {
        self.limited_until.is_none_or(|until| now > until)
    }

    /// Declares all that is in flight lost: the path is gone, or another than it was.
    pub(crate) fn abandon(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let open = sent.iter().filter(|packet| !packet.settled);
        self.signals.extend(open.filter_map(|packet| Some((packet.cargo?, Fate::Lost))));
        self.in_flight = 0;
        self.last_sent = None;
    }

    /// Takes what became of cargo since the last call, in the order in which it was learned.
    pub(crate) fn take_signals(&mut self) -> std::vec::Drain<'_, (Cargo, Fate)> {
        self.settled_signals = 0;
        self.signals.drain(..)
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn last_acknowledged(&self) -> Option<Instant> {
        self.last_acknowledged
    }

    /// When the newest packet that was acknowledged had been sent.
    pub(crate) fn acknowledged_up_to(&self) -> Option<Instant> {
        self.newest_acknowledged.map(|(_, sent)| sent)
    }

    /// Since when an answer has been owed: since the oldest packet in flight, or the last answer.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        let oldest = self.sent.front()?.at;
        Some(self.last_acknowledged.map_or(oldest, |at| at.max(oldest)))
    }

    /// The share of packets lost of late, 0..1.
    pub(crate) fn loss(&self) -> f32 {
        self.loss
    }

    /// Returns the packet, if its fate was not known before.
    fn settle(&mut self, pn: u64, fate: Fate) -> Option<Sent> {
        let index = self.sent.binary_search_by_key(&pn, |packet| packet.pn).ok()?;
        let sent = &mut self.sent[index];
        if std::mem::replace(&mut sent.settled, true) {
            return None;
        }
        let sent = *sent;
        self.in_flight -= u64::from(sent.bytes);
        if let Some(cargo) = sent.cargo {
            self.signals.push((cargo, fate));
        }
        let lost = if fate == Fate::Lost { 1.0 } else { 0.0 };
        self.loss += (lost - self.loss) / LOSS_MEMORY;
        self.trim();
        Some(sent)
    }

    fn trim(&mut self) {
        while self.sent.front().is_some_and(|oldest| oldest.settled) {
            self.sent.pop_front();
        }
    }
}

/// The round-trip time of a path (RFC 9002 section 5), the peer's delay in acknowledging included:
/// that delay is part of what a sender waits for, and at most 2 ms.
///
/// RFC 9002 expects a few samples per round trip. Here acknowledgements come each millisecond, the
/// smoothed value follows them within a few, and the mean deviation from it is close to nothing
/// even while the delay doubles. What a sender must know is how far the delay moves within the
/// round trip that an answer takes; so the deviation is at least half of what was seen of that,
/// which is kept as a maximum that fades by a quarter per round trip (as Linux keeps `mdev_max`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    pub(crate) latest: Duration,
    pub(crate) smoothed: Duration,
    pub(crate) deviation: Duration,
    mean_deviation: Duration,
    swing: Swing,
    recent: RecentMin,
    /// The same over the last frame or two.
    fresh: RecentMin,
    sampled: bool,
    newest: Option<Instant>,
}

/// The smallest round-trip time of the last one or two times `half`: the network that a vehicle is
/// in changes.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMin {
    began: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl RecentMin {
    fn update(&mut self, now: Instant, sample: Duration, half: Duration) {
        if self.began.is_none_or(|began| now >= began + half) {
            self.before = self.now.take();
            self.began = Some(now);
        }
        self.now = Some(self.now.map_or(sample, |least| least.min(sample)));
    }

    fn min(&self) -> Duration {
        self.now.into_iter().chain(self.before).min().unwrap_or_default()
    }
}

/// How far the round-trip time rises within one round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Swing {
    round_ends: Option<Instant>,
    /// The smoothed round-trip time when the round began.
    reference: Duration,
    /// The highest sample of the round, above the reference.
    rise: Duration,
    faded: Duration,
}

impl Swing {
    fn update(&mut self, now: Instant, sample: Duration, smoothed: Duration) {
        if self.round_ends.is_none_or(|end| now >= end) {
            self.faded = self.rise.max(self.faded * 3 / 4);
            self.reference = smoothed;
            self.rise = Duration::ZERO;
            self.round_ends = Some(now + smoothed);
        }
        self.rise = self.rise.max(sample.saturating_sub(self.reference));
    }

    fn get(&self) -> Duration {
        self.rise.max(self.faded)
    }
}

impl RoundTrip {
    fn new(initial: Duration) -> Self {
        Self {
            latest: initial,
            smoothed: initial,
            deviation: initial / 2,
            mean_deviation: initial / 2,
            swing: Swing::default(),
            recent: RecentMin::default(),
            fresh: RecentMin::default(),
            sampled: false,
            newest: None,
        }
    }

    fn update(&mut self, now: Instant, batch: &Batch) {
        let Some(sample) = batch.mean() else { return };
        self.latest = sample;
        self.recent.update(now, batch.least, RECENT);
        self.fresh.update(now, batch.least, FRESH);
        if self.sampled {
            self.mean_deviation = (self.mean_deviation * 3 + self.smoothed.abs_diff(sample)) / 4;
            self.swing.update(now, batch.most, self.smoothed);
            self.smoothed = (self.smoothed * 7 + sample) / 8;
        } else {
            self.sampled = true;
            (self.smoothed, self.mean_deviation) = (sample, sample / 2);
        }
        self.deviation = self.mean_deviation.max(self.swing.get() / 2);
    }

    /// The smallest of the last 5 to 10 s, so that another route is soon known for what it is; the
    /// initial one before the first sample.
    pub(crate) fn least(&self) -> Duration {
        if self.sampled { self.recent.min() } else { self.smoothed }
    }

    /// The probe timeout without its backoff (RFC 9002 section 6.2.1).
    pub(crate) fn pto(&self) -> Duration {
        self.smoothed + (self.deviation * 4).max(GRANULARITY) + ACK_DELAY_MAX
    }
}

/// What a path may carry beyond what its congestion controller allows, while it shows no
/// congestion.
///
/// The controller of a path that carried little knows little of it: BBR has measured what it was
/// given, and from there it probes upwards by a quarter every few seconds. When the path that
/// carried the video dies, the others must take over within a few round trips. So a path without a
/// queue (its round-trip time is near its minimum) and without loss may carry an initial window,
/// and twice what it delivered in the last round trip: slow start (RFC 9002 section 7.3.1) that
/// ends with the first sign of a queue, as HyStart++ (RFC 9406) ends it. After a second of full use
/// the controller knows enough, and the path is its own again: it keeps queues shorter than a slow
/// start does. RFC 7661 has the case for not holding an application-limited sender to what it
/// happened to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ramp {
    /// Bytes.
    pub(crate) window: u64,
    pub(crate) rate: Rate,
}

impl Meter {
    pub(crate) fn ramp(&self, now: Instant) -> Ramp {
        let rtt = &self.rtt;
        let least = rtt.recent.min();
        let jitter = self.lateness.most().saturating_sub(rtt.smoothed);
        let calm =
            rtt.smoothed <= least + least / 2 + RAMP_SLACK + jitter && self.loss() < RAMP_LOSS_MAX;
        let busy = self.limited_until.is_some_and(|until| now <= until + BUSY_PAUSE)
            && self.busy_since.is_some_and(|since| now > since + RAMP_TIME);
        if !calm || busy || !rtt.sampled {
            return Ramp::default();
        }
        let delivered =
            (self.delivery.newest().bytes_per_second() * rtt.smoothed.as_secs_f64()) as u64;
        let window = (delivered * 2).max(u64::from(self.mtu) * RAMP_PACKETS);
        Ramp { window, rate: Rate::of(window, rtt.smoothed.max(GRANULARITY)) }
    }
}

/// The rate at which a path delivers: the best of the last few round trips.
///
/// It is here to bound what the congestion controller makes of a few acknowledgements that came at
/// once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryRate {
    began: Option<Instant>,
    delivered: u64,
    /// Of the latest windows, the newest first.
    windows: [Rate; 10],
}

impl DeliveryRate {
    fn on_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    fn update(&mut self, now: Instant, smoothed_rtt: Duration) {
        let began = *self.began.get_or_insert(now);
        let elapsed = now.saturating_duration_since(began);
        if elapsed < smoothed_rtt.max(WINDOW_MIN) {
            return;
        }
        self.windows.rotate_right(1);
        self.windows[0] = Rate::of(self.delivered, elapsed);
        self.began = Some(now);
        self.delivered = 0;
    }

    /// The rate over the last round trip.
    fn newest(&self) -> Rate {
        self.windows[0]
    }

    /// Zero before the first round trip.
    pub(crate) fn best(&self) -> Rate {
        self.windows.into_iter().max().unwrap_or_default()
    }
}

/// How much above its recent minimum the round-trip time of a path without a queue may be, beyond a
/// half: that of a moving vehicle varies by as much.
const RAMP_SLACK: Duration = Duration::from_millis(10);
/// Half of what counts as recent.
const RECENT: Duration = Duration::from_secs(5);
/// Half of what counts as fresh.
const FRESH: Duration = Duration::from_millis(60);
/// For how long a path that is used to the full may outrun its controller.
const RAMP_TIME: Duration = Duration::from_millis(1000);
/// How long a path may have room to spare and still count as used to the full.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// The share of lost packets above which a path is left to its controller.
const RAMP_LOSS_MAX: f32 = 0.05;
/// What any path without congestion may have in flight: a new connection may send 10 (RFC 6928),
/// content networks use 32.
const RAMP_PACKETS: u64 = 32;
/// How long a path counts as fully used after its window was found full, at least: acknowledgements
/// that make room come in batches.
const LIMITED_MEMORY_WINDOW: Duration = Duration::from_millis(10);
/// How late a sender may come back to a pacer that would let it.
const LIMITED_MEMORY_PACER: Duration = Duration::from_millis(3);
/// Loss is averaged over about this many packets.
const LOSS_MEMORY: f32 = 100.0;
/// RFC 9002 section 6.1.2.
const GRANULARITY: Duration = Duration::from_millis(1);
/// The longest that the peer waits before it acknowledges.
const ACK_DELAY_MAX: Duration = Duration::from_millis(2);
/// The shortest time over which a delivery rate is measured.
const WINDOW_MIN: Duration = Duration::from_millis(50);

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn meter() -> (Meter, Instant) {
        let mut meter = Meter::new(Duration::from_millis(100), 1200);
        meter.start_tracking();
        (meter, Instant::now())
    }

    fn send(meter: &mut Meter, at: Instant, pn: u64, token: u64) {
        meter.on_sent(at, 1000, pn);
        assert!(meter.claim(Some(Cargo::Datagram(token))));
    }

    fn acknowledged(token: u64, sent: Instant, rtt: Duration) -> (Cargo, Fate) {
        (Cargo::Datagram(token), Fate::Acknowledged(Answer { sent, bytes: 1000, rtt }))
    }

    #[test]
    fn a_round_trip_does_not_hold_what_the_peer_waited_for_newer_packets() {
        let (mut meter, start) = meter();
        send(&mut meter, start, 1, 1);
        send(&mut meter, start + MS * 9, 2, 2);
        send(&mut meter, start + MS * 10, 3, 3);
        for (pn, sent) in [(3, 10), (2, 9), (1, 0)] {
            meter.on_acknowledged(start + MS * 50, start + MS * sent, 1000, pn);
        }
        meter.on_acks_end(start + MS * 50);
        meter.on_acks_end(start + MS * 51);
        let signals: Vec<_> = meter.take_signals().collect();
        assert_eq!(
            signals,
            [
                acknowledged(3, start + MS * 10, MS * 40),
                acknowledged(2, start + MS * 9, MS * 40),
                // The peer waits no longer than 2 ms, whatever was sent later.
                acknowledged(1, start, MS * 48),
            ]
        );
    }

    #[test]
    fn each_token_gets_one_fate() {
        let (mut meter, start) = meter();
        for pn in [5, 6, 8, 9] {
            send(&mut meter, start, pn, pn * 100);
        }
        assert_eq!(meter.in_flight(), 4000);
        meter.on_acknowledged(start + MS, start, 1000, 8);
        meter.on_acknowledged(start + MS, start, 1000, 8);
        meter.on_lost(5);
        meter.on_lost(7);
        meter.abandon();
        meter.on_acknowledged(start + MS, start, 1000, 6);
        let signals: Vec<_> = meter.take_signals().collect();
        let lost = |pn: u64| (Cargo::Datagram(pn * 100), Fate::Lost);
        assert_eq!(signals, [acknowledged(800, start, MS), lost(5), lost(6), lost(9)]);
        assert_eq!(meter.in_flight(), 0);
    }

    #[test]
    fn what_the_library_forgets_is_lost_in_the_end() {
        let (mut meter, start) = meter();
        send(&mut meter, start, 1, 1);
        send(&mut meter, start + MS, 2, 2);
        meter.on_acknowledged(start + MS * 50, start + MS, 1000, 2);
        meter.on_acks_end(start + MS * 50);
        assert_eq!(
            meter.take_signals().collect::<Vec<_>>(),
            [acknowledged(2, start + MS, MS * 49)]
        );
        meter.on_acks_end(start + MS * 3000);
        assert_eq!(meter.take_signals().collect::<Vec<_>>(), [(Cargo::Datagram(1), Fate::Lost)]);
        assert_eq!(meter.in_flight(), 0);
    }

    #[test]
    fn an_answer_is_owed_since_the_oldest_packet_or_the_last_answer() {
        let (mut meter, start) = meter();
        assert_eq!(meter.unanswered_since(), None);
        send(&mut meter, start, 1, 1);
        send(&mut meter, start + MS, 2, 2);
        assert_eq!(meter.unanswered_since(), Some(start));
        meter.on_acknowledged(start + MS * 9, start + MS, 1000, 2);
        assert_eq!(meter.unanswered_since(), Some(start + MS * 9));
        meter.on_acknowledged(start + MS * 9, start, 1000, 1);
        assert_eq!(meter.unanswered_since(), None);
    }

    #[test]
    fn round_trips_are_averaged_as_rfc_9002_says() {
        let (_, start) = meter();
        let mut rtt = RoundTrip::new(MS * 100);
        rtt.update(start, &Batch::of(MS * 40));
        assert_eq!((rtt.smoothed, rtt.deviation, rtt.least()), (MS * 40, MS * 20, MS * 40));
        rtt.update(start, &Batch::of(MS * 80));
        assert_eq!((rtt.smoothed, rtt.deviation, rtt.least()), (MS * 45, MS * 25, MS * 40));
        assert_eq!(rtt.pto(), MS * (45 + 100 + 2));
    }

    #[test]
    fn the_least_round_trip_is_that_of_the_last_seconds() {
        let (_, start) = meter();
        let mut rtt = RoundTrip::new(MS * 100);
        assert_eq!(rtt.least(), MS * 100);
        let mut update = |at: u32, sample: u32| {
            rtt.update(start + MS * at, &Batch::of(MS * sample));
            rtt.least()
        };
        assert_eq!(update(0, 40), MS * 40);
        // The route changes for one of 140 ms.
        assert_eq!(update(4000, 140), MS * 40);
        assert_eq!(update(6000, 141), MS * 40);
        assert_eq!(update(11_000, 142), MS * 141);
    }

    #[test]
    fn dense_samples_of_a_rising_delay_still_show_a_deviation() {
        let (_, start) = meter();
        let mut rtt = RoundTrip::new(MS * 60);
        let sample = |rtt: &mut RoundTrip, ms: u32, sample: Duration| {
            rtt.update(start + MS * ms, &Batch::of(sample));
        };
        (0..600).for_each(|ms| sample(&mut rtt, ms, MS * 60));
        assert!(rtt.deviation < MS, "steady: {:?}", rtt.deviation);
        // A queue fills: 1 ms more each 2 ms, as when a link runs at two thirds of what is sent.
        (0..200).for_each(|ms| sample(&mut rtt, 600 + ms, MS * 60 + MS * ms / 2));
        assert!(rtt.deviation >= MS * 15, "rising: {:?}", rtt.deviation);
        assert!(rtt.pto() >= rtt.smoothed + MS * 60);
        (0..2000).for_each(|ms| sample(&mut rtt, 800 + ms, MS * 60));
        assert!(rtt.deviation < MS * 3, "steady again: {:?}", rtt.deviation);
    }

    #[test]
    fn a_sender_that_leaves_room_is_application_limited() {
        let (mut meter, start) = meter();
        assert!(meter.is_app_limited(start));
        meter.on_limited(start, true, MS);
        assert!(!meter.is_app_limited(start + MS * 5));
        let progress = meter.on_acks_end(start + MS * 5);
        assert_eq!(progress, Progress { app_limited: false, window_limited: true });
        meter.on_limited(start + MS * 100, false, MS);
        assert!(!meter.is_app_limited(start + MS * 105));
        assert!(meter.is_app_limited(start + MS * 106));
        let progress = meter.on_acks_end(start + MS * 500);
        assert_eq!(progress, Progress { app_limited: true, window_limited: false });
    }

    #[test]
    fn gaps_between_numbers_cost_nothing() {
        let (mut meter, start) = meter();
        send(&mut meter, start, 10, 1);
        send(&mut meter, start, 1 << 40, 2);
        meter.on_sent(start, 1000, 3);
        assert_eq!((meter.sent.len(), meter.in_flight()), (2, 2000));
        meter.on_lost(10);
        assert_eq!((meter.sent.len(), meter.in_flight()), (1, 1000));
    }
}
