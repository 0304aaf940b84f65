//! A network that wants somebody to log in: it swallows the tunnel's packets of an uplink, and
//! answers HTTP for everybody.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use roadweave_device::netns::NetNs;

use super::nft;

/// Who has to log in, and who has asked.
#[derive(Debug, Default)]
pub struct Portal {
    /// What those are told who have to log in, by their addresses.
    pub answers: Vec<(IpAddr, Answer)>,
    /// Who has asked, in their order.
    pub asked: Vec<IpAddr>,
}

/// What a network says to a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A header without an end, as fast as it is taken.
    Endless,
    /// A byte of a header a second.
    Slow,
    /// Nothing, while the connection stays.
    Silence,
}

impl Portal {
    /// All that have asked, each once.
    pub fn guests(&self) -> BTreeSet<IpAddr> {
        self.asked.iter().copied().collect()
    }
}

/// Answers on port 80 of `address`: with 204, unless it is told otherwise.
pub fn serve(namespace: &NetNs, address: &str) -> Arc<Mutex<Portal>> {
    let portal = Arc::new(Mutex::new(Portal::default()));
    let listener = namespace.enter(|| TcpListener::bind((address, 80)).unwrap()).unwrap();
    let shared = portal.clone();
    spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = shared.clone();
            spawn(move || answer(&shared, stream));
        }
    });
    portal
}

fn answer(portal: &Mutex<Portal>, mut stream: TcpStream) {
    let guest = stream.peer_addr().unwrap().ip();
    let mut question = [0; 1024];
    let length = stream.read(&mut question).unwrap_or(0);
    let question = String::from_utf8_lossy(&question[..length]).into_owned();
    let answer = {
        let mut portal = portal.lock().unwrap();
        portal.asked.push(guest);
        let answer = portal.answers.iter().find(|(captive, _)| *captive == guest);
        answer.map(|(_, answer)| answer.clone())
    };
    let open = || Answer::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec());
    // Whoever is gone hears nothing.
    let _ = match answer.unwrap_or_else(open) {
        Answer::Bytes(bytes) => stream.write_all(&bytes),
        Answer::Silence => stream.read(&mut [0]).map(drop),
        Answer::Endless => {
            let line = format!("X-{}: y\r\n", "x".repeat(50));
            stream.write_all(b"HTTP/1.1 204 No Content\r\n").unwrap_or(());
            while stream.write_all(line.as_bytes()).is_ok() {}
            Ok(())
        }
        Answer::Slow => {
            let text = format!("HTTP/1.1 204 No Content\r\nX: {}\r\n\r\n", "y".repeat(100));
            text.bytes().try_for_each(|byte| {
                sleep(Duration::from_secs(1));
                stream.write_all(&[byte])
            })
        }
    };
    assert!(question.starts_with("GET /generate_204 HTTP/1.1\r\n"), "{question}");
    assert!(question.contains("\r\nHost: probe.test\r\n"), "{question}");
}

/// A redirection to this address.
pub fn redirect(location: &str) -> Answer {
    let head = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    Answer::Bytes(head.into_bytes())
}

/// Lets the tunnel's packets of an uplink through to the server, or not.
pub fn cut_off(server: &NetNs, interface: &str, is_off: bool) {
    let table = format!("inet portal_{interface}");
    nft(
        server,
        &match is_off {
            true => format!(
                "table {table} {{ chain in {{ type filter hook input priority -10; \
                 iifname {interface} udp dport 4433 drop; }}; }}"
            ),
            false => format!("delete table {table}"),
        },
    );
}
