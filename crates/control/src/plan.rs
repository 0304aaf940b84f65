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
//! The version of a document is the number of the change that wrote it, so it depends on neither
//! replicas, restarts nor the clock. An unchanged document is not written again. A lease in the
//! database selects the replica that plans; two planners at once only sign twice.

mod distances;
mod fleet;
mod placement;
mod rollouts;
pub(crate) mod signing;
mod tables;
pub(crate) mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::Kind;
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use tokio::sync::broadcast;

use self::fleet::{Fleet, Stale};
use self::placement::Proxies;
use self::rollouts::{Rollouts, Turned};
use self::signing::Draft;
use crate::authority::Authority;
use crate::clock::now_ms;
use crate::keys;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::store::{ANSWERS_MAX, Actor, Changed, Store, StoreError, StoredDocument, within};
use crate::streams::mailboxes::{Mailboxes, StreamMessage};

/// Plans while this replica has the lease, and passes signed documents to the streams.
pub struct Planner {
    store: Arc<Store>,
    authority: Arc<Authority>,
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
    mailboxes: Arc<Mailboxes>,
    replica: String,
    started: std::time::Instant,
    fleet: Fleet,
    stale: Stale,
    proxies: Proxies,
    rollouts: Rollouts,
    /// The documents signed last, by key and kind; without envelopes.
    papers: BTreeMap<(PublicKey, Kind), StoredDocument>,
    has_papers: bool,
    leads: bool,
    leads_until_ms: i64,
    /// The fingerprint of the offers in the current lists of proxies.
    placed_by: Option<roadweave_fleet::Digest>,
    /// Signed tables, some of whose members are not in `fleet` yet.
    late_tables: Vec<StoredDocument>,
}

impl Planner {
    /// A planner without state: see [`Planner::run`].
    pub fn new(
        store: Arc<Store>,
        authority: Arc<Authority>,
        outbox: Arc<Outbox>,
        metrics: Arc<Metrics>,
        mailboxes: Arc<Mailboxes>,
    ) -> Self {
        let asks_approval = !authority.approvers().is_empty();
        let fleet = Fleet { asks_approval, ..Fleet::default() };
        Self {
            store,
            authority,
            outbox,
            metrics,
            mailboxes,
            replica: keys::identifier(),
            started: std::time::Instant::now(),
            fleet,
            stale: Stale::all(),
            proxies: Proxies::new(Instant::ZERO),
            rollouts: Rollouts::default(),
            papers: BTreeMap::new(),
            has_papers: false,
            leads: false,
            leads_until_ms: 0,
            placed_by: None,
            late_tables: Vec::new(),
        }
    }

