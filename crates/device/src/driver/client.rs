//! The client's event loop.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use roadweave_quic::{Epoch, Identity, PublicKey, TransportConfig};
use roadweave_tunnel::{
    Client, ClientConfig, ClientEvent, LaneConfig, Node as _, Notice, UplinkPolicy, Usage,
};
use roadweave_types::{DropCounters, DropReason, Instant, UplinkId, peer_text};
use serde_json::{Value, json};

use super::complaints::Complaints;
use super::granted::Granted;
use super::guard::Guard;
use super::pace::Pace;
use super::resolver::Resolver;
use super::settings::{self, SetQoe, SetStrategy};
use super::steering::Steering;
use super::tun_name::TunName;
use super::{
    CONTROL, DriverError, MONITOR, ROUTERS, SIGNALS, SOCKETS, STATE_INTERVAL, TUN, TunSettings,
    discard_inner, meta, needed_files, read_tun, send_all, status, to_network, to_prefix, wait,
    write_inner,
};
use crate::control::{ControlServer, RpcError};
use crate::dns::{Dns, restore_of};
use crate::lookup::RouterNotices;
use crate::monitor::glob;
use crate::pauses::{Pause, Pauses, Readings};
use crate::privileges::{self, Needs};
use crate::{
    Clock, DeviceError, Gateway, Instance, InstanceLock, Interest, Monitor, Poller, RouteSettings,
    ServerName, Signal, Signals, StateFile, Token, Tun, TunOptions, UdpOptions, Uplink,
    UplinkEvent, UplinkSelector, UplinkSocket, Waker, cleanup, cleanup::take_over,
};

/// How long a server may stay silent before the user is told.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the user is told again.
const REMINDER: Duration = Duration::from_secs(60);
/// How often the time of day is looked at, and what metered uplinks have carried is written.
const TIME_OF_DAY: Duration = Duration::from_secs(60);
/// Uplinks that failed to open are tried again this often.
const UPLINK_RETRY: Duration = Duration::from_secs(2);

/// What of the configuration may change while the client runs.
#[derive(Clone, Debug)]
pub struct ClientReload {
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// How uplinks may be used.
    pub policies: Vec<(String, UplinkPolicy)>,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
}

/// Reads the client's configuration again.
pub type ReloadClient = Box<dyn FnMut() -> Result<ClientReload, String>>;

/// What a client is started with.
pub struct ClientOptions {
    /// Its own name, for the server's logs.
    pub name: String,
    /// The servers, tried in turn. Names are looked up over each uplink, and again while none of
    /// them answers.
    pub servers: Vec<ServerName>,
    /// The server's public key.
    pub server_key: PublicKey,
    /// The client's key pair.
    pub identity: Arc<Identity>,
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// The most bytes that the session may hold.
    pub memory_max: usize,
    /// The TUN device.
    pub tun: TunSettings,
    /// What goes into the tunnel, and what is refused.
    pub routes: ClientRouteOptions,
    /// Whether what comes from behind this box gets the client's inner address.
    pub masquerade: bool,
    /// The resolvers of the machine for the time of a session; none: those that it has.
    pub dns: Vec<IpAddr>,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
    /// Whether this box forwards from one uplink to another.
    pub forward_between_uplinks: bool,
    /// How uplinks may be used: patterns of names as in [`UplinkSelector`], the first that fits
    /// counts.
    pub policies: Vec<(String, UplinkPolicy)>,
    /// Where what strategies have learned is kept, and what metered uplinks have carried.
    pub state_directory: PathBuf,
    /// Reads lanes, policies and uplinks again, on SIGHUP; an error leaves everything as it is.
    pub reload: ReloadClient,
    /// Files that are read again later, as the configuration.
    pub files: Vec<PathBuf>,
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("name", &self.name)
            .field("servers", &self.servers)
            .field("uplinks", &self.uplinks)
            .finish_non_exhaustive()
    }
}

