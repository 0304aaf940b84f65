//! The proxies that each box is offered, by the proxies' health and the boxes' places.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    Band, Candidate, Candidates, Chain, Digest, Health, HealthState, Name, Offered, ProxyView,
    Scope, Seeker, Watch, candidates,
};
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::distances::Distances;
use super::fleet::{Fleet, RecordId};
use crate::model::{Device, Proxy, ProxyRole, ProxyState};
use crate::store::{Placed, ProxyStatus};

pub(super) struct Proxies {
    watch: Watch,
    bands: BTreeMap<PublicKey, Band>,
    /// The last reports of each proxy: its own, and that of boxes.
    told: BTreeMap<PublicKey, (i64, i64)>,
    distances: Distances,
}

impl Proxies {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            watch: Watch::new(now),
            bands: BTreeMap::new(),
            told: BTreeMap::new(),
            distances: Distances::default(),
        }
    }

    pub(super) fn look(
        &mut self,
        fleet: &Fleet,
        status: &[ProxyStatus],
        now: Instant,
        now_ms: i64,
    ) -> Vec<(PublicKey, HealthState)> {
        let gates: BTreeMap<&RecordId, (PublicKey, &Proxy)> =
            fleet.gates().map(|(id, proxy, key)| (id, (key, proxy))).collect();
        let known: Vec<PublicKey> = gates.values().map(|(key, _)| *key).collect();
        self.told.retain(|key, _| known.contains(key));
        self.bands.retain(|key, _| known.contains(key));
        self.distances.retain(&known);
        known.iter().for_each(|key| self.watch.add(*key, now));
        for status in status {
            let id = (status.tenant.clone(), status.proxy.clone());
            let Some((key, proxy)) = gates.get(&id) else { continue };
            let told = self.told.insert(*key, (status.seen_ms, status.witnessed_ms));
            // A changed time is a new report. At first, its distance from now decides, though it
            // may be by another replica's clock.
            let is_news = |at: i64, last: Option<i64>, span: Duration| match last {
                Some(last) => at != last,
                None => (now_ms - at).unsigned_abs() < span.as_millis() as u64,
            };
            if is_news(status.seen_ms, told.map(|told| told.0), Health::SILENCE) {
                self.watch.on_proxy(key, now);
            }
            if is_news(status.witnessed_ms, told.map(|told| told.1), Health::WITNESS) {
                self.watch.on_box(Some(key), now);
            }
            let band = self.bands.entry(*key).or_default();
            *band = band.after(load(status, proxy));
            let served = fleet.served(&id, proxy);
            let anchors = status.anchors.iter().filter(|(tenant, _)| served.contains(*tenant));
            self.distances.look(*key, anchors, now);
        }
        self.watch.poll(now)
    }

    pub(super) fn views(&self, fleet: &Fleet) -> Vec<Offer> {
        let proxies = fleet.gates().filter(|(_, it, _)| it.settings.role == ProxyRole::Proxy);
        proxies.filter_map(|(id, proxy, key)| self.offer(fleet, id, proxy, key)).collect()
    }

    fn offer(&self, fleet: &Fleet, id: &RecordId, proxy: &Proxy, key: PublicKey) -> Option<Offer> {
        let chain: Chain = serde_json::from_str(proxy.statement.as_deref()?).ok()?;
        let pool = fleet.pool_of(id, proxy).map(|pool| &pool.settings);
        let scope = |tenant: String| Some(Scope::Tenant(tenant.parse().ok()?));
        let site = pool.and_then(|pool| named(&pool.site)).or_else(|| named(&proxy.id))?;
        let view = ProxyView {
            key,
            scopes: fleet.served(id, proxy).into_iter().filter_map(scope).collect(),
            region: pool.and_then(|pool| named(&pool.region)).unwrap_or_else(|| site.clone()),
            site: site.clone(),
            is_active: proxy.state == ProxyState::Active,
            vital: self.watch.vital(&key).unwrap_or(HealthState::Unheard),
            band: self.bands.get(&key).copied().unwrap_or_default(),
        };
        let addresses = proxy.settings.addresses.iter().map(ToString::to_string).collect();
        let (to_anchor_us, last_resort) = (0, false);
        let candidate = Candidate { chain, site, addresses, to_anchor_us, last_resort };
        let to_anchors = self.distances.of(&key);
        Some(Offer { view, candidate: Arc::new(candidate), to_anchors })
    }
}

