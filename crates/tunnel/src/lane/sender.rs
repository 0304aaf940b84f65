//! The sending half of a lane.
//!
//! ```text
//! inner packet ─► queue (bounded in bytes and age) ─► scheduler ─► source datagram ─► carrier
//!                   ▲ again                             │ no room: queue of that path ─┘
//!                   │                                   └ copy ─► encoder's pool
//!                   │                                              │
//!                 recovery ◄── acknowledged, lost, time            │
//!                   └── copies, coded ◄────────────────────────────┘ ─► by path ─► pacer ─► carrier
//! ```
//!
//! A packet gets its ID when it leaves, so that what expires in the queue leaves no gap. Before, it
//! is cut into fragments if it is too large for a datagram; once its ID stands for its bytes the
//! datagram is cut ([`Cuts`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use roadweave_coding::{Encoder, EncoderConfig};
use roadweave_recovery::{Qoe, RecoveryConfig, SentPacket};
use roadweave_schedule::{
    Acknowledged, Decision, PacketInfo, PathSet, RestoreError, Scheduler, UnknownScheduler,
};
use roadweave_types::{
    DropReason, Instant, LaneId, Order, PacketId, PathId, PathOffer, PathSnapshot, Promise,
};
use roadweave_wire::{
    Control, InnerPacket, Position, RtpHeader, SOURCE_HEADER, STAMP_HEADER, SUCCESSION_HEADER,
    SYMBOL_HEADER, SourceDatagram, Stamp, Symbol, split_stamp, split_succession,
};

use crate::carrier::{Carrier, SendError};
use crate::lane::births::Births;
use crate::lane::copies::{Copies, SourceCopy};
use crate::lane::cuts::{Cut, Cuts};
use crate::lane::datagram::{LaneDatagram, TokenKind};
use crate::lane::eras::Eras;
use crate::lane::memory::MemoryStats;
use crate::lane::offers::keep_to_budgets;
use crate::lane::shed::{Frame, Shedder};
use crate::lane::succession::Successions;
use crate::lane::{LaneConfig, Strategy};
use crate::observe::{PacketLog, PacketStep};

mod repairs;
mod stats;

use repairs::QueuedRepair;
pub use stats::SendStats;

/// A packet, or a fragment of one, that waits for a free window.
#[derive(Debug)]
struct Queued {
    since: Instant,
    datagram: SourceDatagram,
    flow: u64,
    /// The video frame that it is of.
    frame: Option<Frame>,
    ends_frame: bool,
    /// Whether it is a whole packet or the last fragment of one.
    ends_packet: bool,
}

/// The sending half of a lane.
#[derive(Debug)]
pub(crate) struct LaneSender {
    lane: LaneId,
    config: LaneConfig,
    scheduler: Box<dyn Scheduler>,
    recovery: Eras,
    encoder: Encoder,
    queue: VecDeque<Queued>,
    /// Which frames of the queue are given up, if the strategy gives up frames.
    shedder: Option<Shedder>,
    /// Lost packets that go out again before the queue, with the moment they were queued.
    again: VecDeque<(Instant, PacketId)>,
    /// Coded packets and copies, by path, until the pacer lets them through.
    repairs: BTreeMap<PathId, VecDeque<QueuedRepair>>,
    /// Copies of source packets that wait for the paths that the scheduler chose.
    copies: Copies,
    /// Datagrams that are on their way in parts.
    cuts: Cuts,
    /// Whether some of these parts have not been tried yet.
    has_new_parts: bool,
    /// The age at which a packet in a queue is discarded.
    age_max: Duration,
    next_id: PacketId,
    /// Whether coded packets may still be sent.
    codes: bool,
    /// In a lane whose packets expire.
    births: Option<Births>,
    /// In a lane that keeps the order of each flow.
    successions: Option<Successions>,
    seeds: Pcg64Mcg,
    /// What the networks of the paths are called, for the next strategy.
    path_names: BTreeMap<PathId, String>,
    /// What strategies before this one have learned, should another one learn again.
    learned: Option<String>,
    /// What the peer was told of the packets.
    announced: Promise,
    /// What an encoder should make of its next frame, bytes.
    frame_target: Option<u64>,
    stats: SendStats,
    log: PacketLog,
}

