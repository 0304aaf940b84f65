//! Configuration, timing and statistics of streams.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{SESSION_CREDIT, STREAM_CREDIT};

/// The end of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It opens the even ones.
    Client = 0,
    /// It opens the odd ones.
    Server = 1,
}

/// The bounds of the streams of one session end.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The end.
    pub side: Side,
    /// The most streams opened here that may be open.
    pub opened_max: usize,
    /// The most streams opened by the peer that may be open; more are reset.
    pub accepted_max: usize,
    /// Bytes that all streams together hold for their readers, at least [`SESSION_CREDIT`].
    pub receive_max: u64,
    /// Bytes that all streams together hold until they are acknowledged.
    pub send_max: u64,
    /// Bytes at the start of a stream that go before all else: a first video frame, a small answer.
    pub head: u64,
    /// Bytes of a stream that may go before others on request (a priority, or a first video frame);
    /// after that a fifth of the bytes that it sends.
    pub favour: u64,
    /// How long a stream may wait for an answer without hearing of the peer before it is reset.
    pub give_up_after: Duration,
}

impl Config {
    /// Bounds for `streams` streams of each side: twice their first credit, at least 16 MiB. One
    /// stream alone may have half: 0.6 s at 100 Mbit/s. The timeout is two minutes (RFC 1122
    /// section 4.2.3.5 requires at least 100 seconds of a TCP).
    pub fn for_streams(side: Side, streams: usize) -> Self {
        let receive_max = SESSION_CREDIT.max(2 * streams as u64 * STREAM_CREDIT).max(16 << 20);
        Self {
            side,
            opened_max: streams,
            accepted_max: streams,
            receive_max,
            send_max: 16 << 20,
            head: 0,
            favour: 1 << 20,
            give_up_after: Duration::from_secs(120),
        }
    }

    pub(crate) fn records_max(&self) -> usize {
        (self.send_max / 512) as usize + self.opened_max + self.accepted_max
    }
}

/// Properties of the lane that carries the streams.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The round trip over the slowest path of the lane.
    pub round_trip: Duration,
    /// The age up to which the lane repairs a packet.
    pub age_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { round_trip: Duration::from_millis(100), age_max: Duration::from_millis(700) }
    }
}

/// How long an acknowledgement may wait for company (RFC 9000 section 18.2, `max_ack_delay`).
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(25);
const RETRANSMIT_TIMEOUT_MAX: Duration = Duration::from_secs(5);

impl Timing {
    /// The wait for an answer: the lane's time plus the answer's; doubled for each vain attempt.
    pub(crate) fn retransmit_timeout(&self, attempts: u32) -> Duration {
        let first = 2 * self.round_trip + self.age_max + ACK_DELAY;
        first.saturating_mul(1 << attempts.min(16)).min(RETRANSMIT_TIMEOUT_MAX.max(first))
    }
}

/// Counters, in bytes of streams unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes sent for the first time.
    pub sent: u64,
    /// Bytes sent again since they counted as lost.
    pub sent_again: u64,
    /// Bytes of symbols: frames and data.
    pub symbols: u64,
    /// Bytes of data received, with duplicates.
    pub received: u64,
    /// Bytes of data received that were not new.
    pub duplicate: u64,
    /// Bytes of data dropped because they would have made too many gaps.
    pub dropped: u64,
    /// Frames ignored: nothing new, or too many to be answered.
    pub ignored_frames: u64,
    /// Malformed symbols.
    pub malformed: u64,
    /// Streams reset for a protocol violation.
    pub violations: u64,
    /// Streams of the peer refused for want of room.
    pub refused: u64,
    /// Streams given up because nothing was heard.
    pub timed_out: u64,
    /// Streams reset because they were not read while the others had no room.
    pub unread: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Obligation {
    #[default]
    None,
    Due,
    Again,
    Sent(Instant),
    Met,
}

impl Obligation {
    pub(crate) fn is_due(self) -> bool {
        matches!(self, Self::Due | Self::Again)
    }

    pub(crate) fn sent(self) -> Option<Instant> {
        if let Self::Sent(sent) = self { Some(sent) } else { None }
    }

    /// Returns whether it is due again.
    pub(crate) fn mark_lost(&mut self, now: Instant, timeout: Duration) -> bool {
        let is_lost = self.sent().is_some_and(|sent| sent + timeout <= now);
        if is_lost {
            *self = Self::Again;
        }
        is_lost
    }
}
