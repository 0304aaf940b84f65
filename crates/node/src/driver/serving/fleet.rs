//! Applies the fleet's updates to a server, proxy or anchor, and reports to the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_linux::{DeviceError, Waker};
use roadweave_proto::Instant;
use roadweave_tunnel::{DrainReason, PeerTable};

use super::Tables;
use super::anchors::TenantRoutes;
use super::node::Serves;
use crate::fleet::{Fleet, FleetOptions, FleetUpdates, Members, ServerFigures};
use crate::status::FleetStatus;

const MISSED_MAX: Duration = Duration::from_secs(2);
const DRAIN_OVER: Duration = Duration::from_secs(60);
/// Interval of figures, normally and while they are watched.
const FIGURES: Duration = Duration::from_secs(10);
const FIGURES_WATCHED: Duration = Duration::from_millis(200);
/// Limit of sessions in one report of figures, so that packets do not wait for it.
const FIGURES_MAX: usize = 1_000;
const SESSIONS_WATCHED: usize = 100;

#[derive(Debug)]
pub(super) struct InFleet {
    fleet: Fleet<()>,
    pub(super) members: Arc<Members>,
    of_file: BTreeSet<PublicKey>,
    is_closed: bool,
    batches: u64,
    /// The batch of revoked keys whose sessions may not have ended yet.
    ending: Option<u64>,
    /// Whether some of these keys are issuers of members, whose sessions end with the next table.
    ends_by_table: bool,
    offline_max: BTreeMap<String, Duration>,
    offline: BTreeSet<String>,
    pub(super) next_figures: Instant,
    watched_until: Instant,
}

impl InFleet {
    pub(super) fn start(
        options: FleetOptions<()>,
        of_file: BTreeSet<PublicKey>,
        waker: Waker,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            fleet: Fleet::start(options, waker)?,
            members: Arc::default(),
            of_file,
            is_closed: false,
            batches: 0,
            ending: None,
            ends_by_table: false,
            offline_max: BTreeMap::new(),
            offline: BTreeSet::new(),
            next_figures: Instant::ZERO,
            watched_until: Instant::ZERO,
        })
    }

    pub(super) fn wait_in_step(&self) {
        if !self.fleet.wait_in_step(MISSED_MAX) {
            tracing::warn!(
                "no controller yet: members that it admitted before are admitted, and later \
                 revocations are unknown"
            );
        }
    }

    pub(super) fn status(&self, now: Instant) -> FleetStatus {
        self.fleet.status(now)
    }

    pub(super) fn set_of_file(&mut self, of_file: BTreeSet<PublicKey>, tables: &Tables) {
        self.of_file = of_file;
        self.close(tables);
    }

    fn close(&self, tables: &Tables) {
        tables.for_each(|table| table.close_but(self.is_closed.then(|| self.of_file.clone())));
    }

    pub(super) fn update_away(&mut self, now: Instant, clients: &PeerTable) {
        let away = self.fleet.away(now);
        clients.set_away(away);
        let offline = self.offline_max.iter().filter(|(_, most)| away >= **most);
        let offline: BTreeSet<String> = offline.map(|(tenant, _)| tenant.clone()).collect();
        for tenant in offline.difference(&self.offline) {
            tracing::error!(
                tenant,
                "no controller for longer than the tenant allows: no box is admitted"
            );
        }
        for tenant in self.offline.difference(&offline) {
            tracing::info!(tenant, "boxes are admitted again");
        }
        self.offline = offline;
    }

    /// `is_table_current`: whether the last table holds the current members.
    pub(super) fn report(&mut self, now: Instant, node: &mut impl Serves, is_table_current: bool) {
        self.ends_by_table &= !is_table_current;
        let ends_by_table = self.ends_by_table;
        if let Some(batch) = self.ending.take_if(|_| !ends_by_table && node.is_settled()) {
            self.fleet.command(|it| it.ended = Some(batch));
        }
        if now < self.next_figures {
            return;
        }
        let sessions = node.sessions();
        let is_watched = now < self.watched_until;
        let rounds = 1 + sessions.min(FIGURES_MAX) / SESSIONS_WATCHED;
        let watched = FIGURES_WATCHED * rounds as u32;
        self.next_figures = now + if is_watched { watched.min(FIGURES) } else { FIGURES };
        let figures = ServerFigures {
            count: u32::try_from(sessions).unwrap_or(u32::MAX),
            sessions: node.figures(FIGURES_MAX),
            anchors: node.proxy().map(|proxy| proxy.anchor_round_trips()).unwrap_or_default(),
        };
        self.fleet.command(|it| it.figures = Some(figures));
    }

    pub(super) fn apply_updates(
        &mut self,
        node: &mut impl Serves,
        now: Instant,
        tables: &Tables,
    ) -> (bool, Option<TenantRoutes>) {
        let FleetUpdates {
            members,
            anchors,
            revoked,
            batch,
            is_closed,
            drained,
            watched_until,
            ..
        } = self.fleet.updates();
        if !revoked.is_empty() {
            tracing::info!(keys = revoked.len(), "keys are revoked; their sessions end");
            self.ends_by_table |= !revoked.iter().all(|key| self.members.has(key));
            // The controller cannot revoke keys of the file.
            let theirs = revoked.into_iter().filter(|key| !self.of_file.contains(key));
            node.revoke(now, theirs.collect(), tables);
        }
        if batch > self.batches {
            (self.batches, self.ending) = (batch, Some(batch));
        }
        if let Some(is_closed) = is_closed {
            self.is_closed = is_closed;
            self.close(tables);
        }
        match drained {
            Some(true) => {
                tracing::warn!("drained by the controller: no new clients are admitted");
                node.drain(now, DrainReason::Controller, DRAIN_OVER);
            }
            Some(false) => {
                tracing::info!("no longer drained by the controller");
                node.undrain(DrainReason::Controller);
            }
            None => {}
        }
        if let Some(until) = watched_until {
            self.watched_until = until;
            self.next_figures = Instant::ZERO;
        }
        let led = anchors.map(|anchors| {
            tracing::info!(tenants = anchors.len(), "the fleet assigned anchors");
            let places = anchors.iter().map(|(tenant, names)| (tenant.anchor, names.clone()));
            let places = places.collect();
            TenantRoutes {
                tenants: anchors.into_iter().map(|(tenant, _)| tenant).collect(),
                places,
            }
        });
        let has_others = members.is_some();
        if let Some(members) = members {
            self.offline_max = members.offline_max();
            self.members = Arc::new(members);
        }
        (has_others, led)
    }
}
