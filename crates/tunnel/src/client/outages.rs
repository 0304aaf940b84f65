//! Watches for what the operator should know: paths that fall silent and come back, caps, networks
//! that let nothing through, lanes whose uplink is gone. A change becomes a notice once it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathSnapshot, PathStatus, UplinkId};

use super::notices::Notice;
use super::uplinks::Uplink;
use super::{Client, Current};
use crate::uplink::CapPeriod;

/// A shorter silence is not reported: every handover causes one.
const SILENT_MIN: Duration = Duration::from_secs(1);
/// An uplink without packets for this long, while others are answered, counts as blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(10);
/// A server that has not allowed a path for this long is taken to allow no more.
const ALLOWED_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Outages {
    silent: BTreeMap<PathId, Trouble>,
    all: Option<Trouble>,
    capped: BTreeMap<String, CapPeriod>,
    pub(super) blocked: BTreeSet<UplinkId>,
    waiting: BTreeMap<String, Trouble>,
    stays: Option<Stays>,
}

#[derive(Clone, Copy, Debug)]
struct Stays {
    since: Instant,
    drains: bool,
    reported: bool,
    passes: bool,
}

#[derive(Clone, Copy, Debug)]
struct Trouble {
    since: Instant,
    stage: OutageStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageStage {
    /// It may be over before it is worth a report.
    Brief,
    /// It was reported, and its end will be.
    Reported,
    /// It was due, and the limit suppressed it.
    Suppressed,
}

impl Trouble {
    fn new(since: Instant) -> Self {
        Self { since, stage: OutageStage::Brief }
    }

    fn due(&self) -> Option<Instant> {
        (self.stage == OutageStage::Brief).then_some(self.since + SILENT_MIN)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    fn on_notified(&mut self, reported: bool) {
        self.stage = if reported { OutageStage::Reported } else { OutageStage::Suppressed };
    }
}

impl Outages {
    pub(super) fn on_left(&mut self) {
        self.silent.clear();
        self.all = None;
        self.stays = None;
    }

    pub(super) fn on_inner(&mut self) {
        self.stays.iter_mut().for_each(|stays| stays.passes = true);
    }

    pub(super) fn cannot_pass(&self) -> bool {
        self.stays.is_some_and(|stays| !stays.drains)
    }
}

impl Client {
    pub(super) fn watch_outages(&mut self, now: Instant) {
        self.watch_paths(now);
        self.watch_all(now);
        self.watch_blocked(now);
        self.watch_lanes(now);
        self.watch_stay(now);
    }

    pub(super) fn stay(&mut self, now: Instant, drains: bool) {
        if self.outages.stays.is_some_and(|stays| stays.drains == drains) {
            return;
        }
        let reported = self.notify(now, Notice::Stays { drains });
        self.outages.stays = Some(Stays { since: now, drains, reported, passes: false });
    }

    fn watch_stay(&mut self, now: Instant) {
        let is_over = |stays: &mut Stays| stays.passes && !stays.drains;
        if let Some(Stays { since, reported: true, .. }) = self.outages.stays.take_if(is_over) {
            self.notify(now, Notice::Passes { after: now.since(since) });
        }
    }

    pub(super) fn outage_timeout(&self) -> Option<Instant> {
        let Outages { silent, all, waiting, .. } = &self.outages;
        let troubles = silent.values().chain(all).chain(waiting.values());
        let blocked = self.current.is_some().then(|| self.unheard().map(|(_, at)| at).min());
        troubles.filter_map(Trouble::due).chain(blocked.flatten()).min()
    }

    fn watch_paths(&mut self, now: Instant) {
        let Some(Current { id, .. }) = self.current else { return };
        let Some(connection) = self.endpoint.connection(id) else { return };
        let paths = connection.paths();
        let others = paths.iter().filter(|path| path.is_usable()).count();
        let name = |path: &PathSnapshot| self.uplinks.name_of(path);
        let mut notices = Vec::new();
        let silent = &mut self.outages.silent;
        for path in paths {
            if path.status == PathStatus::Suspect {
                let trouble = silent.entry(path.id).or_insert(Trouble::new(now));
                if trouble.is_due(now) {
                    trouble.stage = OutageStage::Suppressed;
                    notices.extend(
                        name(path).map(|uplink| (path.id, Notice::Silent { uplink, others })),
                    );
                }
            } else if let Some(Trouble { since, stage: OutageStage::Reported }) =
                silent.remove(&path.id)
            {
                let after = now.since(since);
                notices.extend(name(path).map(|uplink| (path.id, Notice::Back { uplink, after })));
            }
        }
        // A closed path is not silent.
        silent.retain(|id, _| paths.iter().any(|path| path.id == *id));
        for (path, notice) in notices {
            let reported = self.notify(now, notice);
            if let Some(trouble) = self.outages.silent.get_mut(&path) {
                trouble.on_notified(reported);
            }
        }
    }

    fn watch_all(&mut self, now: Instant) {
        match (self.silence.since, &mut self.outages.all) {
            (Some(since), None) => self.outages.all = Some(Trouble::new(since)),
            (Some(_), Some(trouble)) if trouble.is_due(now) => {
                let reported = self.notify(now, Notice::AllSilent);
                self.outages.all.iter_mut().for_each(|trouble| trouble.on_notified(reported));
            }
            (Some(_), Some(_)) | (None, None) => {}
            (None, Some(_)) => {
                if let Some(Trouble { since, stage: OutageStage::Reported }) =
                    self.outages.all.take()
                {
                    self.notify(now, Notice::Answers { after: now.since(since) });
                }
            }
        }
    }

