//! The sending half of a lane.
//!
//! ```text
//! inner packet ─► queue (bounded in bytes and age) ─► scheduler ─► source datagram ─► carrier
//!                   ▲ again                             copy ─► encoder's pool
//!                   │                                              │
//!                 recovery ◄── acknowledged, lost, time            │
//!                   └── copies, coded ◄────────────────────────────┘ ─► by path ─► pacer ─► carrier
//! ```
//!
//! A packet gets its ID when it leaves, so that what expires in the queue leaves no gap.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use roadweave_coding::{EncodeError, Encoder, EncoderConfig};
use roadweave_recovery::{Recovery, RecoveryConfig, RecoveryStats, Repair, SentPacket};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler, UnknownScheduler};
use roadweave_types::{
    DropCounters, DropReason, Instant, LaneId, PacketId, PathId, PathSnapshot, UplinkId,
};
use roadweave_wire::{
    CODED_HEADER, Coded, Position, SOURCE_HEADER, SYMBOL_HEADER, SourceDatagram, Symbol,
};
use serde::{Deserialize, Serialize};

use crate::carrier::{Carrier, SendError};
use crate::lane::LaneConfig;
use crate::observe::{PacketLog, PacketStep};

/// What became of a datagram is told with a token: what it was, its lane and its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A packet as it is: its fate matters to the recovery.
    Source,
    /// A repair: coded, or a copy.
    Repair,
}

impl TokenKind {
    pub(crate) fn token(self, lane: LaneId, id: PacketId) -> u64 {
        u64::from(self as u8) << 40 | u64::from(lane.0) << 32 | u64::from(id.0)
    }

    pub(crate) fn parse(token: u64) -> (Self, LaneId, PacketId) {
        let kind = if token >> 40 == 0 { Self::Source } else { Self::Repair };
        (kind, LaneId((token >> 32) as u8), PacketId(token as u32))
    }
}

/// What one lane has sent, in packets and bytes of datagram payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendStats {
    /// Inner packets that came in.
    pub inner_packets: u64,
    /// Their bytes.
    pub inner_bytes: u64,
    /// Inner packets that left at least once.
    pub sent_packets: u64,
    /// Their bytes, each packet once.
    pub sent_bytes: u64,
    /// Source datagrams, first transmissions (a fragmented packet has several).
    pub source_datagrams: u64,
    /// Their bytes.
    pub source_bytes: u64,
    /// Source datagrams sent again, or on further paths.
    pub duplicate_datagrams: u64,
    /// Their bytes.
    pub duplicate_bytes: u64,
    /// Coded datagrams.
    pub coded_datagrams: u64,
    /// Their bytes.
    pub coded_bytes: u64,
    /// Bytes that wait for a free window.
    pub queue_bytes: u64,
    /// What the recovery did.
    pub recovery: RecoveryStats,
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

impl SendStats {
    /// (source + coded + duplicate bytes - inner bytes) / inner bytes; 0 before the first packet.
    pub fn redundancy(&self) -> f64 {
        if self.sent_bytes == 0 {
            return 0.0;
        }
        let sent = self.source_bytes + self.duplicate_bytes + self.coded_bytes;
        sent as f64 / self.sent_bytes as f64 - 1.0
    }
}

/// A packet, or a fragment of one, that waits for a free window.
#[derive(Debug)]
struct Queued {
    since: Instant,
    datagram: SourceDatagram,
    ends_frame: bool,
    /// Whether it is a whole packet or the last fragment of one.
    ends_packet: bool,
}

/// A coded packet or a copy on its way to one path.
#[derive(Debug)]
struct QueuedRepair {
    since: Instant,
    token: u64,
    datagram: Bytes,
    /// Whether other paths were tried as well.
    impatient: bool,
}

