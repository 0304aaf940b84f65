//! Which packets are lost, and which are only late.
//!
//! ```text
//! sent     1   2   3   4   5
//! answered     2               1 was overtaken, and comes after all: so late a packet may be
//!                  3   5       4 was overtaken; when it is older than any that came after all, it is lost
//! ```
//!
//! The library calls a packet lost that was overtaken and is older than some multiple of the
//! round-trip time, which it takes from packets that overtake others: the fastest ones. On a link
//! that delays packets by 20 ms, give or take 20 ms, that is 10 ms instead of 43, and half of what
//! arrives comes too late. Nor does it tell of packets that are acknowledged after that, so that
//! nobody could learn from them. Therefore the library waits for far longer than a packet takes
//! (`transport`), and the record here has a threshold that learns, as RACK has (RFC 8985 section
//! 6.2): what has come after all within the last seconds, and a quarter more. Where packets keep
//! their order, none comes after all, and the threshold is twice the round-trip time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roadweave_types::Rate;

use super::{Fate, GRANULARITY, LOSS_MEMORY, Meter, Sent};

/// Packets taken for lost that the controller has not been told of.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Ascending by number.
    pub(crate) packets: Vec<LostPacket>,
    /// Whether all packets over a long time were lost (RFC 9002 section 7.6).
    pub(crate) is_persistent: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostPacket {
    pub(crate) pn: u64,
    pub(crate) bytes: u16,
    pub(crate) sent: Instant,
}

/// What packets that were overtaken tell.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    began: Option<Instant>,
    /// The present span of time, and the one before.
    spans: [Span; 2],
    /// The mean age of late, and its mean deviation.
    usual: Option<(Duration, Duration)>,
    /// The newest packet that was acknowledged before the present batch.
    newest: Option<u64>,
    /// Those taken for lost that may come yet, ascending by number.
    missing: VecDeque<(u64, Instant)>,
    /// Those of the present batch.
    batch: Batch,
    losses: Losses,
}

/// What a span of time has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// The greatest age at which an overtaken packet was acknowledged.
    most: Duration,
    /// How many packets were acknowledged that had been overtaken.
    late: u32,
    /// How many in all.
    all: u32,
}

/// The round-trip times that a batch of acknowledgements shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    count: u32,
    sum: Duration,
    pub(super) least: Duration,
    pub(super) most: Duration,
}

impl Batch {
    /// A batch with one sample.
    #[cfg(test)]
    pub(super) fn of(rtt: Duration) -> Self {
        let mut batch = Self::default();
        batch.add(rtt);
        batch
    }

    pub(super) fn add(&mut self, rtt: Duration) {
        self.least = if self.count == 0 { rtt } else { self.least.min(rtt) };
        self.most = self.most.max(rtt);
        self.count += 1;
        self.sum += rtt;
    }

    pub(super) fn mean(&self) -> Option<Duration> {
        (self.count > 0).then(|| self.sum / self.count)
    }
}

impl Lateness {
    /// The greatest age at which an overtaken packet was acknowledged in the last seconds; zero
    /// where packets keep their order.
    pub(super) fn most(&self) -> Duration {
        self.spans[0].most.max(self.spans[1].most)
    }

    /// Whether packets overtake each other as a rule: one that was swapped on the way says nothing
    /// of a path.
    fn is_common(&self) -> bool {
        let [late, all] = [|span: &Span| span.late, |span: &Span| span.all]
            .map(|count| self.spans.iter().map(count).fold(0, u32::saturating_add));
        late > 0 && late.saturating_mul(LATE_SHARE) >= all
    }

    /// Whether enough is known of those that were overtaken.
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

    /// Begins a new span of time when this one is over, and forgets what will not come any more.
    fn turn(&mut self, now: Instant, patience: Duration) {
        if now >= *self.began.get_or_insert(now) + LATENESS_MEMORY {
            self.spans = [Span::default(), self.spans[0]];
            self.began = Some(now);
            self.usual = self.usual.filter(|_| self.most() > Duration::ZERO);
        }
        while self.missing.len() > MISSING_MAX
            || self.missing.front().is_some_and(|(_, sent)| *sent + patience < now)
        {
            self.missing.pop_front();
        }
    }

    fn miss(&mut self, pn: u64, sent: Instant) {
        let at = self.missing.partition_point(|(other, _)| *other < pn);
        self.missing.insert(at, (pn, sent));
    }

    /// Whether `pn` had been taken for lost.
    fn find(&mut self, pn: u64) -> bool {
        let found = self.missing.binary_search_by_key(&pn, |(missing, _)| *missing);
        found.is_ok_and(|at| self.missing.remove(at).is_some())
    }
}

