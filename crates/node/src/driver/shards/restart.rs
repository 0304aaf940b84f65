//! Runs one shard, and restarts it after panics, which end only its sessions. The slot keeps socket
//! and device queue open, so that packets of other shards are routed correctly. Packets wait for
//! the restarted server, which answers former clients by stateless resets (RFC 9000 section 10.3).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roadweave_linux::random_bytes;
use roadweave_linux::threads::lock;
use roadweave_quic::{Epoch, Shard};
use roadweave_tunnel::Server;

use super::faults;
use super::slot::{Common, ShardCommand, ShardSlot, Standing};
use super::snapshot::Counters;
use super::worker::ShardWorker;
use crate::driver::DriverError;
use crate::driver::edge::Edge;
use crate::driver::event_loop::{Driver, STREAMS};
use crate::streams::StreamConnector;

/// A shard that ran for so long before it failed restarts at once.
const GOOD_RUN: Duration = Duration::from_secs(10);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause. It is short because clients reconnect, and packets wait in the device queue.
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(super) struct ShardThread {
    pub(super) slot: Arc<ShardSlot>,
    pub(super) commands: Receiver<ShardCommand>,
}

impl ShardThread {
    pub(super) fn run(&self) {
        faults::keep_for_this_thread();
        let (slot, common) = (&self.slot, &self.slot.common);
        let mut in_a_row = 0;
        while !common.ends.load(Ordering::Acquire) {
            let begun = Instant::now();
            slot.on_turn();
            match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    *lock(&slot.error) = Some(error);
                    return common.waker.wake();
                }
                Err(_) => {
                    in_a_row = if begun.elapsed() < GOOD_RUN { in_a_row + 1 } else { 1 };
                    self.fail(in_a_row);
                }
            }
            self.wait(pause(in_a_row));
        }
    }

    fn serve(&self) -> Result<(), DriverError> {
        let Self { slot, commands } = self;
        let Common { map, clock, identity, peers, kept, exchange, standing, .. } = &*slot.common;
        let now = clock.now();
        let (mut config, drains, far_ends, destinations) = {
            let Standing { config, drains, far_ends, destinations } = &*lock(standing);
            (config.clone(), drains.clone(), far_ends.clone(), destinations.clone())
        };
        config.transport.shard = Some(Shard { map: *map, number: slot.number });
        config.transport.rng_seed = random_bytes()?;
        let epoch = Epoch::new(clock.epoch());
        let mut server = Server::new(epoch, config, identity.clone(), peers.clone())?;
        server.share_state(kept.clone());
        server.set_forwards(destinations.forwarded());
        drains.into_iter().for_each(|reason| server.drain(now, reason, Duration::ZERO));
        let edge = Edge::new(*clock, Some(slot.tun.try_clone()?));
        let waker = exchange.waker(slot.number);
        let mut driver = Driver::new(None, waker, edge, server)?;
        driver.add_socket(None, slot.socket.try_clone()?)?;
        let start = |settings| StreamConnector::start(settings, STREAMS, &driver.waker());
        let mut far_end = far_ends.map(start).transpose()?;
        far_end.iter_mut().for_each(|far_end| far_end.share_sockets(map.count()));
        let mut worker = ShardWorker {
            slot,
            commands,
            far_end,
            destinations,
            next_second: Default::default(),
            is_unsettled: false,
            receive_failed: Default::default(),
        };
        slot.is_running.store(true, Ordering::Release);
        match catch_unwind(AssertUnwindSafe(|| driver.run(&mut worker))) {
            Ok(outcome) => outcome?,
            Err(panic) => {
                slot.note(Counters::of(&driver));
                worker.note_streams();
                resume_unwind(panic);
            }
        }
        worker.stop(&mut driver);
        Ok(())
    }

    fn fail(&self, in_a_row: u32) {
        let slot = &self.slot;
        slot.on_failed(&slot.common.exchange.on_failed(slot.number));
        let why = faults::take_last();
        let pause = pause(in_a_row);
        tracing::error!(
            shard = slot.number,
            ?pause,
            "the shard failed and restarts, and its clients reconnect: {why}"
        );
    }

    /// Dropping a command lets its caller know that the shard is down.
    fn wait(&self, pause: Duration) {
        let end = Instant::now() + pause;
        while !self.slot.common.ends.load(Ordering::Acquire) {
            let left = end.saturating_duration_since(Instant::now());
            match self.commands.recv_timeout(left.min(PAUSE_FIRST)) {
                Ok(command) => drop(command),
                Err(RecvTimeoutError::Timeout) if left > PAUSE_FIRST => {}
                Err(_) => return,
            }
        }
    }
}

fn pause(in_a_row: u32) -> Duration {
    match in_a_row {
        0 | 1 => Duration::ZERO,
        more => PAUSE_FIRST.saturating_mul(1 << (more - 2).min(10)).min(PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_begins_again_at_once_and_then_ever_later_but_within_a_second() {
        let pauses = [0, 1, 2, 3, 4, 5, 6, 7, u32::MAX].map(|times| pause(times).as_millis());
        assert_eq!(pauses, [0, 0, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }
}