/// The sending half of a lane.
#[derive(Debug)]
pub(crate) struct LaneSender {
    lane: LaneId,
    config: LaneConfig,
    scheduler: Box<dyn Scheduler>,
    recovery: Box<dyn Recovery>,
    encoder: Encoder,
    queue: VecDeque<Queued>,
    /// Lost packets that go out again before the queue, with the moment they were queued.
    again: VecDeque<(Instant, PacketId)>,
    /// Coded packets and copies, by path, until the pacer lets them through.
    repairs: BTreeMap<PathId, VecDeque<QueuedRepair>>,
    /// The age at which a packet in a queue is discarded.
    age_max: Duration,
    next_id: PacketId,
    seeds: Pcg64Mcg,
    stats: SendStats,
    log: PacketLog,
}

impl LaneSender {
    /// # Errors
    /// When the strategy names an uplink that is not known.
    pub(crate) fn new(
        lane: LaneId,
        config: LaneConfig,
        seed: u64,
        uplink: impl Fn(&str) -> Option<UplinkId>,
    ) -> Result<Self, UnknownScheduler> {
        let recovery =
            RecoveryConfig { deadline: config.deadline, expire_after: config.expire_after };
        let age_max = config.strategy.keeps_for(config.expire_after);
        // A range expires by its last packet, so the first may be needed a little longer.
        let encoder = EncoderConfig { expiry: age_max + RANGE_SPAN, ..EncoderConfig::default() };
        Ok(Self {
            lane,
            scheduler: config.strategy.scheduler(uplink)?,
            recovery: config.strategy.recovery(recovery),
            encoder: Encoder::new(encoder),
            queue: VecDeque::new(),
            again: VecDeque::new(),
            repairs: BTreeMap::new(),
            age_max,
            next_id: PacketId(0),
            seeds: Pcg64Mcg::new(u128::from(seed) << 8 | u128::from(lane.0)),
            stats: SendStats::default(),
            log: PacketLog::default(),
            config,
        })
    }

    pub(crate) fn config(&self) -> &LaneConfig {
        &self.config
    }

    pub(crate) fn stats(&self) -> SendStats {
        let mut stats = self.stats.clone();
        stats.recovery = self.recovery.stats();
        stats.drops.add(DropReason::RepairExpired, stats.recovery.abandoned);
        stats.drops.merge(self.encoder.drops());
        stats
    }

    /// What happens to each packet, for whoever asks.
    pub(crate) fn log(&mut self) -> &mut PacketLog {
        &mut self.log
    }

    /// Takes an inner packet that belongs here.
    pub(crate) fn handle_inner(&mut self, now: Instant, packet: &[u8], ends_frame: bool) {
        self.stats.inner_packets += 1;
        self.stats.inner_bytes += packet.len() as u64;
        let datagram =
            SourceDatagram::new(self.lane, &Symbol { position: Position::Whole, body: packet });
        let bytes = datagram.len();
        if self.stats.queue_bytes as usize + bytes > self.config.queue_bytes_max {
            self.stats.drops.count(DropReason::QueueFull);
            return;
        }
        self.stats.queue_bytes += bytes as u64;
        self.queue.push_back(Queued { since: now, datagram, ends_frame, ends_packet: true });
    }

    pub(crate) fn on_acknowledged(&mut self, now: Instant, id: PacketId) {
        self.recovery.on_acknowledged(now, id);
        self.encoder.forget(id);
    }

