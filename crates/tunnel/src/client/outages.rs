//! Watches for what the operator should know: paths that fall silent and come back, caps, networks
//! that let nothing through, lanes whose uplink is gone. A change becomes a notice once it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathStatus, UplinkId};

use super::current::View;
use super::uplinks::Uplink;
use super::{EventQueue, Notice, Uplinks};
use crate::lane::LaneConfig;
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

    pub(super) fn watch(&mut self, now: Instant, view: &View<'_>, event_queue: &mut EventQueue) {
        self.watch_paths(now, view, event_queue);
        self.watch_all(now, view.in_use.silent_since, event_queue);
        self.watch_blocked(now, view, event_queue);
        self.watch_lanes(now, &view.config.lanes, event_queue);
        self.watch_stay(now, event_queue);
    }

    pub(super) fn poll_timeout(&self, view: &View<'_>) -> Option<Instant> {
        let Self { silent, all, waiting, .. } = self;
        let troubles = silent.values().chain(all).chain(waiting.values());
        let blocked = self.unheard(view).map(|(_, at)| at).min();
        troubles.filter_map(Trouble::due).chain(blocked).min()
    }

    pub(super) fn stay(&mut self, now: Instant, drains: bool, event_queue: &mut EventQueue) {
        if self.stays.is_some_and(|stays| stays.drains == drains) {
            return;
        }
        let reported = event_queue.notify(now, Notice::Stays { drains });
        self.stays = Some(Stays { since: now, drains, reported, passes: false });
    }

    fn watch_stay(&mut self, now: Instant, event_queue: &mut EventQueue) {
        let is_over = |stays: &mut Stays| stays.passes && !stays.drains;
        if let Some(Stays { since, reported: true, .. }) = self.stays.take_if(is_over) {
            event_queue.notify(now, Notice::Passes { after: now.since(since) });
        }
    }

    fn watch_paths(&mut self, now: Instant, view: &View<'_>, event_queue: &mut EventQueue) {
        let Some(connection) = view.connection() else { return };
        let paths = connection.paths();
        let others = paths.iter().filter(|path| path.is_usable()).count();
        for path in paths {
            if path.status == PathStatus::Suspect {
                let trouble = self.silent.entry(path.id).or_insert(Trouble::new(now));
                if trouble.is_due(now) {
                    let notice = |uplink| Notice::Silent { uplink, others };
                    let uplink = view.uplinks.name_of(path);
                    trouble
                        .on_notified(uplink.is_some_and(|it| event_queue.notify(now, notice(it))));
                }
            } else if let Some(Trouble { since, stage: OutageStage::Reported }) =
                self.silent.remove(&path.id)
                && let Some(uplink) = view.uplinks.name_of(path)
            {
                event_queue.notify(now, Notice::Back { uplink, after: now.since(since) });
            }
        }
        // A closed path is not silent.
        self.silent.retain(|id, _| paths.iter().any(|path| path.id == *id));
    }

    fn watch_all(&mut self, now: Instant, since: Option<Instant>, event_queue: &mut EventQueue) {
        if let Some(since) = since {
            let trouble = self.all.get_or_insert(Trouble::new(since));
            if trouble.is_due(now) {
                trouble.on_notified(event_queue.notify(now, Notice::AllSilent));
            }
        } else if let Some(Trouble { since, stage: OutageStage::Reported }) = self.all.take() {
            event_queue.notify(now, Notice::Answers { after: now.since(since) });
        }
    }

    /// The uplinks without packets, and when each counts as blocked; none without a session.
    fn unheard(&self, view: &View<'_>) -> impl Iterator<Item = (UplinkId, Instant)> {
        let has_session = view.in_use.session.is_some();
        let is_unheard = move |(id, uplink): &(&UplinkId, &Uplink)| {
            let is_tried = has_session && uplink.held_back.is_none();
            is_tried && !uplink.heard && !view.choice.servers(**id).is_empty()
        };
        let uplinks = view.uplinks.all.iter().filter(is_unheard);
        let unreported = uplinks.filter(move |(id, _)| !self.blocked.contains(id));
        unreported.map(move |(id, uplink)| (*id, blocked_at(*id, uplink, view)))
    }

    fn watch_blocked(&mut self, now: Instant, view: &View<'_>, event_queue: &mut EventQueue) {
        let Some((id, _)) = self.unheard(view).find(|(_, at)| *at <= now) else { return };
        self.blocked.insert(id);
        let Some(uplink) = view.uplinks.all.get(&id) else { return };
        let (uplink, since) = (uplink.name.clone(), now.since(uplink.since));
        let notice = match paths_without(id, view) {
            Some((paths, of_server)) => Notice::NoPath { uplink, paths, of_server },
            None => Notice::Blocked { uplink, since },
        };
        event_queue.notify(now, notice);
    }

    pub(super) fn watch_caps(
        &mut self,
        now: Instant,
        uplinks: &Uplinks,
        event_queue: &mut EventQueue,
    ) {
        for (name, policy) in &uplinks.policies {
            let account = uplinks.account(name);
            let Some(carried) = policy.caps.carried(&uplinks.usage, account) else { continue };
            let reached = policy.caps.reached(carried);
            if reached.map(|(span, _)| span) == self.capped.get(name).copied() {
                continue;
            }
            let uplink = name.clone();
            let notice = match reached {
                Some((span, cap_bytes)) => {
                    self.capped.insert(name.clone(), span);
                    Notice::CapReached { uplink, span, cap_bytes }
                }
                None => {
                    self.capped.remove(name);
                    Notice::CapOver { uplink }
                }
            };
            event_queue.notify(now, notice);
        }
    }

    fn watch_lanes(&mut self, now: Instant, lanes: &[LaneConfig], event_queue: &mut EventQueue) {
        for (lane, trouble) in self.waiting.iter_mut().filter(|(_, trouble)| trouble.is_due(now)) {
            let notice = |uplink| Notice::LaneWaits { lane: lane.clone(), uplink };
            let uplink = uplink_of_lane(lanes, lane);
            trouble.on_notified(uplink.is_some_and(|it| event_queue.notify(now, notice(it))));
        }
    }

    /// The lanes or the uplinks have changed.
    pub(super) fn on_change(
        &mut self,
        now: Instant,
        view: &View<'_>,
        event_queue: &mut EventQueue,
    ) {
        let lanes = &view.config.lanes;
        let mut before = std::mem::take(&mut self.waiting);
        for (lane, _) in waiting_lanes(lanes, view.uplinks) {
            let trouble = before.remove(lane).unwrap_or(Trouble::new(now));
            self.waiting.entry(lane.to_owned()).or_insert(trouble);
        }
        for (lane, trouble) in before {
            if trouble.stage == OutageStage::Reported
                && let Some(uplink) = uplink_of_lane(lanes, &lane)
            {
                event_queue.notify(now, Notice::LaneServed { lane, uplink });
            }
        }
    }
}

