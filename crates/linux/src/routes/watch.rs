//! What a thread that keeps routes waits for.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;

use super::{Change, Repairs};
use crate::netlink::{Messages, drain, open_socket};
use crate::threads::spawn;
use crate::{Clock, DeviceError, Interest, Poller, Token, Waker};

pub(super) struct RouteWatch {
    waker: Waker,
    notices: OwnedFd,
    poller: Poller,
    clock: Clock,
    repairs: Repairs,
    logged: String,
}

impl RouteWatch {
    /// Starts in the network namespace of the calling thread.
    pub(super) fn start(
        name: &str,
        what: &'static str,
        groups: u32,
        waker: Waker,
        keep: impl FnOnce(Self) -> Result<(), DeviceError> + Send + 'static,
    ) -> Result<JoinHandle<()>, DeviceError> {
        let notices =
            open_socket(groups).map_err(|error| DeviceError::system("watch the routes", error))?;
        spawn(name, move || {
            if let Err(error) = Self::new(waker, notices).and_then(keep) {
                tracing::error!("{what} cannot be monitored: {error}");
            }
        })
    }

    fn new(waker: Waker, notices: OwnedFd) -> Result<Self, DeviceError> {
        let poller = Poller::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        poller.add(&notices, NOTICES, Interest::Read)?;
        let (clock, repairs, logged) = (Clock::start(), Repairs::default(), String::new());
        Ok(Self { waker, notices, poller, clock, repairs, logged })
    }

    pub(super) fn wait(&mut self) -> io::Result<()> {
        let due = self.repairs.poll_timeout();
        let timeout = due.and_then(|at| Clock::until(self.clock.now(), at));
        self.poller.wait(timeout)?;
        self.waker.clear();
        Ok(())
    }

    pub(super) fn is_due(
        &mut self,
        concerns: impl Fn(&NetlinkMessage<RouteNetlinkMessage>) -> bool,
    ) -> bool {
        let mut any = false;
        drain(&self.notices, |notice| {
            any |= notice.is_none_or(|bytes| Messages(bytes).any(|it| concerns(&it)));
        });
        if any {
            self.repairs.on_notice(self.clock.now());
        }
        self.repairs.take_due(self.clock.now())
    }

    pub(super) fn on_repair(&mut self, changes: &[Change]) {
        self.logged.clear();
        self.repairs.on_repair(self.clock.now(), changes);
    }

    pub(super) fn on_failure(&mut self, text: String) {
        if text != self.logged {
            tracing::warn!("{text}");
            self.logged = text;
        }
        self.try_again();
    }

    pub(super) fn try_again(&mut self) {
        self.repairs.on_notice(self.clock.now() + RETRY);
    }
}

const WAKER: Token = Token(0);
const NOTICES: Token = Token(1);
const RETRY: Duration = Duration::from_secs(2);
