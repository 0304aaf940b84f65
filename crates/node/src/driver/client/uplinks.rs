//! The uplinks of a client: which interfaces are uplinks, their sockets, and what they lead to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_config::ClientFile;
use roadweave_linux::{
    Answers, ClientRoutes, DeviceError, Gateway, Monitor, Owner, Protected, UdpOptions, Uplink,
    UplinkEvent, UplinkSocket, hardware,
};
use roadweave_proto::{Instant, PathStatus, UplinkId, earliest, peer_text};
use roadweave_tunnel::{Candidate, Client};

use super::join_progress::printable;
use super::options::{CandidateOptions, candidates};
use super::policies::UplinkPolicies;
use super::portals::Portals;
use super::streams::LanStreams;
use crate::driver::MemberOptions;
use crate::driver::client_filters::ClientFilters;
use crate::driver::debounce::Debounce;
use crate::driver::event_loop::Driver;
use crate::driver::repeat_limiter::RepeatLimiter;
use crate::driver::resolvers::{Changed, Resolvers};
use crate::driver::steering::Steering;
use crate::driver::technology::technology_of;
use crate::local::{RpcError, SetUplink};

const UPLINK_RETRY: Duration = Duration::from_secs(2);

pub(super) struct Uplinks {
    pub(super) monitor: Monitor,
    pub(super) resolver: Resolvers,
    pub(super) portals: Portals,
    pub(super) policies: UplinkPolicies,
    /// When they are compared with the system's interfaces.
    pub(super) debounce: Debounce,
    /// When they are compared again, because one could not be used.
    retry_at: Option<Instant>,
    repeat_limiter: RepeatLimiter,
    /// Whether some wait for filters, or for the marks of packets that arrive over them.
    are_waiting: bool,
    pub(super) have_changed: bool,
}

/// What the uplinks use of the rest of a client.
pub(super) struct Context<'a> {
    pub(super) driver: &'a mut Driver<Client>,
    pub(super) now: Instant,
    pub(super) options: &'a MemberOptions<ClientFile>,
    pub(super) is_member: bool,
    pub(super) filters: &'a mut ClientFilters,
    pub(super) streams: Option<&'a mut LanStreams>,
    pub(super) steering: &'a mut Steering,
}

impl Uplinks {
    pub(super) fn new(monitor: Monitor, resolver: Resolvers, portals: Portals) -> Self {
        Self {
            monitor,
            resolver,
            portals,
            policies: UplinkPolicies::default(),
            debounce: Debounce::default(),
            retry_at: None,
            repeat_limiter: RepeatLimiter::default(),
            are_waiting: false,
            have_changed: true,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        earliest([
            self.resolver.poll_timeout(),
            self.portals.poll_timeout(),
            self.policies.modems.poll_timeout(),
            self.debounce.poll_timeout(),
            self.retry_at,
        ])
    }

    pub(super) fn handle_timeout(&mut self, with: &mut Context<'_>) {
        if self.debounce.take_due(with.now) {
            self.look(with);
        }
        if self.retry_at.is_some_and(|at| at <= with.now) {
            self.retry(with);
        }
    }

    pub(super) fn take_filters(&mut self, with: &mut Context<'_>) {
        if !with.filters.hold() && !self.are_waiting {
            self.are_waiting = true;
            let uplinks: Vec<_> = with.driver.edge.sockets.keys().flatten().copied().collect();
            uplinks.into_iter().for_each(|uplink| self.drop_uplink(with, uplink));
        }
        if self.are_waiting && with.filters.hold() && with.steering.answers.are_ready() {
            self.are_waiting = false;
            self.retry(with);
        }
    }

    pub(super) fn on_socket_failed(&mut self, with: &mut Context<'_>, uplink: Option<UplinkId>) {
        if let Some(uplink) = uplink {
            self.drop_uplink(with, uplink);
        }
        self.retry_at = Some(with.now + UPLINK_RETRY);
    }

    pub(super) fn obstacle(&self, answers: &Answers) -> Option<&'static str> {
        let is_unmarked = self.are_waiting && !answers.are_ready();
        is_unmarked.then_some("an uplink is not used until the marks for its replies are set")
    }

