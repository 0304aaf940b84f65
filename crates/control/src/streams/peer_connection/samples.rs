//! Figures of boxes: from the streams of proxies and boxes to the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::Sample as Figures;
use roadweave_identity::PublicKey;
use tokio::sync::mpsc;

use super::{PeerConnection, PeerRecord, shown};
use crate::clock::now_ms;
use crate::model::{Device, Tenant};
use crate::outbox::Live;
use crate::store::{ANSWERS_MAX, STEPS_MS, Sample, Store, found, within};

impl PeerConnection<'_> {
    pub(super) async fn sample(&mut self, figures: Figures) {
        if figures.device.is_none() && self.is_gate() {
            self.load = figures.load.map(i64::from).or(self.load);
            self.have.sessions = figures.sessions.unwrap_or(self.have.sessions);
            self.is_dirty = true;
        }
        let Some(key) = figures.device else { return };
        let Some((tenant, device)) = self.device(key).await else { return };
        let sample = Sample { device, at_ms: now_ms(), figures: named(&figures) };
        let live = Live { tenant: tenant.clone(), sample: sample.clone() };
        self.streams.outbox.send_figures(live);
        let _ = self.streams.samples.try_send((tenant, sample));
    }

    /// The box with this key, if the peer is the box itself or a proxy that may serve it.
    async fn device(&mut self, key: PublicKey) -> Option<(String, String)> {
        let PeerRecord { tenant: own, id, is_gate } = self.peer.clone()?;
        if !is_gate {
            return (key == self.key).then_some((own, id));
        }
        if let Some(known) = self.devices.get(&key) {
            return known.clone();
        }
        if self.devices.len() >= DEVICES_MAX {
            self.devices.clear();
        }
        let device = self.streams.store.find::<Device>("public_key", &key.to_string()).await;
        let device = found(device).ok()?;
        let host = self.streams.store.get::<Tenant>(&own, &own).await.ok()?.record.host;
        let device = device.filter(|it| host || it.tenant == own);
        let known = device.map(|it| (it.tenant, it.record.id));
        self.devices.insert(key, known.clone());
        known
    }
}

fn named(figures: &Figures) -> BTreeMap<String, f64> {
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
        if let Err(error) = within(ANSWERS_MAX, store.store_samples(&merged)).await {
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
