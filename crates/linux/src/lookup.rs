//! DNS look-ups over one uplink, outside the tunnel, by the uplink's own name servers.
//!
//! The system's resolver may use a tunnel that is dead because its server has moved. Results apply
//! only to the uplink that they came over. [`run`] drives `Search`, which does no I/O, in a thread.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use domain::base::{Name, Rtype};
use roadweave_proto::{Instant, ServerHost, ServerName};

mod exchange;
mod hosts;
mod message;
mod nat64;
mod radvert;
mod run;
mod servers;

use exchange::{QueryExchange, Try};
use message::{AddressRecords, ENTROPY};

pub use nat64::Nat64Prefix;
pub use radvert::{Advertised, RouterNotices, RouterUpdate};
pub use run::run;
pub use servers::Network;
pub(crate) use servers::advertised_portal;

pub(crate) const ADDRESSES_MAX: usize = 8;

/// The servers to find, and the network to find them by.
#[derive(Clone, Debug, Default)]
pub struct LookupRequest {
    /// The servers' names.
    pub names: Vec<ServerName>,
    /// The network by which they are looked up.
    pub network: Network,
    /// Whether the uplink carries IPv4.
    pub ipv4: bool,
    /// Whether the uplink carries IPv6.
    pub ipv6: bool,
    /// NAT64 prefixes that its routers advertise.
    pub prefixes: Vec<Nat64Prefix>,
}

/// The result of a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The addresses of the servers, best first.
    pub servers: Vec<SocketAddr>,
    /// The lifetime of the result; `None` if no server was asked.
    pub lasts: Option<Duration>,
    /// Why a name was not found.
    pub reason: Option<String>,
}

impl LookupRequest {
    fn needs_nat64(&self) -> bool {
        self.ipv6 && !self.ipv4
    }

    /// The result if it needs no question; `None` otherwise.
    pub fn known(&self) -> Option<Found> {
        let asks_prefix = self.needs_nat64() && self.prefixes.is_empty();
        let is_known = |name: &ServerName| match name.is_ipv4() {
            Some(is_ipv4) => !(is_ipv4 && asks_prefix),
            None => false,
        };
        let asks = !self.names.iter().all(is_known) && (self.ipv4 || self.ipv6);
        (!asks).then(|| self.at_once())
    }

    /// Literal addresses of a family that the uplink carries, or behind a known NAT64 prefix.
    pub fn at_once(&self) -> Found {
        Search::new(Instant::ZERO, self.clone(), Vec::new(), Path::new("")).found()
    }
}

#[derive(Debug)]
pub(crate) struct Search {
    request: LookupRequest,
    hosts: Vec<Vec<IpAddr>>,
    questions: Vec<QueryExchange>,
    deadline: Instant,
    others_deadline: Option<Instant>,
}

fn dns_name(host: &str) -> Name<Vec<u8>> {
    host.parse().expect("a ServerName has labels of letters and digits")
}

impl Search {
    fn new(now: Instant, request: LookupRequest, servers: Vec<SocketAddr>, root: &Path) -> Self {
        let of_host = |name: &ServerName| match name.host() {
            ServerHost::Address(_) => Vec::new(),
            ServerHost::Name(host) => hosts::addresses(root, host),
        };
        let hosts: Vec<Vec<IpAddr>> = request.names.iter().map(of_host).collect();
        let mut this = Self {
            questions: Vec::new(),
            deadline: now + DEADLINE,
            others_deadline: None,
            hosts,
            request,
        };
        for (name, kind) in this.plan() {
            this.questions.push(QueryExchange::new(now, name, kind, servers.clone()));
        }
        this
    }

    fn plan(&self) -> Vec<(Name<Vec<u8>>, Rtype)> {
        let LookupRequest { names, ipv4, ipv6, prefixes, .. } = &self.request;
        let mut plan = Vec::new();
        let mut has_ipv4 = false;
        for (name, known) in names.iter().zip(&self.hosts) {
            let ServerHost::Name(host) = name.host() else {
                has_ipv4 |= name.is_ipv4() == Some(true);
                continue;
            };
            has_ipv4 |= known.is_empty() || known.iter().any(IpAddr::is_ipv4);
            if !known.is_empty() {
                continue;
            }
            for (kind, wanted) in [(Rtype::AAAA, *ipv6), (Rtype::A, *ipv4 || *ipv6)] {
                let question = (dns_name(host), kind);
                if wanted && !plan.contains(&question) {
                    plan.push(question);
                }
            }
        }
        if self.request.needs_nat64() && prefixes.is_empty() && has_ipv4 {
            plan.push((dns_name(nat64::DISCOVERY_NAME), Rtype::AAAA));
        }
        plan
    }