    pub(crate) fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        self.recovery.on_lost(now, id, path);
    }

    /// Sends what may leave now: repairs first, since they are older, then the queue.
    pub(crate) fn service(&mut self, now: Instant, carrier: &mut impl Carrier) {
        while let Some(repair) = self.poll_repair(now, carrier) {
            self.repair(now, repair);
        }
        while let Some(id) = self.recovery.poll_lost() {
            self.log.note(now, self.lane, id, PacketStep::Lost);
        }
        self.send_repairs(now, carrier);
        self.expire(now);
        while self.send_again(now, carrier) {}
        while self.again.is_empty() && self.send_next(now, carrier) {}
        self.encoder.expire(now);
    }

    /// When [`LaneSender::service`] must be called again, if nothing else happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let queued = self.queue.front().map(|queued| queued.since + self.age_max);
        let again = self.again.front().map(|(since, _)| *since + self.age_max);
        let oldest = self.repairs.values().filter_map(VecDeque::front);
        let repair = oldest.map(|repair| match repair.impatient {
            true => repair.since + self.config.expire_after,
            false => repair.since + REPAIR_PATIENCE,
        });
        let repair = repair.min();
        [self.recovery.poll_timeout(), queued, again, repair].into_iter().flatten().min()
    }

    /// What the recovery wants, with the windows less what is already on its way to them.
    fn poll_repair(&mut self, now: Instant, carrier: &mut impl Carrier) -> Option<Repair> {
        let paths = carrier.paths(now);
        if self.repairs.is_empty() {
            return self.recovery.poll_repair(now, paths);
        }
        let mut paths = paths.to_vec();
        for path in &mut paths {
            let queued = self.repairs.get(&path.id).into_iter().flatten();
            path.bytes_in_flight += queued.map(|repair| repair.datagram.len() as u64).sum::<u64>();
        }
        self.recovery.poll_repair(now, &paths)
    }

    /// Sends the repairs that windows and pacers let through, those of a path that fell silent or
    /// stays full on another.
    fn send_repairs(&mut self, now: Instant, carrier: &mut impl Carrier) {
        for path in self.repairs.keys().copied().collect::<Vec<_>>() {
            while let Some(repair) = self.repairs.get_mut(&path).and_then(VecDeque::pop_front) {
                if now.since(repair.since) >= self.config.expire_after {
                    self.stats.drops.count(DropReason::RepairExpired);
                    continue;
                }
                let QueuedRepair { since, token, datagram, .. } = repair;
                let chosen = repair_path(now, path, since, datagram.len(), carrier.paths(now));
                match carrier.send_on(now, chosen, datagram, token) {
                    Ok(()) => {}
                    Err(SendError::TooLarge(_)) => self.stats.drops.count(DropReason::SendFailed),
                    Err(SendError::Blocked(datagram)) => {
                        let impatient = now.since(since) >= REPAIR_PATIENCE;
                        let blocked = QueuedRepair { since, token, datagram, impatient };
                        self.repairs.entry(path).or_default().push_front(blocked);
                        break;
                    }
                }
            }
        }
        self.repairs.retain(|_, queue| !queue.is_empty());
    }

    /// Discards what has waited too long, oldest first.
    fn expire(&mut self, now: Instant) {
        while self.queue.front().is_some_and(|front| now.since(front.since) >= self.age_max) {
            if self.pop().is_some_and(|queued| queued.ends_packet) {
                self.stats.drops.count(DropReason::QueueExpired);
            }
        }
        while let Some((since, id)) = self.again.front().copied()
            && now.since(since) >= self.age_max
        {
            self.again.pop_front();
            self.recovery.on_abandoned(id);
            self.encoder.forget(id);
        }
    }

    fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.stats.queue_bytes -= queued.datagram.len() as u64;
        Some(queued)
    }

    /// The paths that the scheduler chooses now for a datagram of `bytes` bytes.
    fn select(&mut self, now: Instant, bytes: usize, carrier: &mut impl Carrier) -> Vec<PathId> {
        let paths = carrier.paths(now);
        let packet = PacketInfo { bytes, backlog_bytes: self.stats.queue_bytes };
        match self.scheduler.select(now, &packet, paths) {
            Decision::Send(chosen) => path_ids(chosen, paths),
            Decision::Wait => Vec::new(),
        }
    }

    /// Sends the oldest packet that is to go out again; `false` when there is none or it must wait.
    fn send_again(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        let Some((_, id)) = self.again.front().copied() else { return false };
        let Some(datagram) = self.rebuild(id) else {
            self.again.pop_front();
            self.recovery.on_abandoned(id);
            return true;
        };
        let chosen = self.select(now, datagram.len(), carrier);
        if chosen.is_empty() {
            return false;
        }
        self.again.pop_front();
        self.stats.duplicate_datagrams += 1;
        self.stats.duplicate_bytes += datagram.len() as u64;
        self.send_source(now, id, datagram, false, &chosen, carrier);
        true
    }

    /// Sends the packet at the front of the queue; `false` when there is none or it must wait.
    fn send_next(&mut self, now: Instant, carrier: &mut impl Carrier) -> bool {
        let Some(front) = self.queue.front() else { return false };
        let bytes = front.datagram.len();
        // A coded packet over this one has a longer header and must fit as well.
        let limit = carrier.max_datagram_size().saturating_sub(CODED_HEADER - SOURCE_HEADER);
        if bytes > limit {
            return self.split_front(limit);
        }
        let chosen = self.select(now, bytes, carrier);
        if chosen.is_empty() {
            return false;
        }
        let Some(queued) = self.pop() else { return false };
        let id = self.next_id;
        self.next_id = id.next();
        self.stats.source_datagrams += 1;
        self.stats.source_bytes += bytes as u64;
        self.stats.sent_packets += u64::from(queued.ends_packet);
        self.stats.sent_bytes += queued.datagram.body().len() as u64;
        let datagram = queued.datagram.finish(id);
        self.encoder.insert(now, id, datagram.slice(SOURCE_HEADER..));
        let sent = PacketStep::Sent { path: chosen[0], queued: queued.since };
        self.log.note(now, self.lane, id, sent);
        self.send_source(now, id, datagram, queued.ends_frame, &chosen, carrier);
        true
    }

    /// Sends one source packet on all chosen paths. A path that refuses counts as a loss: the
    /// recovery will notice, as it does when the network loses the packet.
    fn send_source(
        &mut self,
        now: Instant,
        id: PacketId,
        datagram: Bytes,
        ends_frame: bool,
        chosen: &[PathId],
        carrier: &mut impl Carrier,
    ) {
        for (copy, path) in chosen.iter().enumerate() {
            if copy > 0 {
                self.stats.duplicate_datagrams += 1;
                self.stats.duplicate_bytes += datagram.len() as u64;
            }
            let token = TokenKind::Source.token(self.lane, id);
            let sent = carrier.send_on(now, *path, datagram.clone(), token);
            if copy == 0 {
                let packet =
                    SentPacket { id, path: *path, bytes: datagram.len() as u32, ends_frame };
                self.recovery.on_sent(now, packet, carrier.paths(now));
            }
            match sent {
                Ok(()) => {}
                Err(SendError::Blocked(_)) => {
                    self.stats.drops.count(DropReason::SendFailed);
                    self.recovery.on_lost(now, id, *path);
                }
                // The path has become narrower since the packet was cut for it. Its ID stands for
                // these bytes, so it cannot be cut again.
                Err(SendError::TooLarge(_)) => {
                    self.stats.drops.count(DropReason::OversizedInner);
                    self.recovery.on_lost(now, id, *path);
                    self.recovery.on_abandoned(id);
                    self.encoder.forget(id);
                    return;
                }
            }
        }
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
                ends_frame: whole.ends_frame && last,
                ends_packet: whole.ends_packet && last,
            });
        }
        true
    }

    /// The source datagram of a packet that is still in the encoder's pool.
    fn rebuild(&self, id: PacketId) -> Option<Bytes> {
        let symbol = self.encoder.symbol(id)?;
        let symbol = Symbol::parse(symbol).expect("the pool holds symbols that were built here");
        Some(SourceDatagram::new(self.lane, &symbol).finish(id))
    }

    /// Makes what the recovery wants and puts it on its way.
    fn repair(&mut self, now: Instant, repair: Repair) {
        if let Some((start, count)) = repair.brings_back() {
            for id in (0..count).map(|at| start.plus(at)) {
                self.log.note(now, self.lane, id, PacketStep::RepairAsked);
            }
        }
        match repair {
            Repair::Again { id } => self.again.push_back((now, id)),
            Repair::Copies { id, paths } => {
                let Some(datagram) = self.rebuild(id) else {
                    self.stats.drops.count(DropReason::RepairExpired);
                    return;
                };
                for path in paths {
                    self.stats.duplicate_datagrams += 1;
                    self.stats.duplicate_bytes += datagram.len() as u64;
                    self.queue_repair(now, path, id, datagram.clone());
                }
                self.encoder.forget(id);
            }
            Repair::Coded { start, count, shares } => {
                match self.encode(start, count, &shares) {
                    Ok(datagrams) => {
                        for (path, datagram) in datagrams {
                            self.stats.coded_datagrams += 1;
                            self.stats.coded_bytes += datagram.len() as u64;
                            self.queue_repair(now, path, start, datagram);
                        }
                    }
                    // A packet of the range had to leave the pool for want of memory.
                    Err(_) => self.stats.drops.add(DropReason::RepairExpired, u64::from(count)),
                }
                (0..u32::from(count)).for_each(|at| _ = self.encoder.forget(start.plus(at)));
            }
            Repair::Abandon { start, count } => {
                (0..count).for_each(|at| _ = self.encoder.forget(start.plus(at)));
            }
        }
    }

    /// The coded datagrams of a repair, each with its path.
    ///
    /// Those of one path are cut from one buffer, which stays until the last of them has left: they
    /// leave together.
    fn encode(
        &mut self,
        start: PacketId,
        count: u16,
        shares: &[(PathId, u16)],
    ) -> Result<Vec<(PathId, Bytes)>, EncodeError> {
        let range = self.encoder.range(start, count)?;
        let datagram_len = CODED_HEADER + range.coded_len();
        let buffer = |share: u16| BytesMut::zeroed(usize::from(share) * datagram_len);
        let mut buffers: Vec<BytesMut> = shares.iter().map(|(_, share)| buffer(*share)).collect();
        let (mut seeds, mut outputs) = (Vec::new(), Vec::new());
        for datagram in buffers.iter_mut().flat_map(|buffer| buffer.chunks_exact_mut(datagram_len))
        {
            let (mut header, coded) = datagram.split_at_mut(CODED_HEADER);
            let seed = self.seeds.next_u32();
            Coded::write_header(self.lane, start, count, seed, &mut header);
            seeds.push(seed);
            outputs.push(coded);
        }
        range.encode_all(&seeds, &mut outputs);
        let mut datagrams = Vec::with_capacity(seeds.len());
        for ((path, _), buffer) in shares.iter().zip(buffers) {
            let mut rest = buffer.freeze();
            while !rest.is_empty() {
                datagrams.push((*path, rest.split_to(datagram_len)));
            }
        }
        Ok(datagrams)
    }

    fn queue_repair(&mut self, now: Instant, path: PathId, id: PacketId, datagram: Bytes) {
        let token = TokenKind::Repair.token(self.lane, id);
        let repair = QueuedRepair { since: now, token, datagram, impatient: false };
        self.repairs.entry(path).or_default().push_back(repair);
    }
}

