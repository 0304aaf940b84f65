//! The port: TCP and TLS 1.3, boxes and browsers distinguished by ALPN.
//!
//! ```text
//! accept ─► limits of address, of all ─► ClientHello within 5 s ─► ALPN
//!                                     roadweave-control/1 ─► raw public keys ─► streams
//!                                     http/1.1, none      ─► certificate     ─► api
//! ```
//!
//! Keys cost nothing to make, so a connection counts for its address until it is a member's stream.
//! Boxes and strangers leave places to people, proxies and anchors, which are needed to revoke
//! them. Unauthenticated peers are bounded in number, time and memory.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::LazyConfigAcceptor;
use tower::ServiceExt as _;

use crate::api::RemoteAddress;
use crate::connection_limits::{
    ConnectionLimits, ConnectionPermit, Permits, Web, WebPlace, stopped,
};
use crate::metrics::Metrics;
use crate::prompt::Prompt;
use crate::streams::{ALPN, Streams};

pub struct Service {
    pub web: Router,
    pub web_tls: Arc<ServerConfig>,
    pub streams: Arc<Streams>,
    pub metrics: Arc<Metrics>,
    pub limits: ConnectionLimits,
}

pub fn web_tls(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| format!("the certificate is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("there is no certificate in the file".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("the certificate's key is not PEM: {error}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| format!("cannot use the certificate and its key: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

pub async fn serve(listener: TcpListener, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    let permits = Permits::new(service.limits);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors: waits for other connections to end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let permit = match permits.take(peer.ip()).await {
            Ok(permit) => permit,
            Err(full) => {
                service.metrics.refuse(full);
                continue;
            }
        };
        let (service, web, stop) = (Arc::clone(&service), permits.web(), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = one(stream, peer, &service, (permit, web), stop).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
    }
    let _ = tokio::time::timeout(END_MAX, permits.all_returned()).await;
}

async fn one(
    stream: TcpStream,
    peer: SocketAddr,
    service: &Service,
    (permit, web_places): (ConnectionPermit, Arc<Web>),
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    service.metrics.handshakes.inc();
    let shaken = tokio::select! {
        shaken = handshake(stream, service) => shaken,
        () = permit.handshake.gives_way() => Err(io::Error::other("replaced by another")),
        () = tokio::time::sleep(HANDSHAKE_MAX) => Err(io::ErrorKind::TimedOut.into()),
    };
    service.metrics.handshakes.dec();
    permit.handshake.on_known();
    let (tls, is_stream) = shaken.inspect_err(|_| service.metrics.refuse("handshake"))?;
    if is_stream {
        return service.streams.serve(tls, peer, permit, stop).await;
    }
    let place = web_places.enter();
    let served = tokio::select! {
        served = web(tls, peer, service.web.clone(), &place, stop) => served,
        () = place.stranger.gives_way() => Err(io::Error::other("replaced by an unknown peer")),
        () = stranger_for_too_long(&place) => Err(io::ErrorKind::TimedOut.into()),
    };
    if served.is_err() && !place.stranger.is_known() {
        service.metrics.refuse("stranger");
    }
    served
}

async fn stranger_for_too_long(place: &WebPlace) {
    tokio::time::sleep(STRANGER_MAX).await;
    if place.stranger.is_known() {
        std::future::pending::<()>().await;
    }
}

type Tls = tokio_rustls::server::TlsStream<TcpStream>;

async fn handshake(stream: TcpStream, service: &Service) -> io::Result<(Tls, bool)> {
    let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
    let is_stream = start.client_hello().alpn().is_some_and(|mut all| all.any(|it| it == ALPN));
    if is_stream && service.streams.is_cut() {
        return Err(io::Error::other("no database here: other controllers may reach it"));
    }
    let config = if is_stream { service.streams.tls() } else { Arc::clone(&service.web_tls) };
    let tls = start.into_stream(config).await?;
    // The handshake decides, not the first message alone.
    match is_stream == (tls.get_ref().1.alpn_protocol() == Some(ALPN)) {
        true => Ok((tls, is_stream)),
        false => Err(io::Error::other("another protocol was agreed on")),
    }
}

async fn web(
    tls: Tls,
    peer: SocketAddr,
    router: Router,
    place: &Arc<WebPlace>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let place = Arc::clone(place);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(RemoteAddress(peer.ip()));
        request.extensions_mut().insert(Arc::clone(&place));
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(Prompt::new(tls, WRITE_MAX)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}

const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
const HEADER_MAX: Duration = Duration::from_secs(10);
const END_MAX: Duration = Duration::from_secs(5);
const WRITE_MAX: Duration = Duration::from_secs(20);
const STRANGER_MAX: Duration = Duration::from_secs(60);
