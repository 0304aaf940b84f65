//! The proxies that each box is offered, by the proxies' health and the boxes' places.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::distances::Distances;
use super::{Fleet, RecordId, chain};
use crate::digest::Digest;
use crate::document::{Candidate, Candidates};
use crate::name::Name;
use crate::placement::{Band, Health, HealthState, Offered, ProxyView, Seeker, Watch, candidates};
use crate::records::{Device, Proxy, ProxyRole, ProxyState, ProxyStatus};
use crate::statement::Scope;

/// The health, load and distances of proxies and anchors, by their reports.
#[derive(Debug)]
pub struct Proxies {
    watch: Watch,
    bands: BTreeMap<PublicKey, Band>,
    reported: BTreeMap<PublicKey, (i64, i64)>,
    distances: Distances,
}

impl Proxies {
    /// No proxy has reported.
    pub fn new(now: Instant) -> Self {
        Self {
            watch: Watch::new(now),
            bands: BTreeMap::new(),
            reported: BTreeMap::new(),
            distances: Distances::default(),
        }
    }

    /// Takes all reports; returns proxies whose health has changed. Call it every few seconds.
    pub fn look(
        &mut self,
        fleet: &Fleet,
        status: &[ProxyStatus],
        now: Instant,
        now_ms: i64,
    ) -> Vec<(PublicKey, HealthState)> {
        let gates: BTreeMap<&RecordId, (PublicKey, &Proxy)> =
            fleet.gates().map(|(id, proxy, key)| (id, (key, proxy))).collect();
        let known: Vec<PublicKey> = gates.values().map(|(key, _)| *key).collect();
        self.reported.retain(|key, _| known.contains(key));
        self.bands.retain(|key, _| known.contains(key));
        self.distances.retain(&known);
        known.iter().for_each(|key| self.watch.add(*key, now));
        for status in status {
            let id = (status.tenant.clone(), status.proxy.clone());
            let Some((key, proxy)) = gates.get(&id) else { continue };
            let ProxyStatus { seen_ms, witnessed_ms, .. } = *status;
            let before = self.reported.insert(*key, (seen_ms, witnessed_ms));
            // A changed time is a new report. The first is judged by its distance from now.
            let is_news = |at: i64, last: Option<i64>, span: Duration| match last {
                Some(last) => at != last,
                None => (now_ms - at).unsigned_abs() < span.as_millis() as u64,
            };
            if is_news(seen_ms, before.map(|before| before.0), Health::SILENCE) {
                self.watch.on_proxy(key, now);
            }
            if is_news(witnessed_ms, before.map(|before| before.1), Health::WITNESS) {
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

    /// The health and load of a proxy.
    pub fn health(&self, key: &PublicKey) -> (HealthState, Band) {
        let vital = self.watch.vital(key).unwrap_or(HealthState::Unheard);
        (vital, self.bands.get(key).copied().unwrap_or_default())
    }

    /// The proxies as boxes may be offered them.
    pub fn offers(&self, fleet: &Fleet) -> Offers {
        let proxies = fleet.gates().filter(|(_, it, _)| it.settings.role == ProxyRole::Proxy);
        let offers = proxies.filter_map(|(id, proxy, key)| self.offer(fleet, id, proxy, key));
        let (views, offers): (Vec<_>, Vec<_>) = offers.unzip();
        Offers { offers: views.iter().map(|view| view.key).zip(offers).collect(), views }
    }

    fn offer(
        &self,
        fleet: &Fleet,
        id: &RecordId,
        proxy: &Proxy,
        key: PublicKey,
    ) -> Option<(ProxyView, Offer)> {
        let chain = chain(proxy.statement.as_deref())?;
        let pool = fleet.pool_of(id, proxy.settings.pool.clone()).map(|pool| &pool.settings);
        let scope = |tenant: String| Some(Scope::Tenant(tenant.parse().ok()?));
        let site = pool.and_then(|pool| named(&pool.site)).or_else(|| named(&proxy.id))?;
        let (vital, band) = self.health(&key);
        let view = ProxyView {
            key,
            scopes: fleet.served(id, proxy).into_iter().filter_map(scope).collect(),
            region: pool.and_then(|pool| named(&pool.region)).unwrap_or_else(|| site.clone()),
            site: site.clone(),
            is_active: proxy.state == ProxyState::Active,
            vital,
            band,
        };
        let addresses = proxy.settings.addresses.iter().map(ToString::to_string).collect();
        let (to_anchor_us, last_resort) = (0, false);
        let candidate = Candidate { chain, site, addresses, to_anchor_us, last_resort };
        Some((view, (candidate, self.distances.of(&key))))
    }
}

type Offer = (Candidate, BTreeMap<String, u32>);

/// The proxies as boxes may be offered them.
#[derive(Debug)]
pub struct Offers {
    views: Vec<ProxyView>,
    offers: BTreeMap<PublicKey, Offer>,
}

impl Offers {
    /// Equal digests imply equal lists.
    pub fn digest(&self) -> Digest {
        let text = |view: &ProxyView| {
            let vital = match view.vital {
                HealthState::Unheard => HealthState::Alive,
                vital => vital,
            };
            let (candidate, to_anchors) = &self.offers[&view.key];
            let candidate = serde_json::to_string(candidate).unwrap_or_default();
            let view = ProxyView { vital, ..view.clone() };
            format!("{view:?} {candidate} {to_anchors:?}")
        };
        let texts: Vec<String> = self.views.iter().map(text).collect();
        Digest::of(texts.iter().map(String::as_bytes))
    }

    /// The list of a box, and a digest of its set. `None` if it would be empty.
    pub(super) fn list(
        &self,
        fleet: &Fleet,
        (id, device, key): (&RecordId, &Device, PublicKey),
        current: Option<PublicKey>,
    ) -> Option<(Candidates, Digest)> {
        let of_token = || {
            // Joined before a box's record had its pool.
            let token = (id.0.clone(), device.token.clone()?);
            fleet.tokens.get(&token)?.settings.pool.clone()
        };
        let pool = fleet.pool_of(id, device.pool.clone().or_else(of_token));
        let region = pool.and_then(|pool| named(&pool.settings.region));
        let seeker = Seeker { key, tenant: id.0.parse().ok()?, region, current };
        let offered = candidates(&seeker, &self.views)?;
        let to_anchor = |key: &PublicKey| self.offers[key].1.get(&id.0).copied();
        // A proxy that has not measured counts as far as the farthest.
        let farthest = offered.iter().filter_map(|it| to_anchor(&it.key)).max().unwrap_or(0);
        let candidate = |it: &Offered| Candidate {
            to_anchor_us: to_anchor(&it.key).unwrap_or(farthest),
            last_resort: it.last_resort,
            ..self.offers[&it.key].0.clone()
        };
        let proxies: Vec<Candidate> = offered.iter().map(candidate).collect();
        let texts = proxies.iter().filter_map(|it| serde_json::to_string(it).ok());
        let mut texts: Vec<String> = texts.collect();
        texts.sort_unstable();
        let digest = Digest::of(texts.iter().map(String::as_bytes));
        Some((Candidates { proxies }, digest))
    }
}

fn load(status: &ProxyStatus, proxy: &Proxy) -> u16 {
    let most = proxy.settings.devices_max.filter(|most| *most > 0);
    let by_boxes = most.map_or(0, |most| status.sessions.max(0) * 1_000 / i64::from(most));
    u16::try_from(status.load.unwrap_or(0).max(by_boxes)).unwrap_or(u16::MAX)
}

fn named(text: &str) -> Option<Name> {
    let fit = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    text.trim().chars().take(Name::MAX).map(fit).collect::<String>().parse().ok()
}