impl LaneSender {
    /// # Errors
    /// When the strategy names an uplink where none is known.
    pub(crate) fn new(
        lane: LaneId,
        config: LaneConfig,
        seed: u64,
        names_uplinks: bool,
    ) -> Result<Self, UnknownScheduler> {
        let recovery = recovery_config(&config);
        let age_max = config.keeps_for();
        // A range expires by its last packet, so the first may be needed a little longer.
        let encoder = EncoderConfig { expiry: age_max + RANGE_SPAN, ..EncoderConfig::default() };
        Ok(Self {
            lane,
            scheduler: config.strategy.scheduler(config.deadline, names_uplinks)?,
            recovery: Eras::new(config.strategy.recovery(recovery)),
            encoder: Encoder::new(encoder),
            queue: VecDeque::new(),
            shedder: config.strategy.keeps_whole_frames().then(|| Shedder::new(config.deadline)),
            again: VecDeque::new(),
            repairs: BTreeMap::new(),
            copies: Copies::default(),
            cuts: Cuts::default(),
            has_new_parts: false,
            age_max,
            next_id: PacketId(0),
            codes: config.strategy.codes(),
            births: config.expire_after.map(|age| Births::new(Instant::ZERO, age)),
            successions: matches!(config.order, Order::Adaptive { .. }).then(Successions::default),
            seeds: Pcg64Mcg::new(u128::from(seed) << 8 | u128::from(lane.0)),
            path_names: BTreeMap::new(),
            learned: None,
            announced: Promise::default(),
            frame_target: None,
            stats: SendStats::default(),
            log: PacketLog::default(),
            config,
        })
    }

    /// From the next packet on the lane follows another strategy. What was sent by then stays with
    /// the recovery that it was sent with.
    ///
    /// # Errors
    /// When the strategy names an uplink where none is known; nothing is changed then.
    pub(crate) fn set_strategy(
        &mut self,
        strategy: Strategy,
        names_uplinks: bool,
    ) -> Result<(), UnknownScheduler> {
        let mut scheduler = strategy.scheduler(self.config.deadline, names_uplinks)?;
        let learned = self.learned();
        if let Some(learned) = &learned
            && let Err(error) = scheduler.restore(learned)
        {
            tracing::warn!(lane = self.config.name, "{error}");
        }
        self.learned = learned.filter(|_| scheduler.learned().is_none());
        self.path_names.iter().for_each(|(path, name)| scheduler.name_path(*path, name));
        self.scheduler = scheduler;
        self.shedder = strategy.keeps_whole_frames().then(|| Shedder::new(self.config.deadline));
        self.config.strategy = strategy;
        let recovery = self.config.strategy.recovery(recovery_config(&self.config));
        self.recovery.change(self.next_id, recovery);
        // What the old recovery may ask for must be kept as long as it could expect.
        self.age_max = self.age_max.max(self.keeps_for());
        self.codes |= self.config.strategy.codes();
        self.encoder.set_expiry(self.age_max + RANGE_SPAN);
        if !self.recovery.has_past() {
            self.settle_age();
        }
        Ok(())
    }

    /// Lets the lane be another one of the same name and ordering, from its next packet on.
    pub(crate) fn set_config(
        &mut self,
        now: Instant,
        config: LaneConfig,
        names_uplinks: bool,
    ) -> Result<(), UnknownScheduler> {
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        let what_strategies_see = |lane: &LaneConfig| {
            (lane.strategy.clone(), lane.deadline, lane.expire_after, lane.rtp_frames)
        };
        // A strategy that is made anew forgets; one that need not be is left alone.
        if what_strategies_see(&old) != what_strategies_see(new)
            && let Err(error) = self.set_strategy(new.strategy.clone(), names_uplinks)
        {
            self.config = old;
            return Err(error);
        }
        match (&mut self.births, self.config.expire_after) {
            (Some(births), Some(age)) => births.set_expire_after(age),
            (births, age) => *births = age.map(|age| Births::new(now, age)),
        }
        Ok(())
    }