/// A path that waits for the server to allow it has more time.
fn blocked_at(id: UplinkId, uplink: &Uplink, view: &View<'_>) -> Instant {
    let at = uplink.since + BLOCKED_AFTER;
    let wished = view.connection().and_then(|connection| connection.wished_since(id));
    wished.map_or(at, |since| at.max(since + ALLOWED_AFTER))
}

/// The number of paths if a limit keeps an uplink without one, and whether the server set it.
fn paths_without(id: UplinkId, view: &View<'_>) -> Option<(usize, bool)> {
    let connection = view.connection()?;
    let paths = connection.paths();
    if paths.iter().any(|path| path.uplink == Some(id)) {
        return None;
    }
    let is_wished = connection.wished_since(id).is_some();
    let is_full = paths.len() >= view.config.transport.max_paths as usize;
    (is_wished || is_full).then_some((paths.len(), is_wished))
}

/// Lanes whose strategy names an absent uplink, with its name.
pub(super) fn waiting_lanes<'a>(
    lanes: &'a [LaneConfig],
    uplinks: &'a Uplinks,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_there = |name: &str| uplinks.all.values().any(|uplink| uplink.name == name);
    lanes
        .iter()
        .filter_map(|lane| Some((lane.name.as_str(), lane.strategy.uplink()?)))
        .filter(move |(_, uplink)| !is_there(uplink))
}

fn uplink_of_lane(lanes: &[LaneConfig], name: &str) -> Option<String> {
    let lane = lanes.iter().find(|lane| lane.name == name)?;
    Some(lane.strategy.uplink()?.to_owned())
}
