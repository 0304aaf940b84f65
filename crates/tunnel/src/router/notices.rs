//! Limits the events of a router: changes of links, even hostile ones, must not fill the log.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::RouterEvent;

const TOLD_INTERVAL: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Notices {
    moved: Vec<Notice>,
    status: Vec<Notice>,
    restart: Notice,
}

#[derive(Clone, Debug, Default)]
struct Notice {
    times: u64,
    next: Instant,
}

impl Notices {
    pub(super) fn new(links: usize) -> Self {
        let notices = vec![Notice::default(); links];
        Self { moved: notices.clone(), status: notices, restart: Notice::default() }
    }

    pub(super) fn on_moved(&mut self, link: usize) {
        self.moved[link].times += 1;
    }

    pub(super) fn on_status(&mut self, link: usize) {
        self.status[link].times += 1;
    }

    pub(super) fn on_restart(&mut self) {
        self.restart.times += 1;
    }

    pub(super) fn poll_moved(&mut self, now: Instant, link: usize) -> Option<u64> {
        self.moved[link].poll(now)
    }

    pub(super) fn poll_status(&mut self, now: Instant, link: usize) -> Option<u64> {
        self.status[link].poll(now)
    }

    pub(super) fn poll_restart(&mut self, now: Instant) -> Option<u64> {
        self.restart.poll(now)
    }
}

impl Notice {
    fn poll(&mut self, now: Instant) -> Option<u64> {
        if self.times == 0 || now < self.next {
            return None;
        }
        self.next = now + TOLD_INTERVAL;
        Some(std::mem::take(&mut self.times))
    }
}

#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<RouterEvent>);

impl Events {
    /// Events beyond the bound are dropped: they are for people, and too many already.
    pub(super) fn push(&mut self, event: RouterEvent) {
        if self.0.len() < EVENTS_MAX {
            self.0.push_back(event);
        }
    }

    pub(super) fn poll(&mut self) -> Option<RouterEvent> {
        self.0.pop_front()
    }
}
