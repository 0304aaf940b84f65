//! Uplinks whose network demands a login before it lets anything through.
//!
//! ```text
//! HTTP over it is answered by a login page ─► held back: tried seldom, behind all others, and
//!     no reason to wait ─► open, or its path is validated ─► as any other, at once
//! ```
//!
//! The network under that uplink says so, and may lie: it affects that uplink, until validated.

use std::time::Duration;

use roadweave_proto::{Instant, PathStatus, UplinkId};
use serde::{Deserialize, Serialize};

use super::Client;
use super::notices::Notice;
use crate::node::Node as _;

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

impl Client {
    /// Sets what HTTP over `uplink` shows of a login page. Ignored if its path is validated.
    pub fn set_portal(&mut self, now: Instant, uplink: UplinkId, portal: Option<Portal>) {
        match portal {
            None => self.release(now, uplink),
            Some(_) if self.is_validated(uplink) => {}
            Some(portal) => self.hold_back(now, uplink, portal),
        }
        self.handle_timeout(now);
    }

    /// Whether the path over an uplink is validated and answers.
    pub fn is_validated(&self, uplink: UplinkId) -> bool {
        self.paths().iter().any(|path| {
            let answers = matches!(path.status, PathStatus::Usable | PathStatus::Standby);
            path.uplink == Some(uplink) && answers
        })
    }

    fn hold_back(&mut self, now: Instant, id: UplinkId, portal: Portal) {
        let Some(uplink) = self.uplinks.all.get_mut(&id) else { return };
        if let Some(held_back) = &mut uplink.held_back {
            held_back.portal = portal;
            return;
        }
        uplink.held_back = Some(HeldBack { portal, since: now, reported: false });
        uplink.next_path = uplink.next_path.max(now + HELD_BACK_RETRY);
        let name = uplink.name.clone();
        let reported = self.notify(now, Notice::Portal { uplink: name });
        let held_back = self.uplinks.all.get_mut(&id).and_then(|uplink| uplink.held_back.as_mut());
        held_back.into_iter().for_each(|it| it.reported = reported);
    }

    fn release(&mut self, now: Instant, id: UplinkId) {
        let Some(uplink) = self.uplinks.all.get_mut(&id) else { return };
        let Some(HeldBack { since, reported, .. }) = uplink.held_back.take() else { return };
        (uplink.next_attempt, uplink.next_path) = (now, now);
        let name = uplink.name.clone();
        self.race.on_sign_of_life(now, Some(id));
        self.race.pairs.hurry(now, Some(id));
        if reported {
            self.notify(now, Notice::PortalOver { uplink: name, after: now.since(since) });
        }
    }

    pub(super) fn release_validated(&mut self, now: Instant) {
        let held_back = self.uplinks.all.iter().filter(|(_, uplink)| uplink.held_back.is_some());
        let ids: Vec<UplinkId> = held_back.map(|(id, _)| *id).collect();
        for id in ids {
            if self.is_validated(id) {
                self.release(now, id);
            }
        }
    }

    /// Whether an uplink is held back.
    pub fn is_held_back(&self, id: UplinkId) -> bool {
        self.uplinks.is_held_back(id)
    }
}
