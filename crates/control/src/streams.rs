//! Streams of boxes, proxies and anchors: a task each, around a session ([`ControllerSession`]).
//!
//! ```text
//! peer ◄─► TLS ◄─► frames ◄─► ControllerSession ─► events ─► Recorder ─► store
//!                              ▲
//!   outbox ─► Published: trust, revocations; to proxies at once, to boxes periodically
//!   planner ─► Mailboxes: documents, tables, commands, by key
//! ```
//!
//! A peer that does not read is disconnected: its queues are bounded by number and time.

pub mod mailboxes;
mod peer_connection;
mod publishing;
mod recorder;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{ControllerSession, FrameDecoder, Published, Up, encode};
use roadweave_identity::tls::{HandshakeRefusal, TlsSide, peer_key, server};
use roadweave_identity::{PeerPolicy, PublicKey, Refusal};
use rustls::ServerConfig;
use rustls::time_provider::DefaultTimeProvider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_rustls::server::TlsStream;

use self::mailboxes::{Mailbox, Mailboxes, StreamMessage};
use self::peer_connection::PeerConnection;
use self::recorder::Recorder;
use crate::api::App;
use crate::authority::Authority;
use crate::clock::since;
use crate::connection_limits::{ConnectionPermit, stopped};
use crate::metrics::Metrics;
use crate::model::Device;
use crate::outbox::{Health, Outbox};
use crate::store::{ANSWER_MAX, ANSWERS_MAX, Note, Sample, Store, within};

pub use publishing::PublishError;

pub const ALPN: &[u8] = b"roadweave-control/1";

pub struct Streams {
    store: Arc<Store>,
    authority: Arc<Authority>,
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
    tls: Arc<ServerConfig>,
    published: watch::Sender<Arc<Published>>,
    /// Boxes do not depend on revocations of other boxes.
    to_boxes: watch::Sender<Arc<Published>>,
    mailboxes: Arc<Mailboxes>,
    recorder: Recorder,
    samples: mpsc::Sender<(String, Sample)>,
    /// The database is away for so long that proxies and anchors are disconnected.
    cut: watch::Sender<bool>,
    started: std::time::Instant,
}

/// Accepts every key that is not revoked: an unknown peer may join.
struct NotRevoked(watch::Receiver<Arc<Published>>);

impl PeerPolicy for NotRevoked {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        if self.0.borrow().revocations.is_revoked(key) { Err(Refusal::Revoked) } else { Ok(()) }
    }
}

impl Streams {
    pub async fn new(app: &App) -> Result<Arc<Self>, PublishError> {
        let App { store, authority, outbox, metrics, .. } = app;
        let first = Arc::new(publishing::published(store, authority).await?);
        let (published, policy) = watch::channel(Arc::clone(&first));
        let (to_boxes, _) = watch::channel(first);
        let (samples, inbox) = mpsc::channel(SAMPLES_MAX);
        let side = TlsSide {
            identity: authority.controller(),
            policy: Arc::new(NotRevoked(policy)),
            refusal: Arc::new(HandshakeRefusal::default()),
            alpn: ALPN,
            time: Arc::new(DefaultTimeProvider),
        };
        let tls = Arc::new(server(side).map_err(|error| PublishError::Tls(error.to_string()))?);
        tokio::spawn(peer_connection::store_samples(Arc::clone(store), inbox));
        Ok(Arc::new(Self {
            store: Arc::clone(store),
            authority: Arc::clone(authority),
            outbox: Arc::clone(outbox),
            metrics: Arc::clone(metrics),
            tls,
            published,
            to_boxes,
            mailboxes: Arc::default(),
            recorder: Recorder::start(app),
            samples,
            cut: watch::Sender::new(false),
            started: std::time::Instant::now(),
        }))
    }

    pub fn mailboxes(&self) -> Arc<Mailboxes> {
        Arc::clone(&self.mailboxes)
    }

