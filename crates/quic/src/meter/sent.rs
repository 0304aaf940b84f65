//! The packets of one path in flight, by number, and what they carry.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrackedPayload {
    Datagram(u64),
    Fragment(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledged(AcknowledgedPacket),
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcknowledgedPacket {
    pub(crate) sent: Instant,
    pub(crate) bytes: u16,
    /// Without the peer's wait for newer packets that it acknowledged together with this one.
    pub(crate) rtt: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SentPacket {
    pub(super) pn: u64,
    /// Its fate is known; settled packets are removed once they are the oldest.
    pub(super) settled: bool,
    pub(super) at: Instant,
    pub(super) bytes: u16,
    pub(super) in_flight: u64,
    /// Larger than the known MTU: a probe of it.
    pub(super) is_probe: bool,
    pub(super) tracked: Option<TrackedPayload>,
}

/// The packets in flight, ascending by number, with gaps: the library skips numbers, and does not
/// report packets that ask for no acknowledgement.
#[derive(Debug, Default)]
pub(super) struct SentPackets {
    packets: VecDeque<SentPacket>,
    bytes: u64,
    unclaimed: Option<u64>,
}

impl SentPackets {
    pub(super) fn push(&mut self, at: Instant, bytes: u16, pn: u64, is_probe: bool) {
        if self.packets.back().is_some_and(|newest| newest.pn >= pn) {
            return;
        }
        self.bytes += u64::from(bytes);
        let (in_flight, settled, tracked) = (self.bytes, false, None);
        self.packets.push_back(SentPacket { pn, settled, at, bytes, in_flight, is_probe, tracked });
        self.unclaimed = Some(pn);
    }

    pub(super) fn claim(&mut self, tracked: Option<TrackedPayload>) -> bool {
        let Some(pn) = self.unclaimed.take() else { return false };
        match self.packets.back_mut() {
            Some(sent) if sent.pn == pn => sent.tracked = tracked,
            _ => return false,
        }
        true
    }

    pub(super) fn disclaim(&mut self) {
        self.unclaimed = None;
    }

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

    pub(super) fn take_open(&mut self) -> impl Iterator<Item = SentPacket> + use<> {
        let packets = std::mem::take(self).packets;
        packets.into_iter().filter(|packet| !packet.settled)
    }

    pub(super) fn oldest(&self) -> Option<&SentPacket> {
        self.packets.front()
    }

    pub(super) fn oldest_after(&self, pn: u64) -> Option<&SentPacket> {
        let oldest = self.oldest()?;
        if oldest.pn > pn {
            return Some(oldest);
        }
        let newer = self.packets.partition_point(|packet| packet.pn <= pn);
        self.packets.range(newer..).find(|packet| !packet.settled)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SentPacket> {
        self.packets.iter()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}
