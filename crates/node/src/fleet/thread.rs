//! The thread of a fleet's member and its controller: for slow work (signatures, files, network).

use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{AgentEvent, Egress, Outcome, Role, Version};
use roadweave_linux::threads::lock;
use roadweave_linux::{Uplink, Waker, processor_time};
use roadweave_proto::{Instant, Rate, ServerName};
use roadweave_tunnel::ProxyTenant;

use super::controller_route::ControllerRoute;
use super::figures::FigureSampler;
use super::mailbox::{FleetCommands, FleetMailbox, FleetUpdates, ServerFigures};
use super::members::Members;
use super::worker::FleetWorker;
use crate::status::{DocumentStatus, FleetStatus};

const REFUSED_LOGGED_MAX: usize = 8;

/// Reads the program's file, with the controller's fields (if any) as defaults; and overrides.
pub type Merge<C> = Box<dyn FnMut(Option<&str>) -> Result<(C, Vec<String>), String> + Send>;

pub(super) struct Thread<C> {
    pub(super) worker: FleetWorker,
    pub(super) merge: Merge<C>,
    pub(super) role: Role,
    pub(super) name: String,
    pub(super) mailbox: Arc<FleetMailbox<C>>,
    pub(super) loop_waker: Waker,
    pub(super) offline_max: Option<Duration>,
    pub(super) is_closed: bool,
    pub(super) batches: u64,
    pub(super) uplinks: Vec<Uplink>,
    pub(super) has_session: bool,
    /// Waits for the disk: it may crash the program, and its starts must be counted by then.
    pub(super) waiting: Option<(Option<Version>, C)>,
    pub(super) written: u64,
    pub(super) ended: u64,
    pub(super) confirmed: u64,
    pub(super) figures: FigureSampler,
}

impl<C> Thread<C> {
    pub(super) fn run(mut self) {
        loop {
            let now = self.worker.clock.now();
            let commands = std::mem::take(&mut *lock(&self.mailbox.commands));
            if commands.stop {
                self.worker.write(now);
                return;
            }
            self.take(now, commands);
            self.worker.turn(now);
            while let Some(event) = self.worker.poll_event() {
                self.on_event(now, event);
            }
            // Revocations take effect before a disk that may hang has them.
            self.written = self.worker.write_due(now, self.batches);
            if self.worker.state.is_written() || self.worker.state.store.is_failing {
                self.hand_over();
            }
            let has_confirmed = self.confirm();
            if self.worker.is_in_step {
                *lock(&self.mailbox.in_step) = true;
                self.mailbox.in_step_now.notify_all();
            }
            self.keep_closed(now);
            self.update_status();
            if !has_confirmed {
                self.worker.wait(now, self.closes_at().filter(|_| !self.is_closed));
            }
        }
    }

    fn take(&mut self, now: Instant, commands: FleetCommands) {
        let FleetCommands { uplinks, session, is_mute, ended, refuse, figures, .. } = commands;
        let has_other_ways =
            uplinks.is_some() || session.is_some_and(|proxy| proxy.is_some() != self.has_session);
        if let Some(uplinks) = uplinks {
            self.uplinks = uplinks;
        }
        if let Some(proxy) = session {
            self.has_session = proxy.is_some();
            self.worker.agent.on_session(now, self.has_session);
            self.worker.agent.set_proxy(proxy);
        }
        if let Some(is_mute) = is_mute {
            self.worker.agent.on_mute(now, is_mute);
        }
        if has_other_ways {
            self.choose_ways(now);
        }
        self.ended = self.ended.max(ended.unwrap_or_default());
        if let Some((version, why)) = refuse {
            self.worker.agent.refuse(now, version, &why);
        }
        if let Some(ServerFigures { count, sessions, anchors }) = figures {
            let agent = &mut self.worker.agent;
            agent.on_sessions(count);
            let named = |(tenant, it): (String, Duration)| Some((tenant.parse().ok()?, it));
            agent.on_anchors(anchors.into_iter().filter_map(named));
            let used = processor_time();
            for samples in self.figures.samples(now, (count, &sessions), used) {
                agent.send_samples(samples);
            }
        }
    }

    fn confirm(&mut self) -> bool {
        let done = self.ended.min(self.written);
        let new = self.confirmed..done;
        self.confirmed = self.confirmed.max(done);
        let has_new = !new.is_empty();
        new.for_each(|_| self.worker.agent.on_revoked());
        has_new
    }

    /// With a session the tunnel comes first, since it uses all uplinks together.
    fn choose_ways(&mut self, now: Instant) {
        let through = self.has_session.then_some(ControllerRoute::System);
        let uplinks = self.uplinks.iter().cloned().map(ControllerRoute::Uplink);
        self.worker.connection.set_ways(now, through.into_iter().chain(uplinks).collect());
    }

