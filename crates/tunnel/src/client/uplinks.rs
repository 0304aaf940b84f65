//! The uplinks of a client: their order, policies and usage, and which of them are held back.
//!
//! ```text
//! HTTP over it is answered by a login page ─► held back: tried seldom, behind all others, and
//!     no reason to wait ─► open, or its path is validated ─► as any other, at once
//! ```
//!
//! The network under that uplink says so, and may lie: it affects that uplink, until validated.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathSnapshot, PathStatus, Policy, Priority, UplinkId};
use serde::{Deserialize, Serialize};

use super::paths::PathTry;
use super::ports::Port;
use super::race::RACE_STAGGER;
use super::{EventQueue, Notice};
use crate::status::PathStatusReport;
use crate::uplink::UplinkPolicy;
use crate::usage::Usage;

const PUT_OFF_MAX: Duration = Duration::from_millis(800);
/// Retries go on, since after a login an uplink may recover without HTTP showing it.
pub(super) const HELD_BACK_RETRY: Duration = Duration::from_secs(4);

/// A network that answers HTTP with a login page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// The address of that page as the network reports it: valid characters of an http or https
    /// address, otherwise unverified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct HeldBack {
    pub(super) portal: Portal,
    since: Instant,
    reported: bool,
}

#[derive(Debug)]
pub(super) struct Uplink {
    pub(super) name: String,
    pub(super) since: Instant,
    pub(super) heard: bool,
    pub(super) held_back: Option<HeldBack>,
    pub(super) port: Port,
    pub(super) next_attempt: Instant,
    pub(super) path: PathTry,
}

impl Uplink {
    pub(super) fn hold_back(&mut self, now: Instant, portal: Portal, event_queue: &mut EventQueue) {
        if let Some(held_back) = &mut self.held_back {
            held_back.portal = portal;
            return;
        }
        self.path.put_off(now + HELD_BACK_RETRY);
        let reported = event_queue.notify(now, Notice::Portal { uplink: self.name.clone() });
        self.held_back = Some(HeldBack { portal, since: now, reported });
    }

