//! A client's routes, rules and DNS, kept in place while it runs. After a crash all stays: tunnel
//! traffic is blocked until the next start or `roadweave release`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_linux::dns::{Dns, nameservers};
use roadweave_linux::{
    Answers, ClientRoutes, DeviceError, Excluded, Grant, Instance, Repairs, RouteSettings,
    TableTurn, Uplink, has_reverse_path_filter,
};
use roadweave_proto::{Instant, UplinkSelector};

const LOOK: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(super) struct Steering {
    pub(super) routes: ClientRoutes,
    pub(super) answers: Answers,
    pub(super) dns: Dns,
    outside: BTreeSet<IpAddr>,
    /// Networks of uplinks that are reached outside the tunnel, with the uplink's name, as logged.
    pub(super) neighbours: BTreeSet<(String, IpNet)>,
    repairs: Repairs,
    next_look: Instant,
    logged: String,
    failed: bool,
}

impl Steering {
    /// On an error, what an earlier run blocked stays blocked.
    pub(super) fn start(
        instance: &Instance,
        settings: RouteSettings,
        tun: u32,
        dns: Dns,
    ) -> Result<Self, DeviceError> {
        let mut routes = ClientRoutes::open(instance, settings, tun)?;
        routes.close()?;
        let mut this = Self {
            routes,
            answers: Answers::new(instance),
            dns,
            outside: BTreeSet::new(),
            neighbours: BTreeSet::new(),
            repairs: Repairs::default(),
            next_look: Instant::ZERO + LOOK,
            logged: String::new(),
            failed: false,
        };
        this.log_failures();
        Ok(this)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.repairs.poll_timeout(), self.answers.poll_timeout()];
        timeouts.into_iter().flatten().chain([self.next_look]).min()
    }

    pub(super) fn on_notice(&mut self, now: Instant) {
        self.repairs.on_notice(now);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self.answers.turn(now) {
            TableTurn::Replaced { was_changed: true } => log_restored_marks(),
            TableTurn::Failed(error) => {
                let what = "no further uplink is used until the marks for packets that arrive over \
                            it can be set";
                self.log_text(&format!("{what}: {error}"));
            }
            TableTurn::Unchanged | TableTurn::Replaced { was_changed: false } => {}
        }
        if self.next_look <= now {
            self.next_look = now + LOOK;
            if self.failed {
                self.repairs.on_notice(now);
            }
            match self.routes.mend_reverse_path_filters() {
                Ok(changes) => self.repairs.on_repair(now, &changes),
                Err(error) => self.log_error(&error),
            }
            match self.answers.mend_settings() {
                Ok(false) => {}
                Ok(true) => log_restored_marks(),
                Err(error) => self.log_unmarked(&error),
            }
        }
        if self.repairs.take_due(now) {
            self.sync(now);
        }
    }

    fn sync(&mut self, now: Instant) {
        match self.routes.sync() {
            Ok(changes) => {
                self.repairs.on_repair(now, &changes);
                self.log_failures();
            }
            Err(error) => {
                self.log_error(&error);
                self.failed = true;
            }
        }
    }

    pub(super) fn set_selector(&mut self, now: Instant, selector: UplinkSelector) {
        self.routes.set_selector(selector);
        self.repairs.on_notice(now);
    }

    pub(super) fn set_excluded(&mut self, now: Instant, excluded: Excluded) -> bool {
        self.routes.set_excluded(excluded);
        self.sync(now);
        if let Err(error) = self.routes.await_excluded() {
            self.log_error(&error);
            self.failed = true;
        }
        !self.failed
    }

    pub(super) fn set_uplink(&mut self, uplink: &Uplink) -> Result<(), DeviceError> {
        self.routes.set_uplink(uplink)?;
        self.log_neighbours();
        if let Err(error) = self.answers.add_uplink(uplink) {
            self.log_error(&error);
        }
        Ok(())
    }

    pub(super) fn remove_uplink(&mut self, uplink: roadweave_proto::UplinkId) {
        if let Err(error) = self.routes.remove_uplink(uplink) {
            self.log_error(&error);
        }
    }

    pub(super) fn set_grant(&mut self, grant: Grant) {
        if let Err(error) = self.routes.set_grant(grant) {
            self.log_error(&error);
        }
        self.log_failures();
        self.dns.set();
        self.log_resolvers();
    }

    /// An uplink's resolvers may be asked in the clear, or be unreachable through the tunnel.
    fn log_resolvers(&mut self) {
        let resolvers = match self.dns.servers() {
            [] => nameservers(Path::new("/etc/resolv.conf")),
            servers => servers.to_vec(),
        };
        for resolver in resolvers {
            let Some(uplink) = self.uplink_of(resolver) else { continue };
            let is_outside = self.routes.neighbour_over(resolver).is_some();
            match self.outside.insert(resolver) {
                false => {}
                true if is_outside => tracing::info!(
                    "the resolver {resolver} is in the own network of the uplink {uplink} and is \
                     queried outside the tunnel; set dns = [...] to use others, or uplinks.local = \
                     false to query it through the tunnel"
                ),
                true => tracing::info!(
                    "the resolver {resolver} is in the own network of the uplink {uplink} and is \
                     queried through the tunnel, where it may not exist; set dns = [...] to use \
                     others, or uplinks.local = true to reach the uplink's own network outside the \
                     tunnel"
                ),
            }
        }
    }

    fn uplink_of(&self, address: IpAddr) -> Option<String> {
        let is_behind =
            self.routes.local_networks().iter().any(|network| network.contains(&address));
        let mut uplinks = self.routes.uplinks();
        let holds = |uplink: &&Uplink| uplink.addresses.iter().any(|own| own.contains(&address));
        uplinks.find(holds).filter(|_| !is_behind).map(|uplink| uplink.name.clone())
    }

    fn log_neighbours(&mut self) {
        let now = self.routes.neighbours();
        for (uplink, network) in now.difference(&self.neighbours) {
            tracing::info!(
                uplink,
                "{network} is reached outside the tunnel, because it is the uplink's own network \
                 (uplinks.local)"
            );
        }
        self.neighbours = now;
    }

    fn log_failures(&mut self) {
        self.log_neighbours();
        let failures: Vec<DeviceError> = self.routes.take_failures().collect();
        self.failed = !failures.is_empty();
        for error in failures {
            self.log_error(&error);
        }
    }

    fn log_unmarked(&mut self, error: &DeviceError) {
        let names = self.routes.uplinks().map(|uplink| uplink.name.as_str());
        let filtered: Vec<&str> = names.filter(|name| has_reverse_path_filter(name)).collect();
        if filtered.is_empty() || !self.routes.refuses_all() {
            return self.log_error(error);
        }
        let text = format!(
            "{error}. Without it no session can begin over {}: while all traffic is blocked, the \
             reverse path filter drops packets that arrive there (net.ipv4.conf.*.rp_filter is not \
             0)",
            filtered.join(", ")
        );
        self.log_text(&text);
    }

    fn log_error(&mut self, error: &DeviceError) {
        self.log_text(&error.to_string());
    }

    fn log_text(&mut self, text: &str) {
        if text != self.logged {
            tracing::warn!("{text}");
            text.clone_into(&mut self.logged);
        }
    }
}

fn log_restored_marks() {
    tracing::warn!(
        "another program changed or removed the marks of packets that arrive over uplinks; they \
         are restored"
    );
}
