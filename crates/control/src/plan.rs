//! Plans the documents of each box, proxy and anchor from records and reports, and signs them.
//!
//! ```text
//! outbox ─► Fleet (records in memory) ──┐
//! proxies' status, boxes' sessions ─────┤ one replica plans     changed?
//! roll-outs, boxes' reports ────────────┴─► wanted documents ─► signed ─► store, outbox
//!                                                                             │
//!                    streams of every replica ◄── by key ◄── documents ◄──────┘
//! ```
//!
//! The version of a document is the number of the change that wrote it: it depends on neither
//! replicas, restarts nor the clock. An unchanged document is not written again. A lease in the
//! database selects the replica that plans; two planners at once only sign twice.

mod records;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    Documents, Draft, Kind, Planning, Proxies, PublishedTable, RecordId, Rollout, Rollouts, Signed,
    Tables, Turned, Version,
};
use roadweave_identity::Identity;
use roadweave_proto::Instant;
use tokio::sync::broadcast;

use self::records::{Records, Stale};
use crate::api::App;
use crate::clock::{now_ms, since};
use crate::keys;
use crate::model::ProxyState;
use crate::store::{
    ANSWERS_MAX, Actor, Changed, StoreError, StoredDocument, document, proxy_status, report, within,
};
use crate::streams::mailboxes::{Mailboxes, StreamMessage};

pub struct Planner {
    app: Arc<App>,
    mailboxes: Arc<Mailboxes>,
    started: std::time::Instant,
    replica: String,
    leads: bool,
    leads_until_ms: i64,
    records: Records,
    stale: Stale,
    proxies: Proxies,
    rollouts: Rollouts,
    documents: Option<Documents>,
    /// The digest of the offers in the current lists of proxies.
    placed_by: Option<roadweave_fleet::Digest>,
    tables: Tables,
    /// Signed tables, some of whose members are not in `records` yet.
    late_tables: Vec<StoredDocument>,
    anchors_left_out: BTreeMap<String, usize>,
}

impl Planner {
    pub fn new(app: Arc<App>, mailboxes: Arc<Mailboxes>) -> Self {
        let mut records = Records::default();
        records.fleet.asks_approval = !app.authority.approvers().is_empty();
        Self {
            app,
            mailboxes,
            started: std::time::Instant::now(),
            replica: keys::identifier(),
            leads: false,
            leads_until_ms: 0,
            records,
            stale: Stale::all(),
            proxies: Proxies::new(Instant::ZERO),
            rollouts: Rollouts::default(),
            documents: None,
            placed_by: None,
            tables: Tables::default(),
            late_tables: Vec::new(),
            anchors_left_out: BTreeMap::new(),
        }
    }