    /// Returns whether it was held back.
    pub(super) fn release(&mut self, now: Instant, event_queue: &mut EventQueue) -> bool {
        let Some(HeldBack { since, reported, .. }) = self.held_back.take() else { return false };
        self.next_attempt = now;
        self.path.hurry(now);
        if reported {
            let (uplink, after) = (self.name.clone(), now.since(since));
            event_queue.notify(now, Notice::PortalOver { uplink, after });
        }
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct Uplinks {
    pub(super) all: BTreeMap<UplinkId, Uplink>,
    pub(super) ranks: BTreeMap<String, u8>,
    pub(super) policies: BTreeMap<String, UplinkPolicy>,
    /// Usage accounts by uplink name, where they differ from the name.
    pub(super) accounts: BTreeMap<String, String>,
    pub(super) usage: Usage,
}

impl Uplinks {
    /// Adds an uplink after those of the same rank. One that has another address keeps its port.
    pub(super) fn add(&mut self, now: Instant, id: UplinkId, name: &str) {
        let rank = self.rank_of_name(name);
        let is_earlier = |id: &&UplinkId| !self.is_held_back(**id) && self.rank_of(**id) <= rank;
        let stagger = RACE_STAGGER * self.all.keys().filter(is_earlier).count() as u32;
        self.put_off_race(now, rank);
        let before = self.all.remove(&id);
        let uplink = Uplink {
            name: name.to_owned(),
            since: now,
            heard: false,
            port: before.as_ref().map_or(Port::new(now), |before| before.port),
            held_back: before.and_then(|before| before.held_back),
            next_attempt: now + stagger,
            path: PathTry::new(now),
        };
        self.all.insert(id, uplink);
    }

    pub(super) fn name_of(&self, path: &PathSnapshot) -> Option<String> {
        Some(self.all.get(&path.uplink?)?.name.clone())
    }

    fn rank_of_name(&self, name: &str) -> u8 {
        self.ranks.get(name).copied().unwrap_or(0)
    }

    pub(super) fn rank_of(&self, id: UplinkId) -> u8 {
        self.all.get(&id).map_or(0, |uplink| self.rank_of_name(&uplink.name))
    }

    pub(super) fn by_rank(&self, mut ids: Vec<UplinkId>) -> Vec<UplinkId> {
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
    fn open(&self) -> impl Iterator<Item = (&UplinkId, &Uplink)> {
        let all = self.are_all_held_back();
        self.all.iter().filter(move |(_, uplink)| all || uplink.held_back.is_none())
    }

    pub(super) fn all_open(&self) -> Vec<UplinkId> {
        self.open().map(|(id, _)| *id).collect()
    }

    /// The open uplinks without a cap that are not a backup.
    fn unmetered(&self) -> Vec<UplinkId> {
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

    pub(super) fn is_metered(&self, name: &str) -> bool {
        self.policies.get(name).is_some_and(|policy| {
            policy.caps.are_there() || policy.policy.redundancy_percent.is_some()
        })
    }

    /// The uplinks for what is not urgent: the unmetered ones, if the session can do with them.
    /// `paths`: the session's.
    pub(super) fn frugal(&self, paths: &[PathSnapshot], is_without_server: bool) -> Vec<UplinkId> {
        let free = self.unmetered();
        let mut usable = paths.iter().filter(|path| path.is_usable());
        let is_of_use = match is_without_server {
            true => !free.is_empty(),
            false => usable.any(|path| path.uplink.is_some_and(|uplink| free.contains(&uplink))),
        };
        if is_of_use { free } else { self.all_open() }
    }

    /// The policy of a path that is validated, by the usage so far.
    pub(super) fn policy_of(&self, path: &PathSnapshot) -> Option<Policy> {
        let name = &self.all.get(&path.uplink?)?.name;
        let policy = self.policies.get(name)?.after(&self.usage, self.account(name));
        (path.status != PathStatus::Validating).then_some(policy)
    }

    pub(super) fn on_packet(&mut self, id: UplinkId, bytes: u64) {
        let Some(uplink) = self.all.get_mut(&id) else { return };
        uplink.heard = true;
        self.count(id, || bytes);
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

    /// Returns the name of the path's uplink. `paths`: the session's.
    pub(super) fn on_path_usable(&mut self, id: PathId, paths: &[PathSnapshot]) -> Option<String> {
        let uplink = paths.iter().find(|path| path.id == id)?.uplink?;
        let Uplink { path, name, .. } = self.all.get_mut(&uplink)?;
        path.on_usable();
        Some(name.clone())
    }

    pub(super) fn hurry_paths(&mut self, now: Instant) {
        self.all.values_mut().for_each(|uplink| uplink.path.hurry(now));
    }

    /// `paths`: the session's.
    pub(super) fn watch_ports(&mut self, now: Instant, paths: &[PathSnapshot]) {
        let silent: Vec<UplinkId> = silent_uplinks(paths).collect();
        for (id, uplink) in &mut self.all {
            uplink.port.watch(now, silent.contains(id));
        }
    }

    pub(super) fn port_timeout(&self, paths: &[PathSnapshot]) -> Option<Instant> {
        silent_uplinks(paths).filter_map(|id| Some(self.all.get(&id)?.port.due())).min()
    }

    /// Delays uplinks of a higher rank that have not begun, by [`PUT_OFF_MAX`] in total at most.
    fn put_off_race(&mut self, now: Instant, rank: u8) {
        let ranks = &self.ranks;
        for uplink in self.all.values_mut() {
            let is_later = ranks.get(&uplink.name).is_some_and(|own| *own > rank);
            if is_later && (now..uplink.since + PUT_OFF_MAX).contains(&uplink.next_attempt) {
                uplink.next_attempt += RACE_STAGGER;
            }
        }
    }
}

fn silent_uplinks(paths: &[PathSnapshot]) -> impl Iterator<Item = UplinkId> {
    let is_silent = |status| matches!(status, PathStatus::Suspect | PathStatus::Validating);
    paths.iter().filter(move |path| is_silent(path.status)).filter_map(|path| path.uplink)
}
