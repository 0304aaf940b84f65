//! The client's role in the event loop: uplinks, names and portals, and what a server grants.

mod encoders;
mod fleet;
mod log_messages;
mod modems;
pub(super) mod options;
mod overrides;
mod portals;
mod speedtest;
mod split;
mod streams;
mod uplinks;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roadweave_config::{BeforeJoin, ClientFile, ClientStreams, UplinkFields, lane_configs};
use roadweave_identity::Identity;
use roadweave_linux::dns::{Dns, restore_of};
use roadweave_linux::lookup::RouterNotices;
use roadweave_linux::pauses::Pause;
use roadweave_linux::privileges::{self, Needs};
use roadweave_linux::{
    Clock, Event, Instance, InstanceLock, Monitor, Signals, Tun, Uplink, Waker, cleanup,
    random_bytes, take_over,
};
use roadweave_proto::{Instant, PathStatus, UplinkId};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Candidate, Client, ClientConfig, PathStatusReport, Superseded, Usage};
use serde_json::{Value, json};

use self::encoders::Encoders;
use self::fleet::DataPlaneCheck;
use self::options::{CandidateOptions, servers};
use self::overrides::Overrides;
use self::portals::Portals;
use self::streams::LanStreams;
use self::waiting::WaitingActions;
use super::client_filters::ClientFilters;
use super::debounce::Debounce;
use super::edge::Edge;
use super::event_loop::{Driver, LoopRole, MONITOR, ROUTERS, RunningNode, take_instance};
use super::from_config::{excluded, route_settings, tun_options};
use super::granted::Granted;
use super::repeat_limiter::RepeatLimiter;
use super::resolvers::{Changed, Resolvers};
use super::settings;
use super::steering::Steering;
use super::{DriverError, MemberOptions, STATE_INTERVAL, needed_files};
use crate::StateFile;
use crate::fleet::{Fleet, FleetOptions, Merge};
use crate::local::{
    LocalRequest, ReloadAnswer, RpcError, SetAnswer, SetQoe, SetStrategy, Supersede,
    SupersedeAnswer, TellPlayer,
};
use crate::metrics::MetricsListener;
use crate::modem::Modems;
use crate::status::{ClientStatus, RoleStatus, Status};
use crate::time_of_day::ClockReading;

const SILENCE_MAX: Duration = Duration::from_secs(5);
const TIME_OF_DAY: Duration = Duration::from_secs(60);
const UPLINK_RETRY: Duration = Duration::from_secs(2);

/// Runs a client until SIGINT, SIGTERM or SIGUSR1. After SIGUSR1, or a failed start with a TUN,
/// traffic for the tunnel stays blocked. `merge` reads the file again with its fleet's fields.
pub fn run_client(
    options: MemberOptions<ClientFile>,
    merge: Merge<ClientFile>,
) -> Result<(), DriverError> {
    let mut client = start(options, merge)?;
    // On an error the routes stay, and keep traffic for the tunnel blocked.
    client.run()?;
    stop(client)
}

/// What outlives the program, and when it is written next.
struct StateFiles {
    learned: StateFile,
    next: Instant,
    usage: StateFile<Usage>,
    next_usage: Instant,
}

struct JoinProgress {
    is_done: bool,
    next_reminder: Instant,
}

/// When the uplinks are compared with the system's interfaces.
#[derive(Default)]
struct UplinkLooks {
    debounce: Debounce,
    /// After one that could not be used.
    retry: Option<Instant>,
}

struct ClientRole {
    monitor: Monitor,
    looks: UplinkLooks,
    options: MemberOptions<ClientFile>,
    resolver: Resolvers,
    portals: Portals,
    routers: RouterNotices,
    state_files: StateFiles,
    join: JoinProgress,
    repeat_limiter: RepeatLimiter,
    fleet: Option<Fleet<ClientFile>>,
    streams: Option<LanStreams>,
    encoders: Encoders,
    overrides: Overrides,
    modems: Modems,
    has_other_uplinks: bool,
    passage: DataPlaneCheck,
    waiting: WaitingActions,
    // Fields are dropped in this order.
    granted: Granted,
    filters: ClientFilters,
    steering: Steering,
}

