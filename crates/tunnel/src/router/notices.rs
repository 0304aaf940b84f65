//! Limits the events of a router: changes of links, even hostile ones, must not fill the log.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::RouterEvent;

const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Notices {
    pub(super) moved: Vec<Notice>,
    pub(super) status: Vec<Notice>,
    pub(super) restart: Notice,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Notice {
    pub(super) times: u64,
    next: Instant,
}

impl Notices {
    pub(super) fn new(links: usize) -> Self {
        let notices = vec![Notice::default(); links];
        Self { moved: notices.clone(), status: notices, restart: Notice::default() }
    }
}

impl Notice {
    pub(super) fn poll(&mut self, now: Instant) -> Option<u64> {
        if self.times == 0 || now < self.next {
            return None;
        }
        self.next = now + NOTICE_INTERVAL;
        Some(std::mem::take(&mut self.times))
    }
}

#[derive(Debug, Default)]
pub(super) struct Events(pub(super) VecDeque<RouterEvent>);

impl Events {
    /// Events beyond the bound are dropped: they are for people, and too many already.
    pub(super) fn push(&mut self, event: RouterEvent) {
        if self.0.len() < EVENTS_MAX {
            self.0.push_back(event);
        }
    }
}