impl Meter {
    /// Learns from a packet that was acknowledged now; `was_in_flight`: whether it was not taken
    /// for lost. Returns whether it was the last of those that had been taken for lost.
    pub(super) fn note_order(&mut self, pn: u64, age: Duration, was_in_flight: bool) -> bool {
        let was_missing = !was_in_flight && self.lateness.find(pn);
        if !was_in_flight && !was_missing {
            return false;
        }
        self.lateness.spans[0].all = self.lateness.spans[0].all.saturating_add(1);
        if self.lateness.newest.is_some_and(|newest| pn < newest) {
            self.lateness.note(age);
        }
        was_missing && !self.take_back(pn) && self.lateness.missing.is_empty()
    }

    /// A packet that was taken for lost has come after all. Returns whether the controller has not
    /// been told.
    fn take_back(&mut self, pn: u64) -> bool {
        self.loss = ((self.loss * LOSS_MEMORY - 1.0) / (LOSS_MEMORY - 1.0)).max(0.0);
        let untold = &mut self.lateness.losses.packets;
        let at = untold.iter().position(|packet| packet.pn == pn);
        at.is_some_and(|at| untold.remove(at).pn == pn)
    }

    /// Whether packets have overtaken each other as a rule in the last seconds.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.lateness.is_common()
    }

    /// Ends a batch of acknowledgements; gives the round-trip times of the packets that were
    /// overtaken.
    pub(super) fn end_order(&mut self) -> Batch {
        self.lateness.newest = self.newest_acknowledged.map(|(newest, _)| newest);
        std::mem::take(&mut self.lateness.batch)
    }

    /// The age at which a packet that was overtaken counts as lost.
    fn loss_delay(&self) -> Duration {
        let usual = self.rtt.smoothed.max(self.rtt.latest) * 2;
        let late = self.lateness.most();
        usual.max(late + late / 4).max(GRANULARITY)
    }

    /// The rate beyond which packets that are late come too late; `None` where packets keep their
    /// order.
    ///
    /// A receiver discards a packet that more than [`OVERTAKEN_MAX`] others have overtaken, since
    /// it does not remember any more whether it had that one. So these must not leave within the
    /// time by which packets are late.
    pub(crate) fn order_rate(&self) -> Option<Rate> {
        let is_rule = self.lateness.is_common() && self.lateness.is_known();
        let (mean, deviation) = self.lateness.usual.filter(|_| is_rule)?;
        let late = mean + deviation * LATE_DEVIATIONS;
        let span = late.saturating_sub(self.rtt.recent.min()).max(GRANULARITY);
        Some(Rate::of(u64::from(self.mtu) * OVERTAKEN_MAX, span))
    }

    /// When the next packet counts as lost, unless it is acknowledged.
    pub(crate) fn loss_due(&self) -> Option<Instant> {
        let (newest, _) = self.newest_acknowledged?;
        let oldest = self.sent.front().filter(|oldest| oldest.pn < newest)?;
        Some(oldest.at + self.loss_delay())
    }

    /// Takes packets for lost that were overtaken and are too old. Returns whether there were any.
    pub(crate) fn detect_losses(&mut self, now: Instant) -> bool {
        let patience = self.rtt.pto() * PATIENCE_PTOS + self.loss_delay();
        self.lateness.turn(now, patience);
        let Some((newest, _)) = self.newest_acknowledged else { return false };
        let delay = self.loss_delay();
        let is_lost = |packet: &Sent| {
            let is_old = now.saturating_duration_since(packet.at) >= delay;
            packet.pn < newest && is_old || packet.pn.saturating_add(PACKET_THRESHOLD) <= newest
        };
        let old = self.sent.iter().take_while(|packet| is_lost(packet));
        // Between two that are not known to have arrived.
        let mut since: Option<Instant> = None;
        let mut longest = Duration::ZERO;
        let mut lost = Vec::new();
        for packet in old {
            if packet.settled {
                since = None;
                continue;
            }
            let since = *since.get_or_insert(packet.at);
            longest = longest.max(packet.at.saturating_duration_since(since));
            lost.push(packet.pn);
        }
        self.lateness.losses.is_persistent |=
            self.rtt.sampled && longest > self.rtt.pto() * PERSISTENT_PTOS;
        lost.iter().for_each(|pn| self.on_lost(*pn));
        !lost.is_empty()
    }

    /// A packet is lost.
    pub(crate) fn on_lost(&mut self, pn: u64) {
        let Some(packet) = self.settle(pn, Fate::Lost) else { return };
        // A probe of the path MTU that is lost says nothing of congestion.
        if !packet.is_probe {
            self.lateness.miss(pn, packet.at);
            let lost = LostPacket { pn, bytes: packet.bytes, sent: packet.at };
            self.lateness.losses.packets.push(lost);
        }
    }

    /// Takes the losses that the controller has not been told of.
    pub(crate) fn take_losses(&mut self) -> Option<Losses> {
        let losses = &mut self.lateness.losses;
        if losses.packets.is_empty() {
            return None;
        }
        let mut losses = std::mem::take(losses);
        losses.packets.sort_unstable_by_key(|packet| packet.pn);
        Some(losses)
    }
}