/// What of a client's traffic goes where.
#[derive(Clone, Debug)]
pub struct ClientRouteOptions {
    /// Destinations that are routed into the tunnel.
    pub into_tunnel: Vec<IpNet>,
    /// Whether they are refused before the first session.
    pub closed_before_join: bool,
    /// Whether they stay refused after an ordered stop.
    pub kill_switch: bool,
    /// Whether the private networks of the uplinks' own addresses are reached outside the tunnel.
    pub uplink_neighbours: bool,
    /// What a server may grant: addresses, and prefixes that hold its own inner addresses.
    pub accept: Vec<IpNet>,
}

/// Runs a client until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start; what it set up by then is removed.
pub fn run_client(options: ClientOptions) -> Result<(), DriverError> {
    let mut driver = Driver::start(options)?;
    // What ends without having been told to leaves the routes, and with them what they refuse.
    driver.run()?;
    driver.stop()
}

impl ClientOptions {
    fn route_settings(&self) -> RouteSettings {
        RouteSettings {
            into_tunnel: self.routes.into_tunnel.iter().copied().map(to_prefix).collect(),
            closed_before_join: self.routes.closed_before_join,
            uplink_neighbours: self.routes.uplink_neighbours,
            accept: self.routes.accept.iter().copied().map(to_prefix).collect(),
            selector: self.uplinks.clone(),
        }
    }
}

struct Driver {
    clock: Clock,
    pauses: Pauses,
    poller: Poller,
    signals: Signals,
    control: ControlServer,
    waker: Waker,
    monitor: Monitor,
    /// When the uplinks are looked at.
    looks: Pace,
    client: Client,
    sockets: BTreeMap<UplinkId, UplinkSocket>,
    tun: Tun,
    tun_name: TunName,
    options: ClientOptions,
    resolver: Resolver,
    routers: RouterNotices,
    state: StateFile,
    next_state: Instant,
    usage: StateFile<Usage>,
    next_time_of_day: Instant,
    joined: bool,
    next_reminder: Instant,
    next_uplink_retry: Option<Instant>,
    complaints: Complaints,
    drops: DropCounters,
    // Dropped in this order: what they set up is removed before the instance's lock.
    granted: Granted,
    guard: Guard,
    steering: Steering,
    instance: Instance,
    _lock: InstanceLock,
}

