//! What a box does of what its fleet says, and what it tells its fleet.

use roadweave_fleet::Place;
use roadweave_tunnel::Client;
use roadweave_types::Instant;

use super::{CandidateOptions, ClientRole, candidate};
use crate::Uplink;
use crate::driver::event_loop::Driver;
use crate::fleet::News;

impl ClientRole {
    /// What was kept is in the options that the client was started with.
    pub(super) fn begin_in_fleet(&mut self) {
        if let Some(fleet) = &self.fleet {
            fleet.news();
        }
    }

    /// Takes what the fleet has said since.
    pub(super) fn take_news(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let Some(fleet) = &self.fleet else { return };
        let News { configuration, candidates, .. } = fleet.news();
        if let Some((version, reload)) = configuration {
            let left_out = self.take_up(driver, now, reload);
            if let (Some(version), Some(why), Some(fleet)) = (version, left_out, &self.fleet) {
                fleet.refuse(version, why);
            }
        }
        if let Some(places) = candidates {
            self.use_candidates(driver, now, &places);
        }
    }

    /// Chooses among the proxies that the fleet names, unless the file of this box names servers.
    fn use_candidates(&mut self, driver: &mut Driver<Client>, now: Instant, places: &[Place]) {
        if !self.options.follows_fleet {
            return;
        }
        if places.is_empty() {
            // Whoever names none says nothing of those that work.
            return tracing::warn!("the controller names no proxy; those before stay in use");
        }
        let mut servers: Vec<CandidateOptions> =
            places.iter().map(CandidateOptions::of_fleet).collect();
        driver.node.set_candidates(now, servers.iter().map(candidate).collect());
        let admitted = driver.node.servers();
        servers.retain(|server| admitted.iter().any(|it| it.key == server.key));
        if servers == self.options.servers {
            return;
        }
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        tracing::info!(proxies = names.join(", "), "the fleet names these proxies");
        let uplinks: Vec<Uplink> = self.steering.uplinks().cloned().collect();
        self.resolver.set_servers(now, &servers, &uplinks, || driver.waker());
        self.options.servers = servers;
        // An uplink that led to no address of the former ones may lead to one of these.
        self.next_uplink_retry = Some(now);
    }

    /// Tells the fleet over what a controller may be reached.
    pub(super) fn tell_uplinks(&mut self) {
        if let Some(fleet) = &self.fleet
            && std::mem::take(&mut self.has_other_uplinks)
        {
            let uplinks: Vec<Uplink> = self.steering.uplinks().cloned().collect();
            fleet.set_uplinks(uplinks);
        }
    }

    /// Tells the fleet with which proxy there is a session, or that there is none.
    pub(super) fn tell_session(&self, client: &Client) {
        if let Some(fleet) = &self.fleet {
            fleet.set_session(self.joined.then_some(client.server().key));
        }
    }
}
