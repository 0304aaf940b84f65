//! The uplinks of a client: which interfaces are uplinks, and their sockets.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use roadweave_config::UplinkTraits;
use roadweave_linux::{
    DeviceError, Gateway, Owner, Protected, UdpOptions, Uplink, UplinkEvent, UplinkSocket, hardware,
};
use roadweave_proto::{Instant, PathStatus, UplinkId, peer_text};
use roadweave_tunnel::{Client, UplinkPolicy};

use super::{ClientRole, UPLINK_RETRY};
use crate::driver::event_loop::Driver;
use crate::driver::technology::technology_of;

impl ClientRole {
    pub(super) fn look_at_uplinks(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.settle(&driver.node);
        self.monitor.protect(self.protected());
        let mut events = match self.monitor.poll() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!("{error}; trying again");
                self.looks.retry = Some(now + UPLINK_RETRY);
                return;
            }
        };
        self.filters.set_inside(self.monitor.inside(), self.monitor.inside_addresses());
        if let Some(streams) = &mut self.streams {
            let mut inside = self.monitor.inside();
            inside.retain(|interface| interface.name != driver.edge.tun_name());
            streams.set_inside(&mut self.steering, now, &inside);
        }
        // The first uplink to be added starts first, so new ones are sorted by rank.
        let have_come = |one: &UplinkEvent, other: &UplinkEvent| {
            matches!((one, other), (UplinkEvent::Appeared(_), UplinkEvent::Appeared(_)))
        };
        for run in events.chunk_by_mut(have_come) {
            run.sort_by_key(|event| match event {
                UplinkEvent::Appeared(uplink) => self.rank_of(&uplink.name),
                _ => 0,
            });
        }
        for event in events {
            match event {
                UplinkEvent::Appeared(uplink) => {
                    // A replugged interface has a dead socket, and maybe another SIM.
                    self.modems.remove(&uplink.name);
                    self.drop_uplink(driver, now, uplink.id);
                    // Router advertisements may bring its address.
                    self.filters.on_new_uplink();
                    self.use_uplink(driver, now, &uplink);
                }
                UplinkEvent::Changed(uplink) => self.use_uplink(driver, now, &uplink),
                UplinkEvent::Vanished(uplink) => {
                    self.modems.remove(&uplink.name);
                    self.log_gone(&uplink);
                    self.drop_uplink(driver, now, uplink.id);
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
    fn protected(&self) -> Protected {
        let host = |address: IpAddr| IpNet::from(address);
        let servers = self.resolver.addresses().map(|it| (host(it), Owner::Server));
        let granted = self.steering.routes.grant().into_iter();
        let granted = granted.flat_map(|grant| grant.addresses.iter().chain(&grant.gateways));
        let granted = granted.map(|it| (host(it.addr()), Owner::Granted));
        let said = self.steering.routes.uplinks().flat_map(|uplink| {
            let found = self.resolver.all_found(uplink.id);
            found.map(|server| (uplink.name.clone(), server.ip(), Owner::FoundServer))
        });
        Protected { certain: servers.chain(granted).collect(), said: said.collect() }
    }

    fn log_gone(&self, uplink: &Uplink) {
        let selector = self.options.file.selector();
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

    pub(super) fn use_uplink(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        uplink: &Uplink,
    ) {
        let is_paused = self.overrides.is_paused(&uplink.name);
        if is_paused || !self.is_wanted(uplink) {
            if !is_paused && driver.edge.sockets.contains_key(&Some(uplink.id)) {
                tracing::warn!(uplink = uplink.name, "uplink is down");
            }
            self.drop_uplink(driver, now, uplink.id);
            return;
        }
        if !self.filters.hold() {
            self.waiting.uplinks = true;
            return;
        }
        match self.open_uplink(driver, now, uplink) {
            Ok(()) => self.repeat_limiter.settle(uplink.id.0),
            Err(error) => {
                if self.repeat_limiter.admit(now, uplink.id.0, &error.to_string()) {
                    tracing::warn!(uplink = uplink.name, %error, "uplink cannot be used yet");
                }
                self.looks.retry = Some(now + UPLINK_RETRY);
            }
        }
    }

    fn open_uplink(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        uplink: &Uplink,
    ) -> Result<(), DeviceError> {
        let moved = self
            .steering
            .routes
            .uplinks()
            .any(|known| known.id == uplink.id && known.addresses != uplink.addresses);
        self.has_other_uplinks = true;
        self.steering.set_uplink(uplink)?;
        let is_new = !driver.edge.sockets.contains_key(&Some(uplink.id));
        if is_new && !self.steering.answers.are_ready() {
            self.waiting.uplinks = true;
            return Ok(());
        }
        self.resolver.set_uplink(now, uplink);
        let addresses: Vec<String> = uplink.addresses.iter().map(ToString::to_string).collect();
        if is_new {
            let hardware = hardware(&uplink.name);
            driver.add_socket(Some(uplink.id), open_socket(&uplink.name)?)?;
            let traits = self.traits_of(&uplink.name, &hardware);
            let technology = technology_of(&self.options.file.uplinks, &traits);
            let technology = technology.map(tracing::field::display);
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
        self.apply_policy(&mut driver.node, &uplink.name);
        driver.node.add_uplink(now, uplink.id, &uplink.name);
        if self.portals.set_uplink(now, uplink) {
            driver.node.set_portal(now, uplink.id, None);
        }
        if moved && !is_new {
            driver.node.on_new_addresses(now, uplink.id, addresses.join(", "));
        }
        Ok(())
    }

    /// Opens another local port for uplinks without answers: a NAT may hold a dead entry for it.
    pub(super) fn change_ports(&mut self, driver: &mut Driver<Client>) {
        while let Some(id) = driver.node.take_stale_port() {
            let socket = driver.edge.sockets.get(&Some(id));
            let Some(name) = socket.and_then(UplinkSocket::interface).map(str::to_owned) else {
                continue;
            };
            match open_socket(&name).and_then(|socket| driver.change_socket(id, socket)) {
                Ok(()) => tracing::debug!(uplink = name, "no answer; another local port is used"),
                Err(error) => tracing::warn!(
                    uplink = name,
                    %error,
                    "cannot open another local port"
                ),
            }
        }
    }

    pub(super) fn drop_uplink(&mut self, driver: &mut Driver<Client>, now: Instant, id: UplinkId) {
        self.has_other_uplinks = true;
        self.resolver.remove_uplink(id);
        self.portals.remove_uplink(id);
        driver.edge.former_sockets.remove(&id);
        if driver.edge.sockets.remove(&Some(id)).is_some() {
            driver.node.remove_uplink(now, id);
        }
        self.steering.remove_uplink(id);
    }

    pub(super) fn retry_uplinks(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.looks.retry = None;
        self.look_at_uplinks(driver, now);
        let uplinks: Vec<Uplink> = self.monitor.uplinks().cloned().collect();
        for uplink in uplinks {
            if !driver.edge.sockets.contains_key(&Some(uplink.id)) {
                self.use_uplink(driver, now, &uplink);
            }
        }
    }

    /// Whether an uplink leads to the server; unnamed ones also need a way to the Internet.
    fn is_wanted(&self, uplink: &Uplink) -> bool {
        let named = !self.options.file.uplinks.include.is_empty();
        let leads = |ipv4| {
            let leads_out =
                matches!(uplink.gateway(ipv4), Some(Gateway::Known(_) | Gateway::Direct));
            uplink.is_usable(ipv4) && (named || leads_out)
        };
        // A controller behind it may name other proxies.
        let may_lead_to_controller = self.fleet.is_some() && (leads(true) || leads(false));
        may_lead_to_controller || self.resolver.may_reach(leads(true), leads(false))
    }

    pub(super) fn why_no_uplink(&self) -> String {
        let include = &self.options.file.uplinks.include;
        let lack = |uplink: &Uplink| {
            let name = &uplink.name;
            let lack = match uplink {
                _ if self.overrides.is_paused(name) => "it is paused",
                Uplink { conflict: Some(why), .. } => why,
                Uplink { carrier: false, .. } => "it is down",
                Uplink { addresses, .. } if addresses.is_empty() => "it has no address",
                _ if include.is_empty() && !uplink.leads_out() => "it has no default route",
                _ if !self.is_wanted(uplink) => "it cannot reach any server with its addresses",
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

    pub(super) fn apply_policy(&self, client: &mut Client, uplink: &str) {
        let hardware = hardware(uplink);
        let traits = self.traits_of(uplink, &hardware);
        let (account, policy) = match self.options.file.uplinks.policy_of(&traits) {
            Some(policy) => (policy.account(&traits), policy.to_policy()),
            None => (uplink.to_owned(), UplinkPolicy::default()),
        };
        client.set_account(uplink, account);
        client.set_policy(uplink, self.overrides.over(uplink, policy));
        client.set_rank(uplink, self.rank(&traits));
    }

    pub(super) fn traits_of<'a>(
        &'a self,
        name: &'a str,
        hardware: &'a Option<String>,
    ) -> UplinkTraits<'a> {
        UplinkTraits { name, device: hardware.as_deref(), iccid: self.modems.iccid(name) }
    }
}

const REASONS_MAX: usize = 16;

fn open_socket(interface: &str) -> Result<UplinkSocket, DeviceError> {
    match UplinkSocket::open(&UdpOptions::uplink(interface, false)) {
        Err(DeviceError::NoIpv6 { .. }) => UplinkSocket::open(&UdpOptions::uplink(interface, true)),
        result => result,
    }
}
