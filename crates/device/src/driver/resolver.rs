//! When the server's names are looked up, over which uplink, and what was found.
//!
//! ```text
//! uplink is up ─► thread: lookup::run ─► answer, waker ─► poll ─► Client::set_servers_of(uplink)
//!    ▲               failed: again after 2 s, doubling to 30 s │
//!    └── when its time to live is over: 10 to 60 s ────────────┤ while no server answers
//!                                       60 s to 1 h ───────────┘ while a session is well
//! ```
//!
//! A vehicle starts before its modems do, so that no name can be found is no end. A server may
//! move, and then the session falls silent: the names are looked up again soon. An uplink with
//! another address is another network, which may know others.
//!
//! Each uplink has one thread at most, so that a network which says ever new things of itself holds
//! up its own look-ups alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::{Instant, ServerHost, ServerName, UplinkId};

use crate::lookup::{self, Advertised, Found, Nat64Prefix, Network, Request, RouterNews};
use crate::{Gateway, Uplink, Waker};

/// What stands for this machine's own routes in the place of an uplink.
pub(super) const SYSTEM: UplinkId = UplinkId(0);
/// How soon to look again over an uplink where nothing was found; it doubles.
const RETRY: Duration = Duration::from_secs(2);
/// The longest time until the next look over an uplink where nothing was found.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The shortest and the longest time until the next look while no server answers.
const AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
/// The shortest and the longest time until the next look while a session is well.
const SELDOM: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
/// How often the user is told of failures.
const REMINDER: Duration = Duration::from_secs(60);
/// Threads at once, of all uplinks; a search ends within 15 s.
const THREADS_MAX: usize = 32;
/// What routers advertised of one uplink, kept at most.
const ADVERTISED_MAX: usize = 8;

/// The addresses behind `host:port` names, for each uplink.
#[derive(Debug)]
pub(super) struct Resolver {
    names: Vec<ServerName>,
    waker: Waker,
    sender: Sender<(UplinkId, Found)>,
    answers: Receiver<(UplinkId, Found)>,
    uplinks: BTreeMap<UplinkId, OfUplink>,
    /// The uplinks whose threads have not answered yet.
    threads: BTreeSet<UplinkId>,
    /// A session is up and answers.
    is_content: bool,
    next_reminder: Instant,
}

/// What is known of the names over one uplink.
#[derive(Debug)]
struct OfUplink {
    network: Network,
    addresses: Vec<IpNet>,
    ipv4: bool,
    ipv6: bool,
    /// What routers said, and until when it holds.
    prefixes: Vec<(Nat64Prefix, Instant)>,
    servers: Vec<(IpAddr, Instant)>,
    state: State,
    /// The thread gives up when this is gone: nobody wants its answer any more.
    interest: Arc<()>,
    found: Vec<SocketAddr>,
    reason: Option<String>,
}

/// Where the lookup of one uplink stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be looked up then; after so many failures.
    Due(Instant, u32),
    /// A thread looks; after so many failures. Something that it does not know may help.
    Searching { failures: u32, has_news: bool },
    /// Looked up then, for so long; `None` for ever.
    Found(Instant, Option<Duration>),
}

impl Resolver {
    /// Looks `names` up over each uplink that [`Resolver::set_uplink`] tells of; `waker` wakes the
    /// loop for the answers.
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

    /// Looks `names` up from now on, over all uplinks; if they are others, what was found before is
    /// forgotten.
    pub(super) fn set_names(&mut self, now: Instant, names: &[ServerName]) {
        if self.names == names {
            return;
        }
        self.names = names.to_vec();
        for of in self.uplinks.values_mut() {
            // Answers under way are those to other questions.
            (of.state, of.interest, of.reason) = (State::Due(now, 0), Arc::new(()), None);
            of.found.clear();
        }
    }

    /// The addresses found last over an uplink, in the order of the names; empty before the first.
    pub(super) fn found(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.uplinks.get(&uplink).map_or(&[], |of| &of.found)
    }