/// Blocks traffic for the tunnel before any step that another user of the machine could make fail.
fn start(
    mut options: MemberOptions<ClientFile>,
    merge: Merge<ClientFile>,
) -> Result<RunningNode<Client, ClientRole>, DriverError> {
    let file = &mut options.file;
    let taken = take_instance(file.tun.name.as_str(), file.packet_marks.into())?;
    let (_, instance, lock) = &taken;
    // Keeps blocked what an earlier run left blocked.
    take_over(instance, lock);
    if let Err(error) = restore_of(instance, &file.state_directory) {
        tracing::warn!(
            "the DNS resolvers that an earlier session replaced could not be restored: {error}"
        );
    }
    let clock = options.membership.as_ref().map_or_else(Clock::start, |its| its.clock);
    let metrics = file.metrics.as_ref().map(|metrics| MetricsListener::bind(metrics.listen));
    let tun = Tun::open(&tun_options(&file.tun, &[]))?;
    // Before the first thread starts: threads inherit the restrictions.
    privileges::restrict(&Needs {
        files: needed_files(&options.files, &file.state_directory),
        ..Needs::default()
    })?;
    file.uplinks.exclude.push(tun.name().to_owned());
    let dns = Dns::start(instance, tun.name(), file.dns.clone(), &file.state_directory)?;
    let steering = Steering::start(instance, route_settings(file), tun.index(), dns)?;
    let is_closed = file.routes.before_join == BeforeJoin::Closed;
    let name = file.tun.name.as_str().to_owned();
    begin(options, merge, taken, clock, metrics, tun, steering).inspect_err(|_| {
        if is_closed {
            tracing::warn!(
                "traffic for the tunnel stays blocked until the next start, or until `roadweave \
                 release {name}`"
            );
        }
    })
}

fn begin(
    mut options: MemberOptions<ClientFile>,
    merge: Merge<ClientFile>,
    (signals, instance, lock): (Signals, Instance, InstanceLock),
    clock: Clock,
    metrics: Option<MetricsListener>,
    tun: Tun,
    mut steering: Steering,
) -> Result<RunningNode<Client, ClientRole>, DriverError> {
    let (mut servers, file) = (servers(&options), &options.file);
    if !file.streams.as_ref().is_some_and(ClientStreams::splits) {
        split::remove_left(&instance);
    }
    let mut monitor = Monitor::open(file.selector())?;
    monitor.left_out = Some(tun.index());
    let mut client = new_client(clock, file, &servers, &options.identity)?;
    servers.retain(|server| client.servers().iter().any(|it| it.key == server.candidate.key));
    let mut learned = StateFile::new(&file.state_directory, instance.name());
    client.restore(learned.read());
    let mut usage = StateFile::new(&file.state_directory, instance.name());
    client.restore_usage(usage.read());
    let offload = tun.offload();
    let edge = Edge::new(clock, Some(tun));
    let driver = Driver::new(Some((&instance, signals, metrics)), Waker::new()?, edge, client)?;
    let tun = driver.edge.tun().expect("it has just been given one");
    let filters = ClientFilters::start(&instance, tun, file, driver.waker())?;
    steering.answers.set_waker(driver.waker());
    driver.watch(&monitor, MONITOR)?;
    let routers = RouterNotices::open()?;
    driver.watch(&routers, ROUTERS)?;
    let mut resolver = Resolvers::default();
    resolver.set_servers(Instant::ZERO, &servers, &[], || driver.waker());
    let portals = Portals::new(file.uplinks.portal_probe(), driver.waker());
    let fleet = options.membership.take().map(|its| FleetOptions::with_merge(its, merge));
    let fleet = fleet.map(|fleet| Fleet::start(fleet, driver.waker())).transpose()?;
    let streams = file.streams.as_ref();
    let mut streams =
        streams.map(|streams| LanStreams::open(&instance, streams, &driver)).transpose()?;
    if let Some(streams) = &mut streams {
        streams.set_excluded(&mut steering, Instant::ZERO, &excluded(&file.routes));
    }
    tracing::info!(tun = driver.edge.tun_name(), ?offload, "the client runs");
    let role = ClientRole {
        monitor,
        looks: UplinkLooks::default(),
        options,
        resolver,
        portals,
        routers,
        state_files: StateFiles {
            learned,
            next: Instant::ZERO + STATE_INTERVAL,
            usage,
            next_usage: Instant::ZERO,
        },
        join: JoinProgress { is_done: false, next_reminder: Instant::ZERO + SILENCE_MAX },
        repeat_limiter: RepeatLimiter::default(),
        fleet,
        streams,
        encoders: Encoders::default(),
        overrides: Overrides::default(),
        modems: Modems::default(),
        has_other_uplinks: true,
        passage: DataPlaneCheck::default(),
        waiting: WaitingActions::default(),
        granted: Granted::default(),
        filters,
        steering,
    };
    Ok(RunningNode { driver, role, instance, lock })
}

