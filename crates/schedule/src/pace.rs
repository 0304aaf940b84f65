//! How fast bytes come out of a path, by when their packets are acknowledged.
//!
//! ```text
//! sent          a b c d e                          f g h
//! arrived         a   b   c   d   e                  f   g   h       a link of a packet each 4 units
//! acknowledged          ab    cd    e                  f    gh       gathered
//!                       │ 8/2 │ 4/1 │- the pause -  0/1│ 8/2 │
//! ```
//!
//! The peer gathers acknowledgements for a millisecond or two, so single arrivals are not known.
//! Known are the bytes between one batch and the next, and the time between them. The sender's
//! pauses are subtracted, as in the paper. The paper counts packets of one size; here bytes count.
//!
//! Source: LoLa section 3.2, equation 1; docs/deviations.md.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use crate::AcknowledgedDatagram;

#[derive(Debug, Default)]
pub(crate) struct Pace {
    byte_time: Option<f64>,
    batch: Option<Batch>,
    previous: Option<Instant>,
    newest_sent: Option<Instant>,
    /// The minima of the round trips within [`RECENT`], ascending and by time.
    round_trips: VecDeque<(Instant, Duration)>,
}

#[derive(Debug)]
struct Batch {
    at: Instant,
    /// When its newest packet was acknowledged, less the peer's delay.
    arrived: Instant,
    packets: u32,
    bytes: u64,
    pauses: Duration,
}

impl Pace {
    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        acknowledged: &AcknowledgedDatagram,
        pause: Duration,
    ) {
        let AcknowledgedDatagram { sent, rtt, bytes, .. } = *acknowledged;
        self.note_round_trip(now, rtt);
        if self.batch.as_ref().is_some_and(|batch| now > batch.at) {
            self.end_batch();
        }
        let arrived = sent + rtt;
        let new = Batch { at: now, arrived, packets: 0, bytes: 0, pauses: Duration::ZERO };
        let batch = self.batch.get_or_insert(new);
        batch.arrived = batch.arrived.max(arrived);
        // A packet that was overtaken says nothing of the pace.
        let Some(newest) = self.newest_sent.replace(sent.max(self.newest_sent.unwrap_or(sent)))
        else {
            return;
        };
        if sent >= newest {
            batch.packets += 1;
            batch.bytes += u64::from(bytes);
            let gap = sent.since(newest);
            batch.pauses += if gap > pause { gap } else { Duration::ZERO };
        }
    }

    /// Seconds per byte; `None` before the first two packets, or if none arrived within [`FRESH`].
    pub(crate) fn recent(&self, now: Instant) -> Option<f64> {
        self.previous.filter(|at| now.since(*at) <= FRESH).and(self.byte_time)
    }

    #[cfg(test)]
    pub(crate) fn byte_time(&self) -> Option<f64> {
        self.byte_time
    }

    /// The smallest round trip of the last second, or else the last one.
    pub(crate) fn min_rtt(&self, now: Instant) -> Option<Duration> {
        let recent = self.round_trips.iter().find(|(at, _)| now.since(*at) <= RECENT);
        recent.or(self.round_trips.back()).map(|(_, rtt)| *rtt)
    }

    #[cfg(test)]
    pub(crate) fn known(now: Instant, inter_arrival: Duration, rtt: Duration) -> Self {
        Self {
            byte_time: Some(inter_arrival.as_secs_f64() / 1200.0),
            previous: Some(now),
            round_trips: [(now, rtt)].into(),
            ..Self::default()
        }
    }

    fn end_batch(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let Some(previous) = self.previous.replace(batch.arrived) else { return };
        if batch.bytes == 0 {
            return;
        }
        let took = batch.arrived.since(previous).saturating_sub(batch.pauses);
        if took > RECENT {
            // The link was dead; late answers say nothing of its pace.
            return;
        }
        let sample = took.as_secs_f64() / batch.bytes as f64;
        let keeps = (1.0 - GAIN).powi(batch.packets.cast_signed());
        let known = self.byte_time.unwrap_or(sample);
        self.byte_time = Some(sample + (known - sample) * keeps);
    }

    fn note_round_trip(&mut self, now: Instant, rtt: Duration) {
        while self.round_trips.back().is_some_and(|(_, before)| *before >= rtt) {
            self.round_trips.pop_back();
        }
        let is_close = |(at, _): &(Instant, Duration)| now.since(*at) < RECENT / ROUND_TRIPS_MAX;
        if !self.round_trips.back().is_some_and(is_close) {
            self.round_trips.push_back((now, rtt));
        }
        while self.round_trips.len() > 1
            && self.round_trips.front().is_some_and(|(at, _)| now.since(*at) > RECENT)
        {
            self.round_trips.pop_front();
        }
    }
}

/// The weight of a packet in the average, as in Salsify, which LoLa's measure follows.
const GAIN: f64 = 0.1;
const RECENT: Duration = Duration::from_secs(1);
/// How long a pace holds: longer than a path goes without a probe of LoLa's.
const FRESH: Duration = Duration::from_secs(2);
const ROUND_TRIPS_MAX: u32 = 64;
