//! All shards as one server: requests go to each shard, and their answers are merged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Moment};

use bytes::Bytes;
use roadweave_identity::PublicKey;
use roadweave_linux::DeviceError;
use roadweave_linux::threads::{lock, spawn};
use roadweave_proto::Instant;
use roadweave_quic::Transmit;
use roadweave_tunnel::{
    DrainReason, EncoderTarget, EndsStreams, Node, Peers, PeersChange, RecvMeta, Server,
    ServerEvent, SessionFigures, SetError, Strategy,
};

use super::restart::ShardThread;
use super::slot::{Common, ShardCommand, ShardSlot};
use super::snapshot::{Counters, Gathered, ShardSnapshot};
use crate::driver::DriverError;
use crate::driver::event_loop::Driver;
use crate::driver::serving::Tables;
use crate::driver::serving::node::{Governed, Serves};
use crate::driver::serving::reload::Destinations;
use crate::status::{ServerStatus, ShardStatus};

const ANSWER_MAX: Duration = Duration::from_secs(1);

const GOODBYE_MAX: Duration = Duration::from_secs(5);
const GOODBYE_LOOK: Duration = Duration::from_millis(2);

pub(super) struct Front {
    pub(super) common: Arc<Common>,
    slots: Vec<Arc<ShardSlot>>,
    events: Receiver<ServerEvent>,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    pub(super) fn new(
        common: Arc<Common>,
        slots: Vec<Arc<ShardSlot>>,
        events: Receiver<ServerEvent>,
    ) -> Self {
        Self { common, slots, events, threads: Vec::new() }
    }

    pub(super) fn begin(
        &mut self,
        commands: Vec<Receiver<ShardCommand>>,
    ) -> Result<(), DeviceError> {
        for (slot, commands) in self.slots.iter().zip(commands) {
            let shard = ShardThread { slot: slot.clone(), commands };
            self.threads.push(spawn(&format!("shard-{}", slot.number), move || shard.run())?);
        }
        Ok(())
    }

    pub(super) fn take_turns(&self) -> bool {
        let all = self.slots.iter().all(|slot| slot.has_turned());
        if all {
            self.slots.iter().for_each(|slot| slot.forget_turn());
        }
        all
    }

    pub(super) fn stop(&mut self) {
        self.common.ends.store(true, Ordering::Release);
        self.slots.iter().for_each(|slot| self.common.exchange.waker(slot.number).wake());
        let end = Moment::now() + GOODBYE_MAX;
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if Moment::now() >= end {
                return tracing::error!("a shard hangs; its clients are not notified of the end");
            }
            std::thread::sleep(GOODBYE_LOOK);
        }
    }

    pub(super) fn take_error(&self) -> Option<DriverError> {
        self.slots.iter().find_map(|slot| lock(&slot.error).take())
    }

    pub(super) fn poll_event(&self) -> Option<ServerEvent> {
        self.events.try_recv().ok()
    }

    pub(super) fn gather(&self, with_sessions: bool) -> (Counters, ServerStatus) {
        let snapshots = self.ask(move |driver| ShardSnapshot::of(driver, with_sessions));
        let mut gathered = Gathered::of_all(self.common.kept.refusals());
        for (slot, snapshot) in self.slots.iter().zip(snapshots) {
            let before = slot.counted(snapshot.is_none());
            let shard = ShardStatus {
                failures: slot.failures.load(Ordering::Relaxed),
                handed_over: self.common.exchange.handed_over(slot.number),
                ..ShardStatus::default()
            };
            gathered.add(snapshot, &before, shard);
        }
        if lock(&self.common.standing).far_ends.is_some() {
            gathered.add_streams(self.slots.iter().map(|slot| slot.streams()));
        }
        if with_sessions {
            gathered.order_by(&self.common.exchange.numbers());
        }
        gathered.into_status()
    }

    pub(super) fn set_destinations(&self, destinations: Destinations) {
        let mut standing = lock(&self.common.standing);
        if *standing.destinations == destinations {
            return;
        }
        if let Some(far_ends) = &mut standing.far_ends {
            far_ends.rules.denied.clone_from(&destinations.denied);
            far_ends.rules.allowed.clone_from(&destinations.allowed);
        }
        standing.destinations = Arc::new(destinations);
        drop(standing);
        self.slots.iter().for_each(|slot| self.common.exchange.waker(slot.number).wake());
    }

    fn broadcast(&self, work: impl Fn(&mut Server, Instant) + Clone + Send + 'static) {
        for slot in &self.slots {
            let work = work.clone();
            let command = move |driver: &mut Driver<Server>| {
                let now = driver.edge.clock.now();
                work(&mut driver.node, now);
            };
            slot.command(Box::new(command));
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Driver<Server>) -> T + Clone + Send + 'static,
    ) -> Vec<Option<T>> {
        let ask = |slot: &Arc<ShardSlot>| {
            let ((answer, answers), work) = (sync_channel(1), work.clone());
            slot.command(Box::new(move |driver| _ = answer.send(work(driver))));
            answers
        };
        let answers: Vec<_> = self.slots.iter().map(ask).collect();
        let end = Moment::now() + ANSWER_MAX;
        let wait = |answers: Receiver<T>| {
            answers.recv_timeout(end.saturating_duration_since(Moment::now())).ok()
        };
        answers.into_iter().map(wait).collect()
    }
}

