//! Looks up the servers' names over each uplink. A failed lookup is repeated after 2 s, doubling to
//! 30 s. An answer is renewed after its time to live: within 10 to 60 s while no server answers,
//! else 60 s to 1 h. Another address is another network. An uplink has one thread at most.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::lookup::{
    self, Advertised, Found, LookupRequest, Nat64Prefix, Network, RouterUpdate,
};
use roadweave_linux::{Gateway, Uplink, Waker};
use roadweave_proto::{Instant, ServerHost, ServerName, UplinkId};

/// Key of lookups that use the machine's own routes instead of an uplink.
pub(super) const SYSTEM: UplinkId = UplinkId(0);
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(30);
const AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
const SELDOM: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
const REMINDER: Duration = Duration::from_secs(60);
const THREADS_MAX: usize = 32;
const ADVERTISED_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct Resolver {
    names: Vec<ServerName>,
    waker: Waker,
    sender: Sender<(UplinkId, Found)>,
    answers: Receiver<(UplinkId, Found)>,
    uplinks: BTreeMap<UplinkId, UplinkLookup>,
    threads: BTreeSet<UplinkId>,
    is_content: bool,
    next_reminder: Instant,
}

#[derive(Debug)]
struct UplinkLookup {
    network: Network,
    addresses: Vec<IpNet>,
    ipv4: bool,
    ipv6: bool,
    /// NAT64 prefixes from router advertisements, with their expiry; `servers` are name servers.
    prefixes: Vec<(Nat64Prefix, Instant)>,
    servers: Vec<(IpAddr, Instant)>,
    state: ResolverState,
    /// Dropping it cancels the thread.
    interest: Arc<()>,
    found: Vec<SocketAddr>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResolverState {
    /// Due at this time, after so many failures.
    Due(Instant, u32),
    /// `has_update`: a router advertised something since that may help.
    Searching { failures: u32, has_update: bool },
    /// `None`: valid forever.
    Found(Instant, Option<Duration>),
}

impl Resolver {
    pub(super) fn new(names: Vec<ServerName>, waker: Waker) -> Self {
        let (sender, answers) = channel();
        Self {
            names,
            waker,
            sender,
            answers,
            uplinks: BTreeMap::new(),
            threads: BTreeSet::new(),
            is_content: false,
            next_reminder: Instant::ZERO,
        }
    }

    pub(super) fn set_names(&mut self, now: Instant, names: &[ServerName]) {
        if self.names == names {
            return;
        }
        self.names = names.to_vec();
        for of in self.uplinks.values_mut() {
            (of.state, of.interest, of.reason) = (ResolverState::Due(now, 0), Arc::new(()), None);
            of.found.clear();
        }
    }

    pub(super) fn found(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.uplinks.get(&uplink).map_or(&[], |of| &of.found)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.names.iter().filter_map(|name| match name.host() {
            ServerHost::Address(address) => Some(*address),
            ServerHost::Name(_) => None,
        })
    }

    pub(super) fn has_found(&self) -> bool {
        self.uplinks.values().any(|of| !of.found.is_empty())
    }

    /// Whether a server may be reached over these families; NAT64 leads from IPv6 to IPv4.
    pub(super) fn may_reach(&self, ipv4: bool, ipv6: bool) -> bool {
        self.names.iter().any(|name| match name.is_ipv4() {
            None | Some(true) => ipv4 || ipv6,
            Some(false) => ipv6,
        })
    }

    pub(super) fn set_uplink(&mut self, now: Instant, uplink: &Uplink) {
        let gateways = [uplink.gateway_v4, uplink.gateway_v6];
        let gateways = gateways.into_iter().flatten().filter_map(Gateway::address).collect();
        let network = Network {
            interface: uplink.name.clone(),
            index: uplink.index,
            gateways,
            advertised: Vec::new(),
        };
        let (ipv4, ipv6) = (uplink.is_usable(true), uplink.is_usable(false));
        if let Some(of) = self.uplinks.get(&uplink.id)
            && of.network.index == network.index
            && of.network.interface == network.interface
            && of.network.gateways == network.gateways
            && of.addresses == uplink.addresses
        {
            return;
        }
        let before = self.uplinks.remove(&uplink.id);
        let is_same = before.as_ref().is_some_and(|of| of.network.index == network.index);
        let (prefixes, servers, found) = match before {
            Some(of) if is_same => (of.prefixes, of.servers, of.found),
            _ => (Vec::new(), Vec::new(), Vec::new()),
        };
        let addresses = uplink.addresses.clone();
        let of = UplinkLookup {
            addresses,
            ipv4,
            ipv6,
            prefixes,
            servers,
            found,
            ..UplinkLookup::new(now)
        };
        self.uplinks.insert(uplink.id, UplinkLookup { network, ..of });
    }

