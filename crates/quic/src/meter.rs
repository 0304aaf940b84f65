//! The record of one path: packets sent, their fates, and what follows from that.
//!
//! ```text
//! on_sent ----> sent: [ 17 | 18 | 20 | 21 ]  packets in flight by number, some with payloads
//! claim                    ^ datagram 900 is in 18
//! on_acknowledged > rtt          round-trip time     ramp      what it may carry beyond its window
//!                   delivery     delivery rate       forecast  how long a packet would take
//!                   reordering   how late packets are that were overtaken
//! detect_losses   > loss         which packets are lost
//!                   signals      the fates of the packets' contents
//! ```
//!
//! Times are ours: the gate converts those of the library.

mod delivery;
mod forecast;
mod loss;
pub(crate) mod ramp;
pub(crate) mod reordering;
mod rtt;
pub(crate) mod sent;
mod utilization;

use std::time::Duration;

use noq_proto::congestion::ControllerMetrics;
use roadweave_proto::{Delays, Instant, Rate};

use self::delivery::DeliveryRate;
use self::reordering::{Losses, Reordering};
use self::rtt::{ACK_DELAY_MAX, GRANULARITY, RoundTrip};
use self::sent::{AcknowledgedPacket, Fate, SentPacket, SentPackets, TrackedPayload};
use self::utilization::Utilization;

/// Of the sender, over a batch of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowUse {
    pub(crate) app_limited: bool,
    pub(crate) window_limited: bool,
}

#[derive(Debug)]
pub(crate) struct Meter {
    /// Off during the handshake, whose three packet number spaces use the same numbers.
    tracking: bool,
    sent: SentPackets,
    signals: Vec<(TrackedPayload, Fate)>,
    /// How many signals are older than the present batch of acknowledgements.
    settled_signals: usize,
    newest_acknowledged: Option<(u64, Instant)>,
    last_acknowledged: Option<Instant>,
    sampled_up_to: Option<Instant>,
    reordering: Reordering,
    losses: Losses,
    pub(crate) rtt: RoundTrip,
    /// One for each acknowledgement of something newer.
    pub(crate) round_trips: Delays,
    pub(crate) delivery: DeliveryRate,
    /// What the path passed in the round trip of the last acknowledged packet (Little's law).
    passed: Option<(Instant, Rate)>,
    pub(crate) window: u64,
    pub(crate) pacing_rate: Option<Rate>,
    pub(crate) mtu: u16,
    loss: f32,
    utilization: Utilization,
}

impl Meter {
    pub(crate) fn new(initial_rtt: Duration, mtu: u16) -> Self {
        Self {
            tracking: false,
            sent: SentPackets::default(),
            signals: Vec::new(),
            settled_signals: 0,
            newest_acknowledged: None,
            last_acknowledged: None,
            sampled_up_to: None,
            reordering: Reordering::default(),
            losses: Losses::default(),
            rtt: RoundTrip::new(initial_rtt),
            round_trips: Delays::default(),
            delivery: DeliveryRate::default(),
            passed: None,
            window: u64::from(mtu) * 10,
            pacing_rate: None,
            mtu,
            loss: 0.0,
            utilization: Utilization::default(),
        }
    }

    /// Starts the record; from now on all packets must be of one number space.
    pub(crate) fn start_tracking(&mut self) {
        if !std::mem::replace(&mut self.tracking, true) {
            self.newest_acknowledged = None;
            self.reordering = Reordering::default();
            self.losses = Losses::default();
            self.sampled_up_to = None;
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if self.tracking {
            self.sent.push(now, bytes, pn, bytes > self.mtu);
        }
    }

    pub(crate) fn claim(&mut self, tracked: Option<TrackedPayload>) -> bool {
        self.sent.claim(tracked)
    }

    pub(crate) fn disclaim(&mut self) {
        self.sent.disclaim();
    }

    /// Returns whether all packets taken for lost have arrived.
    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
    ) -> bool {
        self.last_acknowledged = self.last_acknowledged.max(Some(now));
        self.delivery.on_delivered(bytes);
        if self.newest_acknowledged.is_none_or(|(newest, _)| pn > newest) {
            self.newest_acknowledged = Some((pn, sent));
        }
        let rtt = now.since(sent);
        let acknowledged = AcknowledgedPacket { sent, bytes: bytes as u16, rtt };
        let settled = self.settle(pn, Fate::Acknowledged(acknowledged));
        if let Some(sent) = settled
            && self.newest_acknowledged.is_some_and(|(newest, _)| newest == pn)
        {
            self.passed = Some((now, Rate::of(sent.in_flight, rtt.max(GRANULARITY))));
        }
        self.note_order(pn, rtt, settled.is_some())
    }

