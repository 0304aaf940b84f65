//! Limits how many bindings of a proxy are checked: signatures are costly, and the holder of a
//! proxy's key may send as many as its legs carry, over any number of legs.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// When the full number of checks is available again (the generic cell rate algorithm).
    whole_at: BTreeMap<PublicKey, Instant>,
}

impl Checks {
    pub(super) fn allow(&mut self, now: Instant, proxy: PublicKey) -> bool {
        let known = self.whole_at.entry(proxy).or_insert(now);
        let whole_at = (*known).max(now) + CHECK_INTERVAL;
        let may = whole_at.since(now) <= CHECK_INTERVAL * CHECKS_AT_ONCE;
        if may {
            *known = whole_at;
        }
        may
    }

    /// Keeps only proxies that brought bindings within the last seconds.
    pub(super) fn forget_whole(&mut self, now: Instant) {
        self.whole_at.retain(|_, whole_at| *whole_at > now);
    }
}

/// Checks in a row: all clients of a proxy that comes up.
const CHECKS_AT_ONCE: u32 = 8192;
/// In the long run there is one check in this time: a tenth of a core for each proxy.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
