//! A mailbox between the event loop and the fleet's thread. It keeps the latest value of each kind,
//! so that neither side waits and nothing grows.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roadweave_fleet::{VerifiedServer, Version};
use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, ServerName};
use roadweave_tunnel::{ProxyTenant, SessionFigures};

use super::members::Members;
use crate::Uplink;
use crate::status::FleetStatus;
use crate::threads::lock;

#[derive(Debug)]
pub(crate) struct News<C> {
    pub(crate) configuration: Option<(Option<Version>, C)>,
    /// The proxies to choose from, the best first.
    pub(crate) candidates: Option<Vec<VerifiedServer>>,
    pub(crate) members: Option<Members>,
    pub(crate) anchors: Option<Vec<(ProxyTenant, Vec<ServerName>)>>,
    pub(crate) revoked: Vec<PublicKey>,
    pub(crate) batch: u64,
    /// Whether members are refused because no controller was connected for too long.
    pub(crate) is_closed: Option<bool>,
    /// Whether to end all sessions and take no new ones.
    pub(crate) drained: Option<bool>,
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

#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) stop: bool,
    pub(super) uplinks: Option<Vec<Uplink>>,
    /// The proxy of the session; inner `None`: no session.
    pub(super) session: Option<Option<PublicKey>>,
    pub(super) is_mute: Option<bool>,
    pub(super) sessions: Option<u32>,
    pub(super) ended: Option<u64>,
    pub(super) refuse: Option<(Version, String)>,
    pub(super) figures: Option<Vec<SessionFigures>>,
    pub(super) anchors: Option<Vec<(String, Duration)>>,
}

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

    pub(super) fn set_in_step(&self) {
        *lock(&self.in_step) = true;
        self.in_step_now.notify_all();
    }

    pub(super) fn wait_in_step(&self, most: Duration) -> bool {
        let is_not = |in_step: &mut bool| !*in_step;
        let waited = self.in_step_now.wait_timeout_while(lock(&self.in_step), most, is_not);
        let (in_step, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *in_step
    }
}