impl Driver {
    fn start(mut options: ClientOptions) -> Result<Self, DriverError> {
        // Before anything is changed, so that no signal leaves changes behind.
        let signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let instance = Instance::new(&options.tun.name)?;
        let lock = instance.lock()?;
        // What an earlier run left closed stays closed.
        take_over(&instance, &lock);
        if let Err(error) = restore_of(&instance, &options.state_directory) {
            tracing::warn!("the resolvers of before an earlier session are not back: {error}");
        }
        let clock = Clock::start();
        let poller = Poller::new()?;
        // Its addresses and routes come when the server has granted them.
        let tun = Tun::open(&TunOptions {
            name: options.tun.name.clone(),
            mtu: options.tun.mtu,
            addresses: Vec::new(),
            offload: options.tun.offload,
        })?;
        // Before the first thread: those that follow inherit it.
        privileges::restrict(&Needs {
            files: needed_files(&options.files, &options.state_directory),
            ..Needs::default()
        })?;
        options.uplinks.exclude.push(tun.name().to_owned());
        let mut monitor = Monitor::open(options.uplinks.clone())?;
        monitor.leave_out(tun.index());
        let guard = Guard::start(&instance, &tun, &options)?;
        let waker = Waker::new()?;
        let control = ControlServer::start(&instance, waker.clone())?;
        poller.add(&tun, TUN, Interest::Read)?;
        poller.add(&signals, SIGNALS, Interest::Read)?;
        poller.add(&waker, CONTROL, Interest::Read)?;
        poller.add(&monitor, MONITOR, Interest::Read)?;
        let routers = RouterNotices::open()?;
        poller.add(&routers, ROUTERS, Interest::Read)?;
        let config = ClientConfig {
            name: options.name.clone(),
            servers: Vec::new(),
            server_key: options.server_key,
            transport: options.transport.clone(),
            lanes: options.lanes.clone(),
            memory_max: options.memory_max,
        };
        let epoch = Epoch::new(clock.epoch());
        let mut client = Client::new(epoch, config, options.identity.clone())?;
        let mut state = StateFile::new(&options.state_directory, instance.name());
        client.restore(state.read());
        let mut usage = StateFile::new(&options.state_directory, instance.name());
        client.restore_usage(usage.read());
        let resolver = Resolver::new(options.servers.clone(), waker.clone());
        let dns = Dns::new(&instance, tun.name(), options.dns.clone(), &options.state_directory);
        // Last: a client that cannot start refuses nothing.
        let steering = Steering::start(&instance, options.route_settings(), tun.index(), dns)?;
        tracing::info!(tun = tun.name(), offload = ?tun.offload(), "the client runs");
        Ok(Self {
            clock,
            pauses: Pauses::new(Readings::take()),
            poller,
            signals,
            control,
            waker,
            monitor,
            looks: Pace::default(),
            client,
            sockets: BTreeMap::new(),
            tun,
            tun_name: TunName::default(),
            options,
            resolver,
            routers,
            state,
            next_state: Instant::ZERO + STATE_INTERVAL,
            usage,
            next_time_of_day: Instant::ZERO,
            joined: false,
            next_reminder: Instant::ZERO + PATIENCE,
            next_uplink_retry: None,
            complaints: Complaints::default(),
            drops: DropCounters::default(),
            granted: Granted::default(),
            guard,
            steering,
            instance,
            _lock: lock,
        })
    }

    fn run(&mut self) -> Result<(), DriverError> {
        self.tell_time_of_day(Instant::ZERO);
        self.look_at_uplinks(Instant::ZERO);
        loop {
            let reminder = (!self.joined).then_some(self.next_reminder);
            let lookup = self.resolver.poll_timeout();
            let timeouts = [
                self.client.poll_timeout(),
                reminder,
                lookup,
                self.next_uplink_retry,
                self.looks.poll_timeout(),
                self.steering.poll_timeout(),
                Some(self.next_state),
                self.counts_months().then_some(self.next_time_of_day),
            ];
            let ready = wait(&mut self.poller, self.clock, timeouts.into_iter().flatten().min())
                .map_err(|error| DeviceError::system("wait for events", error))?;
            let now = self.clock.now();
            if let Some(pause) = self.pauses.on_turn(Readings::take()) {
                self.on_pause(now, pause)?;
            }
            for token in ready {
                match token {
                    TUN => self.read_tun(now)?,
                    SIGNALS => {
                        if self.take_signals(now) {
                            return Ok(());
                        }
                    }
                    CONTROL => self.on_wake(now),
                    MONITOR => {
                        self.monitor.take_notices();
                        self.looks.ask(now);
                        self.steering.on_notice(now);
                    }
                    ROUTERS => {
                        let changed = self.resolver.on_router_news(now, self.routers.poll());
                        self.use_servers(now, &changed);
                    }
                    Token(number) => self.read_socket(now, number),
                }
            }
            if self.looks.take_due(now) {
                self.look_at_uplinks(now);
            }
            if self.next_uplink_retry.is_some_and(|at| at <= now) {
                self.retry_uplinks(now);
            }
            if self.counts_months() && self.next_time_of_day <= now {
                self.tell_time_of_day(now);
                self.usage.write(self.client.usage());
            }
            if self.next_state <= now {
                self.next_state = now + STATE_INTERVAL;
                self.state.write(self.client.learned());
            }
            // What it lacks then is mended with all that is changed.
            self.tun_name.service(now, &self.tun);
            self.steering.service(now);
            self.tell_local_networks();
            self.deliver();
            self.look_up(now);
            self.client.handle_timeout(self.clock.now());
            self.flush();
            self.deliver();
            self.handle_events();
            self.remind(now);
        }
    }

