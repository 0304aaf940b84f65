//! The server: accepts connections until it ends, each bounded in time and memory.
//!
//! ```text
//! accept ─ a place ─► head within 5 s, 16 KiB ─► answer ─► the next head ... for a minute at most
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::{interval, sleep, timeout};

use crate::Arguments;
use crate::api::Api;
use crate::connections::{Connections, Permit};
use crate::names::Names;
use crate::place::Place;
use crate::token::{Check, Token};
use crate::watcher::Watcher;

const HEAD_WAIT: Duration = Duration::from_secs(5);
const HEAD_MAX: usize = 16 * 1024;
const FIELDS_MAX: usize = 64;
const CONNECTION_MAX: Duration = Duration::from_secs(60);
const LAST_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Serves until a signal. Errors are not final: another start may succeed.
pub(crate) fn run(arguments: &Arguments, names: Names, token: &Token) -> Result<()> {
    let address = arguments.listen;
    let place = Place::find(address.ip(), arguments.anywhere)?;
    let watcher = Watcher::start(arguments.socket.clone())?;
    wait_for(&place, &watcher, address)?;
    let listener = place.listen(address)?;
    let check = Check::new(token)?;
    let api = Arc::new(Api::new(watcher.clone(), names, check, arguments.read_only)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .context("cannot start the event loop")?;
    tracing::info!(%address, "serving the page");
    let served = runtime.block_on(async {
        let ends = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        let [interrupt, terminate] = ends;
        let listener = TcpListener::from_std(listener)?;
        serve(listener, &api, (&place, &watcher, arguments), (interrupt?, terminate?)).await
    });
    runtime.shutdown_background();
    served
}

fn wait_for(place: &Place, watcher: &Watcher, address: SocketAddr) -> Result<()> {
    let mut is_logged = false;
    loop {
        let seen = watcher.seen();
        match place.check(&seen.history) {
            Ok(true) => return Ok(()),
            Ok(false) if !is_logged && seen.history.away.is_some() => {
                let away = seen.history.away.as_deref().unwrap_or_default();
                tracing::warn!("waiting with {address} until the uplinks are known: {away}");
                is_logged = true;
            }
            Ok(false) => {}
            Err(why) => bail!("--listen {address}: {why}"),
        }
        drop(seen);
        std::thread::sleep(Duration::from_millis(100));
    }
}

async fn serve(
    listener: TcpListener,
    api: &Arc<Api>,
    (place, watcher, arguments): (&Place, &Watcher, &Arguments),
    (mut interrupt, mut terminate): (Signal, Signal),
) -> Result<()> {
    let connections = Connections::default();
    let mut look = interval(LOOK_AGAIN);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = look.tick() => {
                place.check(&watcher.seen().history).map_err(|why| anyhow!("{why}: stopped"))?;
                let now = Place::find(arguments.listen.ip(), arguments.anywhere)?;
                ensure!(now == *place, "another interface now has the address: stopped");
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of descriptors: wait until others end.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(permit) = connections.take(peer.ip().to_canonical()) else {
            tracing::debug!(%peer, "the limit of connections is reached");
            continue;
        };
        let api = Arc::clone(api);
        tokio::spawn(async move {
            if let Err(error) = connection(stream, permit, &api).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
        // The connection reads what it has received before others can take its place.
        yield_now().await;
    }
}

async fn connection(stream: TcpStream, permit: Permit, api: &Api) -> Result<()> {
    stream.set_nodelay(true)?;
    // Frees the place of a vanished peer.
    SockRef::from(&stream).set_tcp_user_timeout(Some(LAST_MAX))?;
    let permit = &permit;
    let service = service_fn(async |request| {
        let mut answer = api.answer(permit, request).await;
        if permit.is_last_request() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .max_buf_size(HEAD_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = timeout(CONNECTION_MAX, connection.as_mut()) => ended,
        () = permit.gives_way() => bail!("replaced by another connection"),
    };
    match ended {
        Ok(ended) => Ok(ended?),
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            Ok(timeout(LAST_MAX, connection).await.context("it reads too slowly")??)
        }
    }
}
