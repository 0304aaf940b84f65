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

use std::time::Duration;

use roadweave_proto::Instant;

use super::Path;
use crate::stats::EcnMarking;

/// An address without a first answer gets unmarked packets after this: satellites answer by then.
const FIRST_ANSWER: Duration = Duration::from_millis(700);
const SUSPECT: Duration = Duration::from_millis(500);

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
}

impl Path {
    pub(crate) fn marks(&mut self, now: Instant, wants: bool) -> bool {
        if !wants {
            if self.ecn.marking == EcnMarking::Marked {
                let is_lost = self.ecn.withheld;
                self.ecn.marking = if is_lost { EcnMarking::Lost } else { EcnMarking::Unreported };
            }
            return false;
        }
        self.ecn.marking = EcnMarking::Marked;
        let is_late = match &self.suspect {
            _ if !self.validated => now >= self.asked_since + FIRST_ANSWER,
            Some(suspicion) => now >= suspicion.since + SUSPECT && self.stats.probes_sent % 2 == 1,
            None => false,
        };
        self.ecn.withheld |= is_late;
        !is_late && !self.ecn.heard_unmarked
    }
}
