//! Compares readings of a client and yields the changes to report.
//!
//! ```text
//! reading ─► twice the same? ─► settled ─► differs from the reported state? ─► one change
//! ```
//!
//! There is no queue: what passes while a program runs is one change at its end, and nothing grows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_node::status::{ClientStatus, RoleStatus, Status};
use roadweave_proto::PathStatus;
use roadweave_tunnel::{PathStatusReport, UplinkReport};

const LATENESS_MAX: f64 = 2.0;
const UPLINKS_MAX: usize = 64;
const ADDRESSES_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HookSession {
    pub(super) tun: String,
    pub(super) server: Option<SocketAddr>,
    pub(super) addresses: Vec<IpNet>,
    /// Number of client starts; a restarted client has a new TUN.
    starts: u64,
}

roadweave_proto::named! {
    UplinkState {
        Up = "up",
        Down = "down",
        /// Paused, standby, or its daily or monthly cap is used up.
        HeldBack = "held-back",
        Portal = "portal",
        Gone = "gone",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HookChange {
    /// Also when the addresses, the server or the TUN changed.
    Join(HookSession),
    Leave(HookSession),
    Uplink(String, UplinkState),
}

#[derive(Clone, Debug, Default)]
struct ConnectionFacts {
    session: Option<HookSession>,
    uplinks: BTreeMap<String, UplinkState>,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    read: ConnectionFacts,
    settled: ConnectionFacts,
    reported: ConnectionFacts,
    started: Option<f64>,
    starts: u64,
}

impl Changes {
    /// Takes a reading at `now`, on any clock; `None` if none runs. `false` for another role.
    pub(super) fn take(&mut self, now: Duration, status: Option<&Status>) -> bool {
        let read = match status.map(|status| (status, &status.role)) {
            None => {
                self.started = Some(f64::NEG_INFINITY);
                ConnectionFacts { session: None, uplinks: self.read.uplinks.clone() }
            }
            Some((status, RoleStatus::Client(client))) => {
                let started = now.as_secs_f64() - status.uptime_seconds;
                if self.started.is_some_and(|before| started > before + LATENESS_MAX) {
                    self.starts += 1;
                }
                self.started = Some(started);
                ConnectionFacts {
                    session: session(status, client, self.starts),
                    uplinks: uplinks(client),
                }
            }
            Some(_) => return false,
        };
        if read.session == self.read.session {
            self.settled.session.clone_from(&read.session);
        }
        let is_same = |(name, now): &(&String, &UplinkState)| {
            self.read.uplinks.get(*name).is_some_and(|before| before == *now)
        };
        let same = read.uplinks.iter().filter(is_same).map(|(name, now)| (name.clone(), *now));
        self.settled.uplinks.extend(same);
        let is_there =
            |name: &String| read.uplinks.contains_key(name) || self.read.uplinks.contains_key(name);
        self.settled.uplinks.retain(|name, _| is_there(name));
        self.read = read;
        true
    }

    pub(super) fn next(&mut self) -> Option<HookChange> {
        if self.reported.session != self.settled.session {
            let before =
                std::mem::replace(&mut self.reported.session, self.settled.session.clone());
            return match self.settled.session.clone() {
                Some(session) => Some(HookChange::Join(session)),
                None => before.map(HookChange::Leave),
            };
        }
        let gone =
            self.reported.uplinks.keys().find(|name| !self.settled.uplinks.contains_key(*name));
        if let Some(name) = gone.cloned() {
            self.reported.uplinks.remove(&name);
            return Some(HookChange::Uplink(name, UplinkState::Gone));
        }
        let other = |(name, state): &(&String, &UplinkState)| {
            self.reported.uplinks.get(*name) != Some(state)
        };
        let (name, state) = self.settled.uplinks.iter().find(other)?;
        let (name, state) = (name.clone(), *state);
        self.reported.uplinks.insert(name.clone(), state);
        Some(HookChange::Uplink(name, state))
    }
}

fn session(status: &Status, client: &ClientStatus, starts: u64) -> Option<HookSession> {
    let session = client.sessions.first()?;
    let addresses = session.addresses.iter().filter_map(|text| {
        let host = || text.parse::<IpAddr>().ok().map(IpNet::from);
        text.parse().ok().or_else(host)
    });
    Some(HookSession {
        tun: status.tun.clone(),
        server: session.peer.parse().ok(),
        addresses: addresses.take(ADDRESSES_MAX).collect(),
        starts,
    })
}

fn uplinks(client: &ClientStatus) -> BTreeMap<String, UplinkState> {
    let of_paths = client.paths().filter_map(|path| path.uplink.as_ref());
    let names = client.uplinks.iter().map(|uplink| &uplink.name).chain(&client.paused);
    let names: BTreeSet<&String> = names.chain(of_paths).collect();
    let state = |name: &String| {
        let own = || client.paths().filter(|path| path.uplink.as_ref() == Some(name));
        let is_held_back = |path: &PathStatusReport| {
            let is_used_up = path.nearest_cap().is_some_and(|(left, _)| left == 0);
            path.status == PathStatus::Standby || is_used_up
        };
        let has_portal = |uplink: &UplinkReport| uplink.name == *name && uplink.portal.is_some();
        if client.paused.contains(name) || own().any(is_held_back) {
            UplinkState::HeldBack
        } else if client.uplinks.iter().any(has_portal) {
            UplinkState::Portal
        } else if own().any(|path| path.status == PathStatus::Usable) {
            UplinkState::Up
        } else {
            UplinkState::Down
        }
    };
    names.into_iter().take(UPLINKS_MAX).map(|name| (name.clone(), state(name))).collect()
}
