//! `xnc`: opportunistic one-shot recovery with random linear combinations (CellFusion section 4).
//!
//! ```text
//! sent ─► encode ranges, borders after r packets, t seconds or a frame      (section 4.4.2)
//!             │ loss: min(threshold, PTO), or QUIC's own                    (section 4.4.1)
//!             ▼
//!         lost packets, gathered for a moment ─► groups of a range (group.rs)
//!             │ n lost ─► n' = n + 3 coded packets, b = free windows        (section 4.5.1)
//!             ▼
//!         b < n': wait, until the range expires                            (section 4.4.3)
//!         b ≥ n': up to b coded packets over all paths, at most ρ·n' each   (section 4.5.2)
//!         n = 1: the packet itself on every usable path
//! ```
//!
//! [`Spread::Lean`] sends no more than that, and no path carries more of it than the others can do
//! without: one path that fails costs a few coded packets, and not the repair. It avoids the path
//! that lost the most of the run, unless something newer was acknowledged there: before its probe
//! timeout a dead path is not suspected, and would swallow the repair as well.
//!
//! Then the packets are forgotten: there is one shot. The losses of a burst are detected one after
//! the other within a few milliseconds; they are gathered for [`XncConfig::gather`] or until the
//! whole range is accounted for, so that a burst becomes one combination and not many single
//! copies.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_types::{Instant, PacketId, PathId, PathOffer, PathSnapshot};

use crate::flight::{Flight, State};
use crate::hedge::Hedge;
use crate::shots::{Shot, Shots};
use crate::threshold::{late_after, loss_threshold, paper_threshold};
use crate::{Recovery, RecoveryConfig, RecoveryStats, Repair, SentPacket};

mod group;
mod shares;

use self::group::GROUP_MAX;
pub(crate) use self::group::Group;
use self::shares::{Size, every_path, in_proportion, outlasting_any_path, saturating, uncoded};

/// Ranges that are watched at once; the oldest is given up beyond it.
const RANGES_MAX: usize = 1 << 14;

/// How many packets a repair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// As many as the windows hold, at most ρ·n' on each path; a single packet on every usable path
    /// (CellFusion section 4.5.2). Any one path can bring all back.
    EveryPath,
    /// n' and what the paths' recent loss will take of it, in proportion to the windows, but no
    /// more on any path than the others can do without; a single packet on the two fastest paths.
    Lean,
    /// All n' on the fastest path, as soon as its window holds them: an ablation, without the one
    /// shot over all paths.
    Fastest,
}

/// When a packet counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// After min(threshold, PTO), the threshold following from the lane's deadline (section 4.4.1),
    /// but not before the path could have answered.
    Qoe,
    /// After min(threshold, PTO), the threshold being that of an application that knows the path's
    /// round trip.
    Paper,
    /// When QUIC says so, or after the PTO (RFC 9002 section 6): the ablation of section 8.3.5.
    Quic,
}

/// The parameters of the algorithm; the defaults are the paper's, but for the spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XncConfig {
    /// The lane's deadline and t_expire.
    pub lane: RecoveryConfig,
    /// r: a range ends when it holds this many packets (section 4.4.2).
    pub range_packets: u32,
    /// t: a range ends when it spans this much time (section 4.4.2).
    pub range_span: Duration,
    /// k: coded packets beyond the number of lost ones (section 4.5.1).
    pub extra: u16,
    /// ρ, between 1 and 1.2: the share of n' that one path may carry (section 4.5.2).
    pub path_share: f64,
    /// How many packets a repair sends.
    pub spread: Spread,
    /// Whether repairs are coded. Otherwise they are as many copies of the lost packets, spread
    /// over the paths in the same way: the ablation of section 8.3.5.
    pub codes: bool,
    /// Whether combinations span packets that have arrived, which the receiver knows: then losses
    /// that lie scattered are repaired together.
    pub bridges: bool,
    /// When a packet counts as lost.
    pub detection: Detection,
    /// How long the losses of a range are gathered before they are repaired together.
    pub gather: Duration,
    /// Whether a repair that did not arrive is fired again, and packets that are late beyond hope
    /// are repaired while they may only be slow.
    pub insists: bool,
}

