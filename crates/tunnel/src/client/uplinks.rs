//! The uplinks of a client, and the addresses of servers tried over each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, PathSnapshot, PathStatus, Policy, Priority, UplinkId};

use super::portals::HeldBack;
use super::ports::Port;
use super::race::RACE_STAGGER;
use super::{Candidate, Client};
use crate::node::Node as _;
use crate::status::PathStatusReport;
use crate::uplink::UplinkPolicy;
use crate::usage::Usage;

const PUT_OFF_MAX: Duration = Duration::from_millis(800);

#[derive(Debug)]
pub(super) struct Uplink {
    pub(super) name: String,
    pub(super) since: Instant,
    pub(super) heard: bool,
    pub(super) held_back: Option<HeldBack>,
    pub(super) port: Port,
    pub(super) next_attempt: Instant,
    pub(super) next_path: Instant,
    /// Paths that were opened and not usable.
    pub(super) path_failures: usize,
    /// When a path that is not usable by then is replaced by one to another address.
    pub(super) path_deadline: Instant,
}

/// The uplinks, and what the user set for their names.
#[derive(Debug, Default)]
pub(super) struct Uplinks {
    pub(super) all: BTreeMap<UplinkId, Uplink>,
    /// Addresses of a candidate that count for one uplink only.
    pub(super) servers_of: BTreeMap<(usize, UplinkId), Vec<SocketAddr>>,
    pub(super) ranks: BTreeMap<String, u8>,
    pub(super) policies: BTreeMap<String, UplinkPolicy>,
    /// Usage accounts by uplink name, where they differ from the name.
    pub(super) accounts: BTreeMap<String, String>,
    pub(super) usage: Usage,
}

impl Uplinks {
    pub(super) fn name_of(&self, path: &PathSnapshot) -> Option<String> {
        Some(self.all.get(&path.uplink?)?.name.clone())
    }

    fn rank_of_name(&self, name: &str) -> u8 {
        self.ranks.get(name).copied().unwrap_or(0)
    }

    pub(super) fn rank_of(&self, id: UplinkId) -> u8 {
        self.all.get(&id).map_or(0, |uplink| self.rank_of_name(&uplink.name))
    }

    pub(super) fn by_rank(&self) -> Vec<UplinkId> {
        let mut ids: Vec<UplinkId> = self.all.keys().copied().collect();
        ids.sort_by_key(|id| (self.is_held_back(*id), self.rank_of(*id)));
        ids
    }

    pub(super) fn is_held_back(&self, id: UplinkId) -> bool {
        self.all.get(&id).is_some_and(|uplink| uplink.held_back.is_some())
    }

    pub(super) fn are_all_held_back(&self) -> bool {
        let mut uplinks = self.all.values();
        !self.all.is_empty() && uplinks.all(|uplink| uplink.held_back.is_some())
    }

    /// The uplinks that are not held back; all of them, if all are.
    pub(super) fn open(&self) -> impl Iterator<Item = (&UplinkId, &Uplink)> {
        let all = self.are_all_held_back();
        self.all.iter().filter(move |(_, uplink)| all || uplink.held_back.is_none())
    }

    /// The open uplinks without a cap that are not a backup.
    pub(super) fn unmetered(&self) -> Vec<UplinkId> {
        let is_free = |name: &str| {
            self.policies
                .get(name)
                .is_none_or(|it| !it.caps.are_there() && it.policy.priority != Priority::Backup)
        };
        self.open().filter(|(_, uplink)| is_free(&uplink.name)).map(|(id, _)| *id).collect()
    }

    pub(super) fn account<'a>(&'a self, name: &'a str) -> &'a str {
        self.accounts.get(name).map_or(name, String::as_str)
    }

    /// The policy of a path that is validated, by the usage so far.
    pub(super) fn policy_of(&self, path: &PathSnapshot) -> Option<Policy> {
        let name = &self.all.get(&path.uplink?)?.name;
        let policy = self.policies.get(name)?.after(&self.usage, self.account(name));
        (path.status != PathStatus::Validating).then_some(policy)
    }

    pub(super) fn count(&mut self, id: UplinkId, bytes: impl FnOnce() -> u64) {
        let Self { all, policies, accounts, usage, .. } = self;
        let Some(Uplink { name, .. }) = all.get(&id) else { return };
        if policies.get(name).is_some_and(|policy| policy.caps.are_there()) {
            usage.add(accounts.get(name).unwrap_or(name), bytes());
        }
    }