    pub fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    pub async fn run(self: Arc<Self>) {
        tokio::spawn(watch_database(self.outbox.health(), self.cut.clone()));
        let mut changes = self.outbox.listen();
        let mut boxes_hear = tokio::time::interval(BOXES_HEAR);
        let mut witness = tokio::time::interval(WITNESS);
        loop {
            let is_revocation = tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => change.kind == "revocation",
                    Err(broadcast::error::RecvError::Lagged(_)) => true,
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                _ = boxes_hear.tick() => {
                    self.notify_boxes();
                    false
                }
                _ = witness.tick() => {
                    for (tenant, proxy) in self.mailboxes.witnessed() {
                        let proxy = proxy.to_string();
                        self.recorder.note(Note::Witness { tenant, proxy });
                    }
                    false
                }
            };
            if is_revocation {
                self.publish().await;
            }
        }
    }

    async fn publish(&self) {
        let mut logged = String::new();
        let published = loop {
            let publishing = publishing::published(&self.store, &self.authority);
            match within(ANSWERS_MAX, publishing).await {
                Ok(published) => break Arc::new(published),
                Err(error) => {
                    let error = error.to_string();
                    if logged != error {
                        tracing::error!(error, "cannot publish revocations; trying again");
                    }
                    logged = error;
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        let former = self.published.send_replace(Arc::clone(&published));
        let (before, now) = (former.revocations.head(), published.revocations.head());
        let goes_on = published.revocations.includes(before.serial, &before.hash);
        let is_same_chain = before.epoch == now.epoch && goes_on;
        let known = if is_same_chain { before.serial } else { 0 };
        let mut concerns_boxes = !is_same_chain;
        for entry in published.revocations.entries(known) {
            self.mailboxes.send(&entry.key, StreamMessage::Published(Arc::clone(&published)));
            let device = self.store.find::<Device>("public_key", &entry.key.to_string()).await;
            concerns_boxes |= device.is_err();
        }
        // Boxes must stop trusting a revoked proxy, anchor or delegate.
        if concerns_boxes {
            self.notify_boxes();
        }
    }

    fn notify_boxes(&self) {
        let newest = self.published.borrow().clone();
        self.to_boxes.send_if_modified(|held| {
            let is_other = held.revocations.head() != newest.revocations.head();
            *held = newest;
            is_other
        });
    }

    pub(crate) async fn serve(
        &self,
        tls: TlsStream<TcpStream>,
        peer: SocketAddr,
        permit: ConnectionPermit,
        stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let certificates = tls.get_ref().1.peer_certificates().unwrap_or_default();
        let Some(key) = peer_key(certificates) else {
            return Err(io::Error::other("it did not present a raw public key"));
        };
        let connection = within(ANSWER_MAX, PeerConnection::new(self, key, peer)).await;
        let connection = connection.map_err(io::Error::other)?;
        self.metrics.streams.inc();
        tracing::debug!(%peer, who = %connection.name(), "a stream begins");
        let mut stream = Stream::new(self, tls, connection);
        let ended = stream.drive(permit, stop).await;
        self.metrics.streams.dec();
        stream.connection.left();
        tracing::debug!(%peer, who = %stream.connection.name(), "a stream ends");
        ended
    }
}

/// A stream in progress.
struct Stream<'a> {
    streams: &'a Streams,
    tls: TlsStream<TcpStream>,
    connection: PeerConnection<'a>,
    session: ControllerSession,
    mailbox: Mailbox,
    to_gates: watch::Receiver<Arc<Published>>,
    to_boxes: watch::Receiver<Arc<Published>>,
}

impl<'a> Stream<'a> {
    fn new(
        streams: &'a Streams,
        tls: TlsStream<TcpStream>,
        connection: PeerConnection<'a>,
    ) -> Self {
        let (key, is_member) = (connection.key, connection.is_member());
        let mailbox = streams.mailboxes.open(key);
        let mut to_gates = streams.published.subscribe();
        let mut to_boxes = streams.to_boxes.subscribe();
        let publications = if connection.is_gate() { &mut to_gates } else { &mut to_boxes };
        let first = publications.borrow_and_update().clone();
        let mut session = ControllerSession::new(since(streams.started), key, is_member, first);
        session.signed_by(connection.issuers.clone());
        Self { streams, tls, connection, session, mailbox, to_gates, to_boxes }
    }

    async fn drive(
        &mut self,
        mut permit: ConnectionPermit,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let mut cut = self.streams.cut.subscribe();
        let mut frames = FrameDecoder::default();
        let mut buffer = vec![0; READ_AT_ONCE];
        let mut tick = tokio::time::interval(TICK);
        let mut heard = tokio::time::Instant::now();
        answered(self.connection.arrived(&mut self.session)).await?;
        loop {
            if !self.handle_events().await? {
                return Ok(());
            }
            self.send().await?;
            let (is_member, is_gate) = (self.connection.is_member(), self.connection.is_gate());
            if !permit.settle(is_member, is_gate) {
                let why = "the limit of boxes and unknown peers is reached";
                return Err(self.refused("streams-of-boxes", why));
            }
            let silent_max = if is_member { SILENT_MAX } else { STRANGER_MAX };
            tokio::select! {
                read = self.tls.read(&mut buffer) => {
                    let length = read?;
                    if length == 0 {
                        return Ok(());
                    }
                    // Data does not extend the time of a stranger.
                    if is_member {
                        heard = tokio::time::Instant::now();
                        self.connection.heard();
                    }
                    frames.push(&buffer[..length]);
                    if !self.handle_frames(&mut frames).await? {
                        return Ok(());
                    }
                }
                lists = changed(&mut self.to_gates), if is_gate => self.session.publish(lists?),
                lists = changed(&mut self.to_boxes), if !is_gate => self.session.publish(lists?),
                message = self.mailbox.recv() => match message {
                    Some(message) => self.connection.take(message, &mut self.session),
                    None if self.mailbox.is_superseded() => {
                        let why = "its key has opened newer streams";
                        return Err(self.refused("streams-of-key", why));
                    }
                    None => return Err(self.refused("slow", "it does not read what is sent to it")),
                },
                () = stopped(&mut cut), if is_gate => {
                    let why = "no database here: other controllers may reach it";
                    return Err(self.refused("database-away", why));
                }
                _ = tick.tick() => answered(self.connection.tick(&mut self.session)).await?,
                () = tokio::time::sleep_until(heard + silent_max) => {
                    self.streams.metrics.refuse("silent");
                    return Err(io::ErrorKind::TimedOut.into());
                }
                () = stopped(&mut stop) => return Ok(()),
            }
        }
    }

    fn refused(&self, reason: &'static str, why: &str) -> io::Error {
        self.streams.metrics.refuse(reason);
        io::Error::other(why)
    }

    /// False if the stream is to end.
    async fn handle_frames(&mut self, decoder: &mut FrameDecoder) -> io::Result<bool> {
        while let Some(frame) = decoder.poll::<Up>().map_err(io::Error::other)? {
            self.streams.metrics.frames("up", 1);
            self.session.handle_frame(since(self.streams.started), frame);
            if !self.handle_events().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn handle_events(&mut self) -> io::Result<bool> {
        while let Some(event) = self.session.poll_event() {
            let handled = answered(self.connection.handle(event, &mut self.session)).await?;
            if let Err(why) = handled {
                self.streams.metrics.refuse("stream");
                tracing::info!(who = %self.connection.name(), why, "a stream was ended");
                self.send().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn send(&mut self) -> io::Result<()> {
        let mut count = 0;
        let sending = async {
            while let Some(frame) = self.session.poll_frame() {
                self.tls.write_all(&encode(&frame).map_err(io::Error::other)?).await?;
                count += 1;
            }
            if count > 0 { self.tls.flush().await } else { Ok(()) }
        };
        let sent = tokio::time::timeout(WRITE_MAX, sending).await;
        self.streams.metrics.frames("down", count);
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

async fn changed(published: &mut watch::Receiver<Arc<Published>>) -> io::Result<Arc<Published>> {
    published.changed().await.map_err(io::Error::other)?;
    Ok(published.borrow_and_update().clone())
}

/// Sets `cut` when the database has been away for too long: revocations would not arrive, and a
/// peer with a live stream would neither try another controller nor notice.
async fn watch_database(mut health: watch::Receiver<Health>, cut: watch::Sender<bool>) {
    loop {
        if health.wait_for(|it| *it != Health::Good).await.is_err() {
            return;
        }
        let back = health.wait_for(|it| *it == Health::Good);
        if tokio::time::timeout(CUT_AFTER, back).await.is_ok() {
            continue;
        }
        tracing::warn!("still no database: proxies and anchors should try other controllers");
        cut.send_replace(true);
        if health.wait_for(|it| *it == Health::Good).await.is_err() {
            return;
        }
        cut.send_replace(false);
    }
}

async fn answered<T>(asking: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::time::timeout(ANSWER_MAX, asking).await?)
}

const READ_AT_ONCE: usize = 16 * 1024;
const TICK: Duration = Duration::from_secs(2);
/// The keep-alive interval is 50 s for boxes, 15 s for proxies.
const SILENT_MAX: Duration = Duration::from_secs(80);
const STRANGER_MAX: Duration = Duration::from_secs(30);
const CUT_AFTER: Duration = Duration::from_secs(10);
const WRITE_MAX: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(500);
const BOXES_HEAR: Duration = Duration::from_secs(600);
const WITNESS: Duration = Duration::from_secs(10);
const SAMPLES_MAX: usize = 20_000;

#[cfg(test)]
pub(crate) mod tests;
