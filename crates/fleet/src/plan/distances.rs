//! Round trips from proxies to the anchors of their tenants, with hysteresis.
//!
//! Each change signs new lists for a tenant's boxes: small variations are ignored, rates bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

#[derive(Debug, Default)]
pub(super) struct Distances(BTreeMap<PublicKey, BTreeMap<String, Distance>>);

#[derive(Clone, Copy, Debug)]
struct Distance {
    micros: u32,
    since: Instant,
}

impl Distances {
    pub(super) fn retain(&mut self, known: &[PublicKey]) {
        self.0.retain(|key, _| known.contains(key));
    }

    /// Takes a proxy's report. Missing tenants keep their value: a backhaul may be down briefly.
    pub(super) fn look<'a>(
        &mut self,
        key: PublicKey,
        said: impl Iterator<Item = (&'a String, &'a u32)>,
        now: Instant,
    ) {
        let held = self.0.entry(key).or_default();
        for (tenant, micros) in said {
            let new = Distance { micros: (*micros).min(MICROS_MAX), since: now };
            match held.get_mut(tenant) {
                Some(old) if old.is_same(new) || now.since(old.since) < REST => {}
                Some(old) => *old = new,
                None => _ = held.insert(tenant.clone(), new),
            }
        }
    }

    pub(super) fn of(&self, key: &PublicKey) -> BTreeMap<String, u32> {
        let held = self.0.get(key).into_iter().flatten();
        held.map(|(tenant, distance)| (tenant.clone(), distance.micros)).collect()
    }
}

impl Distance {
    fn is_same(self, new: Self) -> bool {
        self.micros.abs_diff(new.micros) <= WAVERS_US.max(self.micros / 4)
    }
}

const WAVERS_US: u32 = 2_000;
const REST: Duration = Duration::from_secs(60);
const MICROS_MAX: u32 = 10_000_000;

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn what_wavers_or_changes_too_often_changes_nothing() {
        let key = Identity::from_seed([1; 32]).public_key();
        let mut distances = Distances::default();
        let tenant = "tram".to_owned();
        let mut measured = |seconds: u64, micros: u32| {
            let now = Instant::from_millis(seconds * 1_000);
            distances.look(key, [(&tenant, &micros)].into_iter(), now);
            distances.of(&key)[&tenant]
        };
        assert_eq!(measured(0, 4_000), 4_000);
        assert_eq!(measured(100, 6_000), 4_000, "2 ms are nothing");
        assert_eq!(measured(110, 7_000), 7_000);
        assert_eq!(measured(120, 90_000), 7_000, "not so soon");
        assert_eq!(measured(170, 90_000), 90_000);
        assert_eq!(measured(500, 110_000), 90_000, "less than a quarter");
        assert_eq!(measured(500, u32::MAX), MICROS_MAX);
        distances.look(key, std::iter::empty(), Instant::from_millis(600_000));
        assert_eq!(distances.of(&key)[&tenant], MICROS_MAX);
        distances.retain(&[]);
        assert_eq!(distances.of(&key), BTreeMap::new());
    }
}
