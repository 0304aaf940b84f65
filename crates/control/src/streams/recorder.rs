//! Writes notes of streams in batches, in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::api::App;
use crate::clock::now_ms;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::store::{ANSWERS_MAX, Note, Store, note, within};

/// The queue of notes; a full one loses the newest.
pub(super) struct Recorder {
    notes: Sender<Note>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    pub(super) fn start(app: &App) -> Self {
        let (notes, inbox) = mpsc::channel(NOTES_MAX);
        tokio::spawn(record(Arc::clone(&app.store), Arc::clone(&app.outbox), inbox));
        Self { notes, metrics: Arc::clone(&app.metrics) }
    }

    pub(super) fn note(&self, note: Note) {
        if let Err(TrySendError::Full(_)) = self.notes.try_send(note) {
            self.metrics.notes_lost.inc();
        }
    }
}

async fn record(store: Arc<Store>, outbox: Arc<Outbox>, mut inbox: Receiver<Note>) {
    let mut batch: Vec<Note> = Vec::new();
    while inbox.recv_many(&mut batch, AT_ONCE).await > 0 {
        let mut tries = 0;
        while let Err(error) = within(ANSWERS_MAX, note::store(&store, &batch, now_ms())).await {
            tries += 1;
            // Notes that the database refuses for good must not block others.
            if !error.is_passing() && tries > TRIES_MAX {
                tracing::error!(%error, count = batch.len(), "reports of streams are not stored");
                break;
            }
            tracing::debug!(%error, "reports of streams are waiting for the database");
            tokio::time::sleep(RETRY).await;
        }
        batch.clear();
        outbox.hint();
        tokio::time::sleep(REST).await;
    }
}

const NOTES_MAX: usize = 50_000;
const AT_ONCE: usize = 2_000;
const TRIES_MAX: u32 = 5;
const RETRY: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_millis(20);