    /// The names that are addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.names.iter().filter_map(|name| match name.host() {
            ServerHost::Address(address) => Some(*address),
            ServerHost::Name(_) => None,
        })
    }

    /// Whether any uplink knows any server.
    pub(super) fn has_found(&self) -> bool {
        self.uplinks.values().any(|of| !of.found.is_empty())
    }

    /// Whether an uplink with these families may lead to a server: not if all are addresses of
    /// another one, but IPv4 may lie behind a NAT64.
    pub(super) fn may_reach(&self, ipv4: bool, ipv6: bool) -> bool {
        self.names.iter().any(|name| match name.is_ipv4() {
            None | Some(true) => ipv4 || ipv6,
            Some(false) => ipv6,
        })
    }

    /// An uplink is there, or has changed.
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
        let of = OfUplink {
            network,
            addresses,
            ipv4,
            ipv6,
            prefixes,
            servers,
            state: State::Due(now, 0),
            interest: Arc::new(()),
            found,
            reason: None,
        };
        self.uplinks.insert(uplink.id, of);
    }

    /// Looks the names up as this machine does, and over no uplink: what is found is that of
    /// [`SYSTEM`].
    pub(super) fn set_system(&mut self, now: Instant) {
        let of = OfUplink {
            network: Network::default(),
            addresses: Vec::new(),
            ipv4: true,
            ipv6: true,
            prefixes: Vec::new(),
            servers: Vec::new(),
            state: State::Due(now, 0),
            interest: Arc::new(()),
            found: Vec::new(),
            reason: None,
        };
        self.uplinks.insert(SYSTEM, of);
    }

    /// Whether a thread is at work.
    pub(super) fn is_searching(&self) -> bool {
        !self.threads.is_empty()
    }

    /// What has to be known to look other names up over an uplink; `None` if it is not there.
    pub(super) fn request(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        names: Vec<ServerName>,
    ) -> Option<Request> {
        self.uplinks.get_mut(&uplink).map(|of| of.request(now, names))
    }

    /// An uplink is gone.
    pub(super) fn remove_uplink(&mut self, uplink: UplinkId) {
        self.uplinks.remove(&uplink);
    }

    /// Routers said something. Returns the uplinks whose addresses are others now, since nobody
    /// else has to be asked.
    pub(super) fn on_router_news(&mut self, now: Instant, news: Vec<RouterNews>) -> Vec<UplinkId> {
        let mut new = BTreeSet::new();
        for RouterNews { index, advertised, lasts } in news {
            let of_index = |(_, of): &(&UplinkId, &mut OfUplink)| of.network.index == index;
            for (id, of) in self.uplinks.iter_mut().filter(of_index) {
                let until = now + lasts;
                let is_new = match &advertised {
                    Advertised::Nat64(prefix) => keep(&mut of.prefixes, *prefix, now, until),
                    Advertised::NameServers(servers) => {
                        // All of them are kept, so no short cut at the first that is new.
                        let is_new = |one: &IpAddr| keep(&mut of.servers, *one, now, until);
                        servers.iter().map(is_new).filter(|new| *new).count() > 0
                    }
                };
                // It may be what was missing.
                let is_searching = matches!(of.state, State::Searching { .. });
                if is_new && (of.found.is_empty() || is_searching) {
                    new.insert(*id);
                }
            }
        }
        new.into_iter().filter(|id| self.use_news(now, *id)).collect()
    }

    /// Goes on with what routers said; returns whether other addresses were found at once.
    fn use_news(&mut self, now: Instant, id: UplinkId) -> bool {
        let names = self.names.clone();
        let Some(of) = self.uplinks.get_mut(&id) else { return false };
        if let Some(found) = of.request(now, names).known() {
            return self.on_answer(now, id, 0, found);
        }
        of.state = match of.state {
            // However much a network says, it is not asked more often.
            State::Due(at, failures @ 1..) => State::Due(at.min(now + RETRY), failures),
            State::Searching { failures, .. } => State::Searching { failures, has_news: true },
            state => state,
        };
        false
    }

    /// Tells whether a session is up and answers.
    pub(super) fn set_content(&mut self, is_content: bool) {
        self.is_content = is_content;
    }

    /// When [`Resolver::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // The end of a thread wakes the loop.
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let idle = self.uplinks.iter().filter(|(id, _)| !self.threads.contains(id));
        idle.filter_map(|(_, of)| self.due(of)).min()
    }

    fn due(&self, of: &OfUplink) -> Option<Instant> {
        if self.names.is_empty() {
            return None;
        }
        let [least, most] = if self.is_content { SELDOM } else { AGAIN };
        match of.state {
            State::Due(at, _) => Some(at),
            State::Searching { .. } | State::Found(_, None) => None,
            State::Found(at, Some(lasts)) => Some(at + lasts.clamp(least, most)),
        }
    }

    /// Looks up what is due. Returns the uplinks whose addresses are others now, which takes no
    /// search where the names are addresses.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<UplinkId> {
        let is_due = |(id, of): (&UplinkId, &OfUplink)| {
            self.due(of).is_some_and(|due| due <= now).then_some(*id)
        };
        let due: Vec<UplinkId> = self.uplinks.iter().filter_map(is_due).collect();
        due.into_iter().filter(|id| self.search(now, *id)).collect()
    }

    /// Begins a search; returns whether other addresses were found at once.
    fn search(&mut self, now: Instant, id: UplinkId) -> bool {
        let names = self.names.clone();
        let Some(of) = self.uplinks.get_mut(&id) else { return false };
        let failures = match of.state {
            State::Due(_, failures) | State::Searching { failures, .. } => failures,
            State::Found(..) => 0,
        };
        let request = of.request(now, names);
        if let Some(found) = request.known() {
            return self.on_answer(now, id, failures, found);
        }
        // Addresses do not wait for the names and prefixes beside them.
        let mut has_some = false;
        if of.found.is_empty() {
            of.found = request.at_once().servers;
            has_some = !of.found.is_empty();
        }
        if self.threads.len() >= THREADS_MAX || self.threads.contains(&id) {
            return has_some;
        }
        of.state = State::Searching { failures, has_news: false };
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let interest = Arc::downgrade(&of.interest);
        let thread = std::thread::Builder::new().name("lookup".into()).spawn(move || {
            // The loop may have ended meanwhile.
            let _ = sender.send((id, lookup::run(request, &interest)));
            waker.wake();
        });
        match thread {
            Ok(_) => {
                self.threads.insert(id);
            }
            Err(error) => {
                let reason = Some(format!("no thread for it: {error}"));
                self.on_answer(now, id, failures, Found { reason, ..Found::default() });
            }
        }
        has_some
    }

    /// Takes the answers that have come; returns the uplinks whose addresses are others now.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<UplinkId> {
        let mut changed = Vec::new();
        while let Ok((id, found)) = self.answers.try_recv() {
            self.threads.remove(&id);
            let state = self.uplinks.get(&id).map(|of| of.state);
            // Else it is that of another network, or comes too late.
            if let Some(State::Searching { failures, .. }) = state
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
            let has_news = matches!(of.state, State::Searching { has_news: true, .. });
            let doublings = if has_news { 0 } else { failures.min(8) };
            let rest = (RETRY * 2_u32.saturating_pow(doublings)).min(RETRY_MAX);
            of.state = State::Due(now + rest, failures + 1);
            of.reason = found.reason;
            self.complain(now);
            return false;
        }
        // The first that no name server had to be asked for stays; a NAT64 prefix that a router
        // told may not.
        let lasts =
            found.lasts.or_else(|| of.prefixes.iter().map(|(_, until)| until.since(now)).min());
        of.state = State::Found(now, lasts);
        let is_new = found.servers != of.found;
        of.found = found.servers;
        is_new
    }

    /// Tells the user that there is no server to connect to, if so and no uplink may still find
    /// one, once a minute.
    fn complain(&mut self, now: Instant) {
        let is_first = |of: &OfUplink| {
            matches!(of.state, State::Due(_, 0) | State::Searching { failures: 0, .. })
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

impl OfUplink {
    fn request(&mut self, now: Instant, names: Vec<ServerName>) -> Request {
        self.prefixes.retain(|(_, until)| *until > now);
        self.servers.retain(|(_, until)| *until > now);
        let advertised = self.servers.iter().map(|(server, _)| *server).collect();
        Request {
            names,
            network: Network { advertised, ..self.network.clone() },
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            prefixes: self.prefixes.iter().map(|(prefix, _)| *prefix).collect(),
        }
    }
}

/// Remembers `item` until then; returns whether it is new. What has ended makes room, and the
/// oldest does.
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