    pub async fn run(mut self) {
        let mut changes = self.app.outbox.listen();
        let mut is_logged = false;
        loop {
            let batch = listen(&mut changes).await;
            match within(ANSWERS_MAX, self.turn(batch)).await {
                Ok(()) => is_logged = false,
                Err(error) => {
                    self.forget();
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::error!(%error, "cannot plan; trying again");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn forget(&mut self) {
        (self.stale, self.rollouts) = (Stale::all(), Rollouts::default());
        (self.documents, self.leads, self.placed_by) = (None, false, None);
    }

    async fn turn(&mut self, batch: Option<Vec<Changed>>) -> Result<(), StoreError> {
        let mut has_changes = false;
        let batch = match batch {
            Some(batch) => batch,
            None => {
                self.forget();
                self.mailboxes.send_all(&StreamMessage::Look);
                Vec::new()
            }
        };
        for change in &batch {
            has_changes |= self.stale.take(change) || change.kind == "outcomes";
        }
        has_changes |= self.documents.is_none();
        let is_refreshed = !self.stale.is_empty();
        self.records.refresh(&self.app.store, &mut self.stale).await?;
        self.read_documents().await?;
        for change in &batch {
            self.deliver(change).await?;
        }
        if is_refreshed {
            self.deliver_late();
        }
        has_changes |= self.take_lead().await?;
        if self.leads {
            self.plan(has_changes).await?;
        }
        Ok(())
    }

    /// True if this replica starts to plan.
    async fn take_lead(&mut self) -> Result<bool, StoreError> {
        let now_ms = now_ms();
        // More than a full lease remains only after the clock went back: for others it has expired.
        let fresh = LEASE_MS / 2 + 1..=LEASE_MS;
        if self.leads && fresh.contains(&(self.leads_until_ms - now_ms)) {
            return Ok(false);
        }
        let until_ms = now_ms + LEASE_MS;
        let leads = document::lead(&self.app.store, &self.replica, now_ms, until_ms).await?;
        let begins = leads && !self.leads;
        (self.leads, self.leads_until_ms) = (leads, until_ms);
        if begins {
            tracing::info!("this controller is now the planner of the fleet");
            self.documents = None;
            self.read_documents().await?;
        }
        Ok(begins)
    }

    async fn read_documents(&mut self) -> Result<(), StoreError> {
        if self.documents.is_some() {
            return Ok(());
        }
        let all = document::all(&self.app.store, Kind::Table).await?;
        self.late_tables.extend(all.iter().filter(|it| it.of.1 == Kind::Table).cloned());
        self.documents = Some(all.into_iter().map(|it| (it.of, it.written)).collect());
        self.deliver_late();
        Ok(())
    }

    async fn deliver(&mut self, change: &Changed) -> Result<(), StoreError> {
        let id = (change.tenant.clone(), change.subject.clone());
        let fleet = &self.records.fleet;
        match &*change.kind {
            "documents" => {
                for document in document::of_change(&self.app.store, change.version).await? {
                    self.deliver_document(document);
                }
                self.deliver_late();
            }
            "outcomes" => {
                for document in document::heard(&self.app.store, change.version).await? {
                    self.rollouts.hear(&document.of.0, &document.written);
                }
            }
            "watch" => {
                if let Some(device) = fleet.devices.get(&id)
                    && let Ok(key) = device.public_key.parse()
                {
                    self.mailboxes.send(&key, StreamMessage::Watch);
                }
            }
            "proxy" => {
                if let Some(proxy) = fleet.proxies.get(&id)
                    && let Ok(key) = proxy.settings.public_key.parse()
                {
                    let is_drained = proxy.state == ProxyState::Draining;
                    self.mailboxes.send(&key, StreamMessage::Drain(is_drained));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn deliver_document(&mut self, document: StoredDocument) {
        let (key, kind) = document.of;
        if let Some(documents) = &mut self.documents {
            documents.insert(document.of, document.written.clone());
        }
        if kind == Kind::Table {
            self.late_tables.retain(|other| other.of != document.of);
            self.late_tables.push(document);
        } else if let Some(envelope) = document.opened() {
            let (version, envelope) = (document.written.version, Box::new(envelope));
            self.mailboxes.send(&key, StreamMessage::Document(kind, version, envelope));
        }
    }

    fn deliver_late(&mut self) {
        if self.late_tables.is_empty() {
            return;
        }
        let fleet = &self.records.fleet;
        self.tables.refresh(fleet);
        self.late_tables.retain(|document| {
            let gate = fleet.gates().find(|(.., key)| *key == document.of.0);
            let Some((id, gate, key)) = gate else { return true };
            let table = self.tables.of(fleet, id, gate);
            let is_signed = document.written.digest == table.digest();
            let Some(envelope) = document.opened().filter(|_| is_signed) else { return true };
            let (version, head) = (document.written.version, Signed::from(envelope));
            let published = PublishedTable { version, table, head };
            self.mailboxes.publish_table(&key, Arc::new(published));
            false
        });
    }

    async fn plan(&mut self, has_changes: bool) -> Result<(), StoreError> {
        let (now, now_ms) = (since(self.started), now_ms());
        let fleet = &self.records.fleet;
        let Some(documents) = &self.documents else { return Ok(()) };
        let status = proxy_status::all(&self.app.store, None).await?;
        for (key, vital) in self.proxies.look(fleet, &status, now, now_ms) {
            tracing::info!(%key, ?vital, "a proxy");
        }
        // A clock that replicas share, since another may continue the roll-out.
        let shared = Instant::from_millis(now_ms.unsigned_abs());
        if has_changes {
            let mut kept = BTreeMap::new();
            for id in self.rollouts.unread(fleet) {
                let body = document::progress(&self.app.store, &id.0, &id.1).await?;
                let machine = body.and_then(|text| progress(&id, &text));
                kept.extend(machine.map(|machine| (id, machine)));
            }
            self.rollouts.refresh(fleet, documents, kept, shared);
        }
        let turned = self.rollouts.turn(fleet, shared, now_ms);
        let offers = self.proxies.offers(fleet);
        let placed_by = offers.digest();
        let placed = match has_changes || self.placed_by != Some(placed_by) {
            true => Some(report::placed(&self.app.store).await?),
            false => None,
        };
        let epoch = self.app.store.epoch().await?;
        let planning = Planning { fleet, documents, epoch: epoch.unsigned_abs() };
        let mut drafts = Vec::new();
        if let Some(placed) = placed {
            drafts.extend(planning.candidates(&offers, |id, _| Some(placed.get(id).copied())));
        }
        if has_changes || !turned.progress.is_empty() {
            drafts.extend(planning.configurations(&self.rollouts));
            drafts.extend(planning.anchors());
            drafts.extend(planning.tables(&mut self.tables));
            log_left_out(&mut self.anchors_left_out, planning.anchors_left_out());
        }
        self.write(drafts, turned, epoch).await?;
        self.placed_by = Some(placed_by);
        Ok(())
    }

    async fn write(
        &mut self,
        drafts: Vec<Draft>,
        turned: Turned,
        epoch: i64,
    ) -> Result<(), StoreError> {
        if drafts.is_empty() && turned.progress.is_empty() {
            return Ok(());
        }
        let mut change = self.app.store.change(Actor::new("controller"), now_ms()).await?;
        let number = change.number();
        let controller = self.app.authority.controller();
        let version = Version { epoch: epoch.unsigned_abs(), number: number.unsigned_abs() };
        let signed_documents: Vec<StoredDocument> =
            drafts.iter().filter_map(|draft| signed(draft, controller, version)).collect();
        document::store(&mut change, &signed_documents).await?;
        for ((tenant, rollout), machine) in &turned.progress {
            if let Ok(body) = serde_json::to_string(machine) {
                document::store_progress(&mut change, tenant, rollout, &body).await?;
            }
        }
        for (id, after) in turned.records {
            let Some(before) = self.records.rollouts.get(&id) else { continue };
            if let Some(why) = after.why.as_ref().filter(|_| before.record.why.is_none()) {
                tracing::warn!(
                    tenant = before.tenant,
                    rollout = after.id,
                    why,
                    "a roll-out stopped"
                );
            }
            change.update(before, after).await?;
        }
        if !signed_documents.is_empty() {
            change.publish("", "documents", "", number).await?;
        }
        change.commit().await?;
        self.app.metrics.documents.inc_by(signed_documents.len() as u64);
        if let Some(documents) = &mut self.documents {
            documents.extend(signed_documents.into_iter().map(|it| (it.of, it.written)));
        }
        self.app.outbox.hint();
        Ok(())
    }
}

fn progress((tenant, rollout): &RecordId, text: &str) -> Option<Rollout> {
    let failed = |error: &serde_json::Error| {
        tracing::warn!(tenant, rollout, %error, "cannot read a roll-out's progress; it starts over");
    };
    serde_json::from_str(text).inspect_err(failed).ok()
}

fn log_left_out(logged: &mut BTreeMap<String, usize>, left_out: BTreeMap<String, usize>) {
    for (tenant, anchors) in &left_out {
        if logged.get(tenant) != Some(anchors) {
            tracing::warn!(tenant, anchors, "too many anchors of a tenant: proxies lack some");
        }
    }
    *logged = left_out;
}

fn signed(draft: &Draft, controller: &Identity, version: Version) -> Option<StoredDocument> {
    let ((key, kind), signed) = (draft.of(), draft.sign(controller, version).ok());
    let Some(envelope) = signed.and_then(|signed| serde_json::to_string(&signed).ok()) else {
        tracing::error!(%key, ?kind, "a document is too large and was not sent");
        return None;
    };
    Some(StoredDocument { of: (key, kind), written: draft.written(version), envelope })
}

/// The next changes and those that follow closely; empty after `TURN`; `None` if some were missed.
async fn listen(changes: &mut broadcast::Receiver<Changed>) -> Option<Vec<Changed>> {
    use broadcast::error::{RecvError, TryRecvError};
    let mut batch = match tokio::time::timeout(TURN, changes.recv()).await {
        Err(_) => return Some(Vec::new()),
        Ok(Ok(change)) => vec![change],
        Ok(Err(RecvError::Lagged(_))) => return None,
        Ok(Err(RecvError::Closed)) => std::future::pending().await,
    };
    if batch[0].kind != "documents" {
        tokio::time::sleep(GATHER).await;
    }
    loop {
        match changes.try_recv() {
            Ok(change) => batch.push(change),
            Err(TryRecvError::Lagged(_)) => return None,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return Some(batch),
        }
    }
}

const TURN: Duration = Duration::from_secs(2);
const GATHER: Duration = Duration::from_millis(40);
const RETRY: Duration = Duration::from_secs(1);
const LEASE_MS: i64 = 15_000;

#[cfg(test)]
mod tests;
