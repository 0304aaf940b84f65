//! One end of a leg between a proxy and an anchor: queueing, sending and receiving.
//!
//! ```text
//! inner packet ─► fair queue (by tenant) ─► [rate] ─► datagram, or parts of one ─► QUIC ─► other end
//! frames ──────────────┘   kept until they are acknowledged; lost ones leave again
//! ```
//!
//! A leg has no recovery of inner packets and no congestion control: each client's multipath and
//! the inner connections control the traffic (RFC 8085 section 3.1.11), and a controller here
//! delayed video (docs/results.md). Losses are counted. Where the leg is narrow, its rate is
//! configured, and the queue is here, fair among tenants.

mod fair;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Datagram, LegFrames, LegRoom, Part, Passed, STREAM_TAG};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PathId, Rate};
use roadweave_quic::Connection;
use serde::{Deserialize, Serialize};

use self::fair::{FairQueue, cost};
use crate::lane::Reassembly;
use crate::rate::{Direction, Limit};

/// A tenant's index in the configuration of a proxy or an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u16);

/// The traffic of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStats {
    /// Inner packets from its clients.
    pub packets_up: u64,
    /// Bytes of these.
    pub bytes_up: u64,
    /// Inner packets for its clients.
    pub packets_down: u64,
    /// Bytes of these.
    pub bytes_down: u64,
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

#[derive(Debug, Default)]
pub(crate) struct TenantAccount {
    limits: Option<[Limit; 2]>,
    pub(crate) stats: TenantStats,
}

impl TenantAccount {
    pub(crate) fn new(rate_limit: Option<Rate>) -> Self {
        Self { limits: rate_limit.map(|rate| [Limit::new(rate); 2]), ..Self::default() }
    }

    pub(crate) fn set_rate_limit(&mut self, rate_limit: Option<Rate>) {
        if self.limits.map(|[limit, _]| limit.rate()) != rate_limit {
            self.limits = rate_limit.map(|rate| [Limit::new(rate); 2]);
        }
    }

    pub(crate) fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let limit = self.limits.as_mut().map(|limits| &mut limits[direction as usize]);
        if !limit.is_none_or(|limit| limit.allows(now, bytes)) {
            self.drop(DropReason::RateLimited);
            return false;
        }
        let stats = &mut self.stats;
        let (packets, passed) = match direction {
            Direction::Up => (&mut stats.packets_up, &mut stats.bytes_up),
            Direction::Down => (&mut stats.packets_down, &mut stats.bytes_down),
        };
        *packets += 1;
        *passed += bytes as u64;
        true
    }

    /// When frames of `bytes` bytes are within the tenant's rate. All frames wait for the same
    /// amount, so that small ones do not overtake.
    pub(crate) fn frames_pass_at(&self, direction: Direction, bytes: usize) -> Instant {
        let limit = self.limits.as_ref().map(|limits| &limits[direction as usize]);
        limit.map_or(Instant::ZERO, |limit| limit.passes_at(bytes.max(FRAMES_SIZE)))
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.stats.drops.count(reason);
    }
}

pub(crate) type Accounts = [TenantAccount];

#[derive(Debug, Default)]
pub(crate) struct LegEnd {
    queue: FairQueue,
    rate: Option<Rate>,
    free_at: Instant,
    cuts: u32,
    /// Datagrams in flight with frames, or their parts, by token.
    unacknowledged: BTreeMap<u64, (TenantId, Bytes)>,
    unacknowledged_bytes: usize,
    last_token: u64,
    lost: VecDeque<(TenantId, Bytes)>,
    lost_bytes: usize,
    parts: Reassembly,
    pub(crate) drops: DropCounters,
}

