//! A captive portal: it drops the tunnel's packets of an uplink, and answers HTTP for all hosts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use roadweave_linux::netns::NetNs;

use super::nft;

#[derive(Debug, Default)]
pub struct Portal {
    /// Guests without a login, and the answers to them.
    pub answers: Vec<(IpAddr, Answer)>,
    /// The senders of all requests, in order.
    pub asked: Vec<IpAddr>,
}

#[derive(Clone, Debug)]
pub enum Answer {
    Bytes(Vec<u8>),
    /// A header without an end.
    Endless,
    /// A header at a byte a second.
    Slow,
}

impl Portal {
    /// The senders of all requests.
    pub fn guests(&self) -> BTreeSet<IpAddr> {
        self.asked.iter().copied().collect()
    }
}

/// Answers on port 80 of `address`, with 204 by default.
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
    // The guest may be gone.
    let _ = match answer.unwrap_or_else(open) {
        Answer::Bytes(bytes) => stream.write_all(&bytes),
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

pub fn redirect(location: &str) -> Answer {
    let head = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    Answer::Bytes(head.into_bytes())
}

/// Drops the tunnel's packets of an uplink at the server, or ends that.
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
