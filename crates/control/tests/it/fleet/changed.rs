//! Concurrent changes from the command line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::fleet::world::World;
use crate::run::Runs as _;

/// A controller with constant changes: each request finds a new version.
struct Busy {
    tls: Arc<ServerConfig>,
    listener: TcpListener,
    version: u64,
}

impl Busy {
    fn new(world: &World) -> Self {
        let folder = world.home.path().join("controller");
        let certificate = CertificateDer::from_pem_file(folder.join("certificate.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("certificate.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { tls: Arc::new(tls), listener, version: 0 }
    }

    fn url(&self) -> String {
        format!("https://{}", self.listener.local_addr().unwrap())
    }

    /// Refuses `late` writes, then accepts one; returns `If-Match` and body of each write.
    fn serve(mut self, late: usize) -> JoinHandle<Vec<(String, Value)>> {
        thread::spawn(move || {
            let mut all = Vec::new();
            while all.len() <= late && all.len() < TRIES {
                let tls = ServerConnection::new(Arc::clone(&self.tls)).unwrap();
                let mut stream = StreamOwned::new(tls, self.listener.accept().unwrap().0);
                let (if_match, written) = request(&mut stream);
                self.version += 1;
                let (version, settings) = (self.version, json!({ "from": self.version }));
                let (status, body) = match &written {
                    Some(_) if all.len() < late => {
                        let changed = "\u{1b}[2Jit was changed meanwhile";
                        ("412 Precondition Failed", json!({ "status": 412, "detail": changed }))
                    }
                    _ => ("200 OK", json!({ "version": version, "settings": settings })),
                };
                let body = body.to_string();
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\netag: \"{version}\"");
                write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                all.extend(written.map(|written| (if_match, written)));
            }
            all
        })
    }
}

fn request(
    stream: &mut StreamOwned<ServerConnection, std::net::TcpStream>,
) -> (String, Option<Value>) {
    let (mut reader, mut if_match, mut length) = (BufReader::new(stream), String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some(("if-match", version)) => if_match = version.to_owned(),
            Some(("content-length", text)) => length = text.parse().unwrap(),
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (if_match, serde_json::from_slice(&body).ok())
}

const TRIES: usize = 4;

#[test]
fn what_is_written_is_of_the_version_that_was_seen_or_nothing_is() {
    let Some(world) = World::made(tempfile::tempdir().unwrap(), &[]) else { return };
    for words in [
        &["rollout", "pause", "tag-tram-1"][..],
        &["tenant", "egress", "home", "anchor"],
        &["device", "tag", "bus-17", "--add", "tram"],
        &["user", "role", "anna", "owner"],
        &["pool", "set", "frankfurt", "--site", "fra"],
        &["proxy", "set", "fra-1", "--address", "192.0.2.1:4433"],
    ] {
        for late in [0, 1, TRIES] {
            let busy = Busy::new(&world);
            let (url, key) = (busy.url(), "rwk_x");
            let access = ["--url", &url, "--key", key, "--tenant", "home", "--json"];
            let access = [&access[..], &["--fingerprint", &world.fingerprint]].concat();
            let serving = busy.serve(late);
            let output = world.command(&[words, &access].concat()).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            let all = serving.join().unwrap();
            assert_eq!(all.len(), TRIES.min(late + 1), "{words:?}: {said}");
            for (version, written) in all {
                assert_eq!(version, format!("\"{}\"", written["from"]), "{words:?}");
            }
            let gives_up = late == TRIES;
            assert_eq!(output.status.code(), Some(i32::from(gives_up)), "{words:?}: {said}");
            if gives_up {
                let problem: Value = serde_json::from_str(&said).unwrap();
                assert_eq!(problem["status"], 412);
                assert!(!said.contains('\u{1b}'), "{said}");
            }
        }
    }
}