impl LegEnd {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate, last_token: UNKEPT, ..Self::default() }
    }

    pub(crate) fn push(
        &mut self,
        now: Instant,
        tenant: TenantId,
        handle: u32,
        packet: &[u8],
        accounts: &mut Accounts,
    ) {
        let is_reliable = packet.first() == Some(&STREAM_TAG);
        self.push_datagram(now, tenant, (Passed::datagram(handle, packet), is_reliable), accounts);
    }

    pub(crate) fn push_frames(
        &mut self,
        now: Instant,
        tenant: TenantId,
        frames: &LegFrames,
        accounts: &mut Accounts,
    ) {
        let is_reliable = !frames.frames.is_empty();
        self.push_datagram(now, tenant, (frames.to_bytes(), is_reliable), accounts);
    }

    pub(crate) fn push_datagram(
        &mut self,
        now: Instant,
        tenant: TenantId,
        datagram: (Bytes, bool),
        accounts: &mut Accounts,
    ) {
        let mut drop = |tenant: TenantId, reason| drop_of(accounts, tenant, reason);
        self.queue.push(now, tenant, datagram, &mut drop);
    }

    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        accounts: &mut Accounts,
    ) {
        let mut drop = |tenant: TenantId, reason| drop_of(accounts, tenant, reason);
        while self.free_at.since(now) <= BURST
            && let Some((tenant, (datagram, is_reliable))) = self.next(now, &mut drop)
        {
            if let Some(rate) = self.rate {
                self.free_at = self.free_at.max(now) + rate.time_for(datagram.len() as u64);
            }
            if let Err(reason) = self.send(now, connection, (tenant, datagram), is_reliable) {
                drop(tenant, reason);
            }
        }
    }

    fn next(
        &mut self,
        now: Instant,
        drop: &mut impl FnMut(TenantId, DropReason),
    ) -> Option<(TenantId, (Bytes, bool))> {
        match self.lost.pop_front() {
            Some((tenant, datagram)) => {
                self.lost_bytes -= cost(&datagram);
                Some((tenant, (datagram, true)))
            }
            None => self.queue.pop(now, drop),
        }
    }

    fn send(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        (tenant, datagram): (TenantId, Bytes),
        is_reliable: bool,
    ) -> Result<(), DropReason> {
        let size_max = connection.max_datagram_size();
        if datagram.len() <= size_max {
            return self.send_one(now, connection, (tenant, datagram), is_reliable);
        }
        let parts = Part::cut(LaneId(0), self.cuts, &datagram, size_max);
        self.cuts = self.cuts.wrapping_add(1);
        for part in parts.ok_or(DropReason::OversizedInner)? {
            self.send_one(now, connection, (tenant, part), is_reliable)?;
        }
        Ok(())
    }

    fn send_one(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        (tenant, datagram): (TenantId, Bytes),
        is_reliable: bool,
    ) -> Result<(), DropReason> {
        let mut token = UNKEPT;
        if is_reliable
            && self.unacknowledged_bytes + self.lost_bytes + cost(&datagram) <= UNACKNOWLEDGED_MAX
        {
            self.last_token += 1;
            token = self.last_token;
            self.unacknowledged_bytes += cost(&datagram);
            self.unacknowledged.insert(token, (tenant, datagram.clone()));
        }
        let sent = connection.send_through(now, PathId(0), datagram, token);
        sent.map_err(|_| {
            self.on_acknowledged(token);
            DropReason::LegAway
        })
    }

    pub(crate) fn on_acknowledged(&mut self, token: u64) {
        if let Some((_, datagram)) = self.unacknowledged.remove(&token) {
            self.unacknowledged_bytes -= cost(&datagram);
        }
    }

    /// Repeats lost frames at once: streams notice later, when the lanes at both sides give up.
    pub(crate) fn on_lost(&mut self, token: u64) {
        if let Some((tenant, datagram)) = self.unacknowledged.remove(&token) {
            self.unacknowledged_bytes -= cost(&datagram);
            self.lost_bytes += cost(&datagram);
            self.lost.push_back((tenant, datagram));
        }
    }

    pub(crate) fn handle_datagram(&mut self, now: Instant, datagram: Bytes) -> Option<FromLeg> {
        if datagram.is_empty() {
            return None;
        }
        if let Some(whole) = FromLeg::parse(&datagram) {
            return Some(whole);
        }
        let whole = match Datagram::parse(datagram) {
            Ok(Datagram::Part(part)) => {
                let whole = self.parts.insert(now, part, PARTS_AGE_MAX, &mut self.drops)?;
                FromLeg::parse(&whole)
            }
            // A connection's answer to a probe.
            Ok(Datagram::Feedback(_)) => return None,
            _ => None,
        };
        if whole.is_none() {
            self.drops.count(DropReason::MalformedMessage);
        }
        whole
    }

    pub(crate) fn clear(&mut self, accounts: &mut Accounts) {
        let mut drop = |tenant: TenantId, reason| drop_of(accounts, tenant, reason);
        self.queue.clear(&mut drop);
        self.lost.drain(..).for_each(|(tenant, _)| drop(tenant, DropReason::LegAway));
        self.unacknowledged.clear();
        (self.unacknowledged_bytes, self.lost_bytes) = (0, 0);
        (self.parts, self.free_at) = (Reassembly::default(), Instant::ZERO);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let waits = !self.queue.is_empty() || !self.lost.is_empty();
        waits.then(|| self.free_at - BURST)
    }

    /// When the leg takes frames that can wait elsewhere; a past time means now.
    pub(crate) fn takes_frames_at(&self, now: Instant) -> Instant {
        let is_full = self.queue.bytes + self.lost_bytes >= FRAMES_AHEAD;
        if is_full { self.free_at.max(now + MOMENT) } else { Instant::ZERO }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.bytes + self.parts.bytes + self.unacknowledged_bytes + self.lost_bytes
    }
}

