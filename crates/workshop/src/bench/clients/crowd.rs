//! All simulated clients: threads with some hundreds each, what is asked of all of them, and the
//! sink behind the server where their streams end.
//!
//! ```text
//! bench ─► orders ─► group 0: clients 0, n, 2n, ..  sockets of its own  ┐
//!                ├─► group 1: clients 1, n + 1, ..  sockets of its own  ├═══► server ─► sink
//!                └─► group n - 1                                        ┘
//!       ◄─ how things are ─┘
//! ```
//!
//! Boxes have a processor, memory and sockets each. What stands for them here has a share of each
//! for some hundreds, so that no client waits in a socket behind thousands of others.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use roadweave_device::{Clock, Waker};
use roadweave_types::Instant;

use super::cores::Cores;
use super::group::{self, GroupConfig, Line, Order, Told};
use super::site::{Keys, Site, open_socket};
use super::stream::{Arrived, PORT, Sink};
use crate::sandbox::clock;

/// Clients of a group.
const GROUP_MAX: usize = 500;
/// Room for what streams bring while nobody looks, bytes: they fill it in a second.
const SINK_BUFFER: usize = 64 << 20;
/// How often that is looked at, which needs no haste: the kernel tells when it came.
const SINK_LOOK: Duration = Duration::from_millis(10);
/// Clients of all groups that begin at one time, about: more of them would wait for one another
/// here, and not for the server.
const BEGINNING_MAX: usize = 16;
/// So much ahead groups are told from when on to count.
const COUNT_AHEAD: Duration = Duration::from_millis(100);
/// How often groups are asked how things are.
const ASK: Duration = Duration::from_millis(50);

/// All clients.
pub struct Crowd {
    clock: Clock,
    groups: Vec<Group>,
    /// Where streams end.
    sink: Sink,
}

/// A thread with clients.
struct Group {
    /// Closed when it is to end.
    orders: Option<Sender<Order>>,
    waker: Waker,
    told: Receiver<Told>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// How things are with all clients.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// How long it took each client to join that has joined since that is counted, ascending.
    pub joins: Vec<Duration>,
    /// How many clients have too few paths; all of a group until all of it have joined.
    pub without_paths: usize,
    /// How many packets the streams have sent since that is counted.
    pub sent: u64,
}