    pub(super) fn set_system(&mut self, now: Instant) {
        self.uplinks.insert(SYSTEM, UplinkLookup::new(now));
    }

    pub(super) fn is_searching(&self) -> bool {
        !self.threads.is_empty()
    }

    pub(super) fn request(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        names: Vec<ServerName>,
    ) -> Option<LookupRequest> {
        self.uplinks.get_mut(&uplink).map(|of| of.request(now, names))
    }

    pub(super) fn remove_uplink(&mut self, uplink: UplinkId) {
        self.uplinks.remove(&uplink);
    }

    pub(super) fn on_router_updates(
        &mut self,
        now: Instant,
        updates: Vec<RouterUpdate>,
    ) -> Vec<UplinkId> {
        let mut new = BTreeSet::new();
        for RouterUpdate { index, advertised, lasts } in updates {
            let of_index = |(_, of): &(&UplinkId, &mut UplinkLookup)| of.network.index == index;
            for (id, of) in self.uplinks.iter_mut().filter(of_index) {
                let until = now + lasts;
                let is_new = match &advertised {
                    Advertised::Nat64(prefix) => keep(&mut of.prefixes, *prefix, now, until),
                    Advertised::NameServers(servers) => {
                        // All are kept, so no short circuit at the first new one.
                        let is_new = |one: &IpAddr| keep(&mut of.servers, *one, now, until);
                        servers.iter().map(is_new).filter(|new| *new).count() > 0
                    }
                };
                let is_searching = matches!(of.state, ResolverState::Searching { .. });
                if is_new && (of.found.is_empty() || is_searching) {
                    new.insert(*id);
                }
            }
        }
        new.into_iter().filter(|id| self.use_update(now, *id)).collect()
    }

    fn use_update(&mut self, now: Instant, id: UplinkId) -> bool {
        let names = self.names.clone();
        let Some(of) = self.uplinks.get_mut(&id) else { return false };
        if let Some(found) = of.request(now, names).known() {
            return self.on_answer(now, id, 0, found);
        }
        of.state = match of.state {
            // Retries are not more frequent than RETRY, however much a network advertises.
            ResolverState::Due(at, failures @ 1..) => {
                ResolverState::Due(at.min(now + RETRY), failures)
            }
            ResolverState::Searching { failures, .. } => {
                ResolverState::Searching { failures, has_update: true }
            }
            state => state,
        };
        false
    }

    pub(super) fn set_content(&mut self, is_content: bool) {
        self.is_content = is_content;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let idle = self.uplinks.iter().filter(|(id, _)| !self.threads.contains(id));
        idle.filter_map(|(_, of)| self.due(of)).min()
    }

    fn due(&self, of: &UplinkLookup) -> Option<Instant> {
        if self.names.is_empty() {
            return None;
        }
        let [least, most] = if self.is_content { SELDOM } else { AGAIN };
        match of.state {
            ResolverState::Due(at, _) => Some(at),
            ResolverState::Searching { .. } | ResolverState::Found(_, None) => None,
            ResolverState::Found(at, Some(lasts)) => Some(at + lasts.clamp(least, most)),
        }
    }

    /// Returns uplinks whose addresses changed without a query, because the names are literals.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<UplinkId> {
        let is_due = |(id, of): (&UplinkId, &UplinkLookup)| {
            self.due(of).is_some_and(|due| due <= now).then_some(*id)
        };
        let due: Vec<UplinkId> = self.uplinks.iter().filter_map(is_due).collect();
        due.into_iter().filter(|id| self.search(now, *id)).collect()
    }

