//! The streams of boxes, proxies and anchors: a task for each, around the fleet's [`Desk`].
//!
//! ```text
//! peer ◄─► TLS ◄─► frames ◄─► Desk ─► events ─► store
//!                              ▲
//!   outbox ─► Published: trust, revocations, the same for all streams
//! ```
//!
//! A peer that reads nothing is cut off: what waits for it is bounded by the desk and by time.

mod keeping;
mod publishing;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{Desk, FrameDecoder, Published, Up, encode};
use roadweave_identity::tls::{HandshakeRefusal, Side, peer_key, server};
use roadweave_identity::{PeerPolicy, PublicKey, Refusal};
use roadweave_types::Instant;
use rustls::ServerConfig;
use rustls::time_provider::DefaultTimeProvider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_rustls::server::TlsStream;

use self::keeping::Keeper;
use crate::authority::Authority;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::serve::stopped;
use crate::store::{Sample, Store, StoreError};

pub use publishing::PublishError;

/// The application protocol of streams.
pub const ALPN: &[u8] = b"roadweave-control/1";

/// All streams of a controller.
pub struct Streams {
    store: Arc<Store>,
    authority: Arc<Authority>,
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
    tls: Arc<ServerConfig>,
    published: watch::Sender<Arc<Published>>,
    samples: mpsc::Sender<(String, Sample)>,
    started: std::time::Instant,
}

/// Lets in every key but those that were revoked: who is not known may ask to join.
struct NotRevoked(watch::Receiver<Arc<Published>>);

impl PeerPolicy for NotRevoked {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        match self.0.borrow().revocations.is_revoked(key) {
            true => Err(Refusal::Revoked),
            false => Ok(()),
        }
    }
}

