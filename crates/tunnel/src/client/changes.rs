//! What changes around a client: uplinks, their addresses and networks, and the candidates.

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::wire::Reason;
use roadweave_proto::{Instant, UplinkId};

use super::notices::Notice;
use super::race::After;
use super::{Candidate, Client, Portal, admit};

impl Client {
    /// Adds an uplink that has an address. Call it again when the address has changed.
    pub fn add_uplink(&mut self, now: Instant, id: UplinkId, name: &str) {
        self.uplinks.add(now, id, name);
        self.race.on_sign_of_life(now, Some(id));
        self.choice.forget_rests();
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.on_lanes_or_uplinks(now);
        self.on_change(now);
    }

    /// Removes an uplink; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.choice.candidates.forget_uplink(id);
        self.uplinks.all.remove(&id);
        let (race, mut course) = self.race(now);
        race.forget_uplink(id, &mut course);
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.forget_pairs();
        self.on_lanes_or_uplinks(now);
        self.on_change(now);
    }

    /// An uplink has new addresses: its path is probed at once, so that the server learns where to
    /// send even if there is nothing to send. `addresses` is text for a notice.
    pub fn on_new_addresses(&mut self, now: Instant, id: UplinkId, addresses: String) {
        let Some(uplink) = self.uplinks.all.get_mut(&id) else { return };
        uplink.path.hurry(now);
        let uplink = uplink.name.clone();
        self.race.on_sign_of_life(now, Some(id));
        let session = self.in_use().session;
        if let Some(connection) = session.and_then(|session| self.endpoint.connection_mut(session))
        {
            connection.suspect_path_on(now, id);
        }
        self.event_queue.notify(now, Notice::Moved { uplink, addresses });
        self.on_change(now);
    }

    /// Sets what HTTP over `uplink` shows of a login page. Ignored if its path is validated.
    pub fn set_portal(&mut self, now: Instant, uplink: UplinkId, portal: Option<Portal>) {
        match portal {
            None => self.release(now, uplink),
            Some(_) if self.is_validated(uplink) => {}
            Some(portal) => {
                if let Some(uplink) = self.uplinks.all.get_mut(&uplink) {
                    uplink.hold_back(now, portal, &mut self.event_queue);
                }
            }
        }
        self.on_change(now);
    }

    fn release(&mut self, now: Instant, id: UplinkId) {
        let uplink = self.uplinks.all.get_mut(&id);
        if uplink.is_some_and(|uplink| uplink.release(now, &mut self.event_queue)) {
            self.race.on_sign_of_life(now, Some(id));
            self.race.pairs.hurry(now, Some(id));
        }
    }

    pub(super) fn release_validated(&mut self, now: Instant) {
        let is_free = |id: &UplinkId| self.is_held_back(*id) && self.is_validated(*id);
        let free: Vec<UplinkId> = self.uplinks.all.keys().copied().filter(is_free).collect();
        free.into_iter().for_each(|id| self.release(now, id));
    }

    /// Sets the addresses of the candidate with `key` for one uplink only: a name that was looked
    /// up over one uplink says nothing about others. Without any, the candidate's own count again.
    ///
    /// The uplink need not exist yet; its addresses are forgotten with it.
    pub fn set_servers_of(
        &mut self,
        now: Instant,
        key: &PublicKey,
        uplink: UplinkId,
        servers: Vec<SocketAddr>,
    ) {
        let candidates = &mut self.choice.candidates;
        let Some(candidate) = candidates.position(key) else { return };
        if candidates.set_addresses((candidate, uplink), servers) {
            self.race.attempt_backoff.on_sign_of_life();
        }
        if let Some(uplink) = self.uplinks.all.get_mut(&uplink) {
            uplink.path.on_new_servers(now);
        }
        self.forget_pairs();
        self.on_change(now);
    }

    fn forget_pairs(&mut self) {
        let Self { uplinks, choice, race, .. } = self;
        race.pairs.retain(|(uplink, server)| {
            uplinks.all.contains_key(&uplink) && choice.candidates.lead_to(uplink, server)
        });
    }

    /// Chooses among `wanted` from now on, as far as they are [admitted](admit); the server in use
    /// is, if it is among them. An empty list is ignored.
    ///
    /// Addresses of [`Client::set_servers_of`] are kept for those that stay.
    pub fn set_candidates(&mut self, now: Instant, mut wanted: Vec<Candidate>) {
        let own = self.server().key;
        wanted.sort_by_key(|candidate| candidate.key != own);
        let wanted = admit(wanted);
        if wanted.is_empty() || wanted == self.choice.candidates.all {
            return;
        }
        let before = self.choice.candidates.before(&wanted);
        let place = |at: usize| before.iter().position(|it| *it == Some(at));
        let (standby, mut around) = self.standby(now);
        if standby.target.is_some_and(|target| place(target).is_none()) {
            standby.retarget(None, NAMED_NO_MORE, &mut around);
        }
        if standby.tried().is_some_and(|tried| place(tried).is_none()) {
            standby.drop_challenger(NAMED_NO_MORE, &mut around);
        }
        if place(self.choice.current).is_none() {
            self.leave_home(now, NAMED_NO_MORE);
        }
        self.standby.on_candidates(place);
        // Earlier answers from these addresses were another server's.
        let new = wanted.iter().zip(&before).filter(|(_, before)| before.is_none());
        let new: Vec<SocketAddr> = new.flat_map(|(it, _)| it.addresses.clone()).collect();
        self.race.pairs.retain(|(_, server)| !new.contains(&server));
        self.choice.set_candidates(now, wanted);
        self.race.attempt_backoff.on_sign_of_life();
        if self.choice.has_several() {
            self.current.iter_mut().for_each(|current| current.session.keep_unfinished());
            if self.outages.cannot_pass() {
                self.on_move(now, Reason::Other);
            }
        }
        self.forget_pairs();
        self.on_change(now);
    }

    /// This machine slept, or the process stood still, for `lasted` until `now`. Every path must
    /// answer again, since networks may have changed, and failover is immediate.
    pub fn on_pause(&mut self, now: Instant, lasted: Duration) {
        self.silence.on_pause(now);
        self.race.on_sign_of_life(now, None);
        self.choice.forget_rests();
        self.uplinks.hurry_paths(now);
        let Some(id) = self.in_use().session else { return };
        if lasted >= self.config.transport.idle_timeout {
            let (standby, mut around) = self.standby(now);
            standby.retarget(None, "this end was paused", &mut around);
            self.leave(now, "the server has given the session up in that time", After::Silence);
        } else if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.suspect_all_paths(now);
        }
        self.on_change(now);
    }

    pub(super) fn on_lanes_or_uplinks(&mut self, now: Instant) {
        let (outages, view, event_queue) = self.outages();
        outages.on_change(now, &view, event_queue);
    }
}

const NAMED_NO_MORE: &str = "the server is named no more";