impl Default for XncConfig {
    fn default() -> Self {
        Self {
            lane: RecoveryConfig::default(),
            range_packets: 10,
            range_span: Duration::from_millis(60),
            extra: 3,
            path_share: 1.1,
            spread: Spread::Lean,
            codes: true,
            bridges: true,
            detection: Detection::Qoe,
            gather: Duration::from_millis(5),
            insists: true,
        }
    }
}

impl XncConfig {
    /// The algorithm as CellFusion's paper has it.
    pub fn sigcomm23(lane: RecoveryConfig) -> Self {
        Self {
            lane,
            spread: Spread::EveryPath,
            bridges: false,
            detection: Detection::Paper,
            gather: Duration::ZERO,
            insists: false,
            ..Self::default()
        }
    }

    /// How long an acknowledgement may take on `path`.
    fn patience<'a>(
        &self,
        path: &PathSnapshot,
        paths: impl IntoIterator<Item = &'a PathSnapshot>,
    ) -> Duration {
        match self.detection {
            Detection::Qoe => loss_threshold(path, paths, self.lane.deadline),
            Detection::Paper => paper_threshold(path, paths, self.lane.deadline),
            Detection::Quic => path.pto,
        }
    }

    /// Whether late packets are repaired on credit: that is detection by deadline as well.
    fn hedges(&self) -> bool {
        self.insists && self.detection == Detection::Qoe
    }

    /// How long it may take before the packet is repaired on credit, if another path would be
    /// faster.
    fn late_after(&self, path: &PathSnapshot, paths: &[PathOffer<'_>]) -> Option<Duration> {
        let faster = |offer: &PathOffer<'_>| {
            let other = offer.snapshot;
            other.id != path.id
                && other.is_usable()
                && offer.repair_room() >= u64::from(other.mtu) * 2
                && other.expected_rtt <= path.expected_rtt
        };
        let may = self.hedges() && paths.iter().any(faster);
        may.then(|| late_after(path, self.lane.deadline))
    }
}

/// An encode range: consecutive packets between two borders.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: PacketId,
    count: u32,
    first_sent: Instant,
    last_sent: Instant,
    in_flight: u32,
    lost: u32,
    /// Bit i: the i-th packet has arrived.
    arrived: u64,
    /// Whether its packets are kept for combinations.
    kept: bool,
    /// The longest datagram in it, bytes: what a coded packet will need.
    bytes_max: u32,
    open: bool,
}

impl Range {
    /// Whether nothing will be done for it any more.
    fn is_settled(&self) -> bool {
        !self.open && self.in_flight == 0 && self.lost == 0
    }

    /// Which of its packets `id` is, if it is one.
    fn position(&self, id: PacketId) -> Option<u32> {
        let offset = u32::try_from(id.distance(self.start)).ok()?;
        (offset < self.count).then_some(offset)
    }
}

/// Why the losses of a range are not repaired yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// More of them may be found until then.
    Gathering(Instant),
    /// The free windows are too small without those of a path that is silent, which is spared until
    /// then.
    Sparing(Instant),
    /// The free windows are too small; an acknowledgement will change that, not the time.
    NoWindow,
}

/// The recovery of CellFusion.
#[derive(Debug)]
pub struct Xnc {
    config: XncConfig,
    /// Tagged with the sequence number of the packet's range.
    flight: Flight<u64>,
    ranges: VecDeque<Range>,
    /// The sequence number of the first of `ranges`.
    first_range: u64,
    /// The ranges with losses, by sequence number.
    pending: BTreeMap<u64, Pending>,
    /// By path: when the newest packet left that was acknowledged.
    answered: BTreeMap<PathId, Instant>,
    /// Copies that are yet to be asked for, of a repair without coding.
    copies: VecDeque<Repair>,
    /// Packets that were kept for combinations, and need not be any longer: the first, and how
    /// many.
    done: VecDeque<(PacketId, u32)>,
    shots: Shots,
    hedge: Hedge,
    stats: RecoveryStats,
}