fn new_client(
    clock: Clock,
    file: &ClientFile,
    servers: &[CandidateOptions],
    identity: &Arc<Identity>,
) -> Result<Client, DriverError> {
    let config = ClientConfig {
        name: file.name.clone(),
        candidates: candidates(servers, identity),
        transport: file.transport.to_config(random_bytes()?),
        lanes: lane_configs(&file.lanes),
        streams: file.streams.as_ref().map(ClientStreams::to_config),
        memory_max: file.limits.client_memory_mb.bytes(),
    };
    Ok(Client::new(Epoch::new(clock.epoch()), config, identity.clone())?)
}

fn candidates(servers: &[CandidateOptions], identity: &Identity) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = servers.iter().map(|it| it.candidate.clone()).collect();
    if candidates.is_empty() {
        // Until the fleet names a server: a candidate without an address, with our own key.
        candidates.push(Candidate::only(identity.public_key(), Vec::new()));
    }
    candidates
}

fn stop(running: RunningNode<Client, ClientRole>) -> Result<(), DriverError> {
    let RunningNode { mut driver, mut role, instance, lock } = running;
    // Say goodbye to the server before the disk writes, which may block.
    driver.node.close(driver.edge.clock.now());
    driver.flush();
    role.state_files.learned.write_last(driver.node.learned());
    if role.counts_bytes() {
        role.state_files.usage.write_last(driver.node.usage());
    }
    role.steering.dns.unset();
    tracing::info!("the client stops");
    role.monitor.give_back();
    if driver.restarts {
        tracing::info!("traffic for the tunnel stays blocked until the next start");
        // Keeps the filters, as after a crash; the next start takes routes and filters over.
        std::mem::forget(role.filters);
        return Ok(());
    }
    let kill_switch = role.options.file.routes.kill_switch;
    drop((driver, role));
    if kill_switch {
        tracing::info!("traffic for the tunnel stays blocked: routes.kill_switch");
        return Ok(());
    }
    Ok(cleanup(&instance, &lock)?)
}

impl LoopRole<Client> for ClientRole {
    fn on_start(&mut self, driver: &mut Driver<Client>) {
        self.update_time_of_day(&mut driver.node, Instant::ZERO);
        self.begin_in_fleet();
        // Routes may have changed between the first read and the start of notifications.
        self.steering.on_notice(Instant::ZERO);
        self.look_at_uplinks(driver, Instant::ZERO);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [
            (!self.join.is_done).then_some(self.join.next_reminder),
            self.resolver.poll_timeout(),
            self.portals.poll_timeout(),
            self.looks.retry,
            self.looks.debounce.poll_timeout(),
            self.steering.poll_timeout(),
            self.streams.as_ref().and_then(LanStreams::poll_timeout),
            self.encoders.poll_timeout(),
            self.modems.poll_timeout(),
            Some(self.state_files.next),
            self.counts_bytes().then_some(self.state_files.next_usage),
        ];
        timeouts.into_iter().flatten().min()
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
        self.look_at_uplinks(driver, now);
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
        let changed = self.resolver.poll(now);
        self.use_servers(&mut driver.node, now, &changed);
        self.take_portals(&mut driver.node, now);
    }