    pub(super) fn with_usage(&self, mut reports: Vec<PathStatusReport>) -> Vec<PathStatusReport> {
        for report in &mut reports {
            let Some(name) = &report.uplink else { continue };
            let Some(UplinkPolicy { caps, .. }) = self.policies.get(name) else { continue };
            let carried = caps.carried(&self.usage, self.account(name));
            report.daily_cap_bytes = caps.daily_bytes;
            report.monthly_cap_bytes = caps.monthly_bytes;
            report.day_bytes = carried.map(|carried| carried.day_bytes);
            report.month_bytes = carried.map(|carried| carried.month_bytes);
        }
        reports
    }

    /// Delays uplinks of a higher rank that have not begun, by [`PUT_OFF_MAX`] in total at most.
    fn put_off_race(&mut self, now: Instant, rank: u8) {
        let later: Vec<UplinkId> =
            self.all.keys().copied().filter(|id| self.rank_of(*id) > rank).collect();
        for id in later {
            let Some(uplink) = self.all.get_mut(&id) else { continue };
            if (now..uplink.since + PUT_OFF_MAX).contains(&uplink.next_attempt) {
                uplink.next_attempt += RACE_STAGGER;
            }
        }
    }
}

impl Client {
    /// Adds an uplink that has an address. Call it again when the address has changed.
    pub fn add_uplink(&mut self, now: Instant, id: UplinkId, name: &str) {
        let uplinks = &mut self.uplinks;
        let rank = uplinks.rank_of_name(name);
        let is_earlier =
            |id: &&UplinkId| !uplinks.is_held_back(**id) && uplinks.rank_of(**id) <= rank;
        let earlier = uplinks.all.keys().filter(is_earlier).count();
        let stagger = RACE_STAGGER * earlier as u32;
        uplinks.put_off_race(now, rank);
        let before = uplinks.all.remove(&id);
        let uplink = Uplink {
            name: name.to_owned(),
            since: now,
            heard: false,
            port: before.as_ref().map_or(Port::new(now), |before| before.port),
            held_back: before.and_then(|before| before.held_back),
            next_attempt: now + stagger,
            next_path: now,
            path_failures: 0,
            path_deadline: now,
        };
        uplinks.all.insert(id, uplink);
        self.race.on_sign_of_life(now, Some(id));
        self.choice.forget_rests();
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
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
        let of_key = |candidate: &Candidate| candidate.key == *key;
        let Some(candidate) = self.config.candidates.iter().position(of_key) else { return };
        let place = (candidate, uplink);
        let before = match servers.is_empty() {
            true => self.uplinks.servers_of.remove(&place),
            false => self.uplinks.servers_of.insert(place, servers),
        };
        if before.as_ref() != self.uplinks.servers_of.get(&place) {
            self.race.attempt_backoff.on_sign_of_life();
        }
        if let Some(uplink) = self.uplinks.all.get_mut(&uplink) {
            (uplink.path_failures, uplink.path_deadline) = (0, now);
        }
        self.forget_pairs();
        self.handle_timeout(now);
    }

    /// The addresses of the current server that are tried over `uplink`.
    pub fn servers_of(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.addresses_of(self.choice.current, uplink)
    }

    pub(super) fn forget_pairs(&mut self) {
        let Self { uplinks: Uplinks { all, servers_of, .. }, config, race, .. } = self;
        race.pairs.retain(|(uplink, server)| {
            let leads_to = |(at, candidate): (usize, &Candidate)| {
                servers_of.get(&(at, uplink)).unwrap_or(&candidate.addresses).contains(&server)
            };
            all.contains_key(&uplink) && config.candidates.iter().enumerate().any(leads_to)
        });
    }

    /// Removes an uplink; its path is closed, unless it is the last.
    pub fn remove_uplink(&mut self, now: Instant, id: UplinkId) {
        self.uplinks.servers_of.retain(|(_, uplink), _| *uplink != id);
        self.uplinks.all.remove(&id);
        self.drop_attempts(now, "its uplink is gone", |attempt| attempt.pair.0 == id);
        if let Some(replacement) =
            self.race.replacement.take_if(|replacement| replacement.pair.0 == id)
        {
            self.close_connection(now, replacement.id, "its uplink is gone");
        }
        self.choice.on_doubt(now);
        self.outages.blocked.remove(&id);
        self.forget_pairs();
        self.on_lanes_or_uplinks(now);
        self.handle_timeout(now);
    }
}
