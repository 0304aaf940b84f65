//! One question to several servers in turn; too long an answer is fetched over TCP. No I/O. Earlier
//! tries stay open, for slow satellites. After a refusal or failure the next is asked at once.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use domain::base::{Name, Rtype};
use roadweave_proto::Instant;

use super::message::{AddressRecords, ENTROPY, ParsedReply, Query};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

#[derive(Clone, Debug)]
pub(super) struct Try {
    pub(super) id: usize,
    pub(super) server: SocketAddr,
    pub(super) transport: Transport,
    pub(super) message: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct QueryExchange {
    pub(super) name: Name<Vec<u8>>,
    pub(super) kind: Rtype,
    servers: Vec<SocketAddr>,
    tries: Vec<SentQuery>,
    rounds: usize,
    next: Instant,
    truncated: Vec<SocketAddr>,
    broken: Vec<SocketAddr>,
    pub(super) outcome: Option<Result<AddressRecords, String>>,
    reason: Option<String>,
}

#[derive(Debug)]
struct SentQuery {
    query: Query,
    server: SocketAddr,
    transport: Transport,
    is_over: bool,
}

impl QueryExchange {
    pub(super) fn new(
        now: Instant,
        name: Name<Vec<u8>>,
        kind: Rtype,
        servers: Vec<SocketAddr>,
    ) -> Self {
        let none = servers.is_empty().then(|| Err("no name server is known".to_owned()));
        Self {
            name,
            kind,
            servers,
            tries: Vec::new(),
            rounds: 0,
            next: now,
            truncated: Vec::new(),
            broken: Vec::new(),
            outcome: none,
            reason: None,
        }
    }

    pub(super) fn poll_try(&mut self, now: Instant, entropy: &[u8; ENTROPY]) -> Option<Try> {
        if self.outcome.is_some() {
            return None;
        }
        let (server, transport) = match self.truncated.pop() {
            Some(server) => (server, Transport::Tcp),
            None if self.next > now => return None,
            None if self.rounds >= self.servers.len() * ROUNDS => {
                let quiet = || "its name servers do not answer".to_owned();
                self.outcome = Some(Err(self.reason.take().unwrap_or_else(quiet)));
                return None;
            }
            None => {
                let server = self.servers[self.rounds % self.servers.len()];
                self.rounds += 1;
                let is_last = self.rounds == self.servers.len() * ROUNDS;
                self.next = now + if is_last { LAST_TIMEOUT } else { INTERVAL };
                (server, Transport::Udp)
            }
        };
        let query = Query::new(&self.name, self.kind, &self.case_of(entropy));
        let message = query.bytes.clone();
        let id = self.tries.len();
        self.tries.push(SentQuery { query, server, transport, is_over: false });
        Some(Try { id, server, transport, message })
    }

    /// A few servers do not preserve the case of a question, so the last round uses lower case.
    fn case_of(&self, entropy: &[u8; ENTROPY]) -> [u8; ENTROPY] {
        let mut entropy = *entropy;
        if self.rounds > self.servers.len() * (ROUNDS - 1) {
            entropy[2..].fill(0);
        }
        entropy
    }

    /// Returns whether the try is over.
    pub(super) fn handle_message(&mut self, now: Instant, id: usize, message: &[u8]) -> bool {
        let Some(sent) = self.tries.get_mut(id).filter(|sent| !sent.is_over) else { return true };
        let reading = sent.query.read(message);
        if reading == ParsedReply::Foreign {
            return false;
        }
        sent.is_over = true;
        let (server, transport) = (sent.server, sent.transport);
        match reading {
            ParsedReply::Answer(answer) if self.outcome.is_none() => {
                self.outcome = Some(Ok(answer))
            }
            ParsedReply::Truncated if transport == Transport::Udp => {
                self.truncated.push(server);
                self.next = self.next.max(now + TCP_TIMEOUT);
            }
            ParsedReply::Failed(reason) => self.complain(now, server.ip(), &reason),
            ParsedReply::Truncated => self.complain(now, server.ip(), "its answer is too large"),
            ParsedReply::Answer(_) | ParsedReply::Foreign => {}
        }
        true
    }

    pub(super) fn handle_failure(&mut self, now: Instant, id: usize, reason: &str) {
        let Some(sent) = self.tries.get_mut(id).filter(|sent| !sent.is_over) else { return };
        sent.is_over = true;
        let server = sent.server;
        self.complain(now, server.ip(), reason);
        if !self.broken.contains(&server) {
            self.broken.push(server);
        }
        if self.broken.len() == self.servers.len() && self.outcome.is_none() {
            self.outcome = Some(Err(self.reason.take().unwrap_or_default()));
        }
    }

    fn complain(&mut self, now: Instant, server: IpAddr, reason: &str) {
        self.reason = Some(format!("{server}: {reason}"));
        // Only in the first round: a network may refuse everything.
        if self.rounds < self.servers.len() {
            self.next = self.next.min(now);
        }
    }

    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match self.outcome {
            Some(_) => None,
            None if !self.truncated.is_empty() => Some(now),
            None => Some(self.next),
        }
    }
}