impl Crowd {
    /// A client for each of `keys`, with `paths` paths each, on the cores of the clients; none has
    /// begun. The first `streams` of them will stream.
    ///
    /// # Errors
    /// When a thread or the sink cannot be made.
    pub fn new(
        site: &Site,
        cores: &Cores,
        keys: Keys,
        paths: u8,
        streams: usize,
    ) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let Keys { server, clients } = keys;
        let count = clients.len().div_ceil(GROUP_MAX).max(1);
        let mut shared_out: Vec<_> = (0..count).map(|_| Vec::new()).collect();
        for (number, key) in clients.into_iter().enumerate() {
            shared_out[number % count].push(key);
        }
        let open = || open_socket(PORT, Some(SINK_BUFFER));
        let sink = Sink::new(clock, site.server.enter(open)??, streams);
        let mut groups = Vec::new();
        for (number, keys) in shared_out.into_iter().enumerate() {
            let (place, beginning_max) = ((number, count), BEGINNING_MAX.div_ceil(count));
            let config = GroupConfig { place, server, keys, paths, beginning_max };
            groups.push(Group::start(site, cores, clock, config)?);
        }
        Ok(Self { clock, groups, sink })
    }

    /// The time, by the clock of all that is measured here.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Lets clients begin from now on, some at a time; returns when that is.
    ///
    /// # Errors
    /// When a group has ended.
    pub fn begin(&mut self) -> anyhow::Result<Instant> {
        let begin = self.count_joins()?;
        self.order(Order::Begin)?;
        Ok(begin)
    }

    /// Counts from now on who joins; returns when that is.
    ///
    /// # Errors
    /// When a group has ended.
    pub fn count_joins(&mut self) -> anyhow::Result<Instant> {
        let since = self.clock.now();
        self.order(Order::CountJoins(since))?;
        Ok(since)
    }

    /// Lets clients stream at `rate` bits per second from now on, as many as the sink expects, or
    /// none.
    ///
    /// # Errors
    /// When a group has ended.
    pub fn stream(&mut self, rate: Option<f64>) -> anyhow::Result<()> {
        let (now, count) = (self.clock.now(), self.sink.streams());
        self.order(Order::Stream(rate.map(|rate| (now, count, rate))))
    }

    /// Counts what streams send and what comes, from a moment on that is there on return.
    ///
    /// # Errors
    /// When a group has ended, or the sink fails.
    pub fn count_packets(&mut self) -> anyhow::Result<()> {
        // In time for all groups to hear of it.
        let from = self.clock.now() + COUNT_AHEAD;
        self.sink.begin(from);
        self.order(Order::CountPackets(from))?;
        self.run_for(COUNT_AHEAD)
    }

    /// What has come of the streams.
    pub fn arrived(&mut self) -> Arrived {
        self.sink.arrived(self.clock.now())
    }

    /// How things are.
    ///
    /// # Errors
    /// When a group has ended.
    pub fn state(&mut self) -> anyhow::Result<State> {
        self.order(Order::Tell)?;
        let mut state = State::default();
        for group in &mut self.groups {
            let told = group.told.recv().map_err(|_| group.failed())?;
            state.joins.extend(told.joins);
            state.without_paths += told.without_paths;
            state.sent += told.sent;
        }
        state.joins.sort_unstable();
        Ok(state)
    }

    /// Lets `time` pass, and takes what streams bring.
    ///
    /// # Errors
    /// When the sink fails.
    pub fn run_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = clock::now() + time;
        loop {
            self.sink.read().context("the sink failed")?;
            let now = clock::now();
            if now >= end {
                return Ok(());
            }
            clock::sleep_until((now + SINK_LOOK).min(end));
        }
    }

    /// Lets time pass until `is_done`, which is asked now and then, or for `most`; returns how
    /// things are then.
    ///
    /// # Errors
    /// When a group has ended, or the sink fails.
    pub fn run_until(
        &mut self,
        most: Duration,
        is_done: impl Fn(&State) -> bool,
    ) -> anyhow::Result<State> {
        let end = clock::now() + most;
        loop {
            let state = self.state()?;
            if is_done(&state) || clock::now() >= end {
                return Ok(state);
            }
            self.run_for(ASK)?;
        }
    }

    fn order(&mut self, order: Order) -> anyhow::Result<()> {
        self.groups.iter_mut().try_for_each(|group| group.order(order))
    }
}

impl Group {
    fn start(
        site: &Site,
        cores: &Cores,
        clock: Clock,
        config: GroupConfig,
    ) -> anyhow::Result<Self> {
        let (orders, received) = channel();
        let (telling, told) = channel();
        let waker = Waker::new()?;
        let line = Line { orders: received, waker: waker.clone(), told: telling };
        let (namespace, cores) = (site.clients.clone(), cores.clone());
        let run = move || {
            namespace.move_thread()?;
            cores.use_for_clients()?;
            group::run(clock, config, line)
        };
        let thread = std::thread::Builder::new().name("clients".into()).spawn(run);
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(Self { orders: Some(orders), waker, told, thread })
    }

    fn order(&mut self, order: Order) -> anyhow::Result<()> {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        self.waker.wake();
        if sent { Ok(()) } else { Err(self.failed()) }
    }

    /// Why it has ended.
    fn failed(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error.context("the clients failed"),
            _ => anyhow!("a thread of clients has ended"),
        }
    }
}

impl Drop for Crowd {
    /// Ends all clients, so that none of them speaks to the next server.
    fn drop(&mut self) {
        for group in &mut self.groups {
            group.orders = None;
            group.waker.wake();
        }
        for thread in self.groups.iter_mut().filter_map(|group| group.thread.take()) {
            // What it failed with was told, or is of no interest any more.
            let _ = thread.join();
        }
    }
}
