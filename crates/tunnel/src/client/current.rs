//! The session in use: its connection, and what is known of both.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_proto::wire::{Control, Welcome};
use roadweave_proto::{Instant, PathId, PathSnapshot, Policy, UplinkId};
use roadweave_quic::{Connection, ConnectionId, Endpoint, Event};
use roadweave_schedule::AcknowledgedDatagram;

use super::pairs::Pair;
use super::streams::FarEnd;
use super::{Choice, ClientConfig, Uplinks, connections};
use crate::session::Session;

/// A welcomed connection: the server makes a session of it when it is used.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) id: ConnectionId,
    pub(super) pair: Pair,
    pub(super) welcome: Welcome,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) id: ConnectionId,
    pub(super) pair: Pair,
    pub(super) session: Session,
    pub(super) since: Instant,
    pub(super) welcome: Welcome,
    pub(super) far_end: Option<FarEnd>,
    pub(super) doubted: bool,
    path_policies: BTreeMap<PathId, Policy>,
    pub(super) own_rtt: OwnRtt,
}

impl Current {
    pub(super) fn new(now: Instant, accepted: AcceptedConnection, session: Session) -> Self {
        let AcceptedConnection { id, pair, welcome, .. } = accepted;
        let (since, far_end, doubted) = (now, None, false);
        let (path_policies, own_rtt) = (BTreeMap::new(), OwnRtt::default());
        Self { id, pair, session, since, welcome, far_end, doubted, path_policies, own_rtt }
    }

    /// Passes the event of a datagram to the session. Returns any other event.
    pub(super) fn on_datagram(&mut self, now: Instant, event: Event) -> Option<Event> {
        match event {
            Event::Received { datagram, .. } => self.session.handle_datagram(now, datagram),
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = AcknowledgedDatagram { path, sent, bytes, rtt };
                self.session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => self.session.on_lost(now, path, token),
            other => return Some(other),
        }
        None
    }

    pub(super) fn name_paths(&mut self, uplinks: &Uplinks, endpoint: &mut Endpoint) {
        let name = |path: &PathSnapshot| Some((path.id, uplinks.name_of(path)?));
        let paths = connections::paths(endpoint, Some(self.id)).iter();
        for (path, uplink) in paths.filter_map(name).collect::<Vec<_>>() {
            self.name_path(path, uplink, endpoint);
        }
    }

    pub(super) fn name_path(&mut self, path: PathId, uplink: String, endpoint: &mut Endpoint) {
        self.session.name_path(path, &uplink);
        connections::send(endpoint, self.id, &Control::PathName { path, uplink });
    }

    pub(super) fn apply_policies(&mut self, uplinks: &Uplinks, endpoint: &mut Endpoint) {
        if uplinks.policies.is_empty() {
            return;
        }
        let Some(connection) = endpoint.connection(self.id) else { return };
        let wanted = |path: &PathSnapshot| Some((path.id, uplinks.policy_of(path)?));
        let wanted: BTreeMap<_, _> = connection.paths().iter().filter_map(wanted).collect();
        let known = std::mem::replace(&mut self.path_policies, wanted.clone());
        let is_new = |(path, policy): &(PathId, Policy)| {
            known.get(path).copied().unwrap_or_default() != *policy
        };
        for (path, policy) in wanted.into_iter().filter(is_new) {
            if let Some(connection) = endpoint.connection_mut(self.id) {
                connection.set_policy(path, policy);
            }
            connections::send(endpoint, self.id, &Control::PathPolicy { path, policy });
        }
    }

    /// No packet from the tunnel may have a source address in `local`, or of this client.
    pub(super) fn refuse_sources(&mut self, local: &[IpNet]) {
        let own = self.welcome.addresses.iter();
        self.session.refuse_sources(local.iter().chain(own).copied().collect());
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InUse {
    pub(super) session: Option<ConnectionId>,
    pub(super) silent_since: Option<Instant>,
}

impl InUse {
    pub(super) fn is_without_server(self) -> bool {
        self.session.is_none() || self.silent_since.is_some()
    }

    /// All while no server answers, since any of them may be the one that works.
    pub(super) fn standby_uplinks(self, uplinks: &Uplinks, endpoint: &Endpoint) -> Vec<UplinkId> {
        match self.is_without_server() {
            true => uplinks.all_open(),
            false => uplinks.frugal(connections::paths(endpoint, self.session), false),
        }
    }
}

/// What a client's machines see of it.
pub(super) struct View<'a> {
    pub(super) in_use: InUse,
    pub(super) config: &'a ClientConfig,
    pub(super) uplinks: &'a Uplinks,
    pub(super) choice: &'a Choice,
    pub(super) endpoint: &'a Endpoint,
}

impl<'a> View<'a> {
    pub(super) fn connection(&self) -> Option<&'a Connection> {
        self.endpoint.connection(self.in_use.session?)
    }
}

/// The round trip of the session's nearest path.
#[derive(Debug, Default)]
pub(super) struct OwnRtt {
    least: Option<Duration>,
    worse_since: Option<Instant>,
}

impl OwnRtt {
    pub(super) fn is_doubtful(&mut self, now: Instant, paths: &[PathSnapshot]) -> bool {
        let usable = paths.iter().filter(|path| path.is_usable());
        let nearest = usable.map(|path| (path.smoothed_rtt, path.min_rtt)).min();
        let is_worse = nearest.is_some_and(|(rtt, min)| {
            let least = *self.least.insert(self.least.map_or(min, |least| least.min(min)));
            rtt > least.saturating_mul(2).saturating_add(DOUBT_MARGIN)
        });
        self.worse_since = is_worse.then(|| self.worse_since.unwrap_or(now));
        self.worse_since.is_some_and(|since| now >= since + DOUBT_AFTER)
    }
}

/// In doubt: the session's round trip exceeds twice its least by this, for this long.
const DOUBT_MARGIN: Duration = Duration::from_millis(20);
const DOUBT_AFTER: Duration = Duration::from_secs(10);
