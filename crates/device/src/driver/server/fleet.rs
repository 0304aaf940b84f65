//! What a proxy does of what its fleet says, and what it tells its fleet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_tunnel::{Peer, PeerTable, Server};
use roadweave_types::Instant;

use super::reload::Reloader;
use super::{Driver, ServerRole};
use crate::fleet::{Fleet, FleetOptions, News};
use crate::status::FleetStatus;
use crate::{DeviceError, Waker};

/// How long a start waits for what was revoked while this proxy did not run.
const MISSED_MAX: Duration = Duration::from_secs(2);
/// How often figures are sent, and how often while somebody watches.
const FIGURES: Duration = Duration::from_secs(10);
const FIGURES_WATCHED: Duration = Duration::from_millis(200);
/// Sessions whose figures are taken at once: packets must not wait for thousands.
const FIGURES_MAX: usize = 1_000;
/// While somebody watches, what is sent in a second is bounded all the same.
const SESSIONS_WATCHED: usize = 100;

/// The fleet, as a proxy's event loop sees it.
#[derive(Debug)]
pub(super) struct InFleet {
    fleet: Fleet<()>,
    members: Arc<Vec<(PublicKey, Peer)>>,
    /// The clients of the file, whom no controller keeps out.
    of_file: BTreeSet<PublicKey>,
    /// Why only those are let in.
    is_closed: bool,
    is_drained: bool,
    /// Withdrawn keys whose sessions may not have ended: the number of their batch.
    ending: Option<u64>,
    next_figures: Instant,
    watched_until: Instant,
}

impl InFleet {
    /// `of_file`: the clients of the server's own file.
    pub(super) fn start(
        options: FleetOptions<()>,
        of_file: BTreeSet<PublicKey>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            fleet: Fleet::start(options, waker)?,
            members: Arc::default(),
            of_file,
            is_closed: false,
            is_drained: false,
            ending: None,
            next_figures: Instant::ZERO,
            watched_until: Instant::ZERO,
        })
    }

    /// Who may connect beside the clients of the file.
    pub(super) fn members(&self) -> Arc<Vec<(PublicKey, Peer)>> {
        self.members.clone()
    }

    pub(super) fn status(&self, now: Instant) -> FleetStatus {
        self.fleet.status(now)
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.next_figures
    }

    /// The file was read again, and has these clients.
    pub(super) fn set_of_file(&mut self, of_file: BTreeSet<PublicKey>, peers: &PeerTable) {
        self.of_file = of_file;
        self.close(peers);
    }

    fn close(&self, peers: &PeerTable) {
        let is_closed = self.is_closed || self.is_drained;
        peers.close_but(is_closed.then(|| self.of_file.clone()));
    }

    /// Sends figures when that is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, server: &Server) {
        if now < self.next_figures {
            return;
        }
        let sessions = server.sessions();
        let is_watched = now < self.watched_until;
        let rounds = 1 + sessions.min(FIGURES_MAX) / SESSIONS_WATCHED;
        let watched = FIGURES_WATCHED * rounds as u32;
        self.next_figures = now + if is_watched { watched.min(FIGURES) } else { FIGURES };
        let count = u32::try_from(sessions).unwrap_or(u32::MAX);
        self.fleet.set_figures(count, server.figures(FIGURES_MAX));
    }

    /// Tells the fleet once the sessions of withdrawn keys have ended.
    pub(super) fn confirm(&mut self, server: &Server) {
        if let Some(batch) = self.ending.take_if(|_| server.is_settled()) {
            self.fleet.on_ended(batch);
        }
    }
}

impl ServerRole {
    /// Takes what was kept, and what came since, before anybody is let in.
    pub(super) fn begin_in_fleet(&mut self, driver: &mut Driver<Server>) {
        let Some(fleet) = &mut self.fleet else { return };
        if !fleet.fleet.wait_in_step(MISSED_MAX) {
            tracing::warn!(
                "no controller yet: whom it let in before is let in, and what it revoked since \
                 is not known"
            );
        }
        self.take_news(&mut driver.node);
        if self.machine.is_none()
            && let Some(outcome) = self.reloader.wait()
            && let Some(reloaded) = Reloader::take(&mut self.machine, outcome)
        {
            self.use_reloaded(&mut driver.node, reloaded);
        }
    }

    /// Takes what the fleet has said since.
    pub(super) fn take_news(&mut self, server: &mut Server) {
        let Some(fleet) = &mut self.fleet else { return };
        let News { members, revoked, batch, is_closed, drain, watched_until, .. } =
            fleet.fleet.news();
        if !revoked.is_empty() {
            tracing::info!(keys = revoked.len(), "keys are revoked, and their sessions end");
            // The file's own clients are nobody else's to withdraw.
            let of_file = &fleet.of_file;
            server.revoke(revoked.into_iter().filter(|key| !of_file.contains(key)));
            fleet.ending = Some(batch);
        }
        if let Some(is_closed) = is_closed {
            fleet.is_closed = is_closed;
            fleet.close(&self.peers);
        }
        if drain && !std::mem::replace(&mut fleet.is_drained, true) {
            tracing::warn!("the controller drains this proxy: no box is let in any more");
            fleet.close(&self.peers);
        }
        if let Some(until) = watched_until {
            fleet.watched_until = until;
            fleet.next_figures = Instant::ZERO;
        }
        if let Some(members) = members {
            fleet.members = Arc::new(members);
            self.begin_reload(false);
        }
    }
}
