//! What a person is told of a router, and how often: who makes links change shall not fill the log
//! as well.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

use super::RouterEvent;

/// Each kind of change is told at most this often for each link.
const TOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Events that wait to be told, at most.
const EVENTS_MAX: usize = 64;

/// Changes that were not told yet.
#[derive(Debug)]
pub(super) struct Notices {
    /// By link.
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

    /// How often the link moved, if that is to be told now.
    pub(super) fn poll_moved(&mut self, now: Instant, link: usize) -> Option<u64> {
        self.moved[link].poll(now)
    }

    /// How often the link's status changed, if that is to be told now.
    pub(super) fn poll_status(&mut self, now: Instant, link: usize) -> Option<u64> {
        self.status[link].poll(now)
    }

    /// How often the peer started anew, if that is to be told now.
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

/// Events that wait to be told.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<RouterEvent>);

impl Events {
    /// Events beyond the bound are not told: they are for a person to read, and too many already.
    pub(super) fn push(&mut self, event: RouterEvent) {
        if self.0.len() < EVENTS_MAX {
            self.0.push_back(event);
        }
    }

    pub(super) fn poll(&mut self) -> Option<RouterEvent> {
        self.0.pop_front()
    }
}