    pub(super) fn on_event(&mut self, now: Instant, event: AgentEvent) {
        match event {
            AgentEvent::Configure { version, text } => match (self.merge)(text.as_deref()) {
                Ok((reload, pinned)) => {
                    self.worker.agent.set_pinned(pinned);
                    self.waiting = Some((version, reload));
                }
                Err(why) => {
                    tracing::error!("nothing was changed: {why}");
                    if let Some(version) = version {
                        self.worker.agent.refuse(now, version, &why);
                    }
                }
            },
            AgentEvent::Candidates(servers) => {
                self.update(|updates| updates.candidates = Some(servers))
            }
            AgentEvent::Table => self.on_table(),
            AgentEvent::Revoked(keys) => {
                self.batches += 1;
                let batch = self.batches;
                if self.role == Role::Box {
                    self.ended = batch;
                }
                self.update(|updates| {
                    updates.revoked.extend(keys);
                    updates.batch = batch;
                });
            }
            AgentEvent::Drain(drained) => self.update(|updates| updates.drained = Some(drained)),
            AgentEvent::Watch(until) => self.update(|updates| updates.watched_until = Some(until)),
            AgentEvent::Anchors(egresses) => {
                let anchors = egresses.iter().filter_map(anchor).collect();
                self.update(|updates| updates.anchors = Some(anchors));
            }
            AgentEvent::Joined { .. } | AgentEvent::Refused { .. } => {}
            AgentEvent::Persist | AgentEvent::Seek | AgentEvent::Warning(_) => {}
        }
    }

    pub(super) fn hand_over(&mut self) {
        if let Some(configuration) = self.waiting.take() {
            self.update(|updates| updates.configuration = Some(configuration));
        }
    }

    fn on_table(&mut self) {
        let admission = self.worker.agent.admission();
        for (key, why) in admission.refused.iter().take(REFUSED_LOGGED_MAX) {
            tracing::warn!(%key, "a member of the fleet's table is not admitted: {why}");
        }
        // An anchor serves one tenant and knows no boxes of others.
        let tenant = self.worker.agent.persisted().tenant();
        let members = Members::of(&admission, (self.role == Role::Anchor).then_some(tenant));
        self.update(|updates| updates.members = Some(members));
    }

    fn update(&self, say: impl FnOnce(&mut FleetUpdates<C>)) {
        say(&mut lock(&self.mailbox.updates));
        self.loop_waker.wake();
    }

    fn closes_at(&self) -> Option<Instant> {
        Some(self.worker.agent.away_since()? + self.offline_max?)
    }

    fn keep_closed(&mut self, now: Instant) {
        let is_closed = self.closes_at().is_some_and(|at| now >= at);
        if is_closed == self.is_closed {
            return;
        }
        self.is_closed = is_closed;
        match is_closed {
            true => tracing::error!(
                "no controller for longer than fleet.offline_max_seconds: no box is admitted"
            ),
            false => tracing::info!("boxes are admitted again"),
        }
        self.update(|updates| updates.is_closed = Some(is_closed));
    }

    pub(super) fn update_status(&self) {
        let FleetWorker { agent, contact, failure, state, .. } = &self.worker;
        let persisted = agent.persisted();
        let reports = persisted.reports().into_iter().map(|report| {
            let (outcome, why) = match report.outcome {
                Outcome::InForce => ("on trial", None),
                Outcome::Confirmed => ("in force", None),
                Outcome::TakenBack { why } => ("taken back", Some(why)),
                Outcome::Refused { why } => ("refused", Some(why)),
            };
            let version = format!("{}.{}", report.version.epoch, report.version.number);
            let (kind, outcome) = (report.kind.name().to_owned(), outcome.to_owned());
            DocumentStatus { kind, version, outcome, why }
        });
        *lock(&self.mailbox.status) = FleetStatus {
            name: self.name.clone(),
            role: self.role.name().to_owned(),
            tenant: persisted.tenant().to_string(),
            controller: contact.as_ref().map(|(address, way)| format!("{address} over {way}")),
            away_since: agent.away_since(),
            away_seconds: None,
            away_at_least: !self.worker.has_met,
            away_why: failure.clone(),
            documents: reports.collect(),
            pinned: persisted.pinned().to_vec(),
            revocations: persisted.trust().revocations().head().serial,
            is_closed: self.is_closed,
            is_unwritten: state.store.is_failing,
        };
    }
}

fn anchor(
    Egress { tenant, anchor: server, rate_kbps, gateways }: &Egress,
) -> Option<(ProxyTenant, Vec<ServerName>)> {
    let names: Vec<ServerName> =
        server.addresses.iter().filter_map(|address| address.parse().ok()).collect();
    if names.is_empty() {
        tracing::warn!(%tenant, anchor = %server.name, "no address of the anchor is valid");
        return None;
    }
    let rate_limit = rate_kbps.map(|rate| Rate::from_kbps(rate.into()));
    let (name, gateways) = (tenant.to_string(), gateways.clone());
    let addresses = Vec::new();
    Some((ProxyTenant { name, anchor: server.key, addresses, gateways, rate_limit }, names))
}

#[cfg(test)]
mod tests;
