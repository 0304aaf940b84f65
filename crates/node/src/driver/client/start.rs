//! Starts and stops a client. What it blocks stays blocked after SIGUSR1, and after an error.

use std::sync::Arc;

use roadweave_config::{BeforeJoin, ClientFile, ClientStreams, lane_configs};
use roadweave_identity::Identity;
use roadweave_linux::dns::{Dns, restore_of};
use roadweave_linux::lookup::RouterNotices;
use roadweave_linux::privileges::{self, Needs};
use roadweave_linux::{
    Clock, Instance, InstanceLock, Monitor, Signals, Tun, Waker, cleanup, random_bytes, take_over,
};
use roadweave_proto::Instant;
use roadweave_quic::Epoch;
use roadweave_tunnel::{Client, ClientConfig};

use super::encoders::Encoders;
use super::fleet::DataPlaneCheck;
use super::join_progress::JoinProgress;
use super::options::{CandidateOptions, candidates, servers};
use super::portals::Portals;
use super::state_files::StateFiles;
use super::streams::LanStreams;
use super::uplinks::Uplinks;
use super::waiting::WaitingActions;
use super::{ClientRole, split};
use crate::driver::client_filters::ClientFilters;
use crate::driver::edge::Edge;
use crate::driver::event_loop::{Driver, MONITOR, ROUTERS, RunningNode, take_instance};
use crate::driver::from_config::{excluded, route_settings, tun_options};
use crate::driver::granted::Granted;
use crate::driver::resolvers::Resolvers;
use crate::driver::steering::Steering;
use crate::driver::{DriverError, MemberOptions, needed_files};
use crate::fleet::{Fleet, FleetOptions, Merge};
use crate::metrics::MetricsListener;

/// Blocks traffic for the tunnel before any step that another user of the machine could make fail.
pub(super) fn start(
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
    let state_files = StateFiles::restore(&file.state_directory, instance.name(), &mut client);
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
    let with_merge = |membership| FleetOptions { membership, merge, offline_max: None };
    let fleet = options.membership.take().map(with_merge);
    let fleet = fleet.map(|fleet| Fleet::start(fleet, driver.waker())).transpose()?;
    let streams = file.streams.as_ref();
    let mut streams =
        streams.map(|streams| LanStreams::open(&instance, streams, &driver)).transpose()?;
    if let Some(streams) = &mut streams {
        streams.set_excluded(&mut steering, Instant::ZERO, &excluded(&file.routes));
    }
    tracing::info!(tun = driver.edge.tun_name(), ?offload, "the client runs");
    let role = ClientRole {
        uplinks: Uplinks::new(monitor, resolver, portals),
        options,
        routers,
        state_files,
        join: JoinProgress::new(),
        fleet,
        data_plane: DataPlaneCheck::default(),
        streams,
        encoders: Encoders::default(),
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

pub(super) fn stop(running: RunningNode<Client, ClientRole>) -> Result<(), DriverError> {
    let RunningNode { mut driver, mut role, instance, lock } = running;
    // Say goodbye to the server before the disk writes, which may block.
    driver.node.close(driver.edge.clock.now());
    driver.flush();
    role.state_files.write_last(&mut driver.node, role.counts_bytes());
    role.steering.dns.unset();
    tracing::info!("the client stops");
    role.uplinks.monitor.give_back();
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
