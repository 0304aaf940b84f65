//! The common part of server, proxy and anchor, which accept peers by tables of keys from the file
//! and the fleet. A thread merges them; keys expire by the time of day.

mod absent;
mod anchors;
mod departed;
mod fleet;
pub(super) mod host;
pub(super) mod machine;
pub(super) mod node;
mod presence_log;
pub(super) mod reload;
pub(super) mod role;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use roadweave_config::{AnchorFile, ProxyFile, ServerFile};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::pauses::Pause;
use roadweave_linux::{DeviceError, UdpOptions};
use roadweave_proto::{DropCounters, Instant};
use roadweave_tunnel::{PeerTable, Peers, ServerEvent};

use self::absent::Absent;
use self::anchors::Anchors;
use self::fleet::InFleet;
use self::host::Host;
use self::machine::Machine;
use self::node::Serves;
use self::presence_log::PresenceLog;
use self::reload::{Destinations, ReloadRequest, Reloaded, Reloader, ServerReload};
use super::event_loop::Driver;
use super::repeat_limiter::RepeatLimiter;
use super::reread::{Askers, Reload};
use super::{DriverError, MemberOptions};
use crate::fleet::FleetOptions;
use crate::local::{LocalRequest, ReloadAnswer, RpcError};
use crate::{ClockReading, TimeOfDay};

const TIME_OF_DAY: Duration = Duration::from_secs(1);

pub(super) struct ServingOptions {
    pub(super) identity: Arc<Identity>,
    pub(super) listen: SocketAddr,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) state_directory: PathBuf,
    pub(super) files: Vec<PathBuf>,
    pub(super) of_file: ServerReload,
    pub(super) reload: Reload<ServerReload>,
    pub(super) fleet: Option<FleetOptions<()>>,
}

macro_rules! serving_options_of {
    ($($file:ty),+) => {
        $(impl MemberOptions<$file> {
            pub(super) fn split(self) -> ($file, ServingOptions) {
                let Self { file, identity, mut reload, files, membership } = self;
                let offline_max = file.fleet.offline_max();
                let serving = ServingOptions {
                    identity,
                    listen: file.listen,
                    metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
                    state_directory: file.state_directory.clone(),
                    files,
                    of_file: ServerReload::from(&file),
                    reload: Box::new(move || Ok(reload()?.map(|file| ServerReload::from(&file)))),
                    fleet: membership.map(|its| FleetOptions::without_merge(its, offline_max)),
                };
                (file, serving)
            }
        })+
    };
}

serving_options_of!(ServerFile, ProxyFile, AnchorFile);

#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) clients: Arc<PeerTable>,
    pub(super) proxies: Option<Arc<PeerTable>>,
}

impl Tables {
    pub(super) fn for_each(&self, each: impl FnMut(&Arc<PeerTable>)) {
        [Some(&self.clients), self.proxies.as_ref()].into_iter().flatten().for_each(each);
    }
}

pub(super) struct Serving {
    reloader: Reloader,
    askers: Askers,
    fleet: Option<InFleet>,
    anchors: Anchors,
    tables: Tables,
    time_of_day: TimeOfDay,
    next_time_of_day: Instant,
    presence_log: PresenceLog,
    absent: Absent,
    receive_failed: RepeatLimiter,
    host: Option<Host>,
}

impl Serving {
    pub(super) fn destinations(&self) -> Destinations {
        self.host.as_ref().map(|host| host.destinations.clone()).unwrap_or_default()
    }

