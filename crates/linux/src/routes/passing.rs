//! A thread for the throw routes by which excluded traffic bypasses the tunnel: maybe thousands.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use netlink_packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteType;

use super::Change;
use super::keeper::{IPV4_ROUTE, IPV6_ROUTE};
use super::watch::RouteWatch;
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Instance, Netlink, Route, Waker};

type Outcome = Result<(), DeviceError>;

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
        let (requests, receiver) = mpsc::channel();
        let waker = Waker::new()?;
        let (instance, groups) = (instance.clone(), IPV4_ROUTE | IPV6_ROUTE);
        let keep = move |watch: RouteWatch| -> Result<(), DeviceError> {
            let (netlink, wanted) = (Netlink::open()?, BTreeSet::new());
            PassingWorker {
                instance,
                requests: receiver,
                netlink,
                watch,
                wanted,
                is_complete: false,
            }
            .run();
            Ok(())
        };
        let thread = RouteWatch::start("passing", "excluded routes", groups, waker.clone(), keep)?;
        let (requests, thread, wanted) = (Some(requests), Some(thread), BTreeSet::new());
        Ok(Self { requests, outcome: None, waker, thread, wanted })
    }

    pub(super) fn set(&mut self, wanted: BTreeSet<Route>) {
        let (sender, outcome) = mpsc::channel();
        self.wanted.clone_from(&wanted);
        self.outcome = Some(outcome);
        if let Some(requests) = &self.requests {
            let _ = requests.send((wanted, sender));
        }
        self.waker.wake();
    }

    pub(super) fn wait(&mut self) -> Outcome {
        let Some(outcome) = self.outcome.take() else { return Ok(()) };
        outcome.recv().unwrap_or_else(|_| {
            let why = "the thread that sets the excluded routes has ended".to_owned();
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
        self.thread.take().map(JoinHandle::join);
    }
}

struct PassingWorker {
    instance: Instance,
    requests: Receiver<(BTreeSet<Route>, Sender<Outcome>)>,
    netlink: Netlink,
    watch: RouteWatch,
    wanted: BTreeSet<Route>,
    is_complete: bool,
}

impl PassingWorker {
    fn run(&mut self) {
        loop {
            if let Err(error) = self.watch.wait() {
                return tracing::error!(%error, "the excluded routes are no longer monitored");
            }
            loop {
                match self.requests.try_recv() {
                    Ok((wanted, answer)) => {
                        self.wanted = wanted;
                        let outcome = self.sync().map(drop);
                        self.is_complete = outcome.is_ok();
                        if !self.is_complete {
                            self.watch.try_again();
                        }
                        let _ = answer.send(outcome);
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            if self.watch.is_due(may_take_one) {
                self.mend();
            }
        }
    }

    fn mend(&mut self) {
        match self.sync() {
            Ok(lost) => {
                let change = (lost > 0 && self.is_complete).then_some(Change::Removed(lost));
                self.watch.on_repair(change.as_slice());
                self.is_complete = true;
            }
            Err(error) => {
                self.is_complete = false;
                self.watch.on_failure(format!(
                    "not all excluded routes could be set, trying again: {error}"
                ));
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
                Ok(()) | Err(DeviceError::NoIpv6 { .. }) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        for route in found.difference(&self.wanted) {
            first = first.and(self.netlink.remove_route(route));
        }
        first.map(|()| lost)
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