pub(super) struct Offer {
    pub(super) view: ProxyView,
    candidate: Arc<Candidate>,
    to_anchors: BTreeMap<String, u32>,
}

/// A digest of all that the lists depend on: equal digests imply equal lists.
pub(super) fn fingerprint(offers: &[Offer]) -> Digest {
    let text = |offer: &Offer| {
        let ProxyView { key, scopes, region, site, is_active, vital, band } = &offer.view;
        let vital = matches!(vital, HealthState::Alive | HealthState::Unheard)
            .then_some(HealthState::Alive);
        let dead = offer.view.vital == HealthState::Dead;
        let candidate = serde_json::to_string(&*offer.candidate).unwrap_or_default();
        format!(
            "{key} {scopes:?} {region} {site} {is_active} {vital:?} {dead} {band:?} {candidate} {:?}",
            offer.to_anchors
        )
    };
    let texts: Vec<String> = offers.iter().map(text).collect();
    Digest::of(texts.iter().map(String::as_bytes))
}

/// The list of a box, and a digest of the set it offers, whatever its order. `None` if there is no
/// proxy to offer: the box keeps its list.
pub(super) fn list(
    fleet: &Fleet,
    offers: &[Offer],
    views: &[ProxyView],
    (id, device, key): (&RecordId, &Device, PublicKey),
    current: Option<PublicKey>,
) -> Option<(Candidates, Digest)> {
    let of_token = || {
        // Joined before a box's record had its pool.
        let token = (id.0.clone(), device.token.clone()?);
        fleet.tokens.get(&token)?.settings.pool.clone()
    };
    let region = device
        .pool
        .clone()
        .or_else(of_token)
        .and_then(|pool| named(&fleet.pools.get(&(id.0.clone(), pool))?.settings.region));
    let seeker = Seeker { key, tenant: id.0.parse().ok()?, region, current };
    let of =
        |it: Offered| Some((offers.iter().find(|offer| offer.view.key == it.key)?, it.last_resort));
    let offered: Vec<(&Offer, bool)> =
        candidates(&seeker, views)?.into_iter().filter_map(of).collect();
    let to_anchor = |offer: &Offer| offer.to_anchors.get(&id.0).copied();
    // A proxy that has not measured counts as far as the farthest.
    let farthest = offered.iter().filter_map(|(offer, _)| to_anchor(offer)).max().unwrap_or(0);
    let candidate = |(offer, last_resort): &(&Offer, bool)| Candidate {
        to_anchor_us: to_anchor(offer).unwrap_or(farthest),
        last_resort: *last_resort,
        ..(*offer.candidate).clone()
    };
    let proxies: Vec<Candidate> = offered.iter().map(candidate).collect();
    let mut said: Vec<String> =
        proxies.iter().filter_map(|it| serde_json::to_string(it).ok()).collect();
    said.sort_unstable();
    let digest = Digest::of(said.iter().map(String::as_bytes));
    Some((Candidates { proxies }, digest))
}

pub(super) fn current(placed: &[Placed]) -> BTreeMap<RecordId, PublicKey> {
    let of = |it: &Placed| Some(((it.tenant.clone(), it.device.clone()), it.proxy.parse().ok()?));
    placed.iter().filter_map(of).collect()
}

/// A proxy's load in thousandths of its capacity: as reported, or by its number of boxes.
fn load(status: &ProxyStatus, proxy: &Proxy) -> u16 {
    let most = proxy.settings.devices_max.filter(|most| *most > 0);
    let by_boxes = most.map_or(0, |most| status.sessions.max(0) * 1_000 / i64::from(most));
    u16::try_from(status.load.unwrap_or(0).max(by_boxes)).unwrap_or(u16::MAX)
}

fn named(text: &str) -> Option<Name> {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    text.trim().chars().take(Name::MAX).map(fit).collect::<String>().parse().ok()
}