    fn unheard(&self) -> impl Iterator<Item = (UplinkId, Instant)> {
        let is_tried = |id: &UplinkId| !self.servers_of(*id).is_empty();
        let unreported = |id: &UplinkId| !self.outages.blocked.contains(id);
        let is_unheard = |uplink: &Uplink| !uplink.heard && uplink.held_back.is_none();
        let uplinks = self.uplinks.all.iter().filter(move |(_, uplink)| is_unheard(uplink));
        uplinks
            .filter(move |(id, _)| is_tried(id) && unreported(id))
            .map(move |(id, uplink)| (*id, self.blocked_at(*id, uplink)))
    }

    /// A path that waits for the server to allow it has more time.
    fn blocked_at(&self, id: UplinkId, uplink: &Uplink) -> Instant {
        let at = uplink.since + BLOCKED_AFTER;
        let wished = self.connection().and_then(|connection| connection.wished_since(id));
        wished.map_or(at, |since| at.max(since + ALLOWED_AFTER))
    }

    fn watch_blocked(&mut self, now: Instant) {
        if self.current.is_none() {
            return;
        }
        let Some((id, _)) = self.unheard().find(|(_, at)| *at <= now) else { return };
        self.outages.blocked.insert(id);
        let Some(uplink) = self.uplinks.all.get(&id) else { return };
        let (uplink, since) = (uplink.name.clone(), now.since(uplink.since));
        let notice = match self.paths_without(id) {
            Some((paths, of_server)) => Notice::NoPath { uplink, paths, of_server },
            None => Notice::Blocked { uplink, since },
        };
        self.notify(now, notice);
    }

    /// The number of paths if a limit keeps an uplink without one, and whether the server set it.
    fn paths_without(&self, id: UplinkId) -> Option<(usize, bool)> {
        let connection = self.connection()?;
        let paths = connection.paths();
        if paths.iter().any(|path| path.uplink == Some(id)) {
            return None;
        }
        let is_wished = connection.wished_since(id).is_some();
        let is_full = paths.len() >= self.config.transport.max_paths as usize;
        (is_wished || is_full).then_some((paths.len(), is_wished))
    }

    pub(super) fn watch_caps(&mut self, now: Instant) {
        let mut notices = Vec::new();
        for (name, policy) in &self.uplinks.policies {
            let account = self.uplinks.account(name);
            let Some(carried) = policy.caps.carried(&self.uplinks.usage, account) else { continue };
            let reached = policy.caps.reached(carried);
            let reported = self.outages.capped.get(name).copied();
            if reached.map(|(span, _)| span) != reported {
                let uplink = name.clone();
                notices.push(match reached {
                    Some((span, cap_bytes)) => {
                        self.outages.capped.insert(name.clone(), span);
                        Notice::CapReached { uplink, span, cap_bytes }
                    }
                    None => {
                        self.outages.capped.remove(name);
                        Notice::CapOver { uplink }
                    }
                });
            }
        }
        for notice in notices {
            self.notify(now, notice);
        }
    }

    /// Lanes whose strategy names an absent uplink, with its name.
    pub fn waiting_lanes(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_there = |name: &str| self.uplinks.all.values().any(|uplink| uplink.name == name);
        self.config
            .lanes
            .iter()
            .filter_map(|lane| Some((lane.name.as_str(), lane.strategy.uplink()?)))
            .filter(move |(_, uplink)| !is_there(uplink))
    }

    fn watch_lanes(&mut self, now: Instant) {
        let due = self.outages.waiting.iter().filter(|(_, trouble)| trouble.is_due(now));
        for lane in due.map(|(lane, _)| lane.clone()).collect::<Vec<_>>() {
            let notice = self.uplink_of_lane(&lane);
            let notice = notice.map(|uplink| Notice::LaneWaits { lane: lane.clone(), uplink });
            let reported = notice.is_some_and(|notice| self.notify(now, notice));
            if let Some(trouble) = self.outages.waiting.get_mut(&lane) {
                trouble.on_notified(reported);
            }
        }
    }

    pub(super) fn on_lanes_or_uplinks(&mut self, now: Instant) {
        let names: BTreeSet<String> = self.waiting_lanes().map(|(lane, _)| lane.into()).collect();
        let mut before = std::mem::take(&mut self.outages.waiting);
        for lane in names {
            let trouble = before.remove(&lane).unwrap_or(Trouble::new(now));
            self.outages.waiting.insert(lane, trouble);
        }
        for (lane, trouble) in before {
            if trouble.stage == OutageStage::Reported
                && let Some(uplink) = self.uplink_of_lane(&lane)
            {
                self.notify(now, Notice::LaneServed { lane, uplink });
            }
        }
    }

    fn uplink_of_lane(&self, name: &str) -> Option<String> {
        let lane = self.config.lanes.iter().find(|lane| lane.name == name)?;
        Some(lane.strategy.uplink()?.to_owned())
    }
}
