//! What a box does of what its fleet says, and what it tells its fleet.

use roadweave_fleet::Place;
use roadweave_identity::PublicKey;
use roadweave_tunnel::Client;
use roadweave_types::Instant;

use super::{CandidateOptions, ClientRole, candidates};
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
        let News { configuration, candidates, revoked, .. } = fleet.news();
        if let Some((version, reload)) = configuration {
            let left_out = self.take_up(driver, now, reload);
            if let (Some(version), Some(why), Some(fleet)) = (version, left_out, &self.fleet) {
                fleet.refuse(version, why);
            }
        }
        if let Some(places) = candidates {
            self.use_candidates(driver, now, &places);
        }
        self.leave_revoked(driver, now, &revoked);
    }

    /// Leaves proxies whose keys are withdrawn, whether or not another is left.
    fn leave_revoked(&mut self, driver: &mut Driver<Client>, now: Instant, revoked: &[PublicKey]) {
        let Some(left) = without(&self.options.servers, revoked) else { return };
        if !self.options.follows_fleet {
            return tracing::warn!("the key of a server of this box's file is revoked; it stays");
        }
        tracing::warn!(left = left.len(), "the key of a proxy is revoked: it is used no more");
        self.use_servers_of_fleet(driver, now, left);
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
        let servers = places.iter().map(CandidateOptions::of_fleet).collect();
        self.use_servers_of_fleet(driver, now, servers);
    }

    fn use_servers_of_fleet(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        mut servers: Vec<CandidateOptions>,
    ) {
        driver.node.set_candidates(now, candidates(&servers, &self.options.identity));
        let admitted = driver.node.servers();
        servers.retain(|server| admitted.iter().any(|it| it.key == server.key));
        if servers == self.options.servers {
            return;
        }
        let name = |server: &CandidateOptions| match server.last_resort {
            true => format!("{} (last resort)", server.name),
            false => server.name.clone(),
        };
        let names: Vec<String> = servers.iter().map(name).collect();
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

/// Those of `servers` whose keys are not `revoked`; `None` if that is all of them.
fn without(servers: &[CandidateOptions], revoked: &[PublicKey]) -> Option<Vec<CandidateOptions>> {
    let left: Vec<_> =
        servers.iter().filter(|server| !revoked.contains(&server.key)).cloned().collect();
    (left.len() < servers.len()).then_some(left)
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn a_revoked_proxy_is_left_though_it_is_the_only_one() {
        let identity = |seed| Identity::from_seed([seed; 32]);
        let server = |seed| {
            CandidateOptions::of_fleet(&Place {
                key: identity(seed).public_key(),
                name: format!("p{seed}").parse().expect("a name"),
                site: None,
                addresses: vec!["192.0.2.1:4433".to_owned()],
                to_anchor_us: 0,
                last_resort: false,
            })
        };
        let revoked = [identity(1).public_key()];
        assert_eq!(without(&[server(2)], &revoked), None);
        assert_eq!(without(&[server(1), server(2)], &revoked), Some(vec![server(2)]));
        assert_eq!(without(&[server(1)], &revoked), Some(Vec::new()));
        // There is no client without a server: nobody has the key of the one that is left.
        let own = identity(9);
        let nobody = candidates(&[], &own);
        assert_eq!((nobody.len(), nobody[0].key), (1, own.public_key()));
        assert!(nobody[0].addresses.is_empty());
    }
}
