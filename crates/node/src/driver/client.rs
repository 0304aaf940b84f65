//! The client's role in the event loop: uplinks, names and portals, and what a server grants.

mod encoders;
mod fleet;
mod join_progress;
pub(super) mod options;
mod overrides;
mod policies;
mod portals;
mod speedtest;
mod split;
mod start;
mod state_files;
mod streams;
mod uplinks;
mod waiting;

use std::collections::BTreeMap;

use roadweave_config::{ClientFile, RouteFields, UplinkFields, lane_configs};
use roadweave_identity::PublicKey;
use roadweave_linux::Event;
use roadweave_linux::lookup::RouterNotices;
use roadweave_linux::pauses::Pause;
use roadweave_proto::{Instant, PathStatus, UplinkId, earliest};
use roadweave_tunnel::{Client, ClientEvent, PathStatusReport, Superseded};
use serde_json::{Value, json};

use self::encoders::Encoders;
use self::fleet::{DataPlaneCheck, assigned, left_of};
use self::join_progress::{JoinProgress, log_welcome};
use self::state_files::StateFiles;
use self::streams::LanStreams;
use self::uplinks::{Context, Uplinks};
use self::waiting::WaitingActions;
use super::client_filters::ClientFilters;
use super::event_loop::{Driver, LoopRole, MONITOR, ROUTERS};
use super::from_config::excluded;
use super::granted::Granted;
use super::settings;
use super::steering::Steering;
use super::{DriverError, MemberOptions};
use crate::fleet::{Fleet, FleetUpdates, Merge};
use crate::local::{
    LocalRequest, ReloadAnswer, RpcError, SetAnswer, SetQoe, SetStrategy, SetUplink, Supersede,
    SupersedeAnswer, TellModem, TellPlayer,
};
use crate::status::{ClientStatus, RoleStatus, Status};

/// Runs a client until SIGINT, SIGTERM or SIGUSR1. After SIGUSR1, or a failed start with a TUN,
/// traffic for the tunnel stays blocked. `merge` reads the file again with its fleet's fields.
pub fn run_client(
    options: MemberOptions<ClientFile>,
    merge: Merge<ClientFile>,
) -> Result<(), DriverError> {
    let mut client = start::start(options, merge)?;
    // On an error the routes stay, and keep traffic for the tunnel blocked.
    client.run()?;
    start::stop(client)
}

struct ClientRole {
    uplinks: Uplinks,
    options: MemberOptions<ClientFile>,
    routers: RouterNotices,
    state_files: StateFiles,
    join: JoinProgress,
    fleet: Option<Fleet<ClientFile>>,
    data_plane: DataPlaneCheck,
    streams: Option<LanStreams>,
    encoders: Encoders,
    waiting: WaitingActions,
    // Fields are dropped in this order.
    granted: Granted,
    filters: ClientFilters,
    steering: Steering,
}

impl LoopRole<Client> for ClientRole {
    fn on_start(&mut self, driver: &mut Driver<Client>) {
        self.state_files.update_time_of_day(&mut driver.node, Instant::ZERO);
        // The first update is discarded: the client was started with it in its options.
        self.fleet.iter().for_each(|fleet| drop(fleet.updates()));
        // Routes may have changed between the first read and the start of notifications.
        self.steering.on_notice(Instant::ZERO);
        self.with_uplinks(driver, Instant::ZERO, Uplinks::look);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        earliest([
            self.join.poll_timeout(),
            self.uplinks.poll_timeout(),
            self.steering.poll_timeout(),
            self.streams.as_ref().and_then(LanStreams::poll_timeout),
            self.encoders.poll_timeout(),
            self.state_files.poll_timeout(self.counts_bytes()),
        ])
    }

    fn feedback_alone_since(&self, client: &Client) -> Option<Instant> {
        client.feedback_alone_since()
    }

    fn on_pause(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        pause: &Pause,
        discarded: u64,
    ) {
        tracing::warn!(
            discarded,
            "{pause}; queued packets are discarded, and every uplink must answer again"
        );
        self.state_files.next_usage = now;
        self.with_uplinks(driver, now, Uplinks::look);
        driver.node.on_pause(now, pause.lasted);
    }

    fn on_hangup(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let _ = self.reload(driver, now);
    }

    fn on_reload(&mut self, driver: &mut Driver<Client>, now: Instant, request: LocalRequest) {
        let reloaded = self.reload(driver, now);
        self.waiting.add_reload(request, reloaded);
    }

    fn on_wake(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.apply_updates(driver, now);
        let changed = self.uplinks.resolver.poll(now);
        self.uplinks.on_found(&mut driver.node, now, &changed);
        self.uplinks.portals.on_wake(&mut driver.node, now);
    }

