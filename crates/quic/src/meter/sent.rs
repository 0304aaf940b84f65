//! The packets of one path that are in flight, by number, and what they carry.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

/// What a packet carries whose fate somebody wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrackedPayload {
    /// A user's datagram with this token.
    Datagram(u64),
    /// The fragment of a message with this number.
    Fragment(u32),
}

/// What became of a packet, and thereby of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledged(AcknowledgedPacket),
    Lost,
}

/// What the acknowledgement of a packet tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcknowledgedPacket {
    pub(crate) sent: Instant,
    pub(crate) bytes: u16,
    /// Its round trip, without what the peer waited for the newer packets that it acknowledged
    /// together with this one: no longer than they left after it, and no longer than a peer waits.
    pub(crate) rtt: Duration,
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentPacket {
    pub(super) pn: u64,
    /// Whether its fate is known; settled packets leave when they are the oldest.
    pub(super) settled: bool,
    pub(super) at: Instant,
    pub(super) bytes: u16,
    /// Bytes in flight when it left, its own included.
    pub(super) in_flight: u64,
    /// Whether it is larger than what the path was known to take: a probe of its MTU.
    pub(super) is_probe: bool,
    pub(super) tracked: Option<TrackedPayload>,
}

/// The packets in flight, ascending by number. There are gaps: the library skips numbers, and what
/// asks for no acknowledgement is not reported.
#[derive(Debug, Default)]
pub(super) struct SentPackets {
    packets: VecDeque<SentPacket>,
    bytes: u64,
    /// The packet that was sent last, until somebody says what it carries.
    unclaimed: Option<u64>,
}

impl SentPackets {
    /// Notes a packet, unless it has a number that cannot be.
    pub(super) fn push(&mut self, at: Instant, bytes: u16, pn: u64, is_probe: bool) {
        if self.packets.back().is_some_and(|newest| newest.pn >= pn) {
            return;
        }
        self.bytes += u64::from(bytes);
        let (in_flight, settled, tracked) = (self.bytes, false, None);
        self.packets.push_back(SentPacket { pn, settled, at, bytes, in_flight, is_probe, tracked });
        self.unclaimed = Some(pn);
    }

    /// Says what the packet sent last carries; `false` if none was sent since the last call.
    pub(super) fn claim(&mut self, tracked: Option<TrackedPayload>) -> bool {
        let Some(pn) = self.unclaimed.take() else { return false };
        match self.packets.back_mut() {
            Some(sent) if sent.pn == pn => sent.tracked = tracked,
            _ => return false,
        }
        true
    }

    /// Forgets which packet was sent last.
    pub(super) fn disclaim(&mut self) {
        self.unclaimed = None;
    }

    /// Notes that the fate of a packet is known. Returns the packet, if it was not known before.
    pub(super) fn settle(&mut self, pn: u64) -> Option<SentPacket> {
        let index = self.packets.binary_search_by_key(&pn, |packet| packet.pn).ok()?;
        let sent = &mut self.packets[index];
        if std::mem::replace(&mut sent.settled, true) {
            return None;
        }
        let sent = *sent;
        self.bytes -= u64::from(sent.bytes);
        while self.packets.front().is_some_and(|oldest| oldest.settled) {
            self.packets.pop_front();
        }
        Some(sent)
    }

    /// Empties the record; gives what is not settled.
    pub(super) fn take_open(&mut self) -> impl Iterator<Item = SentPacket> + use<> {
        let packets = std::mem::take(self).packets;
        packets.into_iter().filter(|packet| !packet.settled)
    }

    /// The oldest packet that is not settled.
    pub(super) fn oldest(&self) -> Option<&SentPacket> {
        self.packets.front()
    }

    /// The oldest packet after number `pn` that is not settled.
    pub(super) fn oldest_after(&self, pn: u64) -> Option<&SentPacket> {
        let newer = self.packets.partition_point(|packet| packet.pn <= pn);
        self.packets.range(newer..).find(|packet| !packet.settled)
    }

    /// Packets from the oldest in flight on, settled ones among them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &SentPacket> {
        self.packets.iter()
    }

    /// Bytes in flight.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}
