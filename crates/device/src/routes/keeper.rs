//! A thread that keeps the routes and rules of a server or router, and its TUN's addresses, in
//! place.
//!
//! A machine may have a million other routes that change all day, so only notices that may concern
//! ours cause a look, and never on the thread that carries packets.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netlink_packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::RuleAttribute;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{LOCAL_TABLE, Repairs, Routes};
use crate::netlink::{Messages, open_socket};
use crate::process::ROUTE_PROTOCOL;
use crate::{Clock, DeviceError, Interest, Poller, Token, Waker};

/// Restores [`Routes`] that another program removes. Dropping it removes them, unless they are
/// still shared.
#[derive(Debug)]
pub struct RouteKeeper {
    routes: Arc<Mutex<Routes>>,
    ended: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl RouteKeeper {
    /// Watches from now on, in the network namespace of the calling thread.
    pub fn start(routes: Routes) -> Result<Self, DeviceError> {
        let notices =
            open_socket(GROUPS).map_err(|error| DeviceError::system("watch the routes", error))?;
        let routes = Arc::new(Mutex::new(routes));
        let (waker, ended) = (Waker::new()?, Arc::new(AtomicBool::new(false)));
        let (at_work, to_end, woken) = (routes.clone(), ended.clone(), waker.clone());
        let thread = std::thread::Builder::new()
            .name("routes".to_owned())
            .spawn(move || match Worker::new(at_work, to_end, woken, notices) {
                Ok(mut worker) => worker.run(),
                Err(error) => tracing::error!("the routes are not kept: {error}"),
            })
            .map_err(|error| DeviceError::system("start a thread", error))?;
        Ok(Self { routes, ended, waker, thread: Some(thread) })
    }

    /// The routes, to change them; a look waits meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    pub(crate) fn share(&self) -> Arc<Mutex<Routes>> {
        self.routes.clone()
    }
}

impl Drop for RouteKeeper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The routes, even if a thread panicked while it held them.
pub(crate) fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    routes: Arc<Mutex<Routes>>,
    ended: Arc<AtomicBool>,
    waker: Waker,
    notices: OwnedFd,
    poller: Poller,
    clock: Clock,
    repairs: Repairs,
    told: String,
}

impl Worker {
    fn new(
        routes: Arc<Mutex<Routes>>,
        ended: Arc<AtomicBool>,
        waker: Waker,
        notices: OwnedFd,
    ) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        poller.add(&notices, NOTICES, Interest::Read)?;
        let (clock, repairs, told) = (Clock::start(), Repairs::default(), String::new());
        Ok(Self { routes, ended, waker, notices, poller, clock, repairs, told })
    }

    fn run(&mut self) {
        while !self.ended.load(Ordering::Relaxed) {
            let due = self.repairs.poll_timeout();
            let timeout = due.and_then(|at| Clock::until(self.clock.now(), at));
            if let Err(error) = self.poller.wait(timeout) {
                return tracing::error!(%error, "the routes are no longer kept");
            }
            self.waker.clear();
            if self.take_notices() {
                self.repairs.on_notice(self.clock.now());
            }
            if self.repairs.take_due(self.clock.now()) {
                self.mend();
            }
        }
    }

    fn mend(&mut self) {
        let result = lock(&self.routes).mend();
        match result {
            Ok(mended) => {
                self.told.clear();
                self.repairs.on_repair(self.clock.now(), &mended);
            }
            Err(error) => {
                let text = format!("routes of the tunnel are missing, trying again: {error}");
                if text != self.told {
                    tracing::warn!("{text}");
                    self.told = text;
                }
                self.repairs.on_notice(self.clock.now() + RETRY);
            }
        }
    }

    fn take_notices(&self) -> bool {
        let mut buffer = [0; 8192];
        let mut concerns = false;
        loop {
            match rustix::net::recv(&self.notices, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    concerns |= Messages(&buffer[..length]).any(|it| may_concern(&it))
                }
                // Notices were lost.
                Err(Errno::NOBUFS) => concerns = true,
                Err(Errno::INTR) => {}
                Err(_) => return concerns,
            }
        }
    }
}

/// Whether a change may have removed something of ours.
fn may_concern(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(inner) = &message.payload else { return false };
    let is_ours = |protocol: RouteProtocol| u8::from(protocol) == ROUTE_PROTOCOL;
    match inner {
        RouteNetlinkMessage::DelRoute(route) => is_ours(route.header.protocol),
        // Another program's route may have replaced one.
        RouteNetlinkMessage::NewRoute(route) => {
            message.header.flags & NLM_F_REPLACE != 0 && !is_ours(route.header.protocol)
        }
        RouteNetlinkMessage::DelRule(rule) => rule.attributes.iter().any(|attribute| {
            matches!(attribute, RuleAttribute::Protocol(protocol) if is_ours(*protocol))
                || *attribute == RuleAttribute::Table(LOCAL_TABLE)
        }),
        // Routes go with their interface or address without a notice.
        RouteNetlinkMessage::DelAddress(_) | RouteNetlinkMessage::NewLink(_) => true,
        _ => false,
    }
}

const WAKER: Token = Token(0);
const NOTICES: Token = Token(1);
const GROUPS: u32 =
    LINK | IPV4_ADDRESS | IPV4_ROUTE | IPV4_RULE | IPV6_ADDRESS | IPV6_ROUTE | IPV6_RULE;
const LINK: u32 = 1;
const IPV4_ADDRESS: u32 = 0x10;
pub(super) const IPV4_ROUTE: u32 = 0x40;
const IPV4_RULE: u32 = 0x80;
const IPV6_ADDRESS: u32 = 0x100;
pub(super) const IPV6_ROUTE: u32 = 0x400;
/// `RTNLGRP_IPV6_RULE` is group 19.
const IPV6_RULE: u32 = 1 << 18;
const RETRY: Duration = Duration::from_secs(2);