/// The path for a repair that was meant for `planned`.
fn repair_path(
    now: Instant,
    planned: PathId,
    since: Instant,
    bytes: usize,
    paths: &[PathSnapshot],
) -> PathId {
    let usable = paths.iter().any(|path| path.id == planned && path.is_usable());
    if usable && now.since(since) < REPAIR_PATIENCE {
        return planned;
    }
    paths
        .iter()
        .filter(|path| path.is_usable() && path.room() >= bytes as u64)
        .min_by_key(|path| path.smoothed_rtt)
        .map_or(planned, |path| path.id)
}

/// How much longer than its packets' expiry a range may last, at most: t of CellFusion section 4.4.2.
const RANGE_SPAN: Duration = Duration::from_millis(60);
/// How long a repair waits for the path that it is meant for.
const REPAIR_PATIENCE: Duration = Duration::from_millis(10);

fn path_ids(chosen: PathSet, paths: &[PathSnapshot]) -> Vec<PathId> {
    chosen.iter().filter_map(|position| paths.get(position)).map(|path| path.id).collect()
}

#[cfg(test)]
mod tests {
    use roadweave_coding::{CodedRange, Decoder, DecoderConfig};
    use roadweave_wire::Datagram;

    use super::*;

    #[test]
    fn fragments_that_are_cut_again_stay_parts_of_one_packet() {
        let config = LaneConfig::new("default", crate::Strategy::xnc());
        let mut sender =
            LaneSender::new(LaneId(0), config, 1, |_| None).expect("xnc needs no uplink");
        let packet: Vec<u8> = (0..3000_u32).map(|at| at as u8).collect();
        sender.handle_inner(Instant::ZERO, &packet, true);
        assert!(sender.split_front(1400));
        assert!(sender.split_front(900), "the path became narrower");
        let parts: Vec<(Position, bool, bool)> = sender
            .queue
            .iter()
            .map(|part| (part.datagram.position(), part.ends_packet, part.ends_frame))
            .collect();
        use Position::{First, Last, Middle};
        assert_eq!(
            parts,
            [
                (First, false, false),
                (Middle, false, false),
                (Middle, false, false),
                (Last, true, true)
            ]
        );
        let together: Vec<u8> =
            sender.queue.iter().flat_map(|part| part.datagram.body().to_vec()).collect();
        assert_eq!(together, packet);
    }

