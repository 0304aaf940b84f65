//! `roadweave-controller run`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use roadweave_terminal::exit::BadInput;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::api::{self, App};
use crate::clock::now_ms;
use crate::connection_limits::ConnectionLimits;
use crate::controller::folder::Folder;
use crate::outbox::Health;
use crate::plan::Planner;
use crate::serve::{self, Service};
use crate::store::{Store, StoreError, audit, outbox, report};
use crate::streams::{PublishError, Streams};

pub fn run(path: &Path) -> Result<()> {
    let folder = Folder::open(path)?;
    let _lock = folder.lock()?;
    crate::controller::block_on(serve(&folder))
}

pub fn key(path: &Path) -> Result<()> {
    let authority = Folder::open(path)?.authority()?;
    roadweave_terminal::out::line(format_args!("{}", authority.controller().public_key()))?;
    Ok(())
}

async fn serve(folder: &Folder) -> Result<()> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(await_signals(stop)?);
    let authority = folder.authority()?;
    let (certificate, key) = folder.certificate()?;
    let web_tls = serve::web_tls(&certificate, &key).map_err(BadInput::new)?;
    let listen = folder.file.listen;
    // Bound first, so that a taken port is reported at once.
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;

    let Some(store) = open(folder, stopped.clone()).await? else { return Ok(()) };
    let epoch = store.epoch().await.map_err(older)?;
    store.latest_change().await.map_err(older)?;
    let app = App::new(Arc::clone(&store), authority);
    let streams = Streams::new(&app).await.map_err(|error| match error {
        PublishError::NotSigned(_) => BadInput::new(error).into(),
        PublishError::Store(error) => older(error),
        error => anyhow::Error::new(error),
    })?;
    let app = Arc::new(App { oidc: folder.issuer()?, ..app });
    tokio::spawn(Arc::clone(&app.outbox).follow(Arc::clone(&store)));
    tokio::spawn(Arc::clone(&streams).run());
    tokio::spawn(Planner::new(Arc::clone(&app), streams.mailboxes()).run());
    tokio::spawn(show_health(Arc::clone(&app)));
    tokio::spawn(clean_up(Arc::clone(&store)));
    tokio::spawn(watch_logs(Arc::clone(&app)));
    let address = listener.local_addr()?;
    tracing::info!(%address, database = store.database.shown(), epoch, "serving");
    let (web, metrics) = (api::router(&app), Arc::clone(&app.metrics));
    let limits = ConnectionLimits::default();
    let service = Service { web, web_tls: Arc::new(web_tls), streams, metrics, limits };
    serve::serve(listener, Arc::new(service), stopped).await;
    tracing::info!("stopped");
    let _ = tokio::time::timeout(CLOSE_MAX, store.close()).await;
    store.rollback_guard.save();
    store.audit_checkpoints.save();
    Ok(())
}

fn older(error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Older(_) => BadInput::new(error).into(),
        error => error.into(),
    }
}

/// Waits for a database that does not answer yet. `None` after a stop signal.
async fn open(folder: &Folder, mut stop: watch::Receiver<bool>) -> Result<Option<Arc<Store>>> {
    let database = folder.database()?;
    let mut is_logged = false;
    loop {
        match Store::open(&database, folder.store_keys()?).await {
            Ok(mut store) => {
                store.rollback_guard = Arc::new(folder.rollback_guard()?);
                store.audit_checkpoints = Arc::new(folder.audit_checkpoints()?);
                return Ok(Some(Arc::new(store)));
            }
            Err(error @ StoreError::Away(_)) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::error!(database = database.shown(), "{error}; trying again");
                }
            }
            Err(error) => {
                return Err(error).with_context(|| format!("database {}", database.shown()));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    }
}

fn await_signals(stop: watch::Sender<bool>) -> Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.send_replace(true);
        // Keeps the sender alive: a dropped sender is a stop signal.
        std::future::pending::<()>().await;
    })
}

async fn show_health(app: Arc<App>) {
    let mut health = app.outbox.health();
    loop {
        app.metrics.database_up.set(i64::from(*health.borrow_and_update() == Health::Good));
        if health.changed().await.is_err() {
            return;
        }
    }
}

async fn clean_up(store: Arc<Store>) {
    let mut minutes = tokio::time::interval(MINUTE);
    for minute in 0_u64.. {
        minutes.tick().await;
        if let Err(error) = report::roll_up(&store, now_ms()).await {
            tracing::debug!(%error, "samples wait to be rolled up");
        }
        if minute % 60 == 1
            && let Err(error) = outbox::prune(&store, now_ms()).await
        {
            tracing::warn!(%error, "cannot remove all old records; trying again in an hour");
        }
    }
}

/// Verifies the audit logs periodically, to checkpoint their heads and detect a truncated log.
async fn watch_logs(app: Arc<App>) {
    let mut times = tokio::time::interval(10 * MINUTE);
    loop {
        times.tick().await;
        let Ok(tenants) = app.store.tenants("", 10_000).await else { continue };
        let audit_checkpoints = &app.store.audit_checkpoints;
        for tenant in tenants.items {
            let seen = audit_checkpoints.of(&tenant.tenant);
            match audit::verify(&app.store, &tenant.tenant, seen).await {
                Ok(Ok((serial, hash))) => audit_checkpoints.record(&tenant.tenant, serial, hash),
                Ok(Err(fault)) => {
                    tracing::error!(tenant = tenant.tenant, %fault, "the audit log was altered");
                }
                Err(_) => {}
            }
        }
    }
}

const RETRY: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);
const CLOSE_MAX: Duration = Duration::from_secs(3);
