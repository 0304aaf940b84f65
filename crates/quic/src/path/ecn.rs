//! Which packets are marked as capable of ECN, beside what the library decides.
//!
//! ```text
//! new path, or new address ─ 0.7 s ─► no answer: unmarked
//! suspect path ───────────── 0.5 s ─► every other question unmarked
//! the peer's last packet came unmarked: unmarked
//! ```
//!
//! Some networks drop marked packets. The library marks everything until the peer's counts show
//! that marks do not arrive (RFC 9000 section 13.4.2), which they cannot show where nothing
//! arrives. So a path that does not answer marked packets is probed without. Once such a probe is
//! acknowledged, the library takes marks for removed and stops marking on this path.

use crate::stats::EcnMarking;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    heard_unmarked: bool,
    /// A packet left unmarked since marked ones went unanswered.
    withheld: bool,
    pub(crate) marking: EcnMarking,
}

impl Ecn {
    pub(crate) fn on_heard(&mut self, is_marked: bool) {
        self.heard_unmarked = !is_marked;
    }

    /// Whether the next packet is marked. `wants`: the library marks it; `is_late`: an answer is
    /// overdue.
    pub(super) fn on_sent(&mut self, wants: bool, is_late: bool) -> bool {
        if !wants {
            if self.marking == EcnMarking::Marked {
                self.marking =
                    if self.withheld { EcnMarking::Lost } else { EcnMarking::Unreported };
            }
            return false;
        }
        self.marking = EcnMarking::Marked;
        self.withheld |= is_late;
        !is_late && !self.heard_unmarked
    }
}
