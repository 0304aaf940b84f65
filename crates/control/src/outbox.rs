//! Reads the outbox for all listeners: every 250 ms, and at once after a hint of PostgreSQL. A hint
//! may be lost (a pooler in between drops listeners); the periodic reading is what counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, broadcast, watch};

use crate::store::{self, ANSWER_MAX, Changed, Database, Sample, Store, StoreError, within};

pub struct Outbox {
    changes: broadcast::Sender<Changed>,
    figures: broadcast::Sender<Live>,
    hint: Notify,
    database: watch::Sender<Health>,
}

#[derive(Clone, Debug)]
pub struct Live {
    pub tenant: String,
    pub sample: Sample,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    Bad(String),
}

impl Outbox {
    pub fn new() -> Arc<Self> {
        let (changes, _) = broadcast::channel(LISTENER_MAX);
        let (database, _) = watch::channel(Health::Good);
        let (figures, _) = broadcast::channel(LISTENER_MAX);
        Arc::new(Self { changes, figures, hint: Notify::new(), database })
    }

    /// Receives every change from now on; a listener that lags learns how many it missed.
    pub fn listen(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    pub fn figures(&self) -> broadcast::Receiver<Live> {
        self.figures.subscribe()
    }

    pub fn send_figures(&self, figures: Live) {
        let _ = self.figures.send(figures);
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.database.subscribe()
    }

    pub fn hint(&self) {
        self.hint.notify_one();
    }

    pub async fn follow(self: Arc<Self>, store: Arc<Store>) {
        if let Database::Postgres(url) = store.database.clone() {
            tokio::spawn(Arc::clone(&self).hints(url));
        }
        let mut place = None;
        let mut saved = Instant::now();
        loop {
            if saved.elapsed() >= SAVE_INTERVAL {
                saved = Instant::now();
                let (rollback_guard, audit_checkpoints) =
                    (Arc::clone(&store.rollback_guard), Arc::clone(&store.audit_checkpoints));
                tokio::task::spawn_blocking(move || {
                    rollback_guard.save();
                    audit_checkpoints.save();
                });
            }
            match within(ANSWER_MAX, self.read(&store, &mut place)).await {
                Ok(()) => self.is(Health::Good),
                Err(error) => self.is(Health::Bad(error.to_string())),
            }
            let _ = tokio::time::timeout(INTERVAL, self.hint.notified()).await;
        }
    }

    async fn read(&self, store: &Store, place: &mut Option<(i64, i64)>) -> Result<(), StoreError> {
        let mut at = match *place {
            Some(at) => at,
            None => (store.latest_change().await?, i64::MAX),
        };
        loop {
            let batch = store::outbox::after(store, at).await?;
            *place = Some(at);
            let Some(last) = batch.last() else {
                // Checks for a database that lost this place.
                store.latest_change().await?;
                return Ok(());
            };
            store.rollback_guard.record_change(last.sequence);
            at = (last.sequence, last.position);
            for change in batch {
                let _ = self.changes.send(change);
            }
            *place = Some(at);
        }
    }

    fn is(&self, health: Health) {
        self.database.send_if_modified(|before| {
            let changed = std::mem::discriminant(before) != std::mem::discriminant(&health);
            match (&health, changed) {
                (Health::Good, true) => tracing::info!("the database answers again"),
                (Health::Bad(why), true) => {
                    tracing::error!(
                        "{why}; the fleet continues without the database; trying again"
                    );
                }
                _ => {}
            }
            *before = health;
            changed
        });
    }

    async fn hints(self: Arc<Self>, url: String) {
        loop {
            if let Ok(mut listener) = PgListener::connect(&url).await
                && listener.listen("roadweave_change").await.is_ok()
            {
                while listener.recv().await.is_ok() {
                    self.hint.notify_one();
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

const INTERVAL: Duration = Duration::from_millis(250);
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_secs(2);
const LISTENER_MAX: usize = 8192;