    /// The receiving application tells how its buffer does.
    pub(crate) fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        self.recovery.set_qoe(now, qoe);
    }

    /// Tells the peer what is promised of the packets whenever it changes: nobody needs to wait for
    /// longer than what is lost may be sent again, which is up to the strategy.
    fn announce(&mut self, carrier: &mut impl Carrier) {
        let promise = Promise {
            order: self.config.order.at_most(self.age_max),
            age_max: self.age_max,
            expires: self.births.is_some(),
            coded: self.codes,
        };
        if promise == self.announced || !carrier.tells_fates() {
            return;
        }
        let message = Control::LanePromise { lane: self.lane, promise };
        if carrier.send_message(message.to_bytes()) {
            self.announced = promise;
        }
    }

    /// How long the strategy of today keeps a packet.
    fn keeps_for(&self) -> Duration {
        self.config.keeps_for()
    }

    /// When a packet that has left must not leave any more, in a lane whose packets expire.
    fn expiry(&self, id: PacketId) -> Option<Instant> {
        self.births.as_ref().map(|births| births.expiry(id))
    }

    /// Whether a packet that has left must not leave any more.
    fn has_expired(&self, now: Instant, id: PacketId) -> bool {
        self.expiry(id).is_some_and(|expiry| expiry <= now)
    }

    pub(crate) fn config(&self) -> &LaneConfig {
        &self.config
    }

    pub(crate) fn stats(&self) -> SendStats {
        let mut stats = self.stats.clone();
        stats.copy_queue_bytes = self.copies.total_bytes();
        stats.recovery = self.recovery.stats();
        stats.drops.add(DropReason::RepairExpired, stats.recovery.abandoned);
        stats.drops.merge(self.encoder.drops());
        stats
    }

    /// What an encoder should make of its next frame, bytes, as things were at the last service.
    pub(crate) fn frame_target(&self) -> Option<u64> {
        self.frame_target
    }

    /// The name of the network that `path` runs over.
    pub(crate) fn name_path(&mut self, path: PathId, name: &str) {
        if self.path_names.len() >= PATH_NAMES_MAX {
            self.path_names.pop_first();
        }
        self.path_names.insert(path, name.to_owned());
        self.scheduler.name_path(path, name);
    }

    /// Takes up what the strategy has learned in an earlier life.
    ///
    /// # Errors
    /// When it cannot be read; nothing is changed then.
    pub(crate) fn restore(&mut self, learned: &str) -> Result<(), RestoreError> {
        self.scheduler.restore(learned)?;
        self.learned = self.scheduler.learned().is_none().then(|| learned.to_owned());
        Ok(())
    }

    /// What the strategy has learned of the networks, as JSON; or an earlier one, if this one
    /// learns nothing.
    pub(crate) fn learned(&self) -> Option<String> {
        self.scheduler.learned().or_else(|| self.learned.clone())
    }

    /// What happens to each packet, for whoever asks.
    pub(crate) fn log(&mut self) -> &mut PacketLog {
        &mut self.log
    }

    /// Takes an inner packet that belongs here.
    ///
    /// `flow`: a hash of its 5-tuple. `rtp`: its RTP header, if it has one and that is to be read.
    pub(crate) fn handle_inner(
        &mut self,
        now: Instant,
        packet: &[u8],
        flow: u64,
        rtp: Option<RtpHeader>,
    ) {
        self.stats.inner_packets += 1;
        self.stats.inner_bytes += packet.len() as u64;
        let stamp = self.births.as_ref().map(|_| Stamp::of(now));
        let datagram =
            SourceDatagram::of_packet(self.lane, self.successions.is_some(), stamp, packet);
        let bytes = datagram.len();
        if self.stats.queue_bytes as usize + bytes > self.config.queue_bytes_max {
            self.stats.drops.count(DropReason::QueueFull);
            return;
        }
        self.stats.queue_bytes += bytes as u64;
        self.queue.push_back(Queued {
            since: now,
            datagram,
            flow,
            frame: rtp.map(|header| Frame::new(flow, &header)),
            ends_frame: rtp.is_some_and(|header| header.marker),
            ends_packet: true,
        });
    }

    /// The packet that came in last ended a video frame, as is known now.
    pub(crate) fn end_frame(&mut self) {
        match self.queue.back_mut() {
            Some(last) => last.ends_frame = true,
            None => self.recovery.on_frame_ended(),
        }
    }

    /// The peer has the datagram sent as `kind` for the packet `id`.
    pub(crate) fn on_acknowledged(
        &mut self,
        now: Instant,
        kind: TokenKind,
        id: PacketId,
        acknowledged: &Acknowledged,
    ) {
        self.scheduler.on_acknowledged(now, acknowledged);
        let whole = match kind {
            TokenKind::Part => self.cuts.on_acknowledged(id.0).map(|cut| (cut.kind, cut.id)),
            kind => Some((kind, id)),
        };
        let Some((kind, id)) = whole else { return };
        if kind == TokenKind::Repair {
            self.recovery.on_repair_acknowledged(id);
            self.forget_done();
        }
        if kind == TokenKind::Source {
            self.recovery.on_acknowledged(now, id);
            if !self.recovery.needs(id) {
                self.encoder.forget(id);
            }
            self.forget_done();
            self.stats.drops.add(DropReason::CopyCancelled, self.copies.cancel(id));
        }
    }

    /// Lets go of packets that the peer has and that were kept for repairs.
    fn forget_done(&mut self) {
        while let Some((start, count)) = self.recovery.poll_done() {
            for id in (0..count).map(|at| start.plus(at)) {
                if !self.recovery.needs(id) {
                    self.encoder.forget(id);
                }
            }
        }
    }

    /// The datagram sent as `kind` for the packet `id` was lost on `path`.
    pub(crate) fn on_lost(&mut self, now: Instant, kind: TokenKind, id: PacketId, path: PathId) {
        self.scheduler.on_lost(now, path);
        match kind {
            TokenKind::Source => self.recovery.on_lost(now, id, path),
            TokenKind::Part => self.on_part_lost(now, id.0),
            TokenKind::Repair => {}
        }
    }

    /// A part of the datagram that was cut as `number` is lost, or cannot leave.
    fn on_part_lost(&mut self, now: Instant, number: u32) {
        if let Some(Cut { kind: TokenKind::Source, id, path }) = self.cuts.on_lost(number) {
            self.recovery.on_lost(now, id, path);
        }
    }

    /// Whether packets wait for a path with room.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty() || !self.again.is_empty() || !self.repairs.is_empty()
    }

    /// Sends what may leave now: copies that wait for their path and repairs first, since they are
    /// older, then the queue. What room is left then is to spare, and the recovery may use it.
    pub(crate) fn service(&mut self, now: Instant, carrier: &mut impl Carrier) {
        let backlog = self.stats.queue_bytes;
        self.announce(carrier);
        self.send_copies(now, carrier);
        self.repair_all(now, carrier);
        self.expire(now);
        while self.send_again(now, carrier) {}
        while self.again.is_empty() && self.send_next(now, carrier) {}
        if backlog > 0 && self.stats.queue_bytes == 0 {
            self.repair_all(now, carrier);
            while self.send_again(now, carrier) {}
        }
        if self.has_new_parts {
            self.send_repairs(now, carrier);
        }
        if !self.recovery.has_past() {
            self.settle_age();
        }
        self.encoder.expire(now);
        if self.config.strategy.sizes_frames() {
            let paths = self.offers(carrier.paths(now));
            self.frame_target = self.scheduler.frame_target(now, &paths);
        } else {
            self.frame_target = None;
        }
    }

    /// Keeps packets only as long as the strategy of today needs them.
    fn settle_age(&mut self) {
        self.codes = self.config.strategy.codes();
        let age_max = self.keeps_for();
        if age_max != self.age_max {
            self.age_max = age_max;
            self.encoder.set_expiry(age_max + RANGE_SPAN);
        }
    }

    /// What it holds.
    pub(crate) fn memory(&self) -> MemoryStats {
        let repairs = self.repairs.keys().map(|path| self.repair_bytes(*path)).sum::<u64>();
        let waiting = self.queue.len() + self.copies.len();
        MemoryStats {
            queue_bytes: self.stats.queue_bytes
                + self.copies.total_bytes()
                + repairs
                + (waiting * QUEUED_OVERHEAD) as u64,
            encoder_bytes: self.encoder.bytes() as u64,
            ..MemoryStats::default()
        }
    }

    /// Lets go of the oldest until `bytes` bytes less are held, or nothing is that could be let go
    /// of: what it has most of first.
    pub(crate) fn shed(&mut self, now: Instant, bytes: u64) {
        let held = self.memory();
        let target = held.total().saturating_sub(bytes);
        let waiting_first = held.queue_bytes >= held.encoder_bytes;
        for is_waiting in [waiting_first, !waiting_first] {
            let excess = self.memory().total().saturating_sub(target);
            match is_waiting {
                true => self.shed_waiting(now, excess),
                false => self.encoder.shed(excess as usize),
            }
        }
    }

    /// Lets go of `bytes` bytes of what waits: packets, then copies, then repairs.
    fn shed_waiting(&mut self, now: Instant, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            freed += if let Some(oldest) = self.pop() {
                if oldest.ends_packet {
                    self.stats.drops.count(DropReason::MemoryShare);
                }
                (oldest.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some((path, copy)) = self.copies.pop_oldest() {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.recovery.on_lost(now, copy.id, path);
                (copy.datagram.len() + QUEUED_OVERHEAD) as u64
            } else if let Some(bytes) = self.drop_repair(now) {
                bytes
            } else {
                return;
            };
        }
    }

    /// When [`LaneSender::service`] must be called again, if nothing else happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let queued = self.queue.front().map(|queued| queued.since + self.age_max);
        let again = self.again.front().map(|(since, id)| {
            let given_up = *since + self.age_max;
            self.expiry(*id).map_or(given_up, |expiry| expiry.min(given_up))
        });
        let repair = self.repairs_timeout();
        let copy = self.copies.oldest().map(|since| since + self.age_max);
        [self.recovery.poll_timeout(), queued, again, repair, copy].into_iter().flatten().min()
    }

    /// The paths with what waits for each, and any use allowed.
    fn offers<'a>(&self, paths: &'a [PathSnapshot]) -> Vec<PathOffer<'a>> {
        let nothing_waits = self.repairs.is_empty() && self.copies.is_empty();
        let offer = |snapshot: &'a PathSnapshot| {
            let queued_bytes = match nothing_waits {
                true => 0,
                false => self.copies.bytes(snapshot.id) + self.repair_bytes(snapshot.id),
            };
            PathOffer { queued_bytes, ..PathOffer::free(snapshot) }
        };
        paths.iter().map(offer).collect()
    }

    /// Sends the copies that windows and pacers let through. Those of a path that is gone or silent
    /// are given up: another copy may be on its way, and if none is, the recovery sends one
    /// elsewhere.
    fn send_copies(&mut self, now: Instant, carrier: &mut impl Carrier) {
        for path in self.copies.paths() {
            while let Some((place, copy)) = self.copies.pop(path) {
                let paths = carrier.paths(now);
                let answers = paths.iter().any(|known| known.id == path && known.is_usable())
                    || !paths.iter().any(PathSnapshot::is_usable);
                let is_old = now.since(copy.since) >= self.age_max;
                if !answers || is_old || self.has_expired(now, copy.id) {
                    self.stats.drops.count(DropReason::CopyUnsent);
                    self.recovery.on_lost(now, copy.id, path);
                    continue;
                }
                if let Some(blocked) = self.send_copy(now, path, copy, carrier) {
                    self.copies.put_back(path, place, blocked);
                    break;
                }
            }
        }
    }

    /// Discards what has waited too long, oldest first, and the frames that are given up.
    fn expire(&mut self, now: Instant) {
        while let Some(reason) = self.given_up(now) {
            if self.pop().is_some_and(|queued| queued.ends_packet) {
                self.stats.drops.count(reason);
            }
        }
        while let Some((since, id)) = self.again.front().copied()
            && (now.since(since) >= self.age_max || self.has_expired(now, id))
        {
            self.give_up_again();
        }
    }

    /// Gives up the oldest packet that is to go out again.
    fn give_up_again(&mut self) {
        let Some((_, id)) = self.again.pop_front() else { return };
        self.recovery.on_abandoned(id);
        self.encoder.forget(id);
    }

    /// Why the packet at the front of the queue is not sent, if it is not.
    fn given_up(&mut self, now: Instant) -> Option<DropReason> {
        let Some(front) = self.queue.front() else {
            self.shedder.iter_mut().for_each(Shedder::on_empty);
            return None;
        };
        let has_expired = now.since(front.since) >= self.age_max;
        let expired = has_expired.then_some(DropReason::QueueExpired);
        let Some(shedder) = &mut self.shedder else { return expired };
        shedder.on_front(now, front.since);
        let Some(frame) = front.frame else { return expired };
        if has_expired {
            shedder.on_expired(frame, front.since);
            return expired;
        }
        let followers = self.queue.iter().skip(1).take(FRAME_LOOK);
        let is_alone = || !followers.clone().any(|next| next.frame == Some(frame));
        let stays = shedder.stays(now, frame, front.since, is_alone);
        (!stays).then_some(DropReason::FrameShed)
    }

    fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.stats.queue_bytes -= queued.datagram.len() as u64;
        Some(queued)
    }

    /// The paths that the scheduler chooses now for a packet; `is_redundant`: it has left before.
    fn select(
        &mut self,
        now: Instant,
        packet: &PacketInfo,
        is_redundant: bool,
        carrier: &mut impl Carrier,
    ) -> Vec<PathId> {
        let mut paths = self.offers(carrier.paths(now));
        if is_redundant {
            keep_to_budgets(&mut paths, packet.bytes);
        }
        match self.scheduler.select(now, packet, &paths) {
            Decision::Send(chosen) => path_ids(chosen, &paths),
            Decision::Wait => Vec::new(),
        }
    }

    /// Sends the oldest packet that is to go out again; `false` when there is none or it must wait.
    fn send_again(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        let Some((since, id)) = self.again.front().copied() else { return false };
        if self.has_expired(now, id) {
            self.give_up_again();
            return true;
        }
        let Some(datagram) = self.rebuild(id) else {
            self.again.pop_front();
            self.recovery.on_abandoned(id);
            return true;
        };
        let body = datagram.bytes.slice(SOURCE_HEADER + SYMBOL_HEADER..);
        let (_, inner) = split_succession(body);
        let (_, inner) = split_stamp(inner);
        let packet = PacketInfo {
            bytes: datagram.len(),
            backlog_bytes: self.stats.queue_bytes,
            // A fragment says nothing of its flow.
            flow: InnerPacket::parse(&inner).map_or(0, |inner| inner.flow_hash()),
            waited: now.since(since),
        };
        let chosen = self.select(now, &packet, true, carrier);
        if chosen.is_empty() {
            return false;
        }
        self.again.pop_front();
        let (ends_frame, is_first) = (false, false);
        let copy = SourceCopy { id, datagram, ends_frame, queued: since, since: now, is_first };
        self.send_source(now, copy, &chosen, carrier);
        true
    }

    /// Sends the packet at the front of the queue; `false` when there is none or it must wait.
    fn send_next(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        self.expire(now);
        let Some(front) = self.queue.front() else { return false };
        let bytes = front.datagram.len();
        // A coded packet over this one has a longer header and must fit as well.
        let extra = self.config.strategy.repair_header() - SOURCE_HEADER;
        let limit = carrier.max_datagram_size().saturating_sub(extra);
        if bytes > limit {
            return self.split_front(limit);
        }
        let packet = PacketInfo {
            bytes,
            backlog_bytes: self.stats.queue_bytes,
            flow: front.flow,
            waited: now.since(front.since),
        };
        let chosen = self.select(now, &packet, false, carrier);
        if chosen.is_empty() {
            return false;
        }
        let Some(mut queued) = self.pop() else { return false };
        let id = self.next_id;
        self.next_id = id.next();
        self.births.iter_mut().for_each(|births| births.on_sent(now, id, queued.since));
        let prefix = self.set_succession(&mut queued, id);
        self.stats.source_datagrams += 1;
        self.stats.source_bytes += bytes as u64;
        self.stats.sent_packets += u64::from(queued.ends_packet);
        self.stats.sent_bytes += queued.datagram.body().len().saturating_sub(prefix) as u64;
        let Queued { since: queued, datagram, ends_frame, .. } = queued;
        let datagram = LaneDatagram::source(self.lane, id, datagram);
        if carrier.tells_fates() {
            self.encoder.insert(now, id, datagram.bytes.slice(SOURCE_HEADER..));
        }
        let copy = SourceCopy { id, datagram, ends_frame, queued, since: now, is_first: true };
        self.send_source(now, copy, &chosen, carrier);
        true
    }

    /// Notes in a packet that leaves as `id` which one is before it in its flow, if the lane is one
    /// where that matters. Returns the bytes that this and its stamp take.
    fn set_succession(&mut self, queued: &mut Queued, id: PacketId) -> usize {
        let begins = matches!(queued.datagram.position(), Position::Whole | Position::First);
        let stamp = if begins && self.births.is_some() { STAMP_HEADER } else { 0 };
        let Some(successions) = &mut self.successions else { return stamp };
        let after = successions.on_sent(queued.flow, id);
        if !begins {
            return 0;
        }
        queued.datagram.set_succession(after);
        SUCCESSION_HEADER + stamp
    }

    /// Sends one source packet on all chosen paths. What a path refuses waits for it, behind what
    /// waits there already.
    fn send_source(
        &mut self,
        now: Instant,
        mut copy: SourceCopy,
        chosen: &[PathId],
        carrier: &mut impl Carrier,
    ) {
        let mut waiting = Vec::new();
        for path in chosen {
            let blocked = match self.copies.bytes(*path) {
                0 => self.send_copy(now, *path, copy.clone(), carrier),
                _ => Some(copy.clone()),
            };
            copy.is_first &= blocked.is_some();
            waiting.extend(blocked.map(|_| *path));
        }
        for path in waiting {
            self.recovery.on_waiting(now, sent_packet(&copy, path), carrier.paths(now));
            let queued = self.copies.bytes(path) + copy.datagram.len() as u64;
            if queued > self.config.queue_bytes_max as u64 {
                self.stats.drops.count(DropReason::CopyUnsent);
                self.recovery.on_lost(now, copy.id, path);
            } else {
                self.copies.push(path, copy.clone());
            }
        }
    }

    /// Sends a copy on `path`, or gives it back if there is no room.
    fn send_copy(
        &mut self,
        now: Instant,
        path: PathId,
        copy: SourceCopy,
        carrier: &mut impl Carrier,
    ) -> Option<SourceCopy> {
        let id = copy.id;
        let packet = sent_packet(&copy, path);
        let sent = carrier.send_on(now, path, copy.datagram);
        if let Err(SendError::Blocked(datagram)) = sent {
            return Some(SourceCopy { datagram, ..copy });
        }
        self.recovery.on_sent(now, packet, carrier.paths(now));
        if let Err(SendError::TooLarge(datagram)) = sent {
            // The path has become narrower since the packet was cut for it.
            let cut = Cut { kind: TokenKind::Source, id, path };
            let life = self.life_of(now, id);
            let is_cut = life.is_some_and(|life| {
                self.send_in_parts(life, cut, &datagram.bytes, !copy.is_first, carrier)
            });
            if !is_cut {
                self.stats.drops.count(DropReason::OversizedInner);
                self.recovery.on_lost(now, id, path);
                self.recovery.on_abandoned(id);
                self.encoder.forget(id);
                return None;
            }
        } else {
            self.scheduler.on_sent(now, path, packet.bytes);
            carrier.account(path, packet.bytes, !copy.is_first);
        }
        self.copies.on_left(id);
        if copy.is_first {
            self.log.note(now, self.lane, id, PacketStep::Sent { path, queued: copy.queued });
        } else {
            self.stats.duplicate_datagrams += 1;
            self.stats.duplicate_bytes += u64::from(packet.bytes);
        }
        None
    }

    /// Replaces the packet at the front by fragments whose datagrams have at most `limit` bytes.
    fn split_front(&mut self, limit: usize) -> bool {
        let room = limit.saturating_sub(SOURCE_HEADER + SYMBOL_HEADER);
        let Some(whole) = self.pop() else { return false };
        if room == 0 {
            self.stats.drops.count(DropReason::OversizedInner);
            return true;
        }
        // It may be a fragment already, cut when the path was wider.
        let (opens, closes) = match whole.datagram.position() {
            Position::Whole => (true, true),
            Position::First => (true, false),
            Position::Middle => (false, false),
            Position::Last => (false, true),
        };
        let pieces: Vec<&[u8]> = whole.datagram.body().chunks(room).collect();
        for (at, piece) in pieces.iter().enumerate().rev() {
            let last = at + 1 == pieces.len();
            let position = match (opens && at == 0, closes && last) {
                (true, true) => Position::Whole,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                (false, false) => Position::Middle,
            };
            let datagram = SourceDatagram::new(self.lane, &Symbol { position, body: piece });
            self.stats.queue_bytes += datagram.len() as u64;
            self.queue.push_front(Queued {
                since: whole.since,
                datagram,
                flow: whole.flow,
                frame: whole.frame,
                ends_frame: whole.ends_frame && last,
                ends_packet: whole.ends_packet && last,
            });
        }
        true
    }

    /// The source datagram of a packet that is still in the encoder's pool.
    fn rebuild(&self, id: PacketId) -> Option<LaneDatagram> {
        let symbol = self.encoder.symbol(id)?;
        let symbol = Symbol::parse(symbol).expect("the pool holds symbols that were built here");
        Some(LaneDatagram::of_symbol(self.lane, id, &symbol))
    }
}

