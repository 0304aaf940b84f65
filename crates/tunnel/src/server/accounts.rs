//! The allowance that a client has used in all its sessions: a new session gives no new one.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, Rate, TokenBucket};

use crate::rate::Limit;

/// Sessions in a row, for a box in bad weather or one restarted during experiments.
const JOINS_AT_ONCE: u32 = 12;
/// The sustained interval: each session costs reading and writing what was learned of its networks.
const JOIN_INTERVAL: Duration = Duration::from_secs(5);

/// A machine replaces its own live session less often than this within [`REPLACED_WITHIN`].
const REPLACED_MAX: u32 = 4;
const REPLACED_WITHIN: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Accounts(BTreeMap<PublicKey, Account>);

#[derive(Debug, Default)]
struct Account {
    joins: TokenBucket,
    limits: Option<[Limit; 2]>,
    replaced: (Instant, u32),
}

impl Accounts {
    pub(super) fn may_join(&mut self, now: Instant, key: PublicKey) -> bool {
        let joins = &mut self.0.entry(key).or_default().joins;
        joins.take(now, JOIN_INTERVAL, JOIN_INTERVAL * JOINS_AT_ONCE)
    }

    /// The limits of a new session in both directions; what an earlier one has used stays used.
    pub(super) fn take_limits(&mut self, key: &PublicKey, rate: Rate) -> [Limit; 2] {
        let kept = self.0.get_mut(key).and_then(|account| account.limits.take());
        kept.filter(|limits| limits[0].rate() == rate).unwrap_or([Limit::new(rate); 2])
    }

    pub(super) fn keep_limits(&mut self, key: PublicKey, limits: Option<[Limit; 2]>) {
        self.0.entry(key).or_default().limits = limits;
    }

    /// Returns whether to report a shared key: once in [`REPLACED_WITHIN`].
    pub(super) fn on_replaced(&mut self, now: Instant, key: PublicKey) -> bool {
        let (since, count) = &mut self.0.entry(key).or_default().replaced;
        if *count == 0 || now >= *since + REPLACED_WITHIN {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count == REPLACED_MAX
    }

    pub(super) fn forget(&mut self, key: &PublicKey) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    #[test]
    fn a_client_begins_a_few_sessions_at_once_and_then_one_in_a_while() {
        let mut accounts = Accounts::default();
        let mut begun = |key, seconds| {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            (0..100).filter(|_| accounts.may_join(now, key)).count()
        };
        assert_eq!((begun(key(1), 100), begun(key(1), 104), begun(key(1), 105)), (12, 0, 1));
        assert_eq!(begun(key(2), 105), 12, "another key has its own");
        assert_eq!(begun(key(1), 125), 4);
        assert_eq!(begun(key(1), 1_000), 12);
    }

    #[test]
    fn two_machines_with_one_key_are_reported_at_a_bounded_rate() {
        let mut accounts = Accounts::default();
        let mut is_reported =
            |seconds| accounts.on_replaced(Instant::from_millis(seconds * 1_000), key(1));
        let minute: Vec<u64> = (1..=60).filter(|second| is_reported(*second)).collect();
        assert_eq!(minute, [4]);
        assert_eq!((601..=1_200).step_by(30).filter(|second| is_reported(*second)).count(), 1);
        // A box that is restarted now and then.
        assert!(!(2_000..20_000).step_by(400).any(&mut is_reported));
    }

    #[test]
    fn what_one_session_has_used_is_used_for_the_next() {
        let mut accounts = Accounts::default();
        let (now, rate) = (Instant::from_millis(5_000), Rate::from_kbps(8_000));
        let burst =
            |limits: &mut [Limit; 2]| (0..500).filter(|_| limits[0].allows(now, 1_000)).count();
        let mut limits = accounts.take_limits(&key(1), rate);
        assert_eq!(burst(&mut limits), 100);
        accounts.keep_limits(key(1), Some(limits));
        let mut limits = accounts.take_limits(&key(1), rate);
        assert_eq!((burst(&mut limits), limits[1].allows(now, 1_000)), (0, true));
        accounts.keep_limits(key(1), Some(limits));
        assert_eq!(burst(&mut accounts.take_limits(&key(1), Rate::from_kbps(16_000))), 200);
    }
}
