//! Which packets are marked as capable of ECN, beside what the library decides.
//!
//! ```text
//! new path, or new address ─ 0.7 s ─► no answer: unmarked
//! suspect path ───────────── 0.5 s ─► every other question unmarked
//! the peer's last packet came unmarked: unmarked
//! ```
//!
//! Some networks drop marked packets. The library marks everything until the peer's counts show
//! that marks do not arrive (RFC 9000 section 13.4.2), which they never do where nothing arrives:
//! no session would begin. So a path that does not answer marked packets is asked without. Once
//! such a question is acknowledged the counts lack it, and the library stops marking on this path
//! for good. It takes the lack for removed marks.

use std::time::Duration;

use roadweave_proto::Instant;

use crate::path::Path;
use crate::stats::EcnMarking;

/// After so long without its first answer an address gets unmarked packets: a geostationary
/// satellite has answered by then, and the library sends a handshake's first packet for the third
/// time a little later.
const FIRST_ANSWER: Duration = Duration::from_millis(700);
/// After so long a suspect path is asked without marks as well.
const SUSPECT: Duration = Duration::from_millis(500);

/// What is known of the marks on a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    /// The peer's last packet came unmarked.
    heard_unmarked: bool,
    /// A packet left unmarked since marked ones were not answered.
    withheld: bool,
    marking: EcnMarking,
}

impl Ecn {
    /// A packet of the peer came in.
    pub(crate) fn on_heard(&mut self, is_marked: bool) {
        self.heard_unmarked = !is_marked;
    }

    pub(crate) fn marking(&self) -> EcnMarking {
        self.marking
    }
}

impl Path {
    /// Whether a packet that leaves now is marked, which the library `wants` or not.
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