    /// Nothing that was known before a pause is believed.
    fn on_pause(&mut self, now: Instant, pause: Pause) -> Result<(), DriverError> {
        let discarded = discard_inner(&mut self.tun)?;
        self.drops.add(DropReason::QueueExpired, discarded);
        tracing::warn!(
            discarded,
            "{pause}; what waited is discarded, and every uplink has to answer anew"
        );
        self.next_time_of_day = now;
        self.look_at_uplinks(now);
        self.client.on_pause(now, pause.lasted);
        Ok(())
    }

    /// Whether an uplink has a monthly cap.
    fn counts_months(&self) -> bool {
        self.options.policies.iter().any(|(_, policy)| policy.monthly_cap_bytes.is_some())
    }

    fn tell_time_of_day(&mut self, now: Instant) {
        self.next_time_of_day = now + TIME_OF_DAY;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.client.on_time_of_day(since_1970.as_secs());
    }

    fn take_signals(&mut self, now: Instant) -> bool {
        while let Some(signal) = self.signals.take() {
            match signal {
                Signal::Interrupt | Signal::Terminate => return true,
                Signal::Hangup => match (self.options.reload)() {
                    Ok(reloaded) => self.take_up(now, reloaded),
                    Err(error) => tracing::error!("nothing was changed: {error}"),
                },
                Signal::Child => {}
            }
        }
        false
    }

    /// Goes on with other lanes, policies and uplinks; the session lives on.
    fn take_up(&mut self, now: Instant, reloaded: ClientReload) {
        let ClientReload { lanes, policies, mut uplinks } = reloaded;
        match self.client.set_lanes(now, lanes) {
            Ok(kept) if kept.is_empty() => {}
            Ok(kept) => tracing::warn!(
                "changed in the file, and ignored until the next start: {}",
                kept.join(", ")
            ),
            Err(error) => tracing::error!("the lanes are still those from before: {error}"),
        }
        self.options.policies = policies;
        uplinks.exclude.push(self.tun.name().to_owned());
        self.options.uplinks = uplinks.clone();
        self.steering.set_selector(now, uplinks.clone());
        self.monitor.set_selector(uplinks);
        self.look_at_uplinks(now);
        for uplink in self.monitor.uplinks().cloned().collect::<Vec<Uplink>>() {
            self.apply_policy(&uplink.name);
            // What counts as one by its routes alone depends on whether any is named.
            self.use_uplink(now, &uplink);
        }
        tracing::info!("lanes, policies and uplinks were read again");
    }

    fn apply_policy(&mut self, uplink: &str) {
        let mut policies = self.options.policies.iter();
        let policy = policies.find(|(pattern, _)| glob(pattern, uplink));
        self.client
            .set_policy(uplink, policy.map_or_else(UplinkPolicy::default, |(_, policy)| *policy));
    }

    fn read_tun(&mut self, now: Instant) -> Result<(), DriverError> {
        let client = &mut self.client;
        read_tun(&mut self.tun, |packet| client.handle_inner(now, packet))
    }

    fn read_socket(&mut self, now: Instant, number: u64) {
        let Some(id) = number.checked_sub(SOCKETS).and_then(|id| u32::try_from(id).ok()) else {
            return;
        };
        let uplink = UplinkId(id);
        let Some(socket) = self.sockets.get_mut(&uplink) else { return };
        let client = &mut self.client;
        let received = socket.recv(|incoming| {
            client.handle_packet(now, &meta(uplink, &incoming), incoming.payload);
        });
        if let Err(error) = received {
            tracing::warn!(%error, "an uplink's socket failed; it is opened again");
            self.drop_uplink(now, uplink);
            self.next_uplink_retry = Some(now + UPLINK_RETRY);
        }
    }

