//! The controller's REST interface, as far as it is needed here.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Somebody who is logged in.
pub struct Web {
    port: u16,
    tls: TlsConnector,
    cookie: String,
}

impl Web {
    pub async fn log_in(port: u16, password: &str) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(tls));
        let mut web = Self { port, tls, cookie: String::new() };
        let body = json!({ "tenant": "home", "user": "admin", "password": password });
        let answer = web.ask("/sessions", &body).await;
        let cookie = answer.split("set-cookie: ").nth(1).unwrap();
        web.cookie = cookie.split(';').next().unwrap().to_owned();
        web
    }

    /// Posts to an address of the tenant.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.ask(&format!("/tenants/home{path}"), body).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 20"), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    }

    async fn ask(&self, path: &str, body: &Value) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = self.tls.connect(name, stream).await.unwrap();
        let (body, cookie) = (body.to_string(), &self.cookie);
        let length = body.len();
        let request = format!(
            "POST /api/v1{path} HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        );
        tls.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // It ends without the goodbye of TLS at times.
        let _ = tls.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let all = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &all)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let all = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        all.supported_schemes()
    }
}
