//! A thread that keeps a server's or router's routes, rules and addresses in place. A million other
//! routes may change all day, so only notices that may concern ours cause a look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use netlink_packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::RuleAttribute;

use super::Routes;
use super::entries::LOCAL_TABLE;
use super::watch::RouteWatch;
use crate::process::ROUTE_PROTOCOL;
use crate::threads::lock;
use crate::{DeviceError, Waker};

/// Restores [`Routes`] that another program removes. Dropping it removes those not shared.
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
        let routes = Arc::new(Mutex::new(routes));
        let (waker, ended) = (Waker::new()?, Arc::new(AtomicBool::new(false)));
        let (at_work, to_end) = (routes.clone(), ended.clone());
        let thread = RouteWatch::start("routes", "routes", GROUPS, waker.clone(), move |watch| {
            keep(watch, &at_work, &to_end);
            Ok(())
        })?;
        Ok(Self { routes, ended, waker, thread: Some(thread) })
    }

    /// The routes, to change them; a look waits meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    /// The routes, to change them.
    pub fn share(&self) -> Arc<Mutex<Routes>> {
        self.routes.clone()
    }
}

impl Drop for RouteKeeper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread.take().map(JoinHandle::join);
    }
}

fn keep(mut watch: RouteWatch, routes: &Mutex<Routes>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        if let Err(error) = watch.wait() {
            return tracing::error!(%error, "the routes are no longer monitored");
        }
        if !watch.is_due(may_concern) {
            continue;
        }
        let result = lock(routes).mend();
        match result {
            Ok(mended) => watch.on_repair(&mended),
            Err(error) => {
                watch.on_failure(format!("routes of the tunnel are missing, trying again: {error}"))
            }
        }
    }
}

fn may_concern(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(inner) = &message.payload else { return false };
    let is_ours = |protocol: RouteProtocol| u8::from(protocol) == ROUTE_PROTOCOL;
    match inner {
        RouteNetlinkMessage::DelRoute(route) => is_ours(route.header.protocol),
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