/// What a packet in a queue costs beside its bytes, at most.
const QUEUED_OVERHEAD: usize = 192;

/// How far behind a packet the next one of its frame is looked for; other videos may come between.
const FRAME_LOOK: usize = 8;

fn recovery_config(lane: &LaneConfig) -> RecoveryConfig {
    let expire_after = lane.keeps_for();
    RecoveryConfig { deadline: lane.deadline, expire_after }
}

/// How much longer than its packets' expiry a range may last, at most: t of CellFusion section
/// 4.4.2.
const RANGE_SPAN: Duration = Duration::from_millis(60);
/// Paths have names while they live, and there are no more at a time.
const PATH_NAMES_MAX: usize = 32;
fn sent_packet(copy: &SourceCopy, path: PathId) -> SentPacket {
    let bytes = copy.datagram.len() as u32;
    SentPacket { id: copy.id, path, bytes, ends_frame: copy.ends_frame }
}

/// The paths that were chosen, those that answer first: the packet itself goes out on the first of
/// them, and what else goes out is a copy, which a budget may forbid.
fn path_ids(chosen: PathSet, paths: &[PathOffer<'_>]) -> Vec<PathId> {
    let mut chosen: Vec<_> = chosen.iter().filter_map(|position| paths.get(position)).collect();
    chosen.sort_by_key(|path| !path.is_usable());
    chosen.into_iter().map(|path| path.snapshot.id).collect()
}

#[cfg(test)]
pub(crate) mod tests;
