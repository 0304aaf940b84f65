//! Applies the fleet's updates to a client, and reports the client's state to the fleet.

use std::time::Duration;

use roadweave_fleet::VerifiedServer;
use roadweave_identity::PublicKey;
use roadweave_linux::Uplink;
use roadweave_proto::{DropReason, Instant};
use roadweave_tunnel::{Candidate, Client, SessionStatus};

use super::{CandidateOptions, ClientRole, candidates};
use crate::driver::event_loop::Driver;
use crate::fleet::FleetUpdates;

impl ClientRole {
    /// Discards the first update: the client was started with it in its options.
    pub(super) fn begin_in_fleet(&mut self) {
        if let Some(fleet) = &self.fleet {
            fleet.updates();
        }
    }

    pub(super) fn apply_updates(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let Some(fleet) = &self.fleet else { return };
        let FleetUpdates { configuration, candidates, revoked, .. } = fleet.updates();
        if let Some((version, reload)) = configuration {
            self.passage.reset();
            let left_out = self.take_up(driver, now, reload);
            if let (Some(version), Some(why), Some(fleet)) = (version, left_out, &self.fleet) {
                fleet.command(|it| it.refuse = Some((version, why)));
            }
        }
        if let Some(servers) = candidates {
            self.use_candidates(driver, now, &servers);
        }
        self.leave_revoked(driver, now, &revoked);
    }

    fn leave_revoked(&mut self, driver: &mut Driver<Client>, now: Instant, revoked: &[PublicKey]) {
        let Some(left) = without(&self.resolver.servers(), revoked) else { return };
        if self.options.file.server.is_some() {
            return tracing::warn!(
                "the key of a server in this box's file is revoked; the server stays in use \
                 because the file names it"
            );
        }
        tracing::warn!(
            left = left.len(),
            "the key of a proxy is revoked; the proxy is no longer used"
        );
        self.use_servers_of_fleet(driver, now, left);
    }

    fn use_candidates(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        servers: &[VerifiedServer],
    ) {
        if self.options.file.server.is_some() {
            return;
        }
        if servers.is_empty() {
            // An empty list does not mean that the current servers stopped working.
            return tracing::warn!("the controller names no proxy; the current ones stay in use");
        }
        let servers = servers.iter().map(CandidateOptions::of_fleet).collect();
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
        let uplinks: Vec<Uplink> = self.steering.routes.uplinks().cloned().collect();
        self.resolver.set_servers(now, &servers, &uplinks, || driver.waker());
        self.looks.retry = Some(now);
    }

    pub(super) fn report_uplinks(&mut self) {
        if let Some(fleet) = &self.fleet
            && std::mem::take(&mut self.has_other_uplinks)
        {
            let uplinks: Vec<Uplink> = self.steering.routes.uplinks().cloned().collect();
            fleet.command(|it| it.uplinks = Some(uplinks));
        }
    }

    pub(super) fn report_session(&self, client: &Client) {
        if let Some(fleet) = &self.fleet {
            let proxy = self.join.is_done.then_some(client.server().key);
            fleet.command(|it| it.session = Some(proxy));
        }
    }

    pub(super) fn report_data_plane(&mut self, client: &Client, now: Instant) {
        let Some(fleet) = &self.fleet else { return };
        if !self.join.is_done || now < self.passage.next_look {
            return;
        }
        self.passage.next_look = now + LOOK_INTERVAL;
        let carried = match client.is_silent() {
            true => None,
            false => client.status().as_ref().map(Carried::of),
        };
        let was_mute = self.passage.is_mute;
        self.passage.look(carried);
        if self.passage.is_mute != was_mute {
            fleet.command(|it| it.is_mute = Some(self.passage.is_mute));
        }
    }
}

const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Detects a session that answers but carries no inner packets, because of unsuitable lanes.
#[derive(Debug, Default)]
pub(super) struct DataPlaneCheck {
    next_look: Instant,
    last: Option<Carried>,
    is_mute: bool,
}

impl DataPlaneCheck {
    fn reset(&mut self) {
        self.last = None;
    }

    /// `None` while no path of the session answers.
    fn look(&mut self, carried: Option<Carried>) {
        let last = match (carried, self.last) {
            (Some(carried), Some(last)) if carried.left == last.left => last,
            (Some(carried), _) => carried,
            (None, _) => {
                (self.last, self.is_mute) = (None, true);
                return;
            }
        };
        self.last = Some(last);
        self.is_mute = carried.is_some_and(|carried| carried.late > last.late);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Carried {
    left: u64,
    late: u64,
}

impl Carried {
    fn of(session: &SessionStatus) -> Self {
        let (mut left, mut late) = (0, 0);
        for lane in &session.stats.lanes {
            left += lane.sent.sent_packets;
            late += lane.sent.drops.get(DropReason::QueueExpired);
            late += lane.sent.drops.get(DropReason::QueueFull);
        }
        Self { left, late }
    }
}

fn without(servers: &[CandidateOptions], revoked: &[PublicKey]) -> Option<Vec<CandidateOptions>> {
    let left: Vec<_> =
        servers.iter().filter(|server| !revoked.contains(&server.candidate.key)).cloned().collect();
    (left.len() < servers.len()).then_some(left)
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn a_session_is_mute_while_no_path_answers_or_all_that_would_pass_waits_in_vain() {
        let mut passage = DataPlaneCheck::default();
        let mut look = |left, late| {
            passage.look(Some(Carried { left, late }));
            passage.is_mute
        };
        assert!(!look(10, 3) && !look(10, 3), "nobody sends");
        assert!(look(10, 4) && look(10, 4), "nothing that was sent has left since");
        assert!(!look(11, 5), "some of it leaves");
        assert!(look(11, 6));
        assert!(!look(0, 0));
        assert!(look(0, 1));
        passage.reset();
        passage.look(Some(Carried { left: 0, late: 1 }));
        assert!(!passage.is_mute, "other lanes");
        passage.look(None);
        assert!(passage.is_mute);
        // Losses during an outage are not the fault of the lanes.
        passage.look(Some(Carried { left: 0, late: 9 }));
        assert!(!passage.is_mute);
    }

    #[test]
    fn a_revoked_proxy_is_left_though_it_is_the_only_one() {
        let identity = |seed| Identity::from_seed([seed; 32]);
        let server = |seed| {
            CandidateOptions::of_fleet(&VerifiedServer {
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
        let own = identity(9);
        let fallback = candidates(&[], &own);
        assert_eq!((fallback.len(), fallback[0].key), (1, own.public_key()));
        assert!(fallback[0].addresses.is_empty());
    }
}
