//! Figures of boxes: from the streams of proxies and boxes to the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::Sample as Figures;
use roadweave_identity::PublicKey;
use tokio::sync::mpsc;

use super::{PeerRecord, shown};
use crate::model::{Device, Tenant};
use crate::store::{ANSWERS_MAX, STEPS_MS, Sample, Store, found, report, within};

/// The boxes that a peer has reported about, by key: tenant and name.
#[derive(Default)]
pub(super) struct Devices(HashMap<PublicKey, Option<(String, String)>>);

impl Devices {
    /// The box with this key, if the peer is the box itself or a proxy that may serve it.
    pub(super) async fn find(
        &mut self,
        store: &Store,
        (peer, own): (&PeerRecord, PublicKey),
        key: PublicKey,
    ) -> Option<(String, String)> {
        if !peer.is_gate {
            return (key == own).then(|| (peer.tenant.clone(), peer.id.clone()));
        }
        if let Some(known) = self.0.get(&key) {
            return known.clone();
        }
        if self.0.len() >= DEVICES_MAX {
            self.0.clear();
        }
        let device = found(store.find::<Device>("public_key", &key.to_string()).await).ok()?;
        let host = store.get::<Tenant>(&peer.tenant, &peer.tenant).await.ok()?.record.host;
        let device = device.filter(|it| host || it.tenant == peer.tenant);
        let known = device.map(|it| (it.tenant, it.record.id));
        self.0.insert(key, known.clone());
        known
    }
}

pub(super) fn named(figures: &Figures) -> BTreeMap<String, f64> {
    let uplink = figures.uplink.as_deref().map(shown);
    let seconds = f64::from(figures.over_ms.max(1)) / 1e3;
    let mut all = BTreeMap::new();
    let mut put = |name: &str, value: f64| {
        let name = match &uplink {
            Some(uplink) => format!("{uplink}/{name}"),
            None => name.to_owned(),
        };
        all.insert(name, value);
    };
    if let Some(rtt) = figures.rtt_us {
        put("rtt_seconds", f64::from(rtt) / 1e6);
    }
    if let Some(loss) = figures.loss_ppm {
        put("loss_ratio", f64::from(loss) / 1e6);
    }
    put("up_bytes_per_second", figures.up_bytes as f64 / seconds);
    put("down_bytes_per_second", figures.down_bytes as f64 / seconds);
    all
}

pub(in crate::streams) async fn store_samples(
    store: Arc<Store>,
    mut inbox: mpsc::Receiver<(String, Sample)>,
) {
    let mut batch: Vec<(String, Sample)> = Vec::new();
    while inbox.recv_many(&mut batch, SAMPLES_AT_ONCE).await > 0 {
        let merged = merged(std::mem::take(&mut batch));
        if let Err(error) = within(ANSWERS_MAX, report::store_samples(&store, &merged)).await {
            tracing::debug!(%error, "samples are lost");
        }
        tokio::time::sleep(SAMPLES_REST).await;
    }
}

fn merged(batch: Vec<(String, Sample)>) -> Vec<(String, Sample)> {
    let mut all: BTreeMap<(String, String, i64), BTreeMap<String, f64>> = BTreeMap::new();
    for (tenant, sample) in batch {
        let at = sample.at_ms - sample.at_ms.rem_euclid(STEPS_MS[0]);
        all.entry((tenant, sample.device, at)).or_default().extend(sample.figures);
    }
    let one = |((tenant, device, at_ms), figures)| (tenant, Sample { device, at_ms, figures });
    all.into_iter().map(one).collect()
}

const DEVICES_MAX: usize = 4096;
const SAMPLES_AT_ONCE: usize = 5000;
const SAMPLES_REST: Duration = Duration::from_secs(1);