    fn flush(&mut self) {
        let sockets = &mut self.sockets;
        let mut homeless = 0;
        while let Some(outbox) = self.client.poll_transmit() {
            homeless += send_all(&outbox, |uplink, outgoing| {
                Some(sockets.get_mut(&uplink?)?.send(outgoing))
            });
        }
        self.drops.add(DropReason::SendFailed, homeless);
    }

    /// Hands what came from the server to the TUN.
    fn deliver(&mut self) {
        let client = &mut self.client;
        let refused = write_inner(&mut self.tun, || client.poll_inner());
        self.drops.add(DropReason::DeviceFull, refused);
    }

    fn look_at_uplinks(&mut self, now: Instant) {
        let events = match self.monitor.poll() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!("{error}; trying again");
                self.next_uplink_retry = Some(now + UPLINK_RETRY);
                return;
            }
        };
        self.guard.set_inside(self.monitor.inside());
        for event in events {
            match event {
                UplinkEvent::Appeared(uplink) => {
                    // A replugged interface is a new one under an old name: its socket is dead.
                    self.drop_uplink(now, uplink.id);
                    // Its routers are heard before it has an address: it may get one by them.
                    self.guard.on_new_uplink();
                    self.use_uplink(now, &uplink);
                }
                UplinkEvent::Changed(uplink) => self.use_uplink(now, &uplink),
                UplinkEvent::Vanished(uplink) => {
                    self.tell_gone(&uplink);
                    self.drop_uplink(now, uplink.id);
                }
            }
        }
    }

    fn tell_gone(&self, uplink: &Uplink) {
        let selector = &self.options.uplinks;
        let rest = match self.monitor.name_of(uplink.index) {
            None => String::new(),
            Some(name) => {
                let is_none = if selector.matches(name) {
                    ""
                } else {
                    ", which the configuration names no uplink"
                };
                format!(": its interface is called {} now{is_none}", peer_text(name.as_bytes()))
            }
        };
        tracing::warn!(uplink = uplink.name, "uplink is gone{rest}");
    }

    /// Brings an uplink into service as it is now, or takes it out.
    fn use_uplink(&mut self, now: Instant, uplink: &Uplink) {
        if !self.is_wanted(uplink) {
            if self.sockets.contains_key(&uplink.id) {
                tracing::warn!(uplink = uplink.name, "uplink is down");
            }
            self.drop_uplink(now, uplink.id);
            return;
        }
        match self.open_uplink(now, uplink) {
            Ok(()) => self.complaints.settle(uplink.id.0),
            Err(error) => {
                if self.complaints.admit(now, uplink.id.0, &error.to_string()) {
                    tracing::warn!(uplink = uplink.name, %error, "uplink cannot be used yet");
                }
                self.next_uplink_retry = Some(now + UPLINK_RETRY);
            }
        }
    }

    fn open_uplink(&mut self, now: Instant, uplink: &Uplink) -> Result<(), DeviceError> {
        let moved = self
            .steering
            .uplinks()
            .any(|known| known.id == uplink.id && known.addresses != uplink.addresses);
        self.steering.set_uplink(uplink)?;
        self.resolver.set_uplink(now, uplink);
        let addresses: Vec<String> = uplink.addresses.iter().map(ToString::to_string).collect();
        let is_new = !self.sockets.contains_key(&uplink.id);
        if is_new {
            let socket = open_socket(&uplink.name)?;
            let token = Token(SOCKETS + u64::from(uplink.id.0));
            self.poller.add(&socket, token, Interest::Read)?;
            self.sockets.insert(uplink.id, socket);
            tracing::info!(uplink = uplink.name, addresses = addresses.join(","), "uplink is up");
        }
        self.apply_policy(&uplink.name);
        self.client.add_uplink(now, uplink.id, &uplink.name);
        if moved && !is_new {
            self.client.on_new_addresses(now, uplink.id, addresses.join(", "));
        }
        Ok(())
    }

    fn drop_uplink(&mut self, now: Instant, id: UplinkId) {
        self.resolver.remove_uplink(id);
        if self.sockets.remove(&id).is_some() {
            self.client.remove_uplink(now, id);
        }
        self.steering.remove_uplink(id);
    }

    fn retry_uplinks(&mut self, now: Instant) {
        self.next_uplink_retry = None;
        self.look_at_uplinks(now);
        let uplinks: Vec<Uplink> = self.monitor.uplinks().cloned().collect();
        for uplink in uplinks {
            if !self.sockets.contains_key(&uplink.id) {
                self.use_uplink(now, &uplink);
            }
        }
    }

    /// Whether an uplink leads to the server, in one family at least.
    ///
    /// Without names in the configuration, an uplink is what leads to the Internet.
    fn is_wanted(&self, uplink: &Uplink) -> bool {
        let named = !self.options.uplinks.include.is_empty();
        let leads = |ipv4| {
            let leads_out =
                matches!(uplink.gateway(ipv4), Some(Gateway::Known(_) | Gateway::Direct));
            uplink.is_usable(ipv4) && (named || leads_out)
        };
        self.resolver.may_reach(leads(true), leads(false))
    }

    /// Nobody beyond the tunnel may speak as a host behind this box.
    fn tell_local_networks(&mut self) {
        let networks = self.steering.local_networks();
        self.client.set_local_networks(networks.iter().copied().map(to_network));
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Joined { welcome, server } => {
                    self.joined = true;
                    let (steering, guard) = (&mut self.steering, &mut self.guard);
                    self.granted.apply(steering, &self.tun, guard, &self.options, &welcome);
                    // Whoever reads this may use the tunnel.
                    tracing::info!(%server, addresses = ?welcome.addresses, "joined");
                }
                ClientEvent::Left { reason, rest } => {
                    self.joined = false;
                    self.steering.end_session();
                    let now = self.clock.now();
                    self.next_reminder = now + rest + PATIENCE;
                    if rest.is_zero() {
                        tracing::warn!("left: {reason}; connecting again");
                    } else {
                        tracing::error!("{reason}; next try in {:.1} s", rest.as_secs_f64());
                    }
                }
                ClientEvent::Notice(notice) => self.tell(&notice),
            }
        }
    }

    fn tell(&mut self, notice: &Notice) {
        let text = printable(&notice.to_string());
        match notice {
            Notice::Answer { is_proven, .. } => {
                // Why there is no session is told by this.
                self.next_reminder = self.clock.now() + REMINDER;
                if *is_proven {
                    tracing::error!("{text}");
                } else {
                    tracing::warn!("{text}");
                }
            }
            notice if notice.is_bad() => tracing::warn!("{text}"),
            _ => tracing::info!("{text}"),
        }
    }

    fn remind(&mut self, now: Instant) {
        if self.joined || now < self.next_reminder {
            return;
        }
        self.next_reminder = now + REMINDER;
        // The resolver tells by itself that there is no server yet.
        if !self.sockets.is_empty() && !self.resolver.has_found() {
            return;
        }
        let servers: Vec<String> = self.options.servers.iter().map(ToString::to_string).collect();
        let servers = servers.join(", ");
        if self.sockets.is_empty() {
            tracing::warn!("no uplink is usable; `ip address` shows the interfaces there are");
        } else if !self.client.uplinks(now).iter().any(|uplink| uplink.heard) {
            tracing::warn!(
                "no answer from {servers}; is the server running, the address right, \
                 and UDP let through by firewalls?"
            );
        } else if let Some(why) = self.client.why_no_session(now) {
            tracing::warn!("no session with {servers}: {why}");
        }
    }

    fn on_wake(&mut self, now: Instant) {
        self.waker.clear();
        let changed = self.resolver.poll(now);
        self.use_servers(now, &changed);
        self.answer(now);
    }

    /// Looks the server's names up, where it is time.
    fn look_up(&mut self, now: Instant) {
        self.resolver.set_content(self.joined && !self.client.is_silent());
        let changed = self.resolver.service(now);
        self.use_servers(now, &changed);
    }

    /// Lets the uplinks try the addresses that were found over them.
    fn use_servers(&mut self, now: Instant, uplinks: &[UplinkId]) {
        for uplink in uplinks {
            let servers = self.resolver.found(*uplink).to_vec();
            self.client.set_servers_of(now, *uplink, servers);
        }
    }

    fn answer(&mut self, now: Instant) {
        while let Some(request) = self.control.poll_request() {
            let answer = match request.method.as_str() {
                "status" => Ok(self.status()),
                "set_strategy" => self.set_strategy(now, &request.params),
                "set_qoe" => settings::parse(&request.params).and_then(|SetQoe { lane, qoe }| {
                    settings::answer(self.client.set_qoe(now, &lane, qoe))
                }),
                "frame_targets" => Ok(json!(self.client.frame_targets())),
                other => Err(RpcError::method_not_found(other)),
            };
            request.answer(answer);
        }
    }

    fn set_strategy(&mut self, now: Instant, params: &Value) -> Result<Value, RpcError> {
        let SetStrategy { lane, strategy } = settings::parse(params)?;
        settings::check_uplink(&strategy, &self.options.uplinks)?;
        let name = strategy.to_string();
        settings::answer(self.client.set_strategy(now, &lane, strategy))?;
        tracing::info!(lane, strategy = name, "a lane's strategy is changed");
        let mut waiting = self.client.waiting_lanes();
        let notice = waiting.find(|(waits, _)| *waits == lane).map(|(_, uplink)| {
            let uplinks: Vec<&str> = self.monitor.uplinks().map(|it| it.name.as_str()).collect();
            format!(
                "lane {lane} waits for {uplink}, which is not there or has no way out now; the uplinks \
                 are: {}",
                uplinks.join(", ")
            )
        });
        Ok(json!({ "notice": notice }))
    }

    fn status(&mut self) -> Value {
        let mut drops = self.drops.clone();
        drops.merge(&self.guard.drops());
        drops.merge(self.client.drops());
        let sessions: Vec<_> = self.client.status().into_iter().collect();
        let now = self.clock.now();
        let rest = json!({
            "sessions": sessions,
            "no_session": self.client.why_no_session(now),
            "uplinks": self.client.uplinks(now),
            "suppressed_notices": self.client.suppressed_notices(),
            "drops": drops,
        });
        let uptime = now.since(Instant::ZERO);
        status("client", &self.options.name, &self.tun, uptime, rest)
    }

    fn stop(mut self) -> Result<(), DriverError> {
        self.state.write_last(self.client.learned());
        self.client.close(self.clock.now());
        self.flush();
        if self.counts_months() {
            self.usage.write_last(self.client.usage());
        }
        self.steering.end_session();
        tracing::info!("the client stops");
        let Self { guard, tun, instance, _lock: lock, .. } = self;
        if self.options.routes.kill_switch {
            tracing::info!("what belongs into the tunnel stays refused: routes.kill_switch");
            return Ok(());
        }
        drop((guard, tun));
        Ok(cleanup(&instance, &lock)?)
    }
}

/// Whoever may rename an interface may not steer a terminal by its name.
fn printable(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_debug().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

/// A socket for both families, or for IPv4 where the kernel has no IPv6.
fn open_socket(interface: &str) -> Result<UplinkSocket, DeviceError> {
    match UplinkSocket::open(&UdpOptions::uplink(interface, false)) {
        Err(DeviceError::NoIpv6 { .. }) => UplinkSocket::open(&UdpOptions::uplink(interface, true)),
        result => result,
    }
}