    fn poll_try(&mut self, now: Instant, entropy: &[u8; ENTROPY]) -> Option<(usize, Try)> {
        self.questions
            .iter_mut()
            .enumerate()
            .find_map(|(place, exchange)| exchange.poll_try(now, entropy).map(|next| (place, next)))
    }

    fn handle_message(&mut self, now: Instant, place: usize, id: usize, message: &[u8]) -> bool {
        let Some(exchange) = self.questions.get_mut(place) else { return true };
        let is_over = exchange.handle_message(now, id, message);
        if self.others_deadline.is_none() && !self.found().servers.is_empty() {
            self.others_deadline = Some(now + OTHERS_TIMEOUT);
        }
        is_over
    }

    fn handle_failure(&mut self, now: Instant, place: usize, id: usize, reason: &str) {
        if let Some(exchange) = self.questions.get_mut(place) {
            exchange.handle_failure(now, id, reason);
        }
    }

    fn poll_timeout(&self, now: Instant) -> Instant {
        let exchanges = self.questions.iter();
        let next = exchanges.filter_map(|exchange| exchange.poll_timeout(now)).min();
        [next, self.others_deadline].into_iter().flatten().fold(self.deadline, Instant::min)
    }

    fn poll_found(&self, now: Instant) -> Option<Found> {
        let is_done = self.questions.iter().all(|exchange| exchange.outcome.is_some());
        let is_late =
            now >= self.deadline || self.others_deadline.is_some_and(|others| now >= others);
        (is_done || is_late).then(|| self.found())
    }

    fn found(&self) -> Found {
        let mut found = Found::default();
        let prefixes = self.prefixes(&mut found);
        for (name, known) in self.request.names.iter().zip(&self.hosts) {
            let addresses = match name.host() {
                ServerHost::Address(address) => vec![*address],
                ServerHost::Name(_) if !known.is_empty() => known.clone(),
                ServerHost::Name(host) => self.answers(&dns_name(host), &mut found),
            };
            let reachable = self.reachable(&addresses, &prefixes);
            for address in reachable.into_iter().take(ADDRESSES_MAX) {
                let server = SocketAddr::new(address, name.port());
                if !found.servers.contains(&server) {
                    found.servers.push(server);
                }
            }
            if addresses.is_empty() && found.reason.is_none() {
                found.reason = Some(format!("{name} has no address"));
            }
        }
        found
    }

    fn answers(&self, host: &Name<Vec<u8>>, found: &mut Found) -> Vec<IpAddr> {
        let mut of =
            |kind| self.answer(host, kind, found).unwrap_or_default().addresses.into_iter();
        let (mut v6, mut v4) = (of(Rtype::AAAA), of(Rtype::A));
        let mut addresses = Vec::new();
        loop {
            let before = addresses.len();
            addresses.extend(v6.next());
            addresses.extend(v4.next());
            if addresses.len() == before {
                return addresses;
            }
        }
    }

    fn prefixes(&self, found: &mut Found) -> Vec<Nat64Prefix> {
        if !self.request.prefixes.is_empty() {
            return self.request.prefixes.clone();
        }
        let name = dns_name(nat64::DISCOVERY_NAME);
        let answer = self.answer(&name, Rtype::AAAA, found).unwrap_or_default();
        nat64::discover(&answer.addresses)
    }

    fn answer(
        &self,
        name: &Name<Vec<u8>>,
        kind: Rtype,
        found: &mut Found,
    ) -> Option<AddressRecords> {
        let asked = |it: &&QueryExchange| it.name == *name && it.kind == kind;
        let exchange = self.questions.iter().find(asked)?;
        match exchange.outcome.as_ref()? {
            Ok(answer) => {
                if !answer.addresses.is_empty() {
                    let lasts = found.lasts.map_or(answer.lasts, |lasts| lasts.min(answer.lasts));
                    found.lasts = Some(lasts);
                }
                Some(answer.clone())
            }
            Err(reason) => {
                found.reason.get_or_insert_with(|| reason.clone());
                None
            }
        }
    }

    fn reachable(&self, addresses: &[IpAddr], prefixes: &[Nat64Prefix]) -> Vec<IpAddr> {
        let LookupRequest { ipv4, ipv6, .. } = self.request;
        let mut reachable: Vec<IpAddr> = Vec::new();
        for address in addresses {
            match address {
                IpAddr::V4(_) if ipv4 => reachable.push(*address),
                IpAddr::V4(v4) if ipv6 => {
                    reachable.extend(prefixes.iter().map(|prefix| IpAddr::from(prefix.embed(*v4))));
                }
                IpAddr::V6(_) if ipv6 => reachable.push(*address),
                IpAddr::V4(_) | IpAddr::V6(_) => {}
            }
        }
        reachable
    }
}

const DEADLINE: Duration = Duration::from_secs(15);
const OTHERS_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