impl Xnc {
    /// A recovery for one lane.
    pub fn new(config: XncConfig) -> Self {
        Self {
            config,
            flight: Flight::new(),
            ranges: VecDeque::new(),
            first_range: 0,
            pending: BTreeMap::new(),
            answered: BTreeMap::new(),
            copies: VecDeque::new(),
            done: VecDeque::new(),
            shots: Shots::default(),
            hedge: Hedge::default(),
            stats: RecoveryStats::default(),
        }
    }

    fn range_mut(&mut self, sequence: u64) -> Option<&mut Range> {
        let index = usize::try_from(sequence.checked_sub(self.first_range)?).ok()?;
        self.ranges.get_mut(index)
    }

    /// Takes `lost` packets off the losses of a range.
    fn on_range_repaired(&mut self, sequence: u64, lost: u32) {
        let Some(range) = self.range_mut(sequence) else { return };
        range.lost = range.lost.saturating_sub(lost);
        if range.lost == 0 {
            self.pending.remove(&sequence);
        }
        self.note_settled(sequence);
    }

    /// Lets go of the packets of a range when nothing will be done for it any more.
    fn note_settled(&mut self, sequence: u64) {
        let Some(range) = self.range_mut(sequence) else { return };
        if range.is_settled() && range.kept {
            range.kept = false;
            let done = (range.start, range.count);
            self.note_done(done);
        }
    }

    fn note_done(&mut self, done: (PacketId, u32)) {
        if self.done.len() >= RANGES_MAX {
            self.done.pop_front();
        }
        self.done.push_back(done);
    }

    fn note_arrived(&mut self, id: PacketId) {
        if let Some(sequence) = self.range_of(id)
            && let Some(range) = self.range_mut(sequence)
            && let Some(position) = range.position(id)
        {
            range.arrived |= 1 << position;
        }
    }

    /// The sequence number of the range of `id`, among those that are watched.
    fn range_of(&self, id: PacketId) -> Option<u64> {
        let after = self.ranges.partition_point(|range| id.distance(range.start) >= 0);
        let index = after.checked_sub(1)?;
        self.ranges[index].position(id)?;
        Some(self.first_range + index as u64)
    }

    /// The range that the next packet belongs to, and its sequence number.
    fn current_range(&mut self, now: Instant, id: PacketId) -> (u64, &mut Range) {
        let (span, bridges) = (self.config.range_span, self.config.bridges);
        if let Some(last) = self.ranges.back_mut()
            && now.since(last.first_sent) >= span
        {
            last.open = false;
        }
        if self.ranges.back().is_none_or(|last| !last.open) {
            self.ranges.push_back(Range {
                start: id,
                count: 0,
                first_sent: now,
                last_sent: now,
                in_flight: 0,
                lost: 0,
                arrived: 0,
                kept: bridges,
                bytes_max: 0,
                open: true,
            });
        }
        let sequence = self.first_range + self.ranges.len() as u64 - 1;
        (sequence, self.ranges.back_mut().expect("one was pushed if there was none"))
    }

    /// Puts a packet that is new into the current range; returns the sequence number of the range.
    fn note_packet(&mut self, now: Instant, packet: &SentPacket) -> u64 {
        if !self.flight.is_new(packet.id) {
            return self.first_range; // its range is known to the flight
        }
        let range_packets = self.config.range_packets.min(GROUP_MAX);
        let (sequence, range) = self.current_range(now, packet.id);
        range.count += 1;
        range.in_flight += 1;
        range.last_sent = now;
        range.bytes_max = range.bytes_max.max(packet.bytes);
        range.open = range.count < range_packets && !packet.ends_frame;
        sequence
    }

