//! Which packets are lost, and which are only late.
//!
//! The library takes an overtaken packet for lost after a multiple of the round-trip time of the
//! fastest packets: on a link that delays packets by 20 ms, give or take 20 ms, half of the packets
//! arrive too late for it. Nor does it report acknowledgements after that. Therefore the library
//! waits far longer than a packet takes (`transport`), and this record has a threshold that learns,
//! as RACK has (RFC 8985 section 6.2): the latest arrival in the last seconds (`reordering`), and a
//! quarter more. Where packets keep their order, the threshold is twice the round-trip time.

use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use super::reordering::{Losses, LostPacket, PACKET_THRESHOLD};
use super::rtt::GRANULARITY;
use super::sent::{Fate, SentPacket};
use super::{LOSS_MEMORY, Meter};

impl Meter {
    /// Learns from a packet acknowledged now; `was_in_flight`: it was not taken for lost. Returns
    /// whether it was the last that had been taken for lost.
    pub(super) fn note_order(&mut self, pn: u64, age: Duration, was_in_flight: bool) -> bool {
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
        let usual = self.rtt.smoothed().max(self.rtt.latest()) * 2;
        let late = self.reordering.most();
        usual.max(late + late / 4).max(GRANULARITY)
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
}

/// Probe timeouts beyond the threshold in which an acknowledgement may still come.
const LATE_ACK_PTOS: u32 = 2;
/// RFC 9002 section 7.6.1.
const PERSISTENT_PTOS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn tracking() -> (Meter, Instant) {
        let mut meter = Meter::new(MS * 100, 1200);
        meter.start_tracking();
        (meter, Instant::from_millis(1_000))
    }

    fn sent(packets: u32) -> (Meter, Instant) {
        let (mut meter, start) = tracking();
        (0..packets).for_each(|pn| meter.on_sent(start + MS * pn, 1000, pn.into()));
        acknowledge(&mut meter, start, 40, &[0]);
        (meter, start)
    }

    fn acknowledge(meter: &mut Meter, start: Instant, at: u32, packets: &[u32]) -> bool {
        let now = start + MS * at;
        let all_came = packets.iter().fold(false, |all, pn| {
            all | meter.on_acknowledged(now, start + MS * *pn, 1000, u64::from(*pn))
        });
        meter.on_acks_end(now);
        all_came
    }

    fn lost(meter: &mut Meter) -> Vec<u64> {
        let losses = meter.take_losses().map(|losses| losses.packets).unwrap_or_default();
        losses.iter().map(|packet| packet.pn).collect()
    }

    #[test]
    fn where_packets_keep_their_order_one_is_lost_after_two_round_trips() {
        let (mut meter, start) = sent(4);
        assert_eq!(meter.loss_due(), None, "none was overtaken");
        acknowledge(&mut meter, start, 43, &[3]);
        assert_eq!(meter.loss_due(), Some(start + MS * 81));
        assert!(!meter.detect_losses(start + MS * 80));
        assert!(meter.detect_losses(start + MS * 81));
        assert!(meter.detect_losses(start + MS * 82));
        assert_eq!(lost(&mut meter), [1, 2]);
        assert_eq!(lost(&mut meter), [0; 0], "the controller hears of each once");
        assert_eq!((meter.loss_due(), meter.in_flight()), (None, 0));
    }

    #[test]
    fn what_comes_after_all_was_not_lost_and_raises_the_loss_delay() {
        let (mut meter, start) = sent(300);
        acknowledge(&mut meter, start, 43, &[3]);
        meter.detect_losses(start + MS * 100);
        assert_eq!(lost(&mut meter), [1, 2]);
        assert!(!acknowledge(&mut meter, start, 102, &[1]));
        assert!(acknowledge(&mut meter, start, 122, &[2]), "the last of them");
        // Packet 2 was 120 ms old. Otherwise packet 5, in flight, would be lost after about 80.
        acknowledge(&mut meter, start, 123, &[80]);
        meter.detect_losses(start + MS * 150);
        assert_eq!(lost(&mut meter), [0; 0]);
        meter.detect_losses(start + MS * (5 + 150));
        assert_eq!(lost(&mut meter), [4, 5], "a quarter more");
    }

