//! A thread that keeps the throw routes, by which excluded traffic bypasses the tunnel.
//!
//! ```text
//! set(wanted) ─► newest wins ─┐
//! one may be gone ────────────┴─► read them, add what is missing, remove what is left over
//! ```
//!
//! Exclusions may be thousands of prefixes: the thread that carries packets neither reads nor sets
//! their routes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use netlink_packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteType;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::keeper::{IPV4_ROUTE, IPV6_ROUTE};
use super::{Change, Repairs};
use crate::netlink::{Messages, open_socket};
use crate::process::ROUTE_PROTOCOL;
use crate::{Clock, DeviceError, Instance, Interest, Netlink, Poller, Route, Token, Waker};

type Outcome = Result<(), DeviceError>;

/// Keeps the throw routes of one instance. They outlive it.
#[derive(Debug)]
pub(super) struct PassingKeeper {
    requests: Option<Sender<(BTreeSet<Route>, Sender<Outcome>)>>,
    outcome: Option<Receiver<Outcome>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    wanted: BTreeSet<Route>,
}

impl PassingKeeper {
    pub(super) fn start(instance: &Instance) -> Result<Self, DeviceError> {
        let notices = open_socket(IPV4_ROUTE | IPV6_ROUTE)
            .map_err(|error| DeviceError::system("watch the routes", error))?;
        let (requests, receiver) = mpsc::channel();
        let waker = Waker::new()?;
        let (at_work, woken) = (instance.clone(), waker.clone());
        let thread = std::thread::Builder::new()
            .name("passing".to_owned())
            .spawn(move || match Worker::new(at_work, receiver, woken, notices) {
                Ok(mut worker) => worker.run(),
                Err(error) => tracing::error!("what is excluded is not kept: {error}"),
            })
            .map_err(|error| DeviceError::system("start a thread", error))?;
        let (requests, thread, wanted) = (Some(requests), Some(thread), BTreeSet::new());
        Ok(Self { requests, outcome: None, waker, thread, wanted })
    }

    pub(super) fn set(&mut self, wanted: BTreeSet<Route>) {
        let (sender, outcome) = mpsc::channel();
        self.wanted.clone_from(&wanted);
        self.outcome = Some(outcome);
        if let Some(requests) = &self.requests {
            // A thread that has ended leaves no outcome.
            let _ = requests.send((wanted, sender));
        }
        self.waker.wake();
    }

    pub(super) fn wait(&mut self) -> Outcome {
        let Some(outcome) = self.outcome.take() else { return Ok(()) };
        outcome.recv().unwrap_or_else(|_| {
            let why = "the thread that keeps what is excluded has ended".to_owned();
            Err(DeviceError::Unavailable { why })
        })
    }

    pub(super) fn holds(&self, table: u32, address: IpAddr) -> bool {
        let mut of_table = self.wanted.iter().filter(|route| route.table == table);
        of_table.any(|route| route.destination.contains(&address))
    }
}

impl Drop for PassingKeeper {
    fn drop(&mut self) {
        self.requests = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    instance: Instance,
    requests: Receiver<(BTreeSet<Route>, Sender<Outcome>)>,
    waker: Waker,
    notices: OwnedFd,
    netlink: Netlink,
    poller: Poller,
    clock: Clock,
    repairs: Repairs,
    wanted: BTreeSet<Route>,
    /// All of them were there after the last look.
    is_complete: bool,
    logged: String,
}

impl Worker {
    fn new(
        instance: Instance,
        requests: Receiver<(BTreeSet<Route>, Sender<Outcome>)>,
        waker: Waker,
        notices: OwnedFd,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        poller.add(&notices, NOTICES, Interest::Read)?;
        Ok(Self {
            instance,
            requests,
            waker,
            notices,
            netlink: Netlink::open()?,
            poller,
            clock: Clock::start(),
            repairs: Repairs::default(),
            wanted: BTreeSet::new(),
            is_complete: false,
            logged: String::new(),
        })
    }

    fn run(&mut self) {
        loop {
            let due = self.repairs.poll_timeout();
            let timeout = due.and_then(|at| Clock::until(self.clock.now(), at));
            if let Err(error) = self.poller.wait(timeout) {
                return tracing::error!(%error, "what is excluded is no longer kept");
            }
            self.waker.clear();
            loop {
                match self.requests.try_recv() {
                    Ok((wanted, answer)) => {
                        self.wanted = wanted;
                        let outcome = self.sync().map(drop);
                        self.is_complete = outcome.is_ok();
                        if !self.is_complete {
                            self.repairs.on_notice(self.clock.now() + RETRY);
                        }
                        // The keeper need not wait for the answer.
                        let _ = answer.send(outcome);
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            if self.take_notices() {
                self.repairs.on_notice(self.clock.now());
            }
            if self.repairs.take_due(self.clock.now()) {
                self.mend();
            }
        }
    }

    fn mend(&mut self) {
        match self.sync() {
            Ok(lost) => {
                self.logged.clear();
                if lost > 0 && self.is_complete {
                    self.repairs.on_repair(self.clock.now(), &[Change::Removed(lost)]);
                }
                self.is_complete = true;
            }
            Err(error) => {
                self.is_complete = false;
                let text = format!("not all that is excluded passes by, trying again: {error}");
                if text != self.logged {
                    tracing::warn!("{text}");
                    self.logged = text;
                }
                self.repairs.on_notice(self.clock.now() + RETRY);
            }
        }
    }

    fn sync(&mut self) -> Result<usize, DeviceError> {
        let tables = self.instance.routing_tables();
        let ours = |it: &Route| it.protocol == ROUTE_PROTOCOL && tables.contains(&it.table);
        let found = self.netlink.routes_of(&[RouteType::Throw])?.into_iter();
        let found: BTreeSet<Route> = found.filter(ours).collect();
        let (mut first, mut lost) = (Ok(()), 0);
        for route in self.wanted.difference(&found) {
            lost += 1;
            match self.netlink.add_route(route) {
                // Without IPv6 nothing is led into the tunnel either.
                Ok(()) | Err(DeviceError::NoIpv6 { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        for route in found.difference(&self.wanted) {
            first = first.and(self.netlink.remove_route(route));
        }
        first.map(|()| lost)
    }

    fn take_notices(&self) -> bool {
        let mut buffer = [0; 8192];
        let mut is_gone = false;
        loop {
            match rustix::net::recv(&self.notices, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    is_gone |= Messages(&buffer[..length]).any(|it| may_take_one(&it));
                }
                // Notices were lost.
                Err(Errno::NOBUFS) => is_gone = true,
                Err(Errno::INTR) => {}
                Err(_) => return is_gone,
            }
        }
    }
}

fn may_take_one(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(inner) = &message.payload else { return false };
    match inner {
        RouteNetlinkMessage::DelRoute(route) => {
            route.header.kind == RouteType::Throw
                && u8::from(route.header.protocol) == ROUTE_PROTOCOL
        }
        // Another program's route may have replaced one.
        RouteNetlinkMessage::NewRoute(route) => {
            message.header.flags & NLM_F_REPLACE != 0
                && u8::from(route.header.protocol) != ROUTE_PROTOCOL
        }
        _ => false,
    }
}

const WAKER: Token = Token(0);
const NOTICES: Token = Token(1);
const RETRY: Duration = Duration::from_secs(2);
