//! How many copies a player may ask for: whoever tells of an empty buffer without end has a bounded
//! share of what it gets a second time, and the rest once like everybody.

/// Copies, in percent of the packets that left for the first time. XLINK's re-injection without
/// control costs 15 % (section 7.1).
const PERCENT: u64 = 25;
/// So many may leave at once: all that is under way on a slow path when a buffer runs dry.
const COPIES_MAX: u64 = 512;

/// What is left of it, in hundredths of a copy.
#[derive(Debug)]
pub(super) struct Allowance(u64);

impl Default for Allowance {
    fn default() -> Self {
        Self(COPIES_MAX * 100)
    }
}

impl Allowance {
    /// A packet has left for the first time.
    pub(super) fn on_first(&mut self) {
        self.0 = (self.0 + PERCENT).min(COPIES_MAX * 100);
    }

    /// Whether there is a copy left.
    pub(super) fn has_one(&self) -> bool {
        self.0 >= 100
    }

    /// A copy leaves.
    pub(super) fn take(&mut self) {
        self.0 = self.0.saturating_sub(100);
    }
}