    #[test]
    fn the_loss_delay_falls_when_packets_keep_their_order_again() {
        let (mut meter, start) = sent(10);
        acknowledge(&mut meter, start, 43, &[3]);
        acknowledge(&mut meter, start, 70, &[1]);
        assert_eq!(meter.reordering.most(), MS * 69);
        assert_eq!(meter.order_rate(), None, "of one it is not known how late they are as a rule");
        meter.detect_losses(start + MS * 12_000);
        meter.detect_losses(start + MS * 18_000);
        assert_eq!(meter.reordering.most(), Duration::ZERO);
    }

    #[test]
    fn the_controller_hears_nothing_of_a_loss_that_was_none() {
        let (mut meter, start) = sent(10);
        acknowledge(&mut meter, start, 43, &[3]);
        assert!(meter.detect_losses(start + MS * 100));
        let loss = meter.loss();
        assert!(!acknowledge(&mut meter, start, 101, &[1, 2]));
        assert_eq!(lost(&mut meter), [0; 0]);
        assert!(meter.loss() < loss);
    }

    #[test]
    fn one_swapped_packet_in_many_is_no_rule() {
        let (mut meter, start) = sent(200);
        acknowledge(&mut meter, start, 43, &[3]);
        acknowledge(&mut meter, start, 44, &[2]);
        assert!(meter.is_overtaken(), "one of two");
        for pn in 4..100 {
            acknowledge(&mut meter, start, pn + 40, &[pn]);
        }
        assert!(!meter.is_overtaken(), "one of a hundred");
    }

    #[test]
    fn numbers_of_the_handshake_overtake_nothing() {
        let start = Instant::from_millis(1_000);
        let mut meter = Meter::new(MS * 100, 1200);
        meter.on_acknowledged(start + MS * 40, start, 1200, 3);
        meter.on_acks_end(start + MS * 40);
        meter.start_tracking();
        meter.on_sent(start + MS * 41, 1200, 0);
        assert_eq!(meter.loss_due(), None);
        meter.on_acknowledged(start + MS * 90, start + MS * 41, 1200, 0);
        meter.on_acks_end(start + MS * 90);
        assert_eq!(meter.reordering.most(), Duration::ZERO);
    }

    #[test]
    fn what_more_packets_have_overtaken_than_a_peer_remembers_is_lost() {
        let (mut meter, start) = tracking();
        (0..=PACKET_THRESHOLD).for_each(|pn| meter.on_sent(start, 1000, pn));
        acknowledge(&mut meter, start, 20, &[0]);
        meter.on_acknowledged(start + MS * 21, start, 1000, PACKET_THRESHOLD - 1);
        meter.on_acks_end(start + MS * 21);
        assert_eq!(lost(&mut meter), [0; 0]);
        meter.on_sent(start + MS, 1000, PACKET_THRESHOLD + 1);
        meter.on_acknowledged(start + MS * 22, start + MS, 1000, PACKET_THRESHOLD + 1);
        meter.on_acks_end(start + MS * 22);
        assert_eq!(lost(&mut meter), [1]);
    }

    #[test]
    fn late_packets_bound_the_rate() {
        let (mut meter, start) = sent(2000);
        // Each odd one 60 ms later than the even ones.
        for pn in (2..1800).step_by(2) {
            acknowledge(&mut meter, start, pn + 40, &[pn]);
            if pn > 62 {
                acknowledge(&mut meter, start, pn + 40, &[pn - 61]);
            }
        }
        let rate = meter.order_rate().expect("they were overtaken").bytes_per_second();
        let bound = 128.0 * 1200.0 / 0.061;
        assert!((bound * 0.8..bound * 1.1).contains(&rate), "{rate} is not about {bound}");
    }

    #[test]
    fn a_probe_of_the_mtu_that_is_lost_is_no_congestion() {
        let (mut meter, start) = tracking();
        meter.on_sent(start, 1400, 0);
        meter.on_sent(start, 1000, 1);
        meter.on_acknowledged(start + MS * 40, start, 1000, 1);
        meter.on_acks_end(start + MS * 40);
        assert!(meter.detect_losses(start + MS * 90));
        assert_eq!((meter.in_flight(), lost(&mut meter).len()), (0, 0));
    }

    #[test]
    fn nothing_but_losses_for_three_probe_timeouts_is_persistent_congestion() {
        for (packets, expected) in [(100, false), (900, true)] {
            let (mut meter, start) = sent(packets + 1);
            acknowledge(&mut meter, start, packets + 40, &[packets]);
            meter.detect_losses(start + MS * (packets + 200));
            let losses = meter.take_losses().expect("all but two");
            let found = (losses.packets.len() as u32, losses.is_persistent);
            assert_eq!(found, (packets - 1, expected));
        }
    }
}
