//! Which proxies a box may choose among.
//!
//! ```text
//! proxies ─► serve the tenant, active, not dead, have headroom        who may be offered
//!         ─► the box's own region first, then by weighted rendezvous  in which order
//!         ─► at most 5, of one site at most 3 while others are left   the list
//!         ─► filled up with those that are full or not heard          the last resort
//! ```
//!
//! A box takes a full proxy only when no other answers; last resorts cover its proxy's crash.
//!
//! A pure function: equal views give equal lists on every replica. A proxy's place with a box
//! depends on those two alone, so a change of a proxy changes only the lists that it is on. Its
//! weight goes by bands of its load, with hysteresis, so that small changes of load change nothing,
//! and a proxy that has become free is not offered to all boxes at once.
//!
//! Source: Thaler, Ravishankar: "Using name-based mappings to increase hit rates", IEEE/ACM
//! Transactions on Networking 6(1), 1998 (rendezvous hashing, "highest random weight").

mod health;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

pub use self::health::{Health, HealthState, Watch};
use crate::digest::Digest;
use crate::document::Candidates;
use crate::name::Name;
use crate::statement::Scope;

/// The most candidates of one site, while other sites have some.
const SITE_MAX: usize = 3;
/// The lower bounds of the bands of load, thousandths.
const BANDS: [u16; 3] = [500, 700, 850];
const BAND_MARGIN: u16 = 100;
/// The words of a digest.
const DRAWS: usize = 4;

/// The load of a proxy in bands, with hysteresis.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Band {
    /// Below 50 % of its capacity.
    #[default]
    Light,
    /// From 50 %.
    Busy,
    /// From 70 %.
    Strained,
    /// From 85 %: it gets no new boxes.
    Full,
}

impl Band {
    /// The band after `load`, thousandths of the capacity: a higher one at once, a lower one once
    /// load is 10 % of the capacity below this one's bound.
    #[must_use]
    pub fn after(self, load: u16) -> Self {
        let bands = [Self::Light, Self::Busy, Self::Strained, Self::Full];
        let reached = |margin: u16| BANDS.iter().filter(|begin| load >= **begin - margin).count();
        self.clamp(bands[reached(0)], bands[reached(BAND_MARGIN)])
    }

    /// The proxy gets boxes in proportion to its draws.
    fn draws(self) -> usize {
        match self {
            Self::Light => DRAWS,
            Self::Busy => DRAWS / 2,
            Self::Strained => DRAWS / 4,
            Self::Full => 1,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ProxyView {
    pub key: PublicKey,
    pub scopes: Vec<Scope>,
    pub region: Name,
    /// Its site, of shared power and network.
    pub site: Name,
    pub is_active: bool,
    pub vital: HealthState,
    pub band: Band,
}

impl ProxyView {
    fn may_keep(&self, tenant: &Name) -> bool {
        let tenant = Scope::Tenant(tenant.clone());
        let serves = self.scopes.iter().any(|scope| scope.covers(&tenant));
        serves && self.is_active && self.vital != HealthState::Dead
    }

    fn may_get(&self, tenant: &Name) -> bool {
        let is_heard = matches!(self.vital, HealthState::Alive | HealthState::Unheard);
        is_heard && self.band != Band::Full && self.may_keep(tenant)
    }
}

#[derive(Clone, Debug)]
pub struct Seeker {
    pub key: PublicKey,
    pub tenant: Name,
    pub region: Option<Name>,
    /// The proxy that it is on: kept in spite of its load while it lives and is not drained.
    pub current: Option<PublicKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offered {
    pub key: PublicKey,
    /// Full, or not heard.
    pub last_resort: bool,
}

/// The best first and last resorts last; at most [`Candidates::MAX`], of at least two sites where
/// possible. With `None` the box keeps its list: a proxy that seems dead is better than none.
pub fn candidates(seeker: &Seeker, proxies: &[ProxyView]) -> Option<Vec<Offered>> {
    let is_last_resort =
        |proxy: &ProxyView| seeker.current != Some(proxy.key) && !proxy.may_get(&seeker.tenant);
    let of = |last_resort: bool| {
        let those = proxies.iter().filter(|proxy| proxy.may_keep(&seeker.tenant));
        let those = those.filter(|proxy| is_last_resort(proxy) == last_resort);
        let ranked = in_order(seeker, those.collect());
        ranked.into_iter().map(move |key| Offered { key, last_resort })
    };
    let offered: Vec<Offered> = of(false).chain(of(true)).take(Candidates::MAX).collect();
    Some(offered).filter(|offered| !offered.is_empty())
}

fn in_order(seeker: &Seeker, proxies: Vec<&ProxyView>) -> Vec<PublicKey> {
    let mut ranked: Vec<_> = proxies.iter().map(|proxy| (rank(seeker, proxy), *proxy)).collect();
    // Keys decide between equals, whatever the order of the views.
    ranked.sort_unstable_by_key(|(rank, proxy)| (*rank, proxy.key));

    let mut of_site: BTreeMap<&Name, usize> = BTreeMap::new();
    let (mut chosen, mut passed) = (Vec::new(), Vec::new());
    for (_, proxy) in ranked {
        let count = of_site.entry(&proxy.site).or_default();
        *count += 1;
        match *count <= SITE_MAX {
            true => chosen.push(proxy.key),
            false => passed.push(proxy.key),
        }
    }
    chosen.extend(passed);
    chosen
}

/// Lower is better.
fn rank(seeker: &Seeker, proxy: &ProxyView) -> (bool, bool, Reverse<u64>) {
    let is_other = seeker.current != Some(proxy.key);
    let is_far = seeker.region.as_ref().is_some_and(|region| *region != proxy.region);
    (is_other, is_far, Reverse(best_draw(seeker.key, proxy)))
}

/// With twice the draws it is twice as often the highest of all.
fn best_draw(key: PublicKey, proxy: &ProxyView) -> u64 {
    let digest = Digest::of([b"placement".as_slice(), key.as_bytes(), proxy.key.as_bytes()]);
    let words = digest.as_bytes().chunks_exact(8).take(proxy.band.draws());
    let words = words.map(|word| u64::from_be_bytes(word.try_into().expect("8 bytes")));
    words.max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
