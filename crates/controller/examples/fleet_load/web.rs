//! The controller's REST interface, as far as it is needed here.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::controller::Controller;

/// Somebody who is logged in.
pub struct Web {
    port: u16,
    tls: TlsConnector,
    cookie: String,
}

impl Web {
    pub async fn log_in(controller: &Controller) -> Self {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(controller.folder.join("certificate.pem"));
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(tls));
        let mut web = Self { port: controller.port, tls, cookie: String::new() };
        let body = json!({ "tenant": "home", "user": "admin", "password": controller.password });
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
        let name = ServerName::try_from("127.0.0.1").unwrap();
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