    #[test]
    fn a_repair_gives_each_path_its_share_of_coded_packets() {
        let mut sender = sender_with_pool([4, 900, 60]);
        let shares = vec![(PathId(1), 2), (PathId(3), 1)];
        sender.repair(Instant::ZERO, Repair::Coded { start: PacketId(0), count: 3, shares });
        assert_eq!((sender.stats.coded_datagrams, sender.stats.coded_bytes), (3, 3 * 914));
        assert!(sender.encoder.is_empty(), "a range is repaired once");
        let shares = |path| sender.repairs.get(&PathId(path)).map_or(0, VecDeque::len);
        assert_eq!([0, 1, 2, 3].map(shares), [0, 2, 0, 1]);

        let mut decoder = Decoder::new(DecoderConfig::default());
        let mut delivered = Vec::new();
        for repair in sender.repairs.values().flatten() {
            let Ok(Datagram::Coded(coded)) = Datagram::parse(repair.datagram.clone()) else {
                panic!("a coded datagram: {repair:?}");
            };
            assert_eq!(coded.lane, LaneId(5));
            let Coded { start, count, seed, payload, .. } = coded;
            let range = CodedRange { start, count, seed };
            decoder.on_coded(Instant::ZERO, range, payload, &mut delivered);
        }
        let lengths: Vec<usize> = delivered.iter().map(|(_, symbol)| symbol.len()).collect();
        assert_eq!(lengths, [6, 902, 62]);
    }

