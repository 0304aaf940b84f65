//! Requests to the issuer: over TLS 1.3, bounded in time and length.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header;
use hyper_util::rt::TokioIo;
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

#[derive(Clone)]
pub struct Http(TlsConnector);

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{0} is refused: use https, or http on this machine only")]
    Address(String),
    #[error("{0}")]
    Away(String),
    #[error("no answer within {} s", ANSWER_MAX.as_secs())]
    Late,
    #[error("cannot read the answer, or it has more than {BODY_MAX} bytes")]
    Body,
}

impl Http {
    /// Trusts this machine's certificate authorities, or only those in `authorities` (PEM).
    pub fn new(authorities: Option<&[u8]>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match authorities {
            None => {
                let found = rustls_native_certs::load_native_certs().certs;
                roots.add_parsable_certificates(found);
            }
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|error| error.to_string())?;
                    roots.add(certificate).map_err(|error| error.to_string())?;
                }
                if roots.is_empty() {
                    return Err("there is no certificate in it".to_owned());
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri().clone();
        let bad = || HttpError::Address(uri.to_string());
        let away = |error: &dyn std::fmt::Display| HttpError::Away(error.to_string());
        let host = uri.host().ok_or_else(bad)?.trim_start_matches('[').trim_end_matches(']');
        let is_plain = is_plain(&uri).ok_or_else(bad)?;
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| away(&error))?;
        if is_plain {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| bad())?;
        let tls = self.0.connect(name, stream).await.map_err(|error| away(&error))?;
        exchange(tls, request).await
    }
}

fn is_plain(uri: &hyper::Uri) -> Option<bool> {
    let is_here = matches!(uri.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
    match uri.scheme_str() {
        Some("https") => Some(false),
        Some("http") if is_here => Some(true),
        _ => None,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: HttpRequest,
) -> Result<HttpResponse, HttpError> {
    let away = |error: hyper::Error| HttpError::Away(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(away)?;
    // Aborts the connection when this exchange ends.
    let mut connections = tokio::task::JoinSet::new();
    connections.spawn(connection);
    let (mut parts, body) = request.into_parts();
    let host = parts.uri.authority().map(|it| it.as_str().to_owned()).unwrap_or_default();
    let path = parts.uri.path_and_query().map_or("/", |it| it.as_str()).to_owned();
    parts.uri = path.parse().map_err(|_| HttpError::Address(host.clone()))?;
    let host = host.parse().map_err(|_| HttpError::Address(host))?;
    parts.headers.insert(header::HOST, host);
    let request = hyper::Request::from_parts(parts, Full::new(Bytes::from(body)));
    let (parts, body) = sender.send_request(request).await.map_err(away)?.into_parts();
    let body = Limited::new(body, BODY_MAX).collect().await.map_err(|_| HttpError::Body)?;
    Ok(hyper::Response::from_parts(parts, body.to_bytes().to_vec()))
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let answer = tokio::time::timeout(ANSWER_MAX, self.ask(request)).await;
            answer.unwrap_or(Err(HttpError::Late))
        })
    }
}

/// The time limit of one answer, to its last byte. Two of them fit into a request's.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const BODY_MAX: usize = 256 * 1024;
