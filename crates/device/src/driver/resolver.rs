//! Looks the server's names up, in a thread, since the system's resolver blocks.
//!
//! ```text
//! service ─► thread: getaddrinfo ─► answer, waker ─► poll ─► Client::set_servers
//!    ▲        failed: again after 2 s                 │
//!    └──────── again after 10 s, or 60 s if joined ───┘
//! ```
//!
//! A vehicle starts before its modems do, so that no name can be found is no end. And a server may
//! move, so its names are looked up again, seldom while a session is up: it may have fallen silent.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use roadweave_types::Instant;

use crate::Waker;

/// How soon to look again when nothing was found yet.
const RETRY: Duration = Duration::from_secs(2);
/// How soon to look again while no server answers.
const AGAIN: Duration = Duration::from_secs(10);
/// How soon to look again while a session is up.
const SELDOM: Duration = Duration::from_secs(60);
/// How often the user is told of failures.
const REMINDER: Duration = Duration::from_secs(60);

type Answer = Result<Vec<SocketAddr>, String>;

/// The addresses behind `host:port` names.
#[derive(Debug)]
pub(super) struct Resolver {
    names: Vec<String>,
    waker: Waker,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
    /// Whether all names are addresses, which need no second look.
    fixed: bool,
    /// When to look up; `None` while a thread does, and when there is no need.
    next: Option<Instant>,
    next_reminder: Instant,
    found: Vec<SocketAddr>,
}

impl Resolver {
    /// Looks `names` up at the first [`Resolver::service`]; `waker` wakes the loop for the answers.
    pub(super) fn new(names: Vec<String>, waker: Waker) -> Self {
        let (sender, answers) = channel();
        Self {
            fixed: names.iter().all(|name| name.parse::<SocketAddr>().is_ok()),
            names,
            waker,
            sender,
            answers,
            next: Some(Instant::ZERO),
            next_reminder: Instant::ZERO,
            found: Vec::new(),
        }
    }

    /// The addresses found last, in the order of the names; empty before the first.
    pub(super) fn found(&self) -> &[SocketAddr] {
        &self.found
    }

    /// When [`Resolver::service`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// The session is over: looks again soon.
    pub(super) fn on_left(&mut self, now: Instant) {
        self.next = self.next.map(|next| next.min(now + AGAIN));
    }

    /// Looks up what is due.
    pub(super) fn service(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = None;
        let (names, sender, waker) = (self.names.clone(), self.sender.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("resolver".into()).spawn(move || {
            // The loop may have ended meanwhile.
            let _ = sender.send(resolve(&names));
            waker.wake();
        });
        if let Err(error) = thread {
            self.on_failure(now, &format!("no thread for it: {error}"));
        }
    }

    /// Takes an answer; returns whether there are other addresses now than before. `joined`: a
    /// session is up.
    pub(super) fn poll(&mut self, now: Instant, joined: bool) -> bool {
        let Ok(answer) = self.answers.try_recv() else { return false };
        match answer {
            Ok(found) => {
                self.next = (!self.fixed).then_some(now + if joined { SELDOM } else { AGAIN });
                let news = found != self.found;
                self.found = found;
                news
            }
            Err(reason) => {
                self.on_failure(now, &reason);
                false
            }
        }
    }

    fn on_failure(&mut self, now: Instant, reason: &str) {
        self.next = Some(now + if self.found.is_empty() { RETRY } else { AGAIN });
        if now >= self.next_reminder {
            self.next_reminder = now + REMINDER;
            let names = self.names.join(", ");
            tracing::warn!("no address found for {names}: {reason}; trying again");
        }
    }
}

/// The addresses behind `names`, `host:port` each.
fn resolve(names: &[String]) -> Answer {
    let mut reason = String::from("there are no names");
    let mut found = Vec::new();
    for name in names {
        match name.to_socket_addrs() {
            // A resolver may name one address several times.
            Ok(addresses) => {
                for address in addresses {
                    if !found.contains(&address) {
                        found.push(address);
                    }
                }
            }
            Err(error) => reason = error.to_string(),
        }
    }
    if found.is_empty() { Err(reason) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the thread end, and takes its answer.
    fn poll(resolver: &mut Resolver, now: Instant, joined: bool) -> bool {
        assert!(crate::wait_readable(&resolver.waker, Duration::from_secs(20)).unwrap());
        resolver.waker.clear();
        resolver.poll(now, joined)
    }

    fn resolver(name: &str) -> Resolver {
        Resolver::new(vec![name.to_owned()], Waker::new().unwrap())
    }

    #[test]
    fn a_server_that_may_have_moved_is_looked_up_again() {
        let mut resolver = resolver("localhost:4433");
        let now = Instant::ZERO + Duration::from_secs(5);
        resolver.service(now);
        assert_eq!(resolver.poll_timeout(), None, "one thread at a time");
        assert!(poll(&mut resolver, now, false));
        assert!(resolver.found().iter().all(|found| found.ip().is_loopback()));
        assert_eq!(resolver.poll_timeout(), Some(now + AGAIN));
        resolver.service(now + AGAIN);
        assert!(!poll(&mut resolver, now + AGAIN, true), "the same as before is no news");
        assert_eq!(resolver.poll_timeout(), Some(now + AGAIN + SELDOM));
        resolver.on_left(now + AGAIN);
        assert_eq!(resolver.poll_timeout(), Some(now + AGAIN * 2));
    }

    #[test]
    fn an_address_is_looked_up_once() {
        let mut resolver = resolver("192.0.2.1:4433");
        resolver.service(Instant::ZERO);
        assert!(poll(&mut resolver, Instant::ZERO, false));
        assert_eq!(resolver.found(), ["192.0.2.1:4433".parse().unwrap()]);
        assert_eq!(resolver.poll_timeout(), None);
    }

    #[test]
    fn a_name_that_cannot_be_found_is_tried_again_soon() {
        let mut resolver = resolver("no port");
        resolver.service(Instant::ZERO);
        assert!(!poll(&mut resolver, Instant::ZERO, false));
        assert_eq!(resolver.poll_timeout(), Some(Instant::ZERO + RETRY));
    }
}