    #[test]
    fn a_repair_with_a_hole_sends_nothing_and_is_counted() {
        let mut sender = sender_with_pool([4, 900, 60]);
        assert!(sender.encoder.forget(PacketId(1)));
        let before = sender.seeds.clone();
        let shares = vec![(PathId(1), 2)];
        sender.repair(Instant::ZERO, Repair::Coded { start: PacketId(0), count: 3, shares });
        assert!(sender.repairs.is_empty());
        assert_eq!(sender.stats.coded_datagrams, 0);
        assert_eq!(sender.stats.drops.get(DropReason::RepairExpired), 3);
        assert_eq!(sender.seeds, before);
    }

    /// A sender of lane 5 that has sent packets of these lengths.
    fn sender_with_pool(lengths: [usize; 3]) -> LaneSender {
        let config = LaneConfig::new("default", crate::Strategy::xnc());
        let mut sender =
            LaneSender::new(LaneId(5), config, 1, |_| None).expect("xnc needs no uplink");
        for (length, id) in lengths.into_iter().zip(0..) {
            let symbol = Symbol { position: Position::Whole, body: &vec![7; length] };
            let datagram = SourceDatagram::new(LaneId(5), &symbol).finish(PacketId(id));
            sender.encoder.insert(Instant::ZERO, PacketId(id), datagram.slice(SOURCE_HEADER..));
        }
        sender
    }

    #[test]
    fn tokens_read_back() {
        for kind in [TokenKind::Source, TokenKind::Repair] {
            let token = kind.token(LaneId(7), PacketId(u32::MAX));
            assert_eq!(TokenKind::parse(token), (kind, LaneId(7), PacketId(u32::MAX)));
        }
    }
}