    /// Plans for ever, also after database errors.
    pub async fn run(mut self) {
        let mut changes = self.outbox.listen();
        let mut is_told = false;
        loop {
            let lines = listen(&mut changes).await;
            match within(ANSWERS_MAX, self.turn(lines)).await {
                Ok(()) => is_told = false,
                Err(error) => {
                    self.forget();
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::error!(%error, "nothing is planned; tried again");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn forget(&mut self) {
        (self.stale, self.rollouts) = (Stale::all(), Rollouts::default());
        (self.has_papers, self.leads, self.placed_by) = (false, false, None);
    }

    async fn turn(&mut self, lines: Option<Vec<Changed>>) -> Result<(), StoreError> {
        let mut is_news = false;
        let lines = match lines {
            Some(lines) => lines,
            None => {
                self.forget();
                self.mailboxes.send_all(&StreamMessage::Look);
                Vec::new()
            }
        };
        for line in &lines {
            is_news |= self.stale.take(line) || line.kind == "outcomes";
        }
        is_news |= !self.has_papers;
        let is_refreshed = !self.stale.is_empty();
        self.fleet.refresh(&self.store, &mut self.stale).await?;
        self.read_papers().await?;
        for line in &lines {
            self.deliver(line).await?;
        }
        if is_refreshed {
            self.deliver_late();
        }
        is_news |= self.take_lead().await?;
        if self.leads {
            self.plan(is_news).await?;
        }
        Ok(())
    }

    /// Renews or takes the lease; true if this replica starts to plan.
    async fn take_lead(&mut self) -> Result<bool, StoreError> {
        let now_ms = now_ms();
        // More than a full lease remains only after the clock went back: for others it has expired.
        let fresh = LEASE_MS / 2 + 1..=LEASE_MS;
        if self.leads && fresh.contains(&(self.leads_until_ms - now_ms)) {
            return Ok(false);
        }
        let until_ms = now_ms + LEASE_MS;
        let leads = self.store.lead(&self.replica, now_ms, until_ms).await?;
        let begins = leads && !self.leads;
        (self.leads, self.leads_until_ms) = (leads, until_ms);
        if begins {
            tracing::info!("this controller plans for the fleet");
            self.has_papers = false;
            self.read_papers().await?;
        }
        Ok(begins)
    }

    async fn read_papers(&mut self) -> Result<(), StoreError> {
        if self.has_papers {
            return Ok(());
        }
        let all = self.store.papers(TABLE).await?;
        self.late_tables.extend(all.iter().filter(|paper| paper.kind == TABLE).cloned());
        self.papers.clear();
        all.into_iter().for_each(|paper| self.note(paper));
        self.has_papers = true;
        self.deliver_late();
        Ok(())
    }

    async fn deliver(&mut self, line: &Changed) -> Result<(), StoreError> {
        let id = (line.tenant.clone(), line.subject.clone());
        match &*line.kind {
            "documents" => {
                for paper in self.store.papers_of_change(line.version).await? {
                    self.deliver_paper(paper);
                }
                self.deliver_late();
            }
            "outcomes" => {
                for paper in self.store.papers_heard(line.version).await? {
                    self.rollouts.hear(&paper);
                }
            }
            "watch" => {
                if let Some(key) = self.fleet.key_of("device", &id) {
                    self.mailboxes.send(&key, StreamMessage::Watch);
                }
            }
            "proxy" => {
                if let Some(key) = self.fleet.key_of("proxy", &id) {
                    self.mailboxes.send(&key, StreamMessage::Drain(self.fleet.is_draining(&id)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn deliver_paper(&mut self, paper: StoredDocument) {
        let Some((key, kind)) = signing::of(&paper) else { return };
        if kind == Kind::Table {
            self.late_tables.retain(|other| other.public_key != paper.public_key);
            self.late_tables.push(paper.clone());
        } else if let Some((version, envelope)) = signing::opened(&paper) {
            self.mailboxes.send(&key, StreamMessage::Document(kind, version, Box::new(envelope)));
        }
        self.note(paper);
    }

    fn note(&mut self, paper: StoredDocument) {
        if let Some(of) = signing::of(&paper) {
            self.papers.insert(of, StoredDocument { envelope: String::new(), ..paper });
        }
    }

    fn deliver_late(&mut self) {
        if self.late_tables.is_empty() {
            return;
        }
        let mut tables = tables::Tables::default();
        self.late_tables.retain(|paper| match tables.published(&self.fleet, paper) {
            Some((key, table)) => {
                self.mailboxes.publish_table(&key, table);
                false
            }
            None => true,
        });
    }

    async fn plan(&mut self, is_news: bool) -> Result<(), StoreError> {
        let (now, now_ms) = (self.now(), now_ms());
        let status = self.store.proxy_status(None).await?;
        for (key, vital) in self.proxies.look(&self.fleet, &status, now, now_ms) {
            tracing::info!(%key, ?vital, "a proxy");
        }
        // A clock that replicas share: another may continue the roll-out.
        let shared = Instant::from_millis(now_ms.unsigned_abs());
        if is_news {
            let papers = &self.papers;
            let paper = |key: &PublicKey| papers.get(&(*key, Kind::Configuration)).cloned();
            self.rollouts.refresh(&self.fleet, &self.store, paper, shared).await?;
        }
        let turned = self.rollouts.turn(&self.fleet, shared, now_ms);
        let offers = self.proxies.views(&self.fleet);
        let placed_by = placement::fingerprint(&offers);
        let is_placing = is_news || self.placed_by != Some(placed_by);
        let mut drafts = Vec::new();
        if is_placing {
            let placed = placement::current(&self.store.placed().await?);
            signing::candidates(&self.fleet, &offers, &placed, &mut drafts);
        }
        if is_news || !turned.is_empty() {
            self.configurations(&mut drafts);
            let paper = |(_, _, key)| self.papers.get(&(key, Kind::Anchors));
            let before = signing::first(self.fleet.gates().filter_map(paper));
            signing::anchors(&self.fleet, &before, &mut drafts);
            tables::drafts(&self.fleet, &mut drafts);
        }
        let epoch = self.store.epoch().await?;
        drafts.retain(|draft| draft.is_other(self.papers.get(&draft.of()), epoch));
        self.write(drafts, turned, epoch).await?;
        self.placed_by = Some(placed_by);
        Ok(())
    }

    fn configurations(&self, drafts: &mut Vec<Draft>) {
        let mut scopes = BTreeMap::new();
        for (id, device, key) in self.fleet.active() {
            let of_tenant =
                scopes.entry(&id.0).or_insert_with(|| texts::Scopes::of(&self.fleet, &id.0));
            let lock = self.fleet.lock(&id.0);
            let offered = |of: &_| self.rollouts.is_offered(&self.fleet, of, &key);
            let wanted = of_tenant.wanted(device, lock, offered);
            // An empty configuration would lack approval: the box keeps the one it has.
            let had = lock != crate::model::Lock::Config
                && self.papers.contains_key(&(key, Kind::Configuration));
            drafts.extend(Draft::configuration(key, wanted, had));
        }
    }

    async fn write(
        &mut self,
        drafts: Vec<Draft>,
        turned: Turned,
        epoch: i64,
    ) -> Result<(), StoreError> {
        if drafts.is_empty() && turned.is_empty() {
            return Ok(());
        }
        let mut change = self.store.change(Actor::new("controller"), now_ms()).await?;
        let number = change.number();
        let controller = self.authority.controller();
        let papers: Vec<StoredDocument> =
            drafts.iter().filter_map(|draft| draft.sign(controller, epoch, number)).collect();
        change.keep_papers(&papers).await?;
        for ((tenant, rollout), body) in &turned.progress {
            change.keep_progress(tenant, rollout, body).await?;
        }
        for (before, after) in turned.records {
            if let Some(why) = after.why.as_ref().filter(|_| before.record.why.is_none()) {
                tracing::warn!(tenant = before.tenant, rollout = after.id, why, "a roll-out stops");
            }
            change.update(&before, after).await?;
        }
        if !papers.is_empty() {
            change.tell("", "documents", "", number).await?;
        }
        change.commit().await?;
        self.metrics.documents.inc_by(papers.len() as u64);
        papers.into_iter().for_each(|paper| self.note(paper));
        self.outbox.hint();
        Ok(())
    }

    fn now(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The next changes and those that follow closely; empty after `TURN`; `None` if some were missed.
async fn listen(changes: &mut broadcast::Receiver<Changed>) -> Option<Vec<Changed>> {
    use broadcast::error::{RecvError, TryRecvError};
    let mut lines = match tokio::time::timeout(TURN, changes.recv()).await {
        Err(_) => return Some(Vec::new()),
        Ok(Ok(line)) => vec![line],
        Ok(Err(RecvError::Lagged(_))) => return None,
        Ok(Err(RecvError::Closed)) => std::future::pending().await,
    };
    if lines[0].kind != "documents" {
        tokio::time::sleep(GATHER).await;
    }
    loop {
        match changes.try_recv() {
            Ok(line) => lines.push(line),
            Err(TryRecvError::Lagged(_)) => return None,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return Some(lines),
        }
    }
}

const TABLE: &str = "table";
const TURN: Duration = Duration::from_secs(2);
const GATHER: Duration = Duration::from_millis(40);
const RETRY: Duration = Duration::from_secs(1);
const LEASE_MS: i64 = 15_000;

#[cfg(test)]
mod tests;