    fn on_range_loss(&mut self, now: Instant, sequence: u64) {
        self.stats.lost += 1;
        let gather = self.config.gather;
        if let Some(range) = self.range_mut(sequence) {
            range.in_flight = range.in_flight.saturating_sub(1);
            range.lost += 1;
            self.pending.entry(sequence).or_insert(Pending::Gathering(now + gather));
        }
    }

    fn detect(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        let config = self.config;
        loop {
            let hedge = self.hedge;
            let patience = |path: &PathSnapshot, _| {
                let patience = config.patience(path, snapshots(paths));
                let late = hedge.is_solvent().then(|| config.late_after(path, paths)).flatten();
                late.map_or(patience, |late| late.min(patience))
            };
            let Some(overdue) = self.flight.poll_overdue(now, paths, patience) else { return };
            self.pay_for(now, overdue.id, overdue.tag, paths);
            self.stats.lost_by_timer += 1;
            self.on_range_loss(now, overdue.tag);
        }
    }

    /// Takes the repair of a packet off the credit, if the packet may only be slow.
    fn pay_for(&mut self, now: Instant, id: PacketId, sequence: u64, paths: &[PathOffer<'_>]) {
        let Some(State::Lost { path, sent }) = self.flight.state(id) else { return };
        let known = snapshots(paths).find(|known| known.id == path);
        let is_early = |path| now.since(sent) < self.config.patience(path, snapshots(paths));
        if known.is_some_and(is_early) {
            let bytes = self.range_mut(sequence).map_or(0, |range| range.bytes_max);
            self.hedge.spend(u64::from(bytes));
        }
    }

    /// Drops the ranges at the front that need no more attention, and expired ones.
    fn retire(&mut self, now: Instant) -> Option<Repair> {
        while let Some(range) = self.ranges.front().copied() {
            let settled = range.in_flight == 0 && range.lost == 0;
            let expired = now.since(range.last_sent) > self.config.lane.expire_after;
            let done = settled && !range.open;
            if !done && !expired && self.ranges.len() <= RANGES_MAX {
                return None;
            }
            self.ranges.pop_front();
            self.pending.remove(&self.first_range);
            self.first_range += 1;
            if settled {
                if range.kept {
                    self.note_done((range.start, range.count));
                }
                continue;
            }
            let lost = self.settle(range.start, range.count);
            self.stats.abandoned += u64::from(lost);
            return Some(Repair::Abandon { start: range.start, count: range.count });
        }
        None
    }

    /// Forgets `count` packets from `start`; returns how many of them were lost.
    fn settle(&mut self, start: PacketId, count: u32) -> u32 {
        let before = |flight: &mut Flight<u64>, id| flight.set(id, State::Settled);
        let lost = |(state, _)| matches!(state, State::Lost { .. });
        (0..count)
            .filter(|offset| before(&mut self.flight, start.plus(*offset)).is_some_and(lost))
            .count() as u32
    }

    /// The packets of `range` that are repaired next: a run of lost ones, or more of them with what
    /// has arrived in between.
    fn first_group(&self, now: Instant, range: &Range) -> Option<Group> {
        let lost = (0..range.count).filter(|offset| {
            let state = self.flight.state(range.start.plus(*offset));
            matches!(state, Some(State::Lost { .. }))
        });
        let lost = lost.fold(0, |mask, offset| mask | 1 << offset);
        // The receiver keeps what it has delivered for as long as a repair may take, and not for
        // ever.
        let is_fresh = now.since(range.first_sent) <= self.config.lane.expire_after / 2;
        let bridges = self.config.bridges && self.config.codes && is_fresh;
        Group::first_of(range.start, lost, if bridges { range.arrived } else { 0 })
    }

    /// The path that lost the most packets of a group and when the last of them left, if nothing
    /// that left there after it was acknowledged.
    fn silent_path(&self, group: &Group) -> Option<(PathId, Instant)> {
        let mut losses: BTreeMap<PathId, (u32, Instant)> = BTreeMap::new();
        for id in group.lost_ids() {
            if let Some(State::Lost { path, sent }) = self.flight.state(id) {
                let (count, newest) = losses.entry(path).or_insert((0, sent));
                *count += 1;
                *newest = sent.max(*newest);
            }
        }
        let (path, (_, newest)) = losses.into_iter().max_by_key(|(_, (count, _))| *count)?;
        self.answered.get(&path).is_none_or(|answered| *answered < newest).then_some((path, newest))
    }

    /// The repair of one group, or why it must wait. A path that is silent is spared for a while,
    /// even where the others must first have room: what part of a repair goes there delays all of
    /// it.
    fn one_shot(
        &self,
        now: Instant,
        group: &Group,
        bytes: u64,
        paths: &[PathOffer<'_>],
    ) -> Result<Repair, Pending> {
        let usable = || paths.iter().filter(|path| path.snapshot.is_usable());
        if self.config.spread == Spread::Lean
            && let Some((silent, sent)) = self.silent_path(group)
        {
            let answering: Vec<_> = usable().filter(|path| path.snapshot.id != silent).collect();
            let spared = sent + self.config.lane.deadline.mul_f64(SPARED_DEADLINES);
            let may_wait = !answering.is_empty() && now < spared;
            let repair = self.spread(group, group.lost(), bytes, answering);
            if let Some(repair) = repair {
                return Ok(repair);
            } else if may_wait {
                return Err(Pending::Sparing(spared));
            }
        }
        self.spread(group, group.lost(), bytes, usable().collect()).ok_or(Pending::NoWindow)
    }

    /// Lets a repair go as the configuration wants it.
    fn fire(&mut self, repair: Repair) -> Option<Repair> {
        self.stats.repairs += 1;
        match repair {
            Repair::Coded { start, count, shares, .. } if !self.config.codes => {
                self.copies = uncoded(start, count, &shares);
                self.copies.pop_front()
            }
            repair => Some(repair),
        }
    }

    /// Watches whether a repair arrives: that of coded packets as a whole, otherwise packet by
    /// packet.
    fn watch(
        &mut self,
        now: Instant,
        group: &Group,
        repair: &Repair,
        bytes: u64,
        paths: &[PathOffer<'_>],
    ) {
        if !self.config.insists {
            return;
        }
        let patience = shot_patience(repair, paths);
        let together = if self.config.codes { vec![*group] } else { group.singles() };
        for group in together {
            let sent = group.lost_ids().filter_map(|id| match self.flight.state(id) {
                Some(State::Lost { sent, .. }) => Some(sent),
                _ => None,
            });
            // Later than this it would be discarded, or not be worth its bytes.
            let until = sent.min().unwrap_or(now) + self.config.lane.expire_after / 2;
            self.shots.on_fired(now, Shot { group, bytes, until }, patience);
        }
    }

    /// A further repair for one that has not arrived, if the windows allow it.
    fn poll_missed(&mut self, now: Instant, paths: &[PathOffer<'_>]) -> Option<Repair> {
        while let Some((shot, missing)) = self.shots.poll_missed(now) {
            let usable = paths.iter().filter(|path| path.snapshot.is_usable()).collect();
            // What is missing of many may be one, but which one is not known.
            let lost = if shot.group.lost() == 1 { 1 } else { missing.max(2) };
            let Some(repair) = self.spread(&shot.group, lost, shot.bytes, usable) else {
                continue; // a smaller one may find room
            };
            self.shots.on_fired_again(now, shot, shot_patience(&repair, paths));
            return self.fire(repair);
        }
        None
    }

    /// The repair of a group of which `lost` packets are missing over `usable` paths, if their
    /// windows allow it.
    fn spread(
        &self,
        group: &Group,
        lost: u32,
        bytes: u64,
        mut usable: Vec<&PathOffer<'_>>,
    ) -> Option<Repair> {
        let room = |path: &PathOffer<'_>| path.repair_room() / bytes.max(1);
        let extra = u64::from(self.config.extra);
        let needed = if lost == 1 { 1 } else { u64::from(lost) + extra };
        if self.config.spread == Spread::Fastest {
            let fitting = usable.iter().filter(|path| room(path) >= needed);
            let fastest = fitting.map(|path| path.snapshot);
            let fastest = fastest.min_by_key(|path| (path.smoothed_rtt, path.id))?.id;
            return Some(match lost {
                1 => group.copies(vec![fastest]),
                _ => group.coded(vec![(fastest, saturating(needed))]),
            });
        }
        usable.retain(|path| room(path) > 0);
        if lost == 1 {
            if self.config.spread == Spread::Lean {
                usable.sort_by_key(|path| path.snapshot.expected_rtt);
                usable.truncate(2);
                usable.sort_by_key(|path| path.snapshot.id);
            }
            let paths: Vec<PathId> = usable.iter().map(|path| path.snapshot.id).collect();
            return (!paths.is_empty()).then(|| group.copies(paths));
        }
        let rooms: Vec<(PathId, u64)> =
            usable.iter().map(|path| (path.snapshot.id, room(path))).collect();
        let path_max = (needed as f64 * self.config.path_share).floor() as u64;
        if self.config.spread == Spread::EveryPath {
            let free = rooms.iter().map(|(_, room)| room).sum::<u64>();
            return (free >= needed).then(|| group.coded(every_path(&rooms, path_max)));
        }
        let loss = usable.iter().map(|path| f64::from(path.snapshot.loss)).fold(0.0, f64::max);
        let size = outlasting_any_path(&rooms, lost.into(), extra, loss)?;
        let size = Size { cap: size.cap.min(path_max), ..size };
        Some(group.coded(in_proportion(&rooms, size)))
    }
}

/// For so many deadlines after a packet left on a silent path its repair waits for the other paths.
/// Where all are slow rather than dead, waiting longer costs more than it brings.
const SPARED_DEADLINES: f64 = 1.5;

fn snapshots<'a>(paths: &[PathOffer<'a>]) -> impl Iterator<Item = &'a PathSnapshot> {
    paths.iter().map(|path| path.snapshot)
}

/// When a repair should have arrived: the answer time of the slowest of its paths, as they look
/// now.
fn shot_patience(repair: &Repair, paths: &[PathOffer<'_>]) -> Duration {
    let taken = |path: &&PathSnapshot| match repair {
        Repair::Copies { paths, .. } => paths.contains(&path.id),
        Repair::Coded { shares, .. } => shares.iter().any(|(id, _)| *id == path.id),
        _ => false,
    };
    let slowest = snapshots(paths).filter(taken).map(|path| path.expected_rtt).max();
    let slowest = slowest.unwrap_or_default();
    (slowest + (slowest / 8).max(SHOT_SLACK)).max(SHOT_PATIENCE_MIN)
}

/// Granted to a repair beyond its round trip, for the pacer and the peer,
const SHOT_SLACK: Duration = Duration::from_millis(5);
/// and no less than this in all.
const SHOT_PATIENCE_MIN: Duration = Duration::from_millis(50);

impl Recovery for Xnc {
    fn on_sent(&mut self, now: Instant, packet: SentPacket, paths: &[PathSnapshot]) {
        let patience = paths.iter().find(|path| path.id == packet.path).map_or(
            self.config.lane.deadline,
            |path| {
                let patience = self.config.patience(path, paths);
                if self.config.hedges() {
                    patience.min(late_after(path, self.config.lane.deadline))
                } else {
                    patience
                }
            },
        );
        self.hedge.earn(packet.bytes);
        let sequence = self.note_packet(now, &packet);
        if self.flight.on_sent(now, packet.id, packet.path, patience, sequence).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_waiting(&mut self, now: Instant, packet: SentPacket, _paths: &[PathSnapshot]) {
        let sequence = self.note_packet(now, &packet);
        if self.flight.on_waiting(packet.id, packet.path, sequence).is_some() {
            self.stats.abandoned += 1;
        }
    }

    fn on_frame_ended(&mut self) {
        if let Some(last) = self.ranges.back_mut() {
            last.open = false;
        }
    }

    fn on_repair_acknowledged(&mut self, start: PacketId) {
        self.shots.on_repair_acknowledged(start);
    }

    fn needs(&self, id: PacketId) -> bool {
        let range = || self.ranges.get(self.range_of(id)?.checked_sub(self.first_range)? as usize);
        self.shots.covers(id) || self.config.bridges && range().is_some_and(|range| range.kept)
    }

    fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        let ended = || self.shots.poll_ended().map(|group| (group.start, group.count()));
        self.done.pop_front().or_else(ended)
    }

    fn on_acknowledged(&mut self, _now: Instant, id: PacketId) {
        self.shots.on_acknowledged(id);
        self.note_arrived(id);
        let Some((before, sequence)) = self.flight.set(id, State::Settled) else { return };
        if let State::InFlight { path, sent } | State::Lost { path, sent } = before {
            let answered = self.answered.entry(path).or_insert(sent);
            *answered = sent.max(*answered);
        }
        match before {
            State::InFlight { .. } | State::Waiting => {
                if let Some(range) = self.range_mut(sequence) {
                    range.in_flight = range.in_flight.saturating_sub(1);
                }
                self.note_settled(sequence);
            }
            State::Lost { .. } => {
                self.stats.spurious += 1;
                self.on_range_repaired(sequence, 1);
            }
            State::Settled => {}
        }
    }

    fn on_abandoned(&mut self, _id: PacketId) {} // it never asks for `Repair::Again`

    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) {
        if let Some(sequence) = self.flight.on_lost(now, id, path) {
            self.on_range_loss(now, sequence);
        }
    }

    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        _backlog: u64,
    ) -> Option<Repair> {
        if let Some(copies) = self.copies.pop_front() {
            return Some(copies);
        }
        self.detect(now, paths);
        if self.answered.len() > paths.len() {
            self.answered.retain(|id, _| snapshots(paths).any(|path| path.id == *id));
        }
        if let Some(abandon) = self.retire(now) {
            return Some(abandon);
        }
        if let Some(again) = self.poll_missed(now, paths) {
            return Some(again);
        }
        let pending: Vec<(u64, Pending)> = self.pending.iter().map(|(s, p)| (*s, *p)).collect();
        for (sequence, state) in pending {
            let Some(range) = self.range_mut(sequence).map(|range| *range) else { continue };
            let accounted_for = !range.open && range.in_flight == 0;
            if !accounted_for && matches!(state, Pending::Gathering(until) if until > now) {
                continue;
            }
            let Some(group) = self.first_group(now, &range) else { continue };
            let bytes = u64::from(range.bytes_max);
            let repair = match self.one_shot(now, &group, bytes, paths) {
                Ok(repair) => repair,
                // Too large for the windows; a later range may be smaller.
                Err(reason) => {
                    self.pending.insert(sequence, reason);
                    continue;
                }
            };
            self.watch(now, &group, &repair, bytes, paths);
            group.lost_ids().for_each(|id| _ = self.flight.set(id, State::Settled));
            self.on_range_repaired(sequence, group.lost());
            self.stats.repaired += u64::from(group.lost());
            return self.fire(repair);
        }
        None
    }

    fn is_settled(&self) -> bool {
        self.flight.is_empty() && self.shots.is_empty()
    }

    fn poll_lost(&mut self) -> Option<PacketId> {
        self.flight.poll_lost()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let expire_after = self.config.lane.expire_after + Duration::from_nanos(1);
        let expiry = self.ranges.front().map(|range| range.last_sent + expire_after);
        let waited = self.pending.values().filter_map(|pending| match pending {
            Pending::Gathering(until) | Pending::Sparing(until) => Some(*until),
            Pending::NoWindow => None,
        });
        [self.flight.poll_timeout(), self.shots.poll_timeout(), expiry, waited.min()]
            .into_iter()
            .flatten()
            .min()
    }

    fn stats(&self) -> RecoveryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;
