//! How much all streams of a session together may carry (RFC 9000 section 4.1).
//!
//! Both ends count the sum of the highest offsets of all streams that ever were, those that were
//! reset with their final size: the sums agree whatever was lost, and the credit is a bound of this
//! sum.

use roadweave_proto::wire::{EARLY_CREDIT, SESSION_CREDIT, STREAM_CREDIT, VARINT_MAX};

/// What may be sent.
#[derive(Debug)]
pub(crate) struct SendCredit {
    allowed: u64,
    used: u64,
}

impl Default for SendCredit {
    fn default() -> Self {
        Self { allowed: SESSION_CREDIT, used: 0 }
    }
}

impl SendCredit {
    /// Bytes that may still be sent for the first time.
    pub(crate) fn room(&self) -> u64 {
        self.allowed.saturating_sub(self.used)
    }

    /// What a stream that is opened now may send before the peer has told a credit: a sixteenth of
    /// what all may, so that many which begin at once leave room for the next.
    pub(crate) fn early(&self) -> u64 {
        (self.room() / 16).min(EARLY_CREDIT)
    }

    /// The peer allows so much. RFC 9000 section 4.1: "A sender MUST ignore any MAX_STREAM_DATA or
    /// MAX_DATA frames that do not increase flow control limits." Whether it is more than before.
    pub(crate) fn raise(&mut self, credit: u64) -> bool {
        let is_more = credit > self.allowed;
        self.allowed = self.allowed.max(credit);
        is_more
    }

    pub(crate) fn use_up(&mut self, bytes: u64) {
        self.used += bytes;
    }
}

/// What the peer may send.
#[derive(Debug)]
pub(crate) struct ReceiveCredit {
    /// The bytes that may be held at once.
    window: u64,
    announced: u64,
    received: u64,
    consumed: u64,
    is_due: bool,
}

impl ReceiveCredit {
    /// `window`: at least [`SESSION_CREDIT`], which the peer has from the beginning.
    pub(crate) fn new(window: u64) -> Self {
        let window = window.max(SESSION_CREDIT);
        Self { window, announced: SESSION_CREDIT, received: 0, consumed: 0, is_due: false }
    }

    /// Whether the peer may have sent `growth` more.
    pub(crate) fn allows(&self, growth: u64) -> bool {
        self.received.saturating_add(growth) <= self.announced
    }

    pub(crate) fn on_received(&mut self, growth: u64) {
        self.received += growth;
        self.update();
    }

    /// So many bytes were read, or will never be.
    pub(crate) fn on_consumed(&mut self, bytes: u64) {
        self.consumed += bytes;
        self.update();
    }

    /// Bytes that wait for their reader, with the gaps between them.
    pub(crate) fn held(&self) -> u64 {
        self.received.saturating_sub(self.consumed)
    }

    /// The highest offset that a stream should be allowed beyond what was read of it, if it holds
    /// `own` of all that is held: half of what the others leave free, so that however many streams
    /// nobody reads, the next finds room, and one that waits for a packet is not held back by what
    /// has come behind it; never below what each has at first (dynamic thresholds: Choudhury and
    /// Hahne, IEEE/ACM ToN 1998).
    pub(crate) fn share(&self, own: u64) -> u64 {
        let others = self.held().saturating_sub(own);
        let free = self.window.saturating_sub(others);
        (free / 2).max(STREAM_CREDIT)
    }

    /// Whether so much is held that next to nothing is left to those who read.
    pub(crate) fn is_crowded(&self) -> bool {
        self.held() >= self.window / 16 * 15
    }

    /// Whether that is over.
    pub(crate) fn has_some_room(&self) -> bool {
        self.held() <= self.window / 8 * 7
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Has the credit told, since the peer may not know it.
    pub(crate) fn repeat(&mut self) {
        self.is_due = true;
    }

    /// The credit, if the peer is to be told.
    pub(crate) fn due(&self) -> Option<u64> {
        self.is_due.then(|| self.target())
    }

    pub(crate) fn on_told(&mut self) {
        self.is_due = false;
        self.announced = self.announced.max(self.target());
    }

    fn target(&self) -> u64 {
        (self.consumed + self.window).min(VARINT_MAX)
    }

    /// Has the credit told if there is much more than the peer knows of: a quarter of what is free,
    /// however much waits for readers that take nothing.
    pub(crate) fn update(&mut self) {
        let free = self.window.saturating_sub(self.held());
        self.is_due |= self.target() >= self.announced + (free / 4).max(STREAM_CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_half_of_what_the_others_leave_and_never_nothing() {
        let mut credit = ReceiveCredit::new(1 << 20);
        assert_eq!(credit.share(0), 1 << 19);
        credit.on_received(1 << 19);
        assert_eq!((credit.share(0), credit.share(1 << 19)), (1 << 18, 1 << 19));
        credit.on_received((1 << 19) - 1);
        assert_eq!(credit.share(0), STREAM_CREDIT);
    }

    #[test]
    fn the_peer_is_told_what_is_worth_telling() {
        let mut credit = ReceiveCredit::new(1 << 20);
        assert_eq!(credit.due(), None);
        credit.on_received(1);
        assert_eq!(credit.due(), Some(1 << 20), "more than it has from the beginning");
        credit.on_told();
        credit.on_consumed((1 << 18) - 1);
        assert_eq!(credit.due(), None);
        credit.on_consumed(1);
        assert_eq!(credit.due(), Some((1 << 20) + (1 << 18)));
        assert!(credit.allows((1 << 20) - 1) && !credit.allows(1 << 20), "not before it is told");
    }

    #[test]
    fn the_less_is_free_the_earlier_the_peer_is_told() {
        let mut credit = ReceiveCredit::new(1 << 20);
        credit.on_received(1 << 19);
        credit.on_told();
        credit.on_received((1 << 19) - (1 << 15));
        credit.on_consumed(STREAM_CREDIT - 1);
        assert_eq!(credit.due(), None);
        credit.on_consumed(1);
        assert_eq!(credit.due(), Some((1 << 20) + STREAM_CREDIT));
    }
}
