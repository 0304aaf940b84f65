//! The record of one path: packets sent, their fates, and what follows from that.
//!
//! ```text
//! on_sent ----> sent: [ 17 | 18 | 20 | 21 ]  packets in flight by number, some with payloads
//! claim                    ^ datagram 900 is in 18
//! on_acknowledged > rtt          round-trip time     ramp      what it may carry beyond its window
//!                   delivery     delivery rate       forecast  how long a packet would take
//!                   reordering   how late packets are that were overtaken
//! detect_losses   > losses       which packets are lost
//!                   signals      the fates of the packets' contents
//! ```
//!
//! Lost, or only late: the library takes an overtaken packet for lost after a multiple of the
//! round-trip time of the fastest packets: on a link that delays packets by 20 ms, give or take
//! 20 ms, half of the packets arrive too late for it. Nor does it report acknowledgements after
//! that. Therefore the library waits far longer than a packet takes (`transport`), and this record
//! has a threshold that learns, as RACK has (RFC 8985 section 6.2): the latest arrival in the last
//! seconds (`reordering`), and a quarter more. It is at least two round trips; a round trip and a
//! quarter where packets are known to keep their order.

mod delivery;
pub(crate) mod forecast;
pub(crate) mod ramp;
pub(crate) mod reordering;
mod rtt;
pub(crate) mod sent;
mod utilization;

use std::time::Duration;

use noq_proto::congestion::ControllerMetrics;
use roadweave_proto::{Delays, Instant, Rate};

use self::delivery::DeliveryRate;
use self::reordering::{Losses, LostPacket, PACKET_THRESHOLD, Reordering};
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
    pub(crate) last_acknowledged: Option<Instant>,
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
    pub(crate) loss: f32,
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

    pub(crate) fn acknowledged_up_to(&self) -> Option<Instant> {
        self.newest_acknowledged.map(|(_, sent)| sent)
    }

    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        let oldest = self.sent.oldest()?.at;
        Some(self.last_acknowledged.map_or(oldest, |at| at.max(oldest)))
    }

    /// Learns from a packet acknowledged now; `was_in_flight`: it was not taken for lost. Returns
    /// whether it was the last that had been taken for lost.
    fn note_order(&mut self, pn: u64, age: Duration, was_in_flight: bool) -> bool {
        let was_missing = self.reordering.on_acknowledged(pn, age, was_in_flight);
        was_missing && !self.take_back(pn) && self.reordering.missing.is_empty()
    }

    /// A packet taken for lost has arrived. Returns whether its loss was not reported yet.
    fn take_back(&mut self, pn: u64) -> bool {
        self.loss = ((self.loss * LOSS_MEMORY - 1.0) / (LOSS_MEMORY - 1.0)).max(0.0);
        let unreported = &mut self.losses.packets;
        let at = unreported.iter().position(|packet| packet.pn == pn);
        at.is_some_and(|at| unreported.remove(at).pn == pn)
    }

    pub(crate) fn is_overtaken(&self) -> bool {
        self.reordering.is_common()
    }

    fn loss_delay(&self) -> Duration {
        let usual = self.rtt.smoothed().max(self.rtt.latest());
        let late = self.reordering.most();
        let slack = if self.reordering.keeps_order() { usual / 4 } else { usual };
        (usual + slack).max(late + late / 4).max(GRANULARITY)
    }

    /// The rate beyond which late packets come too late; `None` where packets keep their order.
    pub(crate) fn order_rate(&self) -> Option<Rate> {
        self.reordering.rate_max(self.mtu, self.rtt.recent_min())
    }

    pub(crate) fn loss_due(&self) -> Option<Instant> {
        let (newest, _) = self.newest_acknowledged?;
        let oldest = self.sent.oldest().filter(|oldest| oldest.pn < newest)?;
        Some(oldest.at + self.loss_delay())
    }

    pub(crate) fn detect_losses(&mut self, now: Instant) -> bool {
        let late_ack_wait = self.rtt.pto() * LATE_ACK_PTOS + self.loss_delay();
        self.reordering.turn(now, late_ack_wait);
        let Some((newest, _)) = self.newest_acknowledged else { return false };
        let delay = self.loss_delay();
        let is_lost = |packet: &SentPacket| {
            let is_old = now.since(packet.at) >= delay;
            packet.pn < newest && is_old || packet.pn.saturating_add(PACKET_THRESHOLD) <= newest
        };
        let old = self.sent.iter().take_while(|packet| is_lost(packet));
        let mut since: Option<Instant> = None;
        let mut longest = Duration::ZERO;
        let mut lost = Vec::new();
        for packet in old {
            if packet.settled {
                since = None;
                continue;
            }
            let since = *since.get_or_insert(packet.at);
            longest = longest.max(packet.at.since(since));
            lost.push(packet.pn);
        }
        self.losses.is_persistent |=
            self.rtt.is_sampled() && longest > self.rtt.pto() * PERSISTENT_PTOS;
        lost.iter().for_each(|pn| self.on_lost(*pn));
        !lost.is_empty()
    }

    pub(crate) fn on_lost(&mut self, pn: u64) {
        let Some(packet) = self.settle(pn, Fate::Lost) else { return };
        // A lost probe of the path MTU says nothing about congestion.
        if !packet.is_probe {
            self.reordering.miss(pn, packet.at);
            let lost = LostPacket { pn, bytes: packet.bytes, sent: packet.at };
            self.losses.packets.push(lost);
        }
    }

    pub(crate) fn take_losses(&mut self) -> Option<Losses> {
        let losses = &mut self.losses;
        if losses.packets.is_empty() {
            return None;
        }
        let mut losses = std::mem::take(losses);
        losses.packets.sort_unstable_by_key(|packet| packet.pn);
        Some(losses)
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
/// Probe timeouts beyond the threshold in which an acknowledgement may still come.
const LATE_ACK_PTOS: u32 = 2;
/// RFC 9002 section 7.6.1.
const PERSISTENT_PTOS: u32 = 3;

#[cfg(test)]
mod tests;