    fn on_ready(&mut self, driver: &mut Driver<Client>, now: Instant, event: &Event) {
        match event.token {
            MONITOR => {
                self.monitor.take_notices();
                self.looks.debounce.ask(now);
                self.steering.on_notice(now);
            }
            ROUTERS => {
                let changed = self.resolver.on_router_updates(now, &self.routers.poll());
                self.use_servers(&mut driver.node, now, &changed);
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
        if let Some(uplink) = uplink {
            self.drop_uplink(driver, now, uplink);
        }
        self.looks.retry = Some(now + UPLINK_RETRY);
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Client>, now: Instant) {
        if self.looks.debounce.take_due(now) {
            self.look_at_uplinks(driver, now);
        }
        if self.looks.retry.is_some_and(|at| at <= now) {
            self.retry_uplinks(driver, now);
        }
        if self.counts_bytes() && self.state_files.next_usage <= now {
            self.update_time_of_day(&mut driver.node, now);
            self.state_files.usage.write(driver.node.usage());
        }
        if self.state_files.next <= now {
            self.state_files.next = now + STATE_INTERVAL;
            self.state_files.learned.write(driver.node.learned());
        }
        self.forget_modems(&mut driver.node, now);
        self.steering.handle_timeout(now);
        self.take_filters(driver, now);
        let networks = self.steering.routes.local_networks();
        driver.node.set_local_networks(networks.iter().copied());
        self.resolver.set_content(self.join.is_done && !driver.node.is_silent());
        // Setting servers turns the node; complete packets are delivered first.
        driver.deliver();
        let changed = self.resolver.handle_timeout(now);
        self.use_servers(&mut driver.node, now, &changed);
        self.ask_for_portals(driver, now);
        let is_up = self.join.is_done && !driver.node.is_silent();
        if let Some(streams) = &mut self.streams {
            streams.turn(driver, &mut self.steering, now, is_up);
        }
        self.answer_reloads();
    }

    fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        self.take_events(driver);
        self.change_ports(driver);
        self.streams.iter_mut().for_each(|streams| streams.handle_events(driver, now));
        self.encoders.handle_events(driver, now);
        self.report_uplinks();
        self.report_data_plane(&driver.node, now);
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
        let role = ClientStatus {
            sessions: client.status().into_iter().collect(),
            no_session: self.obstacle().or_else(|| client.why_no_session(now)),
            uplinks: client.uplinks(now),
            paused: self.overrides.paused(),
            conflicts: self.monitor.conflicts(),
            outside: self.steering.neighbours.iter().fold(
                BTreeMap::new(),
                |mut outside: BTreeMap<String, Vec<String>>, (uplink, network)| {
                    outside.entry(uplink.clone()).or_default().push(network.to_string());
                    outside
                },
            ),
            modems: self.modems.facts(now),
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
            "tell_modem" => self.tell_modem(&mut driver.node, now, params),
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
    fn counts_bytes(&self) -> bool {
        let policies = &self.options.file.uplinks.policies;
        self.overrides.have_caps()
            || policies.iter().any(|policy| policy.to_policy().caps.are_there())
    }

    fn update_time_of_day(&mut self, client: &mut Client, now: Instant) {
        self.state_files.next_usage = now + TIME_OF_DAY;
        let ClockReading { unix_seconds, is_synchronised } = ClockReading::take();
        client.on_time_of_day(unix_seconds, is_synchronised);
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
        self.monitor.set_selector(selector);
        self.set_portal_probe(&mut driver.node, now, portal_probe);
        self.exclude(now, read.routes);
        self.look_at_uplinks(driver, now);
        for uplink in self.monitor.uplinks().cloned().collect::<Vec<Uplink>>() {
            self.apply_policy(&mut driver.node, &uplink.name);
            // Interfaces count as uplinks by their routes alone only if `include` is empty.
            self.use_uplink(driver, now, &uplink);
        }
        tracing::info!("lanes, policies, uplinks and excluded destinations were read again");
        left_out
    }

    fn use_servers(&mut self, client: &mut Client, now: Instant, changed: &Changed) {
        if !changed.is_empty() {
            self.looks.debounce.ask(now);
        }
        for (server, uplink) in changed {
            let servers = self.resolver.found(server, *uplink).to_vec();
            client.set_servers_of(now, server, *uplink, servers);
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
            let uplinks: Vec<&str> = self.monitor.uplinks().map(|it| it.name.as_str()).collect();
            format!(
                "lane {lane} waits for {uplink}, which is missing or has no route to the server; \
                 the uplinks are: {}",
                uplinks.join(", ")
            )
        });
        Ok(json!(SetAnswer::Notice { notice }))
    }
}