    /// Fleet members and revocations are applied before the first packet is read.
    fn start<N: Serves>(
        driver: &mut Driver<N>,
        options: ServingOptions,
        tables: Tables,
        host: Option<(Host, Machine)>,
        instance: &str,
    ) -> Result<Self, DriverError> {
        let ServingOptions { of_file, reload, fleet, state_directory, .. } = options;
        let mut time_of_day = TimeOfDay::new(&state_directory, instance);
        tables.clients.set_unix_time(time_of_day.update(Instant::ZERO, ClockReading::take()));
        let (host, machine) = host.unzip();
        let keys = of_file.keys().collect();
        let mut anchors = Anchors::new(driver.waker());
        anchors.set_of_file(driver.edge.clock.now(), &mut driver.node, of_file.led());
        let reloader = Reloader::start(reload, of_file, machine, driver.waker())?;
        let start_fleet = |fleet| InFleet::start(fleet, keys, driver.waker());
        let fleet = fleet.map(start_fleet).transpose()?;
        let mut serving = Self {
            reloader,
            askers: Askers::default(),
            fleet,
            anchors,
            tables,
            time_of_day,
            next_time_of_day: Instant::ZERO,
            presence_log: PresenceLog::default(),
            absent: Absent::default(),
            receive_failed: RepeatLimiter::default(),
            host,
        };
        serving.begin_in_fleet(driver);
        Ok(serving)
    }

    fn begin_in_fleet<N: Serves>(&mut self, driver: &mut Driver<N>) {
        let Some(fleet) = &self.fleet else { return };
        fleet.wait_in_step();
        let now = driver.edge.clock.now();
        self.apply_updates(&mut driver.node, now);
        if let Some(reloaded) = self.reloader.wait() {
            self.take(&mut driver.node, now, reloaded);
        }
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        let fleet = self.fleet.as_ref().map(|fleet| fleet.next_figures);
        let others = [fleet, self.anchors.poll_timeout()].into_iter().flatten();
        others.fold(self.next_time_of_day, Instant::min)
    }

    /// Keys may have expired during the pause, so the time of day is due at once.
    pub(super) fn on_pause(&mut self, pause: &Pause, discarded: u64) {
        tracing::warn!(discarded, "{pause}; queued packets are discarded");
        self.next_time_of_day = Instant::ZERO;
    }

    pub(super) fn update_time_of_day(&mut self, now: Instant) -> bool {
        if now < self.next_time_of_day {
            return false;
        }
        self.next_time_of_day = now + TIME_OF_DAY;
        self.tables.clients.set_unix_time(self.time_of_day.update(now, ClockReading::take()));
        if let Some(fleet) = &mut self.fleet {
            fleet.update_away(now, &self.tables.clients);
        }
        while let Some((peer, times)) = self.presence_log.poll_suppressed(now) {
            tracing::warn!(
                peer,
                times,
                "sessions began and ended more often than is logged individually"
            );
        }
        true
    }

    pub(super) fn forget_long_gone(&mut self, now: Instant, node: &impl Serves) {
        let Some(host) = &self.host else { return };
        let mut gone = self.absent.take_long_gone(now);
        // With shards, the event of leaving may arrive after that of joining another shard.
        gone.retain(|key| !node.has_session(key));
        host.forget(self.tables.clients.peers(), gone);
    }

    fn report_to_fleet(&mut self, now: Instant, node: &mut impl Serves) {
        if let Some(fleet) = &mut self.fleet {
            fleet.report(now, node, self.reloader.is_idle());
        }
    }

    pub(super) fn on_reload(&mut self, request: LocalRequest) {
        match self.begin_reload(true) {
            Some(reading) => self.askers.add(reading, request),
            None => request.answer(Err(RpcError::internal(
                "the thread that reloads is gone: restart the server",
            ))),
        }
    }

    pub(super) fn on_wake(&mut self, node: &mut impl Serves, now: Instant) {
        self.apply_updates(node, now);
        if let Some((reading, reloaded)) = self.reloader.poll() {
            let answer = reloaded.map(|reloaded| self.take(node, now, reloaded));
            self.askers.on_read(reading, &answer);
        }
        if let Some(rereads) = self.reloader.take_due_again() {
            self.begin_reload(rereads);
        }
    }

    fn apply_updates(&mut self, node: &mut impl Serves, now: Instant) {
        let Some(fleet) = &mut self.fleet else { return };
        let (has_other_members, anchors) = fleet.apply_updates(node, now, &self.tables);
        if let Some(anchors) = anchors {
            self.anchors.set_of_fleet(now, node, anchors);
        }
        if has_other_members {
            self.begin_reload(false);
        }
    }