    pub(crate) fn on_acks_end(&mut self, now: Instant) -> WindowUse {
        let newest = self.newest_acknowledged;
        let mut samples = self.reordering.end_batch(newest.map(|(newest, _)| newest));
        if let Some((_, sent)) = newest
            && self.last_acknowledged == Some(now)
            && self.sampled_up_to != Some(sent)
        {
            self.sampled_up_to = Some(sent);
            samples.add(now.since(sent));
            self.round_trips.add(now.since(sent));
        }
        self.rtt.update(now, &samples);
        self.take_waits_off();
        self.delivery.update(now, self.rtt.smoothed());
        self.detect_losses(now);
        self.settled_signals = self.signals.len();
        let window_limited = std::mem::take(&mut self.utilization.window_limited);
        WindowUse { app_limited: self.is_app_limited(now), window_limited }
    }

    fn take_waits_off(&mut self) {
        let batch = &mut self.signals[self.settled_signals..];
        let newest = batch.iter().filter_map(|(_, fate)| match fate {
            Fate::Acknowledged(acknowledged) => Some(acknowledged.sent),
            Fate::Lost => None,
        });
        let Some(newest) = newest.max() else { return };
        for (_, fate) in batch {
            if let Fate::Acknowledged(acknowledged) = fate {
                let waited = newest.since(acknowledged.sent).min(ACK_DELAY_MAX);
                acknowledged.rtt = acknowledged.rtt.saturating_sub(waited);
            }
        }
    }

    pub(crate) fn on_metrics(&mut self, metrics: &ControllerMetrics, window: u64) {
        self.window = window;
        self.pacing_rate = metrics.pacing_rate.map(Rate::from_bytes_per_second);
    }

    /// By the window, or by the pacer, which releases a packet each `interval`.
    pub(crate) fn on_limited(&mut self, now: Instant, by_window: bool, interval: Duration) {
        self.utilization.on_limited(now, by_window, interval, self.rtt.smoothed());
    }

    /// If so, the rate of acknowledgements says nothing about the path's capacity.
    pub(crate) fn is_app_limited(&self, now: Instant) -> bool {
        self.utilization.is_app_limited(now)
    }

    pub(crate) fn abandon(&mut self) {
        let open = self.sent.take_open();
        self.signals.extend(open.filter_map(|packet| Some((packet.tracked?, Fate::Lost))));
    }

    pub(crate) fn take_signals(&mut self) -> std::vec::Drain<'_, (TrackedPayload, Fate)> {
        self.settled_signals = 0;
        self.signals.drain(..)
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.sent.bytes()
    }

    pub(crate) fn last_acknowledged(&self) -> Option<Instant> {
        self.last_acknowledged
    }

    pub(crate) fn acknowledged_up_to(&self) -> Option<Instant> {
        self.newest_acknowledged.map(|(_, sent)| sent)
    }

    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        let oldest = self.sent.oldest()?.at;
        Some(self.last_acknowledged.map_or(oldest, |at| at.max(oldest)))
    }

    pub(crate) fn loss(&self) -> f32 {
        self.loss
    }

    /// Returns the packet, if its fate was unknown.
    fn settle(&mut self, pn: u64, fate: Fate) -> Option<SentPacket> {
        let sent = self.sent.settle(pn)?;
        if let Some(tracked) = sent.tracked {
            self.signals.push((tracked, fate));
        }
        let lost = if fate == Fate::Lost { 1.0 } else { 0.0 };
        self.loss += (lost - self.loss) / LOSS_MEMORY;
        Some(sent)
    }
}