    fn search(&mut self, now: Instant, id: UplinkId) -> bool {
        let names = self.names.clone();
        let Some(of) = self.uplinks.get_mut(&id) else { return false };
        let failures = match of.state {
            ResolverState::Due(_, failures) | ResolverState::Searching { failures, .. } => failures,
            ResolverState::Found(..) => 0,
        };
        let request = of.request(now, names);
        if let Some(found) = request.known() {
            return self.on_answer(now, id, failures, found);
        }
        let mut has_some = false;
        if of.found.is_empty() {
            of.found = request.at_once().servers;
            has_some = !of.found.is_empty();
        }
        if self.threads.len() >= THREADS_MAX || self.threads.contains(&id) {
            return has_some;
        }
        of.state = ResolverState::Searching { failures, has_update: false };
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let interest = Arc::downgrade(&of.interest);
        let thread = std::thread::Builder::new().name("lookup".into()).spawn(move || {
            let _ = sender.send((id, lookup::run(request, &interest)));
            waker.wake();
        });
        match thread {
            Ok(_) => {
                self.threads.insert(id);
            }
            Err(error) => {
                let reason = Some(format!("cannot start a thread: {error}"));
                self.on_answer(now, id, failures, Found { reason, ..Found::default() });
            }
        }
        has_some
    }

    pub(super) fn poll(&mut self, now: Instant) -> Vec<UplinkId> {
        let mut changed = Vec::new();
        while let Ok((id, found)) = self.answers.try_recv() {
            self.threads.remove(&id);
            let state = self.uplinks.get(&id).map(|of| of.state);
            if let Some(ResolverState::Searching { failures, .. }) = state
                && self.on_answer(now, id, failures, found)
            {
                changed.push(id);
            }
        }
        changed
    }

    fn on_answer(&mut self, now: Instant, id: UplinkId, failures: u32, found: Found) -> bool {
        let Some(of) = self.uplinks.get_mut(&id) else { return false };
        tracing::debug!(uplink = of.network.interface, ?found, "looked up");
        if found.servers.is_empty() {
            let has_update = matches!(of.state, ResolverState::Searching { has_update: true, .. });
            let doublings = if has_update { 0 } else { failures.min(8) };
            let rest = (RETRY * 2_u32.saturating_pow(doublings)).min(RETRY_MAX);
            of.state = ResolverState::Due(now + rest, failures + 1);
            of.reason = found.reason;
            self.complain(now);
            return false;
        }
        // Literal addresses stay valid, unless they need a NAT64 prefix that expires.
        let lasts =
            found.lasts.or_else(|| of.prefixes.iter().map(|(_, until)| until.since(now)).min());
        of.state = ResolverState::Found(now, lasts);
        let is_new = found.servers != of.found;
        of.found = found.servers;
        is_new
    }

    fn complain(&mut self, now: Instant) {
        let is_first = |of: &UplinkLookup| {
            matches!(
                of.state,
                ResolverState::Due(_, 0) | ResolverState::Searching { failures: 0, .. }
            )
        };
        if self.has_found() || self.uplinks.values().any(is_first) || now < self.next_reminder {
            return;
        }
        self.next_reminder = now + REMINDER;
        let reasons: Vec<String> = self
            .uplinks
            .values()
            .filter_map(|of| match (of.network.interface.as_str(), of.reason.as_ref()?) {
                ("", reason) => Some(reason.clone()),
                (interface, reason) => Some(format!("{interface}: {reason}")),
            })
            .collect();
        let names: Vec<String> = self.names.iter().map(ToString::to_string).collect();
        tracing::warn!(
            "no address found for {}: {}; trying again",
            names.join(", "),
            reasons.join("; ")
        );
    }
}

impl UplinkLookup {
    fn new(now: Instant) -> Self {
        Self {
            network: Network::default(),
            addresses: Vec::new(),
            ipv4: true,
            ipv6: true,
            prefixes: Vec::new(),
            servers: Vec::new(),
            state: ResolverState::Due(now, 0),
            interest: Arc::new(()),
            found: Vec::new(),
            reason: None,
        }
    }

    fn request(&mut self, now: Instant, names: Vec<ServerName>) -> LookupRequest {
        self.prefixes.retain(|(_, until)| *until > now);
        self.servers.retain(|(_, until)| *until > now);
        let advertised = self.servers.iter().map(|(server, _)| *server).collect();
        LookupRequest {
            names,
            network: Network { advertised, ..self.network.clone() },
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            prefixes: self.prefixes.iter().map(|(prefix, _)| *prefix).collect(),
        }
    }
}

fn keep<T: PartialEq>(
    items: &mut Vec<(T, Instant)>,
    item: T,
    now: Instant,
    until: Instant,
) -> bool {
    items.retain(|(_, until)| *until > now);
    let before = items.len();
    items.retain(|(known, _)| *known != item);
    let is_new = items.len() == before && until > now;
    if until > now {
        if items.len() >= ADVERTISED_MAX {
            items.remove(0);
        }
        items.push((item, until));
    }
    is_new
}

#[cfg(test)]
mod tests;