    fn begin_reload(&mut self, rereads: bool) -> Option<u64> {
        let members = self.fleet.as_ref().map(|fleet| fleet.members.clone()).unwrap_or_default();
        let peers = self.tables.clients.peers();
        self.reloader.begin(ReloadRequest { rereads, members, peers })
    }

    fn take(&mut self, node: &mut impl Serves, now: Instant, reloaded: Reloaded) -> ReloadAnswer {
        let Reloaded { change, proxies, destinations, led, of_file, ignored } = reloaded;
        let (peers, changed) = (change.peers.len(), change.changed.len());
        match &self.tables.proxies {
            None => tracing::info!(peers, changed, "the clients were read again"),
            Some(_) => {
                let proxies = proxies.len();
                tracing::info!(peers, changed, proxies, "clients and proxies were read again");
            }
        }
        if let (Some(host), Some(leads)) = (&mut self.host, self.reloader.leads()) {
            host.lead(&destinations, leads);
        }
        let (before, mut moved) = (self.tables.clients.peers(), change.changed.clone());
        moved.retain(|key| {
            let [before, after] = [&*before, &change.peers].map(|peers| peers.get(key));
            before.map(|peer| &peer.addresses) != after.map(|peer| &peer.addresses)
        });
        let clients = node.replace(now, change);
        let change = |table: &Arc<PeerTable>| Peers::after(&table.peers(), proxies);
        let change = self.tables.proxies.as_ref().map(change);
        let former = (clients, change.and_then(|change| node.replace_proxies(now, change)));
        // Sessions of moved clients have ended, so their packets cannot recreate the connections.
        if let Some(host) = &self.host {
            host.forget(before, moved);
        }
        self.anchors.set_of_file(now, node, led);
        if let Some(fleet) = &mut self.fleet {
            fleet.set_of_file(of_file, &self.tables);
        }
        std::thread::spawn(move || drop(former));
        ReloadAnswer { ignored, refused: Vec::new() }
    }

    pub(super) fn may_log(&mut self, now: Instant, key: PublicKey, name: &str) -> bool {
        self.presence_log.may_log(now, key, name)
    }

    pub(super) fn log_events(
        &mut self,
        now: Instant,
        mut poll: impl FnMut() -> Option<ServerEvent>,
    ) {
        while let Some(event) = poll() {
            match event {
                ServerEvent::Joined { peer, key, .. } => {
                    self.absent.on_joined(&key);
                    if self.may_log(now, key, &peer) {
                        tracing::info!(peer, %key, event = "joined", "joined");
                    }
                }
                ServerEvent::Left { peer, key, reason } => {
                    if self.may_log(now, key, &peer) {
                        tracing::info!(peer, reason, event = "left", "left");
                    }
                    self.absent.on_left(now, key, peer, reason);
                }
                ServerEvent::Leg { text } => tracing::warn!("{text}"),
                ServerEvent::Refused { reason } => tracing::warn!("refused {reason}"),
            }
        }
    }

    pub(super) fn filter_drops(&mut self) -> DropCounters {
        self.host.as_mut().map(|host| host.filters.drops()).unwrap_or_default()
    }

    pub(super) fn stop(&mut self) {
        self.reloader.stop();
        self.time_of_day.write_last();
    }
}

/// A failure does not end the daemon, since the next call may succeed.
pub(super) fn log_receive_error(limiter: &mut RepeatLimiter, now: Instant, error: &std::io::Error) {
    if limiter.admit(now, 0, "") {
        tracing::error!(%error, "cannot receive from the network; trying again");
    }
}

/// Opens sockets at `listen`. A wildcard address falls back to IPv4 if the kernel has no IPv6.
pub(super) fn open_by<T>(
    listen: SocketAddr,
    open: impl Fn(&UdpOptions) -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    match open(&UdpOptions::server(listen)) {
        Err(error @ DeviceError::NoIpv6 { .. }) if listen.ip().is_unspecified() => {
            tracing::warn!("{error}; listening on IPv4 only");
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, listen.port()));
            open(&UdpOptions::server(any))
        }
        result => result,
    }
}
