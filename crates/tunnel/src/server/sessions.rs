//! The sessions of a server, which of them have something new, and when each is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use roadweave_identity::PublicKey;
use roadweave_proto::{Deadlines, DropReason, Instant, PathId};
use roadweave_quic::ConnectionId;

use crate::peers::Peer;
use crate::rate::{Direction, Limit};
use crate::session::Session;

#[derive(Debug)]
pub(super) struct Joined {
    pub(super) key: PublicKey,
    pub(super) peer: Arc<Peer>,
    pub(super) session: Session,
    pub(super) path_names: BTreeMap<PathId, String>,
    pub(super) limits: Option<[Limit; 2]>,
    pub(super) is_testing: bool,
}

impl Joined {
    pub(super) fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let limit = self.limits.as_mut().map(|limits| &mut limits[direction as usize]);
        let passes = limit.is_none_or(|limit| limit.allows(now, bytes));
        if !passes {
            self.session.count_drop(DropReason::RateLimited);
        }
        passes
    }
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) all: BTreeMap<ConnectionId, Joined>,
    pub(super) by_key: HashMap<PublicKey, ConnectionId>,
    pub(super) touched: BTreeSet<ConnectionId>,
    pub(super) timers: Deadlines<ConnectionId>,
    /// The last one whose strategies were asked for what they have learned.
    pub(super) asked: Option<ConnectionId>,
}

impl Sessions {
    pub(super) fn insert(&mut self, id: ConnectionId, joined: Joined) {
        self.all.insert(id, joined);
        self.touched.insert(id);
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Joined> {
        self.touched.remove(&id);
        self.timers.set(id, None);
        let joined = self.all.remove(&id)?;
        if self.by_key.get(&joined.key) == Some(&id) {
            self.by_key.remove(&joined.key);
        }
        Some(joined)
    }
}