/// Packets overtake each other as a rule when one in so many was overtaken;
const LATE_SHARE: u32 = 64;
/// how late they are is known from so many.
const LATE_MIN: u32 = 16;
/// For one to two of these it is remembered how late packets were.
const LATENESS_MEMORY: Duration = Duration::from_secs(5);
/// Nothing is waited for that is later, whatever a peer acknowledges.
const LATENESS_MAX: Duration = Duration::from_secs(2);
/// Probe timeouts for which an acknowledgement may yet come beyond the threshold.
const PATIENCE_PTOS: u32 = 2;
/// RFC 9002 section 7.6.1.
const PERSISTENT_PTOS: u32 = 3;
/// Packets taken for lost that are remembered.
const MISSING_MAX: usize = 4096;
/// By so many packets may one be overtaken; the library's window of duplicates is as long.
const OVERTAKEN_MAX: u64 = 128;
/// What more packets have overtaken is lost for certain.
pub(crate) const PACKET_THRESHOLD: u64 = OVERTAKEN_MAX + 2;
/// Mean deviations above their mean age: hardly any late packet is later.
const LATE_DEVIATIONS: u32 = 3;
/// Late packets over which is averaged how late they are.
const USUAL_MEMORY: u32 = 256;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A path that has acknowledged packet 0 after 40 ms; the others left at their number in
    /// milliseconds.
    fn sent(packets: u32) -> (Meter, Instant) {
        let start = Instant::now();
        let mut meter = Meter::new(MS * 100, 1200);
        meter.start_tracking();
        (0..packets).for_each(|pn| meter.on_sent(start + MS * pn, 1000, pn.into()));
        acknowledge(&mut meter, start, 40, &[0]);
        (meter, start)
    }

    /// Returns whether all that was taken for lost had come.
    fn acknowledge(meter: &mut Meter, start: Instant, at: u32, packets: &[u32]) -> bool {
        let now = start + MS * at;
        let came = packets
            .iter()
            .map(|pn| meter.on_acknowledged(now, start + MS * *pn, 1000, u64::from(*pn)));
        let all_came = came.fold(false, |any, came| any | came);
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
    fn what_comes_after_all_was_not_lost_and_teaches_patience() {
        let (mut meter, start) = sent(300);
        acknowledge(&mut meter, start, 43, &[3]);
        meter.detect_losses(start + MS * 100);
        assert_eq!(lost(&mut meter), [1, 2]);
        assert!(!acknowledge(&mut meter, start, 102, &[1]));
        assert!(acknowledge(&mut meter, start, 122, &[2]), "the last of them");
        // 2 was 120 ms old. Of those that are in flight, 5 would have been lost after about 80.
        acknowledge(&mut meter, start, 123, &[80]);
        meter.detect_losses(start + MS * 150);
        assert_eq!(lost(&mut meter), [0; 0]);
        meter.detect_losses(start + MS * (5 + 150));
        assert_eq!(lost(&mut meter), [4, 5], "a quarter more");
    }

    #[test]
    fn patience_is_forgotten_with_its_reason() {
        let (mut meter, start) = sent(10);
        acknowledge(&mut meter, start, 43, &[3]);
        acknowledge(&mut meter, start, 70, &[1]);
        assert_eq!(meter.lateness.most(), MS * 69);
        assert_eq!(meter.order_rate(), None, "of one it is not known how late they are as a rule");
        meter.detect_losses(start + MS * 12_000);
        meter.detect_losses(start + MS * 18_000);
        assert_eq!(meter.lateness.most(), Duration::ZERO);
    }

    #[test]
    fn the_controller_hears_nothing_of_a_loss_that_was_none() {
        let (mut meter, start) = sent(10);
        acknowledge(&mut meter, start, 43, &[3]);
        assert!(meter.detect_losses(start + MS * 100));
        let loss = meter.loss();
        // Both come before the losses are told.
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
        (4..100).for_each(|pn| {
            acknowledge(&mut meter, start, pn + 40, &[pn]);
        });
        assert!(!meter.is_overtaken(), "one of a hundred");
    }

    #[test]
    fn numbers_of_the_handshake_overtake_nothing() {
        let start = Instant::now();
        let mut meter = Meter::new(MS * 100, 1200);
        meter.on_acknowledged(start + MS * 40, start, 1200, 3);
        meter.on_acks_end(start + MS * 40);
        meter.start_tracking();
        meter.on_sent(start + MS * 41, 1200, 0);
        assert_eq!(meter.loss_due(), None);
        meter.on_acknowledged(start + MS * 90, start + MS * 41, 1200, 0);
        meter.on_acks_end(start + MS * 90);
        assert_eq!(meter.lateness.most(), Duration::ZERO);
    }

    #[test]
    fn what_more_packets_have_overtaken_than_a_peer_remembers_is_lost() {
        let start = Instant::now();
        let mut meter = Meter::new(MS * 100, 1200);
        meter.start_tracking();
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
        let start = Instant::now();
        let mut meter = Meter::new(MS * 100, 1200);
        meter.start_tracking();
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
            assert_eq!(
                (losses.packets.len() as u32, losses.is_persistent),
                (packets - 1, expected)
            );
        }
    }
}