    pub(super) fn look(&mut self, with: &mut Context<'_>) {
        self.settle(&with.driver.node);
        self.monitor.protect(self.protected(&with.steering.routes));
        let mut events = match self.monitor.poll() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!("{error}; trying again");
                self.retry_at = Some(with.now + UPLINK_RETRY);
                return;
            }
        };
        with.filters.set_inside(self.monitor.inside(), self.monitor.inside_addresses());
        if let Some(streams) = &mut with.streams {
            let mut inside = self.monitor.inside();
            inside.retain(|interface| interface.name != with.driver.edge.tun_name());
            streams.set_inside(with.steering, with.now, &inside);
        }
        // The first uplink to be added starts first, so new ones are sorted by rank.
        let have_come = |one: &UplinkEvent, other: &UplinkEvent| {
            matches!((one, other), (UplinkEvent::Appeared(_), UplinkEvent::Appeared(_)))
        };
        let fields = &with.options.file.uplinks;
        for run in events.chunk_by_mut(have_come) {
            run.sort_by_key(|event| match event {
                UplinkEvent::Appeared(uplink) => self.policies.rank_of(fields, &uplink.name),
                _ => 0,
            });
        }
        for event in events {
            match event {
                UplinkEvent::Appeared(uplink) => {
                    // A replugged interface has a dead socket, and maybe another SIM.
                    self.policies.modems.remove(&uplink.name);
                    self.drop_uplink(with, uplink.id);
                    // Router advertisements may bring its address.
                    with.filters.on_new_uplink();
                    self.use_uplink(with, &uplink);
                }
                UplinkEvent::Changed(uplink) => self.use_uplink(with, &uplink),
                UplinkEvent::Vanished(uplink) => {
                    self.policies.modems.remove(&uplink.name);
                    self.log_gone(&with.options.file, &uplink);
                    self.drop_uplink(with, uplink.id);
                }
            }
        }
    }

    fn settle(&mut self, client: &Client) {
        let paths = client.status().into_iter().flat_map(|session| session.paths);
        for path in paths.filter(|path| path.status == PathStatus::Usable) {
            let remote: Option<SocketAddr> = path.remote.and_then(|remote| remote.parse().ok());
            if let (Some(uplink), Some(remote)) = (path.uplink, remote) {
                self.monitor.settle(&uplink, remote.is_ipv4());
            }
        }
    }

    /// Addresses that no uplink may take over, because the tunnel would stop over other uplinks.
    fn protected(&self, routes: &ClientRoutes) -> Protected {
        let host = |address: IpAddr| IpNet::from(address);
        let servers = self.resolver.addresses().map(|it| (host(it), Owner::Server));
        let granted = routes.grant().into_iter();
        let granted = granted.flat_map(|grant| grant.addresses.iter().chain(&grant.gateways));
        let granted = granted.map(|it| (host(it.addr()), Owner::Granted));
        let said = routes.uplinks().flat_map(|uplink| {
            let found = self.resolver.all_found(uplink.id);
            found.map(|server| (uplink.name.clone(), server.ip(), Owner::FoundServer))
        });
        Protected { certain: servers.chain(granted).collect(), said: said.collect() }
    }

    fn log_gone(&self, file: &ClientFile, uplink: &Uplink) {
        let selector = file.selector();
        let rest = match self.monitor.name_of(uplink.index) {
            None => String::new(),
            Some(name) => {
                let is_none = if selector.matches(name) {
                    ""
                } else {
                    ", which is not an uplink by the configuration"
                };
                format!(": its interface is now called {}{is_none}", peer_text(name.as_bytes()))
            }
        };
        tracing::warn!(uplink = uplink.name, event = "uplink-gone", "uplink is gone{rest}");
    }

    fn use_uplink(&mut self, with: &mut Context<'_>, uplink: &Uplink) {
        let is_paused = self.policies.overrides.is_paused(&uplink.name);
        if is_paused || !self.is_wanted(with, uplink) {
            if !is_paused && with.driver.edge.sockets.contains_key(&Some(uplink.id)) {
                tracing::warn!(uplink = uplink.name, "uplink is down");
            }
            self.drop_uplink(with, uplink.id);
            return;
        }
        if !with.filters.hold() {
            self.are_waiting = true;
            return;
        }
        match self.open_uplink(with, uplink) {
            Ok(()) => self.repeat_limiter.settle(uplink.id.0),
            Err(error) => {
                if self.repeat_limiter.admit(with.now, uplink.id.0, &error.to_string()) {
                    tracing::warn!(uplink = uplink.name, %error, "uplink cannot be used yet");
                }
                self.retry_at = Some(with.now + UPLINK_RETRY);
            }
        }
    }

    fn open_uplink(&mut self, with: &mut Context<'_>, uplink: &Uplink) -> Result<(), DeviceError> {
        let Context { driver, now, options, steering, .. } = with;
        let (now, fields) = (*now, &options.file.uplinks);
        let moved = |it: &Uplink| it.id == uplink.id && it.addresses != uplink.addresses;
        let moved = steering.routes.uplinks().any(moved);
        self.have_changed = true;
        steering.set_uplink(uplink)?;
        let is_new = !driver.edge.sockets.contains_key(&Some(uplink.id));
        if is_new && !steering.answers.are_ready() {
            self.are_waiting = true;
            return Ok(());
        }
        self.resolver.set_uplink(now, uplink);
        let addresses: Vec<String> = uplink.addresses.iter().map(ToString::to_string).collect();
        if is_new {
            let hardware = hardware(&uplink.name);
            driver.add_socket(Some(uplink.id), open_socket(&uplink.name)?)?;
            let traits = self.policies.traits(&uplink.name, hardware.as_deref());
            let technology = technology_of(fields, &traits).map(tracing::field::display);
            let addresses = addresses.join(",");
            tracing::info!(
                uplink = uplink.name,
                technology,
                device = hardware,
                addresses,
                event = "uplink-up",
                "uplink is up"
            );
        }
        self.policies.apply(&mut driver.node, fields, &uplink.name);
        driver.node.add_uplink(now, uplink.id, &uplink.name);
        if self.portals.set_uplink(now, uplink) {
            driver.node.set_portal(now, uplink.id, None);
        }
        if moved && !is_new {
            driver.node.on_new_addresses(now, uplink.id, addresses.join(", "));
        }
        Ok(())
    }

    fn drop_uplink(&mut self, with: &mut Context<'_>, id: UplinkId) {
        let Context { driver, now, steering, .. } = with;
        self.have_changed = true;
        self.resolver.remove_uplink(id);
        self.portals.remove_uplink(id);
        driver.edge.former_sockets.remove(&id);
        if driver.edge.sockets.remove(&Some(id)).is_some() {
            driver.node.remove_uplink(*now, id);
        }
        steering.remove_uplink(id);
    }

    fn retry(&mut self, with: &mut Context<'_>) {
        self.retry_at = None;
        self.look(with);
        let uplinks: Vec<Uplink> = self.monitor.uplinks().cloned().collect();
        for uplink in uplinks {
            if !with.driver.edge.sockets.contains_key(&Some(uplink.id)) {
                self.use_uplink(with, &uplink);
            }
        }
    }

    /// Whether an uplink leads to the server; unnamed ones also need a way to the Internet.
    fn is_wanted(&self, with: &Context<'_>, uplink: &Uplink) -> bool {
        let named = !with.options.file.uplinks.include.is_empty();
        let leads = |ipv4| {
            let leads_out =
                matches!(uplink.gateway(ipv4), Some(Gateway::Known(_) | Gateway::Direct));
            uplink.is_usable(ipv4) && (named || leads_out)
        };
        // A controller behind it may name other proxies.
        let may_lead_to_controller = with.is_member && (leads(true) || leads(false));
        may_lead_to_controller || self.resolver.may_reach(leads(true), leads(false))
    }

    pub(super) fn log_silence(&self, with: &Context<'_>) {
        let (client, has_none) = (&with.driver.node, with.driver.edge.sockets.is_empty());
        if !has_none && !self.resolver.has_found() {
            return;
        }
        let servers: Vec<String> = self
            .resolver
            .servers()
            .iter()
            .flat_map(|server| server.addresses.iter().map(ToString::to_string))
            .collect();
        let servers = servers.join(", ");
        if has_none {
            tracing::warn!("no uplink is usable: {}", printable(&self.why_no_uplink(with)));
        } else if !client.uplinks(with.now).iter().any(|uplink| uplink.heard) {
            tracing::warn!(
                "no answer from {servers}; check that the server is running, that the address is \
                 right, and that firewalls allow UDP"
            );
        } else if let Some(why) = client.why_no_session(with.now) {
            tracing::warn!("no session with {servers}: {why}");
        }
    }

    fn why_no_uplink(&self, with: &Context<'_>) -> String {
        let include = &with.options.file.uplinks.include;
        let lack = |uplink: &Uplink| {
            let name = &uplink.name;
            let lack = match uplink {
                _ if self.policies.overrides.is_paused(name) => "it is paused",
                Uplink { conflict: Some(why), .. } => why,
                Uplink { carrier: false, .. } => "it is down",
                Uplink { addresses, .. } if addresses.is_empty() => "it has no address",
                _ if include.is_empty() && !uplink.leads_out() => "it has no default route",
                _ if !self.is_wanted(with, uplink) => {
                    "it cannot reach any server with its addresses"
                }
                _ => "it is not active yet",
            };
            format!("{name}: {lack}")
        };
        let all: Vec<String> = self.monitor.uplinks().take(REASONS_MAX).map(lack).collect();
        match (all.is_empty(), include.is_empty()) {
            (false, _) => all.join("; "),
            (true, false) => {
                let names = include.join(", ");
                format!("no interface matches uplinks.include ({names}) and uplinks.exclude")
            }
            (true, true) => {
                "the only interfaces are those in uplinks.inside and uplinks.exclude".to_owned()
            }
        }
    }

    pub(super) fn reload(&mut self, with: &mut Context<'_>) {
        self.look(with);
        for uplink in self.monitor.uplinks().cloned().collect::<Vec<Uplink>>() {
            self.policies.apply(&mut with.driver.node, &with.options.file.uplinks, &uplink.name);
            // Interfaces count as uplinks by their routes alone only if `include` is empty.
            self.use_uplink(with, &uplink);
        }
    }

    pub(super) fn on_found(&mut self, client: &mut Client, now: Instant, changed: &Changed) {
        if !changed.is_empty() {
            self.debounce.ask(now);
        }
        for (server, uplink) in changed {
            let servers = self.resolver.found(server, *uplink).to_vec();
            client.set_servers_of(now, server, *uplink, servers);
        }
    }

    pub(super) fn assign(&mut self, with: &mut Context<'_>, mut servers: Vec<CandidateOptions>) {
        let Context { driver, now, options, steering, .. } = with;
        driver.node.set_candidates(*now, candidates(&servers, &options.identity));
        let admitted = driver.node.servers();
        servers.retain(|server| admitted.iter().any(|it| it.key == server.candidate.key));
        if servers == self.resolver.servers() {
            return;
        }
        let name = |server: &CandidateOptions| match &server.candidate {
            Candidate { name, last_resort: true, .. } => format!("{name} (last resort)"),
            Candidate { name, .. } => name.clone(),
        };
        let names: Vec<String> = servers.iter().map(name).collect();
        tracing::info!(proxies = names.join(", "), "the fleet assigned these proxies");
        let uplinks: Vec<Uplink> = steering.routes.uplinks().cloned().collect();
        self.resolver.set_servers(*now, &servers, &uplinks, || driver.waker());
        self.retry_at = Some(*now);
    }

    pub(super) fn set_override(
        &mut self,
        with: &Context<'_>,
        change: &SetUplink,
    ) -> Result<(), RpcError> {
        let checked = with.options.file.selector().check_name(&change.uplink);
        checked.map_err(|error| RpcError::invalid_params(error.to_string()))?;
        change.check().map_err(RpcError::invalid_params)?;
        if change.paused == Some(true) && !change.force && self.is_last(with.driver, &change.uplink)
        {
            return Err(RpcError::invalid_params(format!(
                "{} is the last uplink in use, and pausing it would stop all traffic; use --force \
                 to pause it anyway",
                change.uplink
            )));
        }
        self.policies.overrides.set(change)?;
        change.log();
        Ok(())
    }

    /// Returns a notice if there is no uplink `name`.
    pub(super) fn apply_override(&mut self, with: &mut Context<'_>, name: &str) -> Option<String> {
        self.policies.apply(&mut with.driver.node, &with.options.file.uplinks, name);
        let Some(uplink) = self.monitor.uplinks().find(|uplink| uplink.name == name).cloned()
        else {
            return Some(format!("{name} does not exist now; the setting applies once it does"));
        };
        self.use_uplink(with, &uplink);
        None
    }

    /// Whether pausing `name` would leave no usable path, or no open socket without a session.
    fn is_last(&self, driver: &Driver<Client>, name: &str) -> bool {
        let exists = self.monitor.uplinks().any(|uplink| uplink.name == name);
        let carrying: Vec<String> = match driver.node.status() {
            Some(session) => {
                let usable = session.paths.into_iter().filter(|it| it.status == PathStatus::Usable);
                usable.filter_map(|path| path.uplink).collect()
            }
            None => {
                let open = |it: &&Uplink| {
                    let is_open = driver.edge.sockets.contains_key(&Some(it.id));
                    is_open && !driver.node.is_held_back(it.id)
                };
                self.monitor.uplinks().filter(open).map(|it| it.name.clone()).collect()
            }
        };
        exists && !carrying.is_empty() && carrying.iter().all(|other| other == name)
    }
}

/// Opens another local port for uplinks without answers: a NAT may hold a dead entry for it.
pub(super) fn change_ports(driver: &mut Driver<Client>) {
    while let Some(id) = driver.node.take_stale_port() {
        let socket = driver.edge.sockets.get(&Some(id));
        let Some(name) = socket.and_then(UplinkSocket::interface).map(str::to_owned) else {
            continue;
        };
        match open_socket(&name).and_then(|socket| driver.change_socket(id, socket)) {
            Ok(()) => tracing::debug!(uplink = name, "no answer; another local port is used"),
            Err(error) => {
                tracing::warn!(uplink = name, %error, "cannot open another local port");
            }
        }
    }
}

const REASONS_MAX: usize = 16;

fn open_socket(interface: &str) -> Result<UplinkSocket, DeviceError> {
    match UplinkSocket::open(&UdpOptions::uplink(interface, false)) {
        Err(DeviceError::NoIpv6 { .. }) => UplinkSocket::open(&UdpOptions::uplink(interface, true)),
        result => result,
    }
}