    fn on_ready(&mut self, driver: &mut Driver<Client>, now: Instant, event: &Event) {
        match event.token {
            MONITOR => {
                self.uplinks.monitor.take_notices();
                self.uplinks.debounce.ask(now);
                self.steering.on_notice(now);
            }
            ROUTERS => {
                let updates = self.routers.poll();
                let changed = self.uplinks.resolver.on_router_updates(now, &updates);
                self.uplinks.on_found(&mut driver.node, now, &changed);
            }
            _ => self.streams.iter_mut().for_each(|streams| streams.on_ready(event)),
        }
    }

    fn on_socket_failed(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        uplink: Option<UplinkId>,
        error: &std::io::Error,
    ) {
        tracing::warn!(%error, "an uplink's socket failed; it is reopened");
        self.with_uplinks(driver, now, |uplinks, with| uplinks.on_socket_failed(with, uplink));
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.with_uplinks(driver, now, Uplinks::handle_timeout);
        self.state_files.handle_timeout(&mut driver.node, now, self.counts_bytes());
        let fields = &self.options.file.uplinks;
        self.uplinks.policies.forget(&mut driver.node, now, fields);
        self.steering.handle_timeout(now);
        self.take_filters(driver, now);
        let networks = self.steering.routes.local_networks();
        driver.node.set_local_networks(networks.iter().copied());
        self.uplinks.resolver.set_content(self.join.is_done && !driver.node.is_silent());
        // Setting servers turns the node; complete packets are delivered first.
        driver.deliver();
        let changed = self.uplinks.resolver.handle_timeout(now);
        self.uplinks.on_found(&mut driver.node, now, &changed);
        let Uplinks { portals, resolver, .. } = &mut self.uplinks;
        portals.handle_timeout(&driver.node, now, resolver);
        let is_up = self.join.is_done && !driver.node.is_silent();
        if let Some(streams) = &mut self.streams {
            streams.turn(driver, &mut self.steering, now, is_up);
        }
        if !self.waiting.exclusion && self.streams.as_ref().is_none_or(LanStreams::is_settled) {
            self.waiting.answer_reloads();
        }
    }

    fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.take_events(driver);
        uplinks::change_ports(driver);
        self.streams.iter_mut().for_each(|streams| streams.handle_events(driver, now));
        self.encoders.handle_events(driver, now);
        if let Some(fleet) = &self.fleet {
            if std::mem::take(&mut self.uplinks.have_changed) {
                let uplinks = self.steering.routes.uplinks().cloned().collect();
                fleet.command(|it| it.uplinks = Some(uplinks));
            }
            if self.join.is_done
                && let Some(is_mute) = self.data_plane.check(&driver.node, now)
            {
                fleet.command(|it| it.is_mute = Some(is_mute));
            }
        }
        self.remind(driver, now);
    }

    fn status_line(&self, client: &Client) -> String {
        let Some(session) = client.status() else {
            return "no session".to_owned();
        };
        let is_usable = |path: &&PathStatusReport| path.status == PathStatus::Usable;
        let (usable, all) = (session.paths.iter().filter(is_usable).count(), session.paths.len());
        format!("session with {}, {usable} of {all} paths usable", session.peer)
    }

    fn status(&mut self, driver: &mut Driver<Client>) -> Status {
        let (client, now) = (&driver.node, driver.edge.clock.now());
        let mut drops = client.drops();
        drops.merge(&self.filters.drops());
        let mut outside: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (uplink, network) in &self.steering.neighbours {
            outside.entry(uplink.clone()).or_default().push(network.to_string());
        }
        let role = ClientStatus {
            sessions: client.status().into_iter().collect(),
            no_session: self.obstacle().or_else(|| client.why_no_session(now)),
            uplinks: client.uplinks(now),
            paused: self.uplinks.policies.overrides.paused(),
            conflicts: self.uplinks.monitor.conflicts(),
            outside,
            modems: self.uplinks.policies.modems.facts(now),
            candidates: client.candidates(now),
            suppressed_notices: client.suppressed_notices(),
            streams: self.streams.as_ref().map(LanStreams::status),
        };
        let fleet = self.fleet.as_ref().map(|fleet| fleet.status(now));
        let name = self.options.file.name.clone();
        Status { fleet, ..driver.status(name, drops, RoleStatus::Client(role)) }
    }

    fn handle_request(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        method: &str,
        params: &Value,
    ) -> Result<Value, RpcError> {
        match method {
            "set_strategy" => self.set_strategy(&mut driver.node, now, params),
            "set_uplink" => self.set_uplink(driver, now, params),
            "tell_modem" => {
                let TellModem { uplink, facts } = settings::parse(params)?;
                facts.check().map_err(RpcError::invalid_params)?;
                let fields = &self.options.file.uplinks;
                let Uplinks { monitor, policies, .. } = &mut self.uplinks;
                let is_known = monitor.uplinks().any(|known| known.name == uplink);
                if is_known {
                    policies.forget(&mut driver.node, now, fields);
                    policies.modems.record(now, uplink.clone(), facts);
                    policies.apply(&mut driver.node, fields, &uplink);
                }
                Ok(json!({ "told": is_known }))
            }
            "set_qoe" => {
                let SetQoe { lane, qoe } = settings::parse(params)?;
                settings::answer(driver.node.set_qoe(now, &lane, qoe))
            }
            "tell_player" => {
                let TellPlayer { lane, player, qoe } = settings::parse(params)?;
                let is_known = driver.node.report_player(now, &lane, player, qoe);
                Ok(json!({ "told": is_known }))
            }
            "supersede" => {
                let Supersede { lane, ssrc, timestamp } = settings::parse(params)?;
                let superseded = Superseded { ssrc, timestamp };
                let packets = driver.node.supersede(now, &lane, superseded);
                let packets = packets.map_err(|e| RpcError::invalid_params(e.to_string()))?;
                Ok(json!(SupersedeAnswer { packets }))
            }
            "begin_speedtest" => speedtest::begin(&mut driver.node, now, params),
            "speedtest_report" => speedtest::report(&mut driver.node, now),
            "stop_speedtest" => {
                driver.node.stop_speedtest(now);
                Ok(json!(true))
            }
            "encoder_targets" => Ok(json!(driver.node.encoder_targets(now))),
            "subscribe" => encoders::grant(params),
            other => Err(RpcError::method_not_found(other)),
        }
    }
}