const ROUNDS: usize = 3;
const INTERVAL: Duration = Duration::from_secs(1);
const LAST_TIMEOUT: Duration = Duration::from_secs(3);
const TCP_TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number], 53))
    }

    fn exchange(servers: &[u8]) -> QueryExchange {
        let name = "edge.example.org".parse().unwrap();
        let servers = servers.iter().map(|number| server(*number)).collect();
        QueryExchange::new(Instant::ZERO, name, Rtype::A, servers)
    }

    fn reply(asked: &Try, flags: [u8; 2]) -> Vec<u8> {
        let mut bytes = asked.message.clone();
        [bytes[2], bytes[3]] = flags;
        bytes
    }

    const ENTROPY_OF_TEST: [u8; ENTROPY] = [0xff; ENTROPY];
    const EMPTY: [u8; 2] = [0x81, 0x80];
    const TRUNCATED: [u8; 2] = [0x83, 0x80];
    const REFUSED: [u8; 2] = [0x81, 0x85];

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn silent_servers_are_asked_in_turn_and_given_up() {
        let mut exchange = exchange(&[1, 2]);
        let mut asked = Vec::new();
        let mut now = Instant::ZERO;
        while exchange.outcome.is_none() {
            if let Some(next) = exchange.poll_try(now, &ENTROPY_OF_TEST) {
                asked.push(next.server);
                let is_plain = next.message[13..].iter().all(|letter| !letter.is_ascii_uppercase());
                assert_eq!(is_plain, asked.len() > 4, "capitals but in the last round");
            }
            now = exchange.poll_timeout(now).unwrap_or(now);
        }
        assert_eq!(asked, [1, 2, 1, 2, 1, 2].map(server));
        assert_eq!(now, at(8));
        assert!(exchange.outcome.as_ref().unwrap().as_ref().unwrap_err().contains("do not answer"));
    }

    #[test]
    fn an_answer_that_comes_after_the_next_try_counts() {
        let mut exchange = exchange(&[1]);
        let first = exchange.poll_try(at(0), &ENTROPY_OF_TEST).unwrap();
        let second = exchange.poll_try(at(1), &ENTROPY_OF_TEST).unwrap();
        assert!(exchange.poll_try(at(1), &ENTROPY_OF_TEST).is_none());
        let mut forged = reply(&second, EMPTY);
        forged[0] ^= 1;
        assert!(!exchange.handle_message(at(1), second.id, &forged), "a forgery ends no try");
        assert!(exchange.handle_message(at(1), first.id, &reply(&first, EMPTY)));
        assert_eq!(exchange.outcome, Some(Ok(AddressRecords::default())));
        assert_eq!(exchange.poll_timeout(at(1)), None);
    }

    #[test]
    fn a_long_answer_is_fetched_over_tcp_from_the_same_server() {
        let mut exchange = exchange(&[1, 2]);
        let first = exchange.poll_try(at(0), &ENTROPY_OF_TEST).unwrap();
        exchange.handle_message(at(0), first.id, &reply(&first, TRUNCATED));
        assert_eq!(exchange.poll_timeout(at(0)), Some(at(0)));
        let again = exchange.poll_try(at(0), &ENTROPY_OF_TEST).unwrap();
        assert_eq!((again.server, again.transport), (server(1), Transport::Tcp));
        assert!(exchange.poll_try(at(2), &ENTROPY_OF_TEST).is_none(), "TCP has its time");
        exchange.handle_failure(at(2), again.id, "connection refused");
        let other = exchange.poll_try(at(2), &ENTROPY_OF_TEST).unwrap();
        assert_eq!((other.server, other.transport), (server(2), Transport::Udp));
    }

    #[test]
    fn a_server_that_refuses_hands_over_at_once_but_not_round_and_round() {
        let mut exchange = exchange(&[1, 2]);
        for number in [1, 2] {
            let next = exchange.poll_try(at(0), &ENTROPY_OF_TEST).unwrap();
            assert_eq!(next.server, server(number));
            exchange.handle_message(at(0), next.id, &reply(&next, REFUSED));
        }
        assert!(exchange.poll_try(at(0), &ENTROPY_OF_TEST).is_none());
        assert_eq!(exchange.poll_timeout(at(0)), Some(at(1)));
    }

    #[test]
    fn when_no_server_can_be_talked_to_the_question_is_given_up() {
        let mut exchange = exchange(&[1, 2]);
        for _ in 0..2 {
            let next = exchange.poll_try(at(0), &ENTROPY_OF_TEST).unwrap();
            exchange.handle_failure(at(0), next.id, "network is unreachable");
        }
        let reason = "192.0.2.2: network is unreachable".to_owned();
        assert_eq!(exchange.outcome, Some(Err(reason)));
        let unknown = "no name server is known".to_owned();
        assert_eq!(self::exchange(&[]).outcome, Some(Err(unknown)));
    }
}
