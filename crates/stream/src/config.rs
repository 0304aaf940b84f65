//! What the owner of streams says, and what it is told.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{SESSION_CREDIT, STREAM_CREDIT};

/// Which end of the session this is: whose streams are even, and whose odd.
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
    /// Which end it is.
    pub side: Side,
    /// The most streams that may be open which were opened here.
    pub opened_max: usize,
    /// The most streams that may be open which the peer opened; further ones are reset.
    pub accepted_max: usize,
    /// Bytes that all streams together hold for their readers, at least [`SESSION_CREDIT`].
    pub receive_max: u64,
    /// Bytes that all streams together hold until they are acknowledged.
    pub send_max: u64,
    /// So many of the first bytes that a stream sends go before everything else, as its first video
    /// frame, or an answer that is small, should.
    pub head: u64,
    /// What goes before others since somebody has asked for it, by a priority or as a first video
    /// frame, is so many bytes of a stream at most, and then one part of five of what it sends:
    /// whoever asks for all of it stops nobody.
    pub favour: u64,
    /// How long nothing may be heard of a stream that waits for an answer before it is reset.
    pub give_up_after: Duration,
}

impl Config {
    /// Bounds for `streams` streams of each side: twice what they have credit for at first, and
    /// 16 MiB for those that need more, of which one alone has half: 0.6 s at 100 Mbit/s, for round
    /// trips over all links, their queues, and a repair of the slowest. Streams are given up after
    /// two minutes (RFC 1122 section 4.2.3.5 asks for at least 100 seconds of a TCP).
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
}

/// What the owner knows of the lane that carries the streams.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The round trip over the slowest path that the lane uses.
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
/// The longest wait between two attempts, unless the first is longer.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

impl Timing {
    /// How long to wait for an answer: until the lane has done all that it can and the answer to
    /// that had time to come; twice as long after each attempt in vain.
    pub(crate) fn patience(&self, attempts: u32) -> Duration {
        let first = 2 * self.round_trip + self.age_max + ACK_DELAY;
        first.saturating_mul(1 << attempts.min(16)).min(PATIENCE_MAX.max(first))
    }
}

/// What was done so far, in bytes of streams unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that were sent for the first time.
    pub sent: u64,
    /// Bytes that were sent again since they were taken for lost.
    pub sent_again: u64,
    /// Bytes of symbols: frames and data.
    pub symbols: u64,
    /// Bytes of data that came, duplicates among them.
    pub received: u64,
    /// Bytes of data that came and were nothing new.
    pub duplicate: u64,
    /// Bytes of data that came and would have made too many gaps.
    pub dropped: u64,
    /// Frames that said nothing new of streams that are over, or too many at once to be answered.
    pub ignored_frames: u64,
    /// Symbols that were malformed.
    pub malformed: u64,
    /// Streams that were reset since the peer broke the rules.
    pub violations: u64,
    /// Streams of the peer that found no room.
    pub refused: u64,
    /// Streams that were given up since nothing was heard.
    pub timed_out: u64,
    /// Streams that were reset since nobody read them while the others had no room.
    pub unread: u64,
}

/// What has been asked of the peer and must be asked again until it is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Obligation {
    /// Nothing was asked.
    #[default]
    None,
    /// It is to be sent.
    Due,
    /// It is to be sent again.
    Again,
    /// It was sent then.
    Sent(Instant),
    /// It is answered.
    Met,
}

impl Obligation {
    pub(crate) fn is_due(self) -> bool {
        matches!(self, Self::Due | Self::Again)
    }

    pub(crate) fn sent(self) -> Option<Instant> {
        if let Self::Sent(sent) = self { Some(sent) } else { None }
    }

    /// It is to be sent again if it left `patience` ago or earlier; whether it is.
    pub(crate) fn mark_lost(&mut self, now: Instant, patience: Duration) -> bool {
        let is_lost = self.sent().is_some_and(|sent| sent + patience <= now);
        if is_lost {
            *self = Self::Again;
        }
        is_lost
    }
}
