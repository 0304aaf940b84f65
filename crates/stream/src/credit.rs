//! Flow control of all streams of a session together (RFC 9000 section 4.1).
//!
//! Both ends count the sum of the highest offsets of all streams that ever were, reset ones with
//! their final size: the sums agree in spite of losses, and the credit bounds this sum.

use roadweave_proto::wire::{EARLY_CREDIT, SESSION_CREDIT, STREAM_CREDIT, VARINT_MAX};

#[derive(Debug)]
pub(crate) struct SendCredit {
    allowed: u64,
    pub(crate) used: u64,
}

impl Default for SendCredit {
    fn default() -> Self {
        Self { allowed: SESSION_CREDIT, used: 0 }
    }
}

impl SendCredit {
    pub(crate) fn room(&self) -> u64 {
        self.allowed.saturating_sub(self.used)
    }

    /// The bytes that a new stream may send before the peer has granted credit: a sixteenth of the
    /// room, so that many new streams leave some for the next.
    pub(crate) fn early(&self) -> u64 {
        (self.room() / 16).min(EARLY_CREDIT)
    }

    /// Returns whether the credit grows. RFC 9000 section 4.1: "A sender MUST ignore any
    /// MAX_STREAM_DATA or MAX_DATA frames that do not increase flow control limits."
    pub(crate) fn raise(&mut self, credit: u64) -> bool {
        let is_more = credit > self.allowed;
        self.allowed = self.allowed.max(credit);
        is_more
    }
}

#[derive(Debug)]
pub(crate) struct ReceiveCredit {
    pub(crate) window: u64,
    announced: u64,
    received: u64,
    consumed: u64,
    pub(crate) is_due: bool,
}

impl ReceiveCredit {
    /// `window`: at least [`SESSION_CREDIT`], the peer's credit at the beginning.
    pub(crate) fn new(window: u64) -> Self {
        let window = window.max(SESSION_CREDIT);
        Self { window, announced: SESSION_CREDIT, received: 0, consumed: 0, is_due: false }
    }

    pub(crate) fn allows(&self, growth: u64) -> bool {
        self.received.saturating_add(growth) <= self.announced
    }

    pub(crate) fn on_received(&mut self, growth: u64) {
        self.received += growth;
        self.update();
    }

    pub(crate) fn on_consumed(&mut self, bytes: u64) {
        self.consumed += bytes;
        self.update();
    }

    pub(crate) fn held(&self) -> u64 {
        self.received.saturating_sub(self.consumed)
    }

    /// The window of a stream that holds `own` bytes: half of the space that the others leave free,
    /// at least its first credit. However many streams are not read, the next finds room (dynamic
    /// thresholds: Choudhury and Hahne, IEEE/ACM ToN 1998).
    pub(crate) fn share(&self, own: u64) -> u64 {
        let others = self.held().saturating_sub(own);
        let free = self.window.saturating_sub(others);
        (free / 2).max(STREAM_CREDIT)
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.held() >= self.window / 16 * 15
    }

    pub(crate) fn has_some_room(&self) -> bool {
        self.held() <= self.window / 8 * 7
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.is_due.then(|| self.target())
    }

    pub(crate) fn on_advertised(&mut self) {
        self.is_due = false;
        self.announced = self.announced.max(self.target());
    }

    fn target(&self) -> u64 {
        (self.consumed + self.window).min(VARINT_MAX)
    }

    /// Announces the credit if it grew by a quarter of the free space.
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
    fn credit_is_advertised_when_it_is_worth_a_frame() {
        let mut credit = ReceiveCredit::new(1 << 20);
        assert_eq!(credit.due(), None);
        credit.on_received(1);
        assert_eq!(credit.due(), Some(1 << 20), "more than it has from the beginning");
        credit.on_advertised();
        credit.on_consumed((1 << 18) - 1);
        assert_eq!(credit.due(), None);
        credit.on_consumed(1);
        assert_eq!(credit.due(), Some((1 << 20) + (1 << 18)));
        assert!(credit.allows((1 << 20) - 1) && !credit.allows(1 << 20), "not before it is told");
    }

    #[test]
    fn the_less_credit_is_left_the_earlier_it_is_advertised() {
        let mut credit = ReceiveCredit::new(1 << 20);
        credit.on_received(1 << 19);
        credit.on_advertised();
        credit.on_received((1 << 19) - (1 << 15));
        credit.on_consumed(STREAM_CREDIT - 1);
        assert_eq!(credit.due(), None);
        credit.on_consumed(1);
        assert_eq!(credit.due(), Some((1 << 20) + STREAM_CREDIT));
    }
}
