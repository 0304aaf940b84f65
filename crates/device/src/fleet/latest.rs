//! What the event loop and the fleet's thread have for each other: the latest of each sort, so that
//! neither waits for the other and nothing grows.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roadweave_fleet::{VerifiedServer, Version};
use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, ServerName};
use roadweave_tunnel::{ProxyTenant, SessionFigures};

use super::members::Members;
use crate::Uplink;
use crate::status::FleetStatus;

/// What the event loop is to do or know. `C`: what a configuration comes to.
#[derive(Debug)]
pub(crate) struct News<C> {
    /// A configuration that is to be in force.
    pub(crate) configuration: Option<(Option<Version>, C)>,
    /// The proxies to choose among, the best first.
    pub(crate) candidates: Option<Vec<VerifiedServer>>,
    /// Who may connect beside those of the file.
    pub(crate) members: Option<Members>,
    /// The anchors to lead to, for each tenant, and where they are.
    pub(crate) anchors: Option<Vec<(ProxyTenant, Vec<ServerName>)>>,
    /// Keys that are withdrawn.
    pub(crate) revoked: Vec<PublicKey>,
    /// The number of the last batch of them.
    pub(crate) batch: u64,
    /// Whether no member may be let in, since no controller was there for too long.
    pub(crate) is_closed: Option<bool>,
    /// Whether all sessions are to be let go, and none taken.
    pub(crate) drained: Option<bool>,
    /// Figures are wanted often until then.
    pub(crate) watched_until: Option<Instant>,
}

impl<C> Default for News<C> {
    fn default() -> Self {
        Self {
            configuration: None,
            candidates: None,
            members: None,
            anchors: None,
            revoked: Vec::new(),
            batch: 0,
            is_closed: None,
            drained: None,
            watched_until: None,
        }
    }
}

/// What the fleet's thread is to do or know.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: bool,
    pub(super) uplinks: Option<Vec<Uplink>>,
    /// The proxy with which there is a session, if there is one.
    pub(super) session: Option<Option<PublicKey>>,
    /// Whether nothing comes through it.
    pub(super) is_mute: Option<bool>,
    pub(super) sessions: Option<u32>,
    /// The sessions of all batches up to this have ended.
    pub(super) ended: Option<u64>,
    pub(super) refuse: Option<(Version, String)>,
    pub(super) figures: Option<Vec<SessionFigures>>,
    /// The round trips to the anchors of a proxy's tenants.
    pub(super) anchors: Option<Vec<(String, Duration)>>,
}

/// What both sides share: the latest of what each has for the other.
#[derive(Debug)]
pub(super) struct Latest<C> {
    news: Mutex<News<C>>,
    orders: Mutex<Orders>,
    status: Mutex<FleetStatus>,
    in_step: Mutex<bool>,
    in_step_now: Condvar,
}

impl<C> Default for Latest<C> {
    fn default() -> Self {
        Self {
            news: Mutex::default(),
            orders: Mutex::default(),
            status: Mutex::default(),
            in_step: Mutex::default(),
            in_step_now: Condvar::new(),
        }
    }
}

impl<C> Latest<C> {
    pub(super) fn news(&self) -> MutexGuard<'_, News<C>> {
        lock(&self.news)
    }

    pub(super) fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, FleetStatus> {
        lock(&self.status)
    }

    /// All has come that the controller had.
    pub(super) fn set_in_step(&self) {
        *lock(&self.in_step) = true;
        self.in_step_now.notify_all();
    }

    /// Waits until all has come that the controller had, and no longer than `most`; returns whether
    /// it has.
    pub(super) fn wait_in_step(&self, most: Duration) -> bool {
        let is_not = |in_step: &mut bool| !*in_step;
        let waited = self.in_step_now.wait_timeout_while(lock(&self.in_step), most, is_not);
        let (in_step, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *in_step
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