const LOSS_MEMORY: f32 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn meter() -> (Meter, Instant) {
        let mut meter = Meter::new(Duration::from_millis(100), 1200);
        meter.start_tracking();
        (meter, Instant::from_millis(1_000))
    }

    fn send(meter: &mut Meter, at: Instant, pn: u64, token: u64) {
        meter.on_sent(at, 1000, pn);
        assert!(meter.claim(Some(TrackedPayload::Datagram(token))));
    }

    fn acknowledged(token: u64, sent: Instant, rtt: Duration) -> (TrackedPayload, Fate) {
        let packet = AcknowledgedPacket { sent, bytes: 1000, rtt };
        (TrackedPayload::Datagram(token), Fate::Acknowledged(packet))
    }

    fn lost(token: u64) -> (TrackedPayload, Fate) {
        (TrackedPayload::Datagram(token), Fate::Lost)
    }

    fn signals(meter: &mut Meter) -> Vec<(TrackedPayload, Fate)> {
        meter.take_signals().collect()
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
        let expected = [
            acknowledged(3, start + MS * 10, MS * 40),
            acknowledged(2, start + MS * 9, MS * 40),
            // The peer waits at most 2 ms.
            acknowledged(1, start, MS * 48),
        ];
        assert_eq!(signals(&mut meter), expected);
    }

    #[test]
    fn an_acknowledgement_of_something_newer_is_one_round_trip() {
        let (mut meter, start) = meter();
        for (pn, ms) in (1..=4).zip(1..) {
            send(&mut meter, start + MS * ms, pn, pn);
        }
        for (pn, ms) in [(1, 1), (2, 2), (3, 3)] {
            meter.on_acknowledged(start + MS * 50, start + MS * ms, 1000, pn);
        }
        meter.on_acks_end(start + MS * 50);
        // A late one says nothing about the present path.
        meter.on_acknowledged(start + MS * 90, start + MS * 2, 1000, 2);
        meter.on_acks_end(start + MS * 90);
        meter.on_acknowledged(start + MS * 154, start + MS * 4, 1000, 4);
        meter.on_acks_end(start + MS * 154);
        let counts: Vec<_> = meter.round_trips.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(0.05, 1), (0.15, 1)]);
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
        let expected = [acknowledged(800, start, MS), lost(500), lost(600), lost(900)];
        assert_eq!(signals(&mut meter), expected);
        assert_eq!(meter.in_flight(), 0);
    }

    #[test]
    fn what_the_library_forgets_is_lost_in_the_end() {
        let (mut meter, start) = meter();
        send(&mut meter, start, 1, 1);
        send(&mut meter, start + MS, 2, 2);
        meter.on_acknowledged(start + MS * 50, start + MS, 1000, 2);
        meter.on_acks_end(start + MS * 50);
        assert_eq!(signals(&mut meter), [acknowledged(2, start + MS, MS * 49)]);
        meter.on_acks_end(start + MS * 3000);
        assert_eq!(signals(&mut meter), [lost(1)]);
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
    fn a_sender_that_leaves_room_is_application_limited() {
        let (mut meter, start) = meter();
        assert!(meter.is_app_limited(start));
        meter.on_limited(start, true, MS);
        assert!(!meter.is_app_limited(start + MS * 5));
        let progress = meter.on_acks_end(start + MS * 5);
        assert_eq!(progress, WindowUse { app_limited: false, window_limited: true });
        meter.on_limited(start + MS * 100, false, MS);
        assert!(!meter.is_app_limited(start + MS * 105));
        assert!(meter.is_app_limited(start + MS * 106));
        let progress = meter.on_acks_end(start + MS * 500);
        assert_eq!(progress, WindowUse { app_limited: true, window_limited: false });
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
