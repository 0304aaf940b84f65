//! A mailbox of event loop and fleet thread: the latest of each kind, so that neither waits.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use roadweave_fleet::{VerifiedServer, Version};
use roadweave_identity::PublicKey;
use roadweave_linux::Uplink;
use roadweave_proto::{Instant, ServerName};
use roadweave_tunnel::{ProxyTenant, SessionFigures};

use super::members::Members;
use crate::status::FleetStatus;

#[derive(Debug)]
pub(crate) struct FleetUpdates<C> {
    pub(crate) configuration: Option<(Option<Version>, C)>,
    pub(crate) candidates: Option<Vec<VerifiedServer>>,
    pub(crate) members: Option<Members>,
    pub(crate) anchors: Option<Vec<(ProxyTenant, Vec<ServerName>)>>,
    pub(crate) revoked: Vec<PublicKey>,
    pub(crate) batch: u64,
    /// Whether members are refused because no controller was connected for too long.
    pub(crate) is_closed: Option<bool>,
    pub(crate) drained: Option<bool>,
    pub(crate) watched_until: Option<Instant>,
}

impl<C> Default for FleetUpdates<C> {
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
pub(crate) struct FleetCommands {
    pub(super) stop: bool,
    pub(crate) uplinks: Option<Vec<Uplink>>,
    /// The proxy of the session; inner `None`: no session.
    pub(crate) session: Option<Option<PublicKey>>,
    pub(crate) is_mute: Option<bool>,
    pub(crate) ended: Option<u64>,
    pub(crate) refuse: Option<(Version, String)>,
    pub(crate) figures: Option<ServerFigures>,
}

#[derive(Debug)]
pub(crate) struct ServerFigures {
    pub(crate) count: u32,
    pub(crate) sessions: Vec<SessionFigures>,
    pub(crate) anchors: Vec<(String, Duration)>,
}

#[derive(Debug)]
pub(super) struct FleetMailbox<C> {
    pub(super) updates: Mutex<FleetUpdates<C>>,
    pub(super) commands: Mutex<FleetCommands>,
    pub(super) status: Mutex<FleetStatus>,
    pub(super) in_step: Mutex<bool>,
    pub(super) in_step_now: Condvar,
}
