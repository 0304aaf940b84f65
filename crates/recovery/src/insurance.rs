//! Insurance: coded packets over other paths before losses are known (proactive FEC).
//!
//! ```text
//! frame of n packets ─► blocks of at most 60
//!                          │ nothing waits to be sent, and a path has room without a queue
//!                          ▼
//!   k = overdue packets + those expected to be late ─► coded packets over the block,
//!                          │                           on paths that owe none of it
//!                          └ never beyond the budget, never if they would arrive too late
//! ```
//!
//! Any n of the n + k packets of a block restore it, whichever path pauses. A packet is overdue
//! when its path should have answered; most such packets are merely slow. Insurance uses spare room
//! only: a coded packet that has no room at once is not sent.
//!
//! Blocks are whole encode ranges of XNC, so that combinations of both are nested.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot};

use crate::{RecoveryConfig, SentCopy, spare};

/// Coded packets that insure a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Premium {
    /// The first packet of the block.
    pub start: PacketId,
    /// Its number of packets.
    pub count: u16,
    /// Coded packets by path, ascending.
    pub shares: Vec<(PathId, u16)>,
}

/// Insures the packets of one lane.
#[derive(Debug)]
pub struct Insurance {
    deadline: Duration,
    share: f64,
    credit: f64,
    blocks: VecDeque<Block>,
    /// By path: the recent share of overdue packets.
    overdue: BTreeMap<PathId, f64>,
    next_look: Option<Instant>,
    /// Packets that need not be kept: the first, and the number.
    done: VecDeque<(PacketId, u32)>,
}

#[derive(Debug)]
struct Block {
    start: PacketId,
    members: Vec<BlockMember>,
    first_sent: Instant,
    last_sent: Instant,
    bytes_max: u32,
    open: bool,
    sent: u32,
}

#[derive(Clone, Copy, Debug)]
struct BlockMember {
    path: PathId,
    sent: Instant,
    state: MemberState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    UnderWay,
    Overdue,
    Arrived,
}

impl Insurance {
    /// Spends at most `percent` of the lane's bytes.
    pub fn new(lane: RecoveryConfig, percent: u8) -> Self {
        Self {
            deadline: lane.deadline,
            share: f64::from(percent) / 100.0,
            credit: 0.0,
            blocks: VecDeque::new(),
            overdue: BTreeMap::new(),
            next_look: None,
            done: VecDeque::new(),
        }
    }

    /// Notes a copy; first copies ascend without gaps.
    pub fn on_sent(&mut self, now: Instant, packet: &SentCopy) {
        let next = self.blocks.back().map(|last| last.start.plus(last.members.len() as u32));
        if next.is_some_and(|next| packet.id.precedes(next)) {
            return; // it left before
        }
        self.credit = (self.credit + f64::from(packet.bytes) * self.share).min(CREDIT_MAX);
        let continues = self.blocks.back().is_some_and(|last| last.open && next == Some(packet.id));
        if !continues {
            self.close();
            if self.blocks.len() >= BLOCKS_MAX {
                self.retire_front();
            }
            self.blocks.push_back(Block::new(now, packet.id));
        }
        let Some(block) = self.blocks.back_mut() else { return };
        block.members.push(BlockMember {
            path: packet.path,
            sent: now,
            state: MemberState::UnderWay,
        });
        block.last_sent = now;
        block.bytes_max = block.bytes_max.max(packet.bytes);
        block.open = !packet.ends_frame && block.members.len() < BLOCK_MAX;
        self.next_look = Some(now);
    }

    /// The last packet ended a video frame.
    pub fn on_frame_ended(&mut self) {
        self.close();
    }

    /// The peer has the packet.
    pub fn on_acknowledged(&mut self, id: PacketId) {
        let Some((block, at)) = self.find(id) else { return };
        let member = &mut self.blocks[block].members[at];
        let BlockMember { path, state, .. } = *member;
        member.state = MemberState::Arrived;
        if state == MemberState::UnderWay {
            self.learn(path, 0.0);
        }
    }

    /// The packet is not needed any more.
    pub fn on_superseded(&mut self, id: PacketId) {
        if let Some((block, at)) = self.find(id) {
            self.blocks[block].members[at].state = MemberState::Arrived;
        }
    }

