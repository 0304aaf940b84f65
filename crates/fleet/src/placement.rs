//! Which proxies a box may choose among.
//!
//! ```text
//! proxies ─► serve the tenant, active, not dead, have headroom        who may be offered
//!         ─► the box's own region first, then by weighted rendezvous  in which order
//!         ─► at most 5, of one site at most 3 while others are left   the list
//!         ─► filled up with those that are full or not heard          the last resort
//! ```
//!
//! A box chooses who is full only when nobody else answers: with nobody to go to at all, the crash
//! of its proxy would leave it without any.
//!
//! A pure function: equal views give equal lists, on every replica of a controller. Rendezvous
//! hashing keeps lists stable, since a proxy's place with a box depends on those two alone: one
//! that comes, goes or gets another weight changes only the lists that it is on. A proxy's weight
//! goes by bands of its load, with hysteresis, so that small changes of load change nothing, and a
//! proxy that has just become free is not offered to all boxes at once.
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

/// The most candidates of one site, while other sites have some to offer.
const SITE_MAX: usize = 3;
/// Where the bands of load begin, thousandths.
const BANDS: [u16; 3] = [500, 700, 850];
/// How far load must fall below the beginning of a band until it counts as left.
const BAND_MARGIN: u16 = 100;
/// The most draws that a proxy has with a box: a digest's words.
const DRAWS: usize = 4;

/// How much a proxy has to do, coarsely: it stays the same while load moves a little.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Band {
    /// Below half of what it can bear.
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
    /// The band after `load`, in thousandths of what the proxy can bear: a higher one as soon as
    /// that begins, a lower one once load is 10 % of all below where this one begins.
    #[must_use]
    pub fn after(self, load: u16) -> Self {
        let bands = [Self::Light, Self::Busy, Self::Strained, Self::Full];
        let reached = |margin: u16| BANDS.iter().filter(|begin| load >= **begin - margin).count();
        self.clamp(bands[reached(0)], bands[reached(BAND_MARGIN)])
    }

    /// Its draws with every box: twice the draws, twice the boxes.
    fn draws(self) -> usize {
        match self {
            Self::Light => DRAWS,
            Self::Busy => DRAWS / 2,
            Self::Strained => DRAWS / 4,
            // Among the last resorts, all of which have one.
            Self::Full => 1,
        }
    }
}

/// A proxy, as the controller sees it.
#[derive(Clone, Debug)]
pub struct ProxyView {
    /// Its key.
    pub key: PublicKey,
    /// The tenants that the proxy serves.
    pub scopes: Vec<Scope>,
    /// The region that the proxy is good for.
    pub region: Name,
    /// The site that the proxy shares power and network with.
    pub site: Name,
    /// Whether the proxy may have boxes at all: it is neither draining nor stopped by a person.
    pub is_active: bool,
    /// Whether the proxy lives.
    pub vital: HealthState,
    /// How much the proxy has to do.
    pub band: Band,
}

impl ProxyView {
    /// Whether boxes of this tenant that are on the proxy may stay.
    fn may_keep(&self, tenant: &Name) -> bool {
        let tenant = Scope::Tenant(tenant.clone());
        let serves = self.scopes.iter().any(|scope| scope.covers(&tenant));
        serves && self.is_active && self.vital != HealthState::Dead
    }

    /// Whether the proxy may get boxes of this tenant.
    fn may_get(&self, tenant: &Name) -> bool {
        let is_heard = matches!(self.vital, HealthState::Alive | HealthState::Unheard);
        is_heard && self.band != Band::Full && self.may_keep(tenant)
    }
}

/// A box that needs proxies.
#[derive(Clone, Debug)]
pub struct Seeker {
    /// Its key.
    pub key: PublicKey,
    /// The tenant that the box belongs to.
    pub tenant: Name,
    /// The region that the box is in, if anybody said.
    pub region: Option<Name>,
    /// The proxy that it is on: it may keep that as long as it lives and is not drained, however
    /// much that has to do.
    pub current: Option<PublicKey>,
}

/// A proxy that a box may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offered {
    /// Its key.
    pub key: PublicKey,
    /// Whether the box should choose it only when no other is there: it is full, or not heard.
    pub last_resort: bool,
}

/// The proxies that a box may choose among, the best first and last resorts last; at most
/// [`Candidates::MAX`], of at least two sites where two have some to offer.
///
/// None when no proxy may be offered. The box should keep the list that it has then: a proxy that
/// seems dead is a better chance than no proxy.
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

/// The best first, of one site at most [`SITE_MAX`] while others are left.
fn in_order(seeker: &Seeker, proxies: Vec<&ProxyView>) -> Vec<PublicKey> {
    let mut ranked: Vec<_> = proxies.iter().map(|proxy| (rank(seeker, proxy), *proxy)).collect();
    // The key decides between equals, so that the order of the views never does.
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

/// The place of a proxy with a box; lower is better.
fn rank(seeker: &Seeker, proxy: &ProxyView) -> (bool, bool, Reverse<u64>) {
    let is_other = seeker.current != Some(proxy.key);
    let is_far = seeker.region.as_ref().is_some_and(|region| *region != proxy.region);
    (is_other, is_far, Reverse(best_draw(seeker.key, proxy)))
}

/// The highest of the proxy's draws. Of one with twice the draws it is twice as often the highest
/// of all.
fn best_draw(key: PublicKey, proxy: &ProxyView) -> u64 {
    let digest = Digest::of([b"placement".as_slice(), key.as_bytes(), proxy.key.as_bytes()]);
    let words = digest.as_bytes().chunks_exact(8).take(proxy.band.draws());
    let words = words.map(|word| u64::from_be_bytes(word.try_into().expect("8 bytes")));
    words.max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