#[derive(Debug)]
pub(crate) enum FromLeg {
    Passed(Passed),
    Frames(LegFrames),
    Room(LegRoom),
}

impl FromLeg {
    fn parse(datagram: &Bytes) -> Option<Self> {
        let passed = Passed::parse(datagram.clone()).map(Self::Passed);
        let frames = || LegFrames::parse(datagram.clone()).map(Self::Frames);
        let room = || LegRoom::parse(datagram.clone()).map(Self::Room);
        passed.or_else(frames).or_else(room)
    }
}

fn drop_of(accounts: &mut Accounts, tenant: TenantId, reason: DropReason) {
    if let Some(account) = accounts.get_mut(usize::from(tenant.0)) {
        account.drop(reason);
    }
}

/// The state of a leg.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// The public key of the other end.
    pub public_key: String,
    /// The address of the other end, while the leg is up.
    pub remote: Option<String>,
    /// Whether it is up and answers.
    pub is_up: bool,
    /// The smoothed round-trip time, milliseconds.
    pub smoothed_rtt_ms: f64,
    /// The share of packets lost recently, 0..1.
    pub loss: f32,
    /// Datagrams sent since the leg came up.
    pub datagrams_sent: u64,
    /// Datagrams lost since the leg came up.
    pub datagrams_lost: u64,
    /// Clients attached over it.
    pub attachments: u64,
    /// Bytes that wait.
    pub waiting_bytes: u64,
    /// Drops without a known tenant, by reason.
    pub drops: DropCounters,
}

impl LegStatus {
    pub(crate) fn of(connection: Option<&Connection>, end: &LegEnd, attachments: usize) -> Self {
        let mut status = Self {
            attachments: attachments as u64,
            waiting_bytes: end.waiting() as u64,
            drops: end.drops.clone(),
            ..Self::default()
        };
        let Some(connection) = connection else { return status };
        if let Some(path) = connection.paths().first() {
            status.is_up = connection.is_open() && path.is_usable();
            status.smoothed_rtt_ms = path.smoothed_rtt.as_secs_f64() * 1e3;
            status.loss = path.loss;
            let stats = connection.path_stats(path.id).unwrap_or_default();
            status.datagrams_sent = stats.datagrams_sent;
            status.datagrams_lost = stats.datagrams_lost;
            status.remote = connection.remote_address(path.id).map(|address| address.to_string());
        }
        status
    }
}

pub(crate) fn tenant_stats<'a>(
    named: impl Iterator<Item = (&'a str, &'a TenantAccount)>,
) -> BTreeMap<String, TenantStats> {
    named.map(|(name, account)| (name.to_owned(), account.stats.clone())).collect()
}

/// The size of a burst, as its sending time at the leg's rate.
const BURST: Duration = Duration::from_millis(2);
const UNKEPT: u64 = 0;
/// Bytes kept until acknowledged, at most; streams notice losses beyond it by themselves.
const UNACKNOWLEDGED_MAX: usize = 8 << 20;
const FRAMES_AHEAD: usize = 64 << 10;
const MOMENT: Duration = Duration::from_millis(1);
/// Only frames in very large packets are larger.
const FRAMES_SIZE: usize = 2_048;
/// How long to wait for the parts of a datagram: nothing is sent again.
const PARTS_AGE_MAX: Duration = Duration::from_millis(300);
