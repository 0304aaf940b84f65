//! How many bindings of a proxy are checked: signatures cost, and whoever has the key of a proxy
//! may send as many as its leg carries, by as many legs as it likes.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

/// What proxies have used up, in whichever of their legs.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// When each may have as many checked as ever (the generic cell rate algorithm).
    whole_at: BTreeMap<PublicKey, Instant>,
}

impl Checks {
    /// Whether a binding that `proxy` brings may be checked now; if so, it has been.
    pub(super) fn allow(&mut self, now: Instant, proxy: PublicKey) -> bool {
        let known = self.whole_at.entry(proxy).or_insert(now);
        let whole_at = (*known).max(now) + CHECK_INTERVAL;
        let may = whole_at.since(now) <= CHECK_INTERVAL * CHECKS_AT_ONCE;
        if may {
            *known = whole_at;
        }
        may
    }

    /// Forgets those that have used up nothing: no more are known than have brought a binding
    /// within the last seconds.
    pub(super) fn forget_whole(&mut self, now: Instant) {
        self.whole_at.retain(|_, whole_at| *whole_at > now);
    }
}

/// Bindings of a proxy that are checked at once: all clients of one that comes up.
const CHECKS_AT_ONCE: u32 = 8192;
/// In the long run one is checked in this time, which is a tenth of a core for each proxy.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