impl Streams {
    /// The streams of this controller; [`Streams::run`] keeps them fed.
    ///
    /// # Errors
    /// When the database does not answer, or there is nobody to sign whom the fleet may trust.
    pub async fn new(
        store: Arc<Store>,
        authority: Arc<Authority>,
        outbox: Arc<Outbox>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, PublishError> {
        let first = publishing::published(&store, &authority).await?;
        let (published, policy) = watch::channel(Arc::new(first));
        let (samples, inbox) = mpsc::channel(SAMPLES_MAX);
        let side = Side {
            identity: authority.controller(),
            policy: Arc::new(NotRevoked(policy)),
            refusal: Arc::new(HandshakeRefusal::default()),
            alpn: ALPN,
            time: Arc::new(DefaultTimeProvider),
        };
        let tls = Arc::new(server(side).map_err(|error| PublishError::Tls(error.to_string()))?);
        tokio::spawn(keeping::keep_samples(Arc::clone(&store), inbox));
        let started = std::time::Instant::now();
        Ok(Arc::new(Self { store, authority, outbox, metrics, tls, published, samples, started }))
    }

    /// TLS for streams.
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// Publishes revocations as they come, for ever.
    pub async fn run(self: Arc<Self>) {
        let mut changes = self.outbox.listen();
        loop {
            let is_news = match changes.recv().await {
                Ok(change) => change.kind == "revocation",
                Err(broadcast::error::RecvError::Lagged(_)) => true,
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if is_news {
                self.publish().await;
            }
        }
    }

    /// Publishes what holds now, as soon as the database tells it.
    async fn publish(&self) {
        loop {
            match publishing::published(&self.store, &self.authority).await {
                Ok(published) => {
                    self.published.send_replace(Arc::new(published));
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "revocations cannot be published; tried again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// The time as desks count it.
    fn now(&self) -> Instant {
        let nanos = self.started.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Serves a stream to its end.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn serve(
        &self,
        tls: TlsStream<TcpStream>,
        peer: SocketAddr,
        stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let certificates = tls.get_ref().1.peer_certificates().unwrap_or_default();
        let Some(key) = peer_key(certificates) else {
            return Err(io::Error::other("it has shown no raw public key"));
        };
        let keeper = Keeper::new(&self.store, &self.authority, &self.samples, key).await;
        let mut keeper = keeper.map_err(io::Error::other)?;
        let desk = Desk::new(self.now(), key, keeper.is_member(), self.published.borrow().clone());
        self.metrics.streams.inc();
        tracing::debug!(%peer, who = %keeper.name(), "a stream begins");
        let ended = self.drive(tls, desk, &mut keeper, stop).await;
        self.metrics.streams.dec();
        keeper.left().await;
        tracing::debug!(%peer, who = %keeper.name(), "a stream ends");
        ended
    }

    async fn drive(
        &self,
        mut tls: TlsStream<TcpStream>,
        mut desk: Desk,
        keeper: &mut Keeper<'_>,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let mut published = self.published.subscribe();
        let mut changes = self.outbox.listen();
        let mut decoder = FrameDecoder::default();
        let mut buffer = vec![0; READ_AT_ONCE];
        let mut tick = tokio::time::interval(TICK);
        let mut heard = tokio::time::Instant::now();
        keeper.arrived(&mut desk).await;
        loop {
            self.send(&mut tls, &mut desk).await?;
            let silent_max = if keeper.is_member() { SILENT_MAX } else { STRANGER_MAX };
            tokio::select! {
                read = tls.read(&mut buffer) => {
                    let length = read?;
                    if length == 0 {
                        return Ok(());
                    }
                    // Strangers do not live longer by talking.
                    if keeper.is_member() {
                        heard = tokio::time::Instant::now();
                    }
                    decoder.push(&buffer[..length]);
                    while let Some(frame) = decoder.poll::<Up>().map_err(io::Error::other)? {
                        self.metrics.frames("up", 1);
                        desk.handle_frame(self.now(), frame);
                        if !self.handle_events(&mut tls, &mut desk, keeper).await? {
                            return Ok(());
                        }
                    }
                }
                changed = published.changed() => {
                    changed.map_err(io::Error::other)?;
                    let published = published.borrow_and_update().clone();
                    if published.revocations.is_revoked(&desk.peer()) {
                        self.metrics.refuse("revoked");
                        return Ok(());
                    }
                    desk.publish(published);
                }
                change = changes.recv() => match change {
                    Ok(change) => keeper.changed(&change, &mut desk).await,
                    Err(broadcast::error::RecvError::Lagged(_)) => keeper.arrived(&mut desk).await,
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
                _ = tick.tick() => keeper.tick().await,
                () = tokio::time::sleep_until(heard + silent_max) => {
                    self.metrics.refuse("silent");
                    return Err(io::ErrorKind::TimedOut.into());
                }
                () = stopped(&mut stop) => return Ok(()),
            }
        }
    }

    /// Does what the desk has to be done; false ends the stream.
    async fn handle_events(
        &self,
        tls: &mut TlsStream<TcpStream>,
        desk: &mut Desk,
        keeper: &mut Keeper<'_>,
    ) -> io::Result<bool> {
        while let Some(event) = desk.poll_event() {
            if let Err(why) = keeper.handle(event, desk).await {
                self.metrics.refuse("stream");
                tracing::info!(who = %keeper.name(), why, "a stream is ended");
                self.send(tls, desk).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn send(&self, tls: &mut TlsStream<TcpStream>, desk: &mut Desk) -> io::Result<()> {
        let mut count = 0;
        let sending = async {
            while let Some(frame) = desk.poll_frame() {
                tls.write_all(&encode(&frame).map_err(io::Error::other)?).await?;
                count += 1;
            }
            if count > 0 { tls.flush().await } else { Ok(()) }
        };
        let sent = tokio::time::timeout(WRITE_MAX, sending).await;
        self.metrics.frames("down", count);
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Whether the database may answer later.
fn is_passing(error: &StoreError) -> bool {
    error.is_passing()
}

const READ_AT_ONCE: usize = 16 * 1024;
const TICK: Duration = Duration::from_secs(2);
const SILENT_MAX: Duration = Duration::from_secs(120);
const STRANGER_MAX: Duration = Duration::from_secs(30);
const WRITE_MAX: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(500);
/// Samples that wait for the database.
const SAMPLES_MAX: usize = 20_000;

#[cfg(test)]
mod tests;
