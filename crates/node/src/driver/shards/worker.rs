//! The role of a shard's event loop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use roadweave_linux::Event;
use roadweave_linux::pauses::Pause;
use roadweave_linux::threads::lock;
use roadweave_proto::{Instant, UplinkId, earliest};
use roadweave_tunnel::{Server, ServerEvent};

use super::exchange::Parcels;
use super::slot::{ShardCommand, ShardSlot};
use super::snapshot::Counters;
use crate::driver::event_loop::{Driver, LoopRole};
use crate::driver::repeat_limiter::RepeatLimiter;
use crate::driver::serving::log_receive_error;
use crate::driver::serving::reload::Destinations;
use crate::status::Status;
use crate::streams::StreamConnector;

const SECOND: Duration = Duration::from_secs(1);
const COMMANDS_AT_ONCE: usize = 16;

pub(super) struct ShardWorker<'a> {
    pub(super) slot: &'a Arc<ShardSlot>,
    pub(super) commands: &'a Receiver<ShardCommand>,
    pub(super) far_end: Option<StreamConnector>,
    pub(super) destinations: Arc<Destinations>,
    pub(super) next_second: Instant,
    pub(super) is_unsettled: bool,
    pub(super) receive_failed: RepeatLimiter,
}

impl ShardWorker<'_> {
    pub(super) fn stop(&mut self, driver: &mut Driver<Server>) {
        driver.node.ask_all_learned();
        driver.node.close(driver.edge.clock.now());
        driver.flush();
        self.note_events(driver);
        self.slot.note(Counters::of(driver));
        self.note_streams();
    }

    pub(super) fn note_streams(&self) {
        if let Some(far_end) = &self.far_end {
            self.slot.note_streams(far_end.status());
        }
    }

    fn take_destinations(&mut self, driver: &mut Driver<Server>) {
        let newest = lock(&self.slot.common.standing).destinations.clone();
        if !Arc::ptr_eq(&newest, &self.destinations) {
            driver.node.set_forwards(newest.forwarded());
            let (denied, allowed) = (&newest.denied, &newest.allowed);
            self.far_end.iter_mut().for_each(|it| it.set_destinations(denied, allowed));
            self.destinations = newest;
        }
    }

    fn note_events(&mut self, driver: &mut Driver<Server>) {
        let (number, common) = (self.slot.number, &self.slot.common);
        let mut has_sent = false;
        while let Some(event) = driver.node.poll_event() {
            match &event {
                ServerEvent::Joined { key, .. } => common.exchange.on_joined(*key, number),
                ServerEvent::Left { key, .. } => common.exchange.on_left(key, number),
                _ => {}
            }
            has_sent |= common.events.try_send(event).is_ok();
        }
        if has_sent {
            common.waker.wake();
        }
    }

    fn take_parcels(&mut self, driver: &mut Driver<Server>, now: Instant) {
        let Parcels { mut strays, replaced } = self.slot.common.exchange.take(self.slot.number);
        replaced.iter().for_each(|key| driver.node.on_replaced(now, key));
        while let Some(stray) = strays.pop() {
            driver.node.handle_misrouted(now, stray);
        }
    }

    fn hand_over(&self, driver: &mut Driver<Server>) {
        let Driver { node, edge, .. } = driver;
        let mut strays = std::iter::from_fn(|| node.poll_misrouted()).peekable();
        if strays.peek().is_some() {
            edge.drops.merge(&self.slot.common.exchange.hand_over(self.slot.number, strays));
        }
    }
}

impl LoopRole<Server> for ShardWorker<'_> {
    fn poll_timeout(&self) -> Option<Instant> {
        let streams = self.far_end.as_ref().and_then(StreamConnector::poll_timeout);
        earliest([Some(self.next_second), streams])
    }

    fn on_ready(&mut self, _: &mut Driver<Server>, _: Instant, event: &Event) {
        self.far_end.iter_mut().for_each(|far_end| far_end.on_ready(event));
    }

    fn on_pause(&mut self, _: &mut Driver<Server>, _: Instant, _: &Pause, _: u64) {
        self.next_second = Instant::ZERO;
    }

    fn before_packets(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.slot.on_turn();
        if now >= self.next_second {
            self.next_second = now + SECOND;
            driver.node.on_time_of_day();
            driver.node.ask_learned();
            self.slot.note(Counters::of(driver));
            self.note_streams();
        }
    }

    fn on_hangup(&mut self, _: &mut Driver<Server>, _: Instant) {}

    fn on_wake(&mut self, driver: &mut Driver<Server>, now: Instant) {
        // Record own joins first: a newer session here must not be replaced.
        self.note_events(driver);
        self.take_parcels(driver, now);
        self.take_destinations(driver);
        for at in 0.. {
            if at == COMMANDS_AT_ONCE {
                self.slot.common.exchange.waker(self.slot.number).wake();
                break;
            }
            let Ok(command) = self.commands.try_recv() else { break };
            command(driver);
        }
    }

    fn on_socket_failed(
        &mut self,
        _: &mut Driver<Server>,
        now: Instant,
        _: Option<UplinkId>,
        error: &io::Error,
    ) {
        log_receive_error(&mut self.receive_failed, now, error);
    }

    fn handle_timeout(&mut self, driver: &mut Driver<Server>, now: Instant) {
        let Driver { node, poller, .. } = driver;
        self.far_end.iter_mut().for_each(|far_end| far_end.turn(now, poller, node));
        self.hand_over(driver);
    }

    fn handle_events(&mut self, driver: &mut Driver<Server>, now: Instant) {
        self.far_end.iter_mut().for_each(|it| it.handle_events(now, &mut driver.node));
        self.note_events(driver);
        let is_unsettled = !driver.node.is_settled();
        if std::mem::replace(&mut self.is_unsettled, is_unsettled) && !is_unsettled {
            self.slot.common.waker.wake();
        }
    }

    fn is_over(&self) -> bool {
        self.slot.common.ends.load(Ordering::Acquire)
    }

    fn status(&mut self, driver: &mut Driver<Server>) -> Status {
        let role = crate::status::RoleStatus::Server(Default::default());
        driver.status(String::new(), Default::default(), role)
    }
}
