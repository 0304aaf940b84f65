//! Bounds the copies that a player may ask for by reports of an empty buffer.

/// Of the first transmissions. XLINK's re-injection without control costs 15 % (section 7.1).
const PERCENT: u64 = 25;
/// The burst: all that is in flight on a slow path when a buffer runs dry.
const COPIES_MAX: u64 = 512;

/// In hundredths of a copy.
#[derive(Debug)]
pub(super) struct Allowance(u64);

impl Default for Allowance {
    fn default() -> Self {
        Self(COPIES_MAX * 100)
    }
}

impl Allowance {
    pub(super) fn on_first(&mut self) {
        self.0 = (self.0 + PERCENT).min(COPIES_MAX * 100);
    }

    pub(super) fn has_one(&self) -> bool {
        self.0 >= 100
    }

    pub(super) fn take(&mut self) {
        self.0 = self.0.saturating_sub(100);
    }
}