impl ClientRole {
    fn with_uplinks<R>(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        act: impl FnOnce(&mut Uplinks, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = Context {
            driver,
            now,
            options: &self.options,
            is_member: self.fleet.is_some(),
            filters: &mut self.filters,
            streams: self.streams.as_mut(),
            steering: &mut self.steering,
        };
        act(&mut self.uplinks, &mut context)
    }

    fn counts_bytes(&self) -> bool {
        self.uplinks.policies.have_caps(&self.options.file.uplinks)
    }

    fn take_events(&mut self, driver: &mut Driver<Client>) {
        while let Some(event) = driver.node.poll_event() {
            match event {
                ClientEvent::Joined { ref welcome, .. }
                | ClientEvent::Moved { ref welcome, .. } => {
                    self.join.is_done = true;
                    self.uplinks.debounce.ask(driver.edge.clock.now());
                    self.report_session(Some(driver.node.server().key));
                    let (steering, filters) = (&self.steering, &mut self.filters);
                    let welcome = welcome.clone();
                    self.granted.begin(steering, filters, &self.options.file, &welcome, event);
                    self.use_granted(driver);
                }
                ClientEvent::Left { reason, rest } => {
                    self.granted.due = None;
                    self.report_session(None);
                    self.steering.dns.unset();
                    self.join.on_left(driver.edge.clock.now(), &reason, rest);
                }
                ClientEvent::Notice(notice) => {
                    self.join.on_notice(driver.edge.clock.now(), &notice);
                }
            }
        }
    }

    fn report_session(&self, proxy: Option<PublicKey>) {
        self.fleet.iter().for_each(|fleet| fleet.command(|it| it.session = Some(proxy)));
    }

    fn use_granted(&mut self, driver: &Driver<Client>) {
        let (steering, filters) = (&mut self.steering, &mut self.filters);
        let welcomed = self.granted.set_due(steering, filters, driver.edge.tun());
        welcomed.into_iter().for_each(log_welcome);
    }

    fn take_filters(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.with_uplinks(driver, now, Uplinks::take_filters);
        self.use_granted(driver);
        self.use_excluded(now);
    }

    fn obstacle(&self) -> Option<String> {
        let unmarked = || self.uplinks.obstacle(&self.steering.answers).map(str::to_owned);
        self.filters.obstacle().or_else(unmarked)
    }

    fn remind(&mut self, driver: &mut Driver<Client>, now: Instant) {
        if !self.join.take_reminder(now) {
            return;
        }
        if let Some(why) = self.obstacle() {
            return tracing::warn!("{why}");
        }
        self.with_uplinks(driver, now, |uplinks, with| uplinks.log_silence(with));
    }

    fn apply_updates(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let Some(fleet) = &self.fleet else { return };
        let FleetUpdates { configuration, candidates, revoked, .. } = fleet.updates();
        if let Some((version, reload)) = configuration {
            self.data_plane.reset();
            let left_out = self.take_up(driver, now, reload);
            if let (Some(version), Some(why), Some(fleet)) = (version, left_out, &self.fleet) {
                fleet.command(|it| it.refuse = Some((version, why)));
            }
        }
        let is_fixed = self.options.file.server.is_some();
        self.with_uplinks(driver, now, |uplinks, with| {
            if let Some(servers) = candidates.filter(|_| !is_fixed).and_then(|it| assigned(&it)) {
                uplinks.assign(with, servers);
            }
            if let Some(left) = left_of(&uplinks.resolver.servers(), &revoked, is_fixed) {
                uplinks.assign(with, left);
            }
        });
    }

    fn reload(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
    ) -> Result<ReloadAnswer, String> {
        let reread = (self.options.reload)();
        let reread = reread.inspect_err(|error| tracing::error!("nothing was changed: {error}"))?;
        let (read, ignored) = reread.log_ignored();
        let lanes = self.take_up(driver, now, read).map(|why| ("lanes".to_owned(), why));
        Ok(ReloadAnswer { ignored, refused: lanes.into_iter().collect() })
    }

    /// Applies a reloaded configuration; may replace the session. Returns why lanes were refused.
    fn take_up(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        read: ClientFile,
    ) -> Option<String> {
        let left_out = driver.node.set_lanes(now, lane_configs(&read.lanes)).err().map(|error| {
            tracing::error!("the lanes are unchanged: {error}");
            error.to_string()
        });
        let file = &mut self.options.file;
        let (local, forward) = (file.uplinks.local, file.uplinks.forward);
        file.uplinks = UplinkFields { local, forward, ..read.uplinks };
        file.uplinks.exclude.push(driver.edge.tun_name().to_owned());
        let (selector, portal_probe) = (file.selector(), file.uplinks.portal_probe());
        self.steering.set_selector(now, selector.clone());
        self.uplinks.monitor.set_selector(selector);
        self.uplinks.portals.set_probe(&mut driver.node, now, portal_probe);
        self.exclude(now, read.routes);
        self.with_uplinks(driver, now, Uplinks::reload);
        tracing::info!("lanes, policies, uplinks and excluded destinations were read again");
        left_out
    }

    /// Changes the excluded traffic. A connection keeps the source address of its first packet, so
    /// filters are added before the routes that need them, and removed after.
    fn exclude(&mut self, now: Instant, read: RouteFields) {
        let routes = &mut self.options.file.routes;
        let (before, after) = (excluded(routes), excluded(&read));
        if before == after {
            return;
        }
        (routes.exclude, routes.exclude_mark) = (read.exclude, read.exclude_mark);
        let left = before.within(&after);
        if left != before {
            self.steering.set_excluded(now, left);
        }
        self.filters.add_excluded(&after);
        self.waiting.exclusion = true;
        self.use_excluded(now);
    }

    fn use_excluded(&mut self, now: Instant) {
        if !self.waiting.exclusion || !self.filters.are_in_place() {
            return;
        }
        self.waiting.exclusion = false;
        let excluded = excluded(&self.options.file.routes);
        if self.steering.set_excluded(now, excluded.clone()) {
            self.filters.set_excluded(excluded.clone());
        }
        if let Some(streams) = &mut self.streams {
            streams.set_excluded(&mut self.steering, now, &excluded);
        }
    }

    fn set_strategy(
        &mut self,
        client: &mut Client,
        now: Instant,
        params: &Value,
    ) -> Result<Value, RpcError> {
        let SetStrategy { lane, strategy } = settings::parse(params)?;
        settings::check_uplink(&strategy, &self.options.file.selector())?;
        let name = strategy.to_string();
        settings::answer(client.set_strategy(now, &lane, strategy))?;
        tracing::info!(lane, strategy = name, "the strategy of a lane changed");
        let mut waiting = client.waiting_lanes();
        let notice = waiting.find(|(waits, _)| *waits == lane).map(|(_, uplink)| {
            let uplinks: Vec<&str> =
                self.uplinks.monitor.uplinks().map(|it| it.name.as_str()).collect();
            format!(
                "lane {lane} waits for {uplink}, which is missing or has no route to the server; \
                 the uplinks are: {}",
                uplinks.join(", ")
            )
        });
        Ok(json!(SetAnswer::Notice { notice }))
    }

    fn set_uplink(
        &mut self,
        driver: &mut Driver<Client>,
        now: Instant,
        params: &Value,
    ) -> Result<Value, RpcError> {
        let change: SetUplink = settings::parse(params)?;
        self.with_uplinks(driver, now, |uplinks, with| uplinks.set_override(with, &change))?;
        if self.uplinks.policies.overrides.have_caps() {
            self.state_files.update_time_of_day(&mut driver.node, now);
        }
        let notice = self.with_uplinks(driver, now, |uplinks, with| {
            uplinks.apply_override(with, &change.uplink)
        });
        Ok(json!(SetAnswer::Notice { notice }))
    }
}