    /// Whether `id` must be kept for coded packets although the peer has it.
    pub fn needs(&self, id: PacketId) -> bool {
        self.find(id).is_some()
    }

    /// Packets that need not be kept any more: the first, and the number.
    pub fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        self.done.pop_front()
    }

    /// When [`Insurance::poll`] should be asked again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// Packets wait to be sent: insures nothing now.
    pub fn put_off(&mut self, now: Instant) {
        self.next_look = self.next_look.map(|due| due.max(now + LOOK_INTERVAL));
    }

    /// The coded packets to send in the spare room of `paths`. Call it only when nothing waits.
    pub fn poll(&mut self, now: Instant, paths: &[PathOffer<'_>]) -> Option<Premium> {
        if self.next_look.is_none_or(|due| due > now) {
            return None;
        }
        self.note_overdue(now, paths);
        while self.blocks.front().is_some_and(|oldest| oldest.is_over(now, self.deadline)) {
            self.retire_front();
        }
        self.next_look = (!self.blocks.is_empty()).then(|| now + LOOK_INTERVAL);
        for at in 0..self.blocks.len() {
            let block = &self.blocks[at];
            if block.open && now.since(block.last_sent) < OPEN_MAX {
                continue;
            }
            let wanted = self.wanted(block).saturating_sub(block.sent);
            if wanted == 0 {
                continue;
            }
            let shares = self.place(now, block, wanted, paths);
            let count: u32 = shares.iter().map(|(_, share)| u32::from(*share)).sum();
            if count == 0 {
                continue;
            }
            let block = &mut self.blocks[at];
            block.sent += count;
            block.open = false;
            self.credit -= f64::from(count) * f64::from(block.bytes_max);
            self.next_look = Some(now);
            let count = block.members.len() as u16;
            return Some(Premium { start: block.start, count, shares });
        }
        None
    }

    fn wanted(&self, block: &Block) -> u32 {
        let overdue = block.count(MemberState::Overdue);
        let of = |member: &BlockMember| match member.state {
            MemberState::UnderWay => self.overdue.get(&member.path).copied().unwrap_or_default(),
            _ => 0.0,
        };
        let expected: f64 = block.members.iter().map(of).sum();
        let mut blind = (expected * RISK).ceil();
        if self.credit < CREDIT_MAX * RESERVE {
            blind = 0.0;
        }
        overdue + u32::from(overdue > 0) + blind as u32
    }

    fn place(
        &self,
        now: Instant,
        block: &Block,
        wanted: u32,
        paths: &[PathOffer<'_>],
    ) -> Vec<(PathId, u16)> {
        let bytes = u64::from(block.bytes_max.max(1)) + CODED_EXTRA;
        let mut left = u64::from(wanted).min((self.credit.max(0.0) / bytes as f64) as u64);
        let main = block.main_path();
        let is_useful = |offer: &&PathOffer<'_>| {
            let path = offer.snapshot;
            let arrives = now + path.expected_rtt / 2;
            path.is_usable()
                && path.policy.takes_insurance
                && !block.owes(path.id)
                && main != Some(path.id)
                && arrives < block.first_sent + self.deadline.mul_f64(USEFUL_DEADLINES)
        };
        let mut useful: Vec<&PathOffer<'_>> = paths.iter().filter(is_useful).collect();
        useful.sort_by_key(|offer| (offer.snapshot.expected_rtt, offer.snapshot.id));
        let mut shares = Vec::new();
        for offer in useful {
            let share = left.min(free(offer) / bytes).min(u64::from(u16::MAX));
            if share > 0 {
                shares.push((offer.snapshot.id, share as u16));
            }
            left -= share;
        }
        shares.sort_unstable();
        shares
    }

    fn note_overdue(&mut self, now: Instant, paths: &[PathOffer<'_>]) {
        let answers: Vec<(PathId, Duration)> =
            paths.iter().map(|path| (path.snapshot.id, answer(path.snapshot))).collect();
        let mut late = Vec::new();
        for member in self.blocks.iter_mut().flat_map(|block| &mut block.members) {
            let answer = answers.iter().find(|(id, _)| *id == member.path);
            let is_due = answer.is_none_or(|(_, answer)| now.since(member.sent) > *answer);
            if member.state == MemberState::UnderWay && is_due {
                member.state = MemberState::Overdue;
                late.push(member.path);
            }
        }
        late.into_iter().for_each(|path| self.learn(path, 1.0));
        if self.overdue.len() > paths.len() {
            self.overdue.retain(|id, _| answers.iter().any(|(known, _)| known == id));
        }
    }

    fn learn(&mut self, path: PathId, overdue: f64) {
        let share = self.overdue.entry(path).or_default();
        *share += (overdue - *share) * LEARNING;
    }

    fn close(&mut self) {
        if let Some(last) = self.blocks.back_mut() {
            last.open = false;
        }
    }

    fn retire_front(&mut self) {
        let Some(block) = self.blocks.pop_front() else { return };
        let arrived = |(_, member): &(u32, &BlockMember)| member.state == MemberState::Arrived;
        for (at, _) in (0..).zip(&block.members).filter(arrived) {
            if self.done.len() >= BLOCKS_MAX * BLOCK_MAX {
                self.done.pop_front();
            }
            self.done.push_back((block.start.plus(at), 1));
        }
    }

    fn find(&self, id: PacketId) -> Option<(usize, usize)> {
        let after = self.blocks.partition_point(|block| id.distance(block.start) >= 0);
        let block = after.checked_sub(1)?;
        let at = usize::try_from(id.distance(self.blocks[block].start)).ok()?;
        (at < self.blocks[block].members.len()).then_some((block, at))
    }
}

impl Block {
    fn new(now: Instant, start: PacketId) -> Self {
        let (members, bytes_max, open, sent) = (Vec::new(), 0, true, 0);
        Self { start, members, first_sent: now, last_sent: now, bytes_max, open, sent }
    }

    fn count(&self, state: MemberState) -> u32 {
        self.members.iter().filter(|member| member.state == state).count() as u32
    }

    fn is_over(&self, now: Instant, deadline: Duration) -> bool {
        let settled = !self.open && self.members.iter().all(|it| it.state == MemberState::Arrived);
        settled || now.since(self.first_sent) > deadline.mul_f64(USEFUL_DEADLINES)
    }

    fn owes(&self, path: PathId) -> bool {
        self.members.iter().any(|it| it.path == path && it.state == MemberState::Overdue)
    }

    fn main_path(&self) -> Option<PathId> {
        let mut counts: BTreeMap<PathId, u32> = BTreeMap::new();
        let missing = self.members.iter().filter(|it| it.state != MemberState::Arrived);
        missing.for_each(|member| *counts.entry(member.path).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(path, _)| path)
    }
}

fn answer(path: &PathSnapshot) -> Duration {
    let slack = path.rtt_deviation.max(SLACK_MIN).max(path.smoothed_rtt / 8);
    path.smoothed_rtt + slack
}

/// Bytes that may leave on `path` now without a queue. A window is about two round trips' worth.
fn free(path: &PathOffer<'_>) -> u64 {
    let taken = path.snapshot.bytes_in_flight + path.queued_bytes;
    spare(path).min((path.snapshot.congestion_window / 2).saturating_sub(taken))
}

/// Six encode ranges of XNC, fewer than a combination may span.
const BLOCK_MAX: usize = 60;
const BLOCKS_MAX: usize = 256;
const OPEN_MAX: Duration = Duration::from_millis(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(3);
/// The insurance of a block is useless after this many deadlines.
const USEFUL_DEADLINES: f64 = 1.5;
const LEARNING: f64 = 1.0 / 128.0;
/// The factor of the expected late packets that are insured before any is late.
const RISK: f64 = 2.0;
const CREDIT_MAX: f64 = 400_000.0;
/// The share of it kept for overdue packets.
const RESERVE: f64 = 0.5;
const SLACK_MIN: Duration = Duration::from_millis(5);
/// Bytes of a coded packet beyond the longest packet it covers.
const CODED_EXTRA: u64 = 16;

#[cfg(test)]
mod tests;