impl Node for Front {
    fn handle_inner(&mut self, _: Instant, _: &[u8]) {}

    fn handle_packet(&mut self, _: Instant, _: &RecvMeta, _: &[u8]) {}

    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        None
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

impl EndsStreams for Front {}

impl Serves for Front {
    fn replace(&mut self, _: Instant, change: PeersChange) -> Option<Arc<Peers>> {
        let PeersChange { peers, changed } = change;
        let gone = changed.iter().filter(|key| peers.get(key).is_none());
        self.common.kept.forget(gone);
        let former = self.common.peers.replace(peers);
        let changed: Arc<[PublicKey]> = changed.into();
        self.broadcast(move |server, _| server.on_changed(changed.iter().copied()));
        Some(former)
    }

    fn revoke(&mut self, _: Instant, keys: Vec<PublicKey>, _: &Tables) {
        self.common.kept.forget(keys.iter());
        self.common.peers.revoke(keys.iter().copied());
        let keys: Arc<[PublicKey]> = keys.into();
        self.broadcast(move |server, _| server.on_changed(keys.iter().copied()));
    }

    fn is_settled(&self) -> bool {
        let settled = self.ask(|driver| driver.node.is_settled());
        self.slots
            .iter()
            .zip(settled)
            .all(|(slot, settled)| settled.unwrap_or(!slot.is_running.load(Ordering::Acquire)))
    }

    fn has_session(&self, key: &PublicKey) -> bool {
        self.common.exchange.has_owner(key)
    }

    fn sessions(&self) -> usize {
        self.ask(|driver| driver.node.sessions()).into_iter().flatten().sum()
    }

    fn figures(&self, most: usize) -> Vec<SessionFigures> {
        let figures = self.ask(move |driver| driver.node.figures(most));
        figures.into_iter().flatten().flatten().take(most).collect()
    }

    fn drain(&mut self, _: Instant, reason: DrainReason, over: Duration) {
        let mut standing = lock(&self.common.standing);
        if !standing.drains.contains(&reason) {
            standing.drains.push(reason);
        }
        drop(standing);
        self.broadcast(move |server, now| server.drain(now, reason, over));
    }

    fn undrain(&mut self, reason: DrainReason) {
        lock(&self.common.standing).drains.retain(|it| *it != reason);
        self.broadcast(move |server, _| server.undrain(reason));
    }

    fn governed(&mut self) -> Option<&mut dyn Governed> {
        Some(self)
    }
}

impl Governed for Front {
    fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError> {
        let (name, wanted) = (lane.to_owned(), strategy.clone());
        let set =
            move |driver: &mut Driver<Server>| driver.node.set_strategy(&name, wanted.clone());
        let answers = self.ask(set.clone());
        let has_all = answers.iter().all(Option::is_some);
        answers.into_iter().flatten().collect::<Result<(), SetError>>()?;
        let mut standing = lock(&self.common.standing);
        let of_name = standing.config.lanes.iter_mut().filter(|it| it.name == lane);
        of_name.for_each(|lane| lane.strategy = strategy.clone());
        drop(standing);
        if !has_all {
            // A shard that did not answer may have started with the former settings.
            self.ask(set);
        }
        Ok(())
    }

    fn encoder_targets(&mut self, _: Instant) -> BTreeMap<String, BTreeMap<String, EncoderTarget>> {
        let targets = self.ask(|driver| {
            let now = driver.edge.clock.now();
            driver.node.encoder_targets(now)
        });
        targets.into_iter().flatten().flatten().collect()
    }

    fn is_draining(&self) -> bool {
        !lock(&self.common.standing).drains.is_empty()
    }
}
