//! Packets that the peer may not have, so that another session can send them on.
//!
//! ```text
//! leaves for the first time ─► kept ─┬─ it or its repair acknowledged ─► forgotten
//!                                    ├─ too old to be of use ──────────► forgotten
//!                                    └─ the peer is gone ──────────────► through the next session
//! ```
//!
//! The encoder's pool is no substitute: it also keeps packets that the peer has.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::{FragmentPosition, Symbol, split_predecessor, split_stamp};
use roadweave_proto::{Instant, PacketId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    pub(crate) since: Instant,
    pub(crate) packet: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    first: PacketId,
    sent: VecDeque<SentPacket>,
    bytes: usize,
}

#[derive(Debug)]
struct SentPacket {
    since: Instant,
    symbol: Bytes,
    is_done: bool,
}

impl Unacknowledged {
    pub(crate) fn on_sent(&mut self, id: PacketId, since: Instant, symbol: Bytes) {
        if self.sent.is_empty() {
            self.first = id;
        }
        self.bytes += symbol.len();
        self.sent.push_back(SentPacket { since, symbol, is_done: false });
        while self.sent.len() > PACKETS_MAX || self.bytes > BYTES_MAX {
            self.pop();
        }
    }

    pub(crate) fn on_done(&mut self, id: PacketId) {
        let at = usize::try_from(id.distance(self.first)).ok();
        if let Some(sent) = at.and_then(|at| self.sent.get_mut(at)) {
            sent.is_done = true;
        }
        while let Some(fragments) = self.first_done() {
            (0..fragments).for_each(|_| self.pop());
        }
    }

    fn first_done(&self) -> Option<usize> {
        let done = self.sent.iter().take_while(|sent| sent.is_done);
        done.zip(1..).find(|(sent, _)| sent.ends_packet()).map(|(_, count)| count)
    }

    pub(crate) fn expire(&mut self, now: Instant, age_max: Duration) {
        while self.sent.front().is_some_and(|sent| now.since(sent.since) >= age_max) {
            self.pop();
        }
    }

    /// Takes the inner packets that are not done, oldest first, unless a fragment is forgotten.
    pub(crate) fn take(&mut self) -> Vec<Unfinished> {
        self.bytes = 0;
        let (mut packets, mut whole, mut all_done) = (Vec::new(), None::<BytesMut>, true);
        for SentPacket { since, symbol, is_done } in std::mem::take(&mut self.sent) {
            let Ok(Symbol { position, body }) = Symbol::parse(&symbol) else { continue };
            let begins = matches!(position, FragmentPosition::Whole | FragmentPosition::First);
            if begins {
                (whole, all_done) = (Some(BytesMut::new()), true);
            }
            all_done &= is_done;
            if let Some(whole) = &mut whole {
                whole.extend_from_slice(body);
            }
            let ends = matches!(position, FragmentPosition::Whole | FragmentPosition::Last);
            if let Some(whole) = whole.take_if(|_| ends)
                && !all_done
            {
                packets.push(Unfinished { since, packet: inner_of(whole.freeze()) });
            }
        }
        packets
    }

    fn pop(&mut self) {
        if let Some(sent) = self.sent.pop_front() {
            self.bytes -= sent.symbol.len();
            self.first = self.first.next();
        }
    }
}

impl SentPacket {
    fn ends_packet(&self) -> bool {
        Symbol::parse(&self.symbol).is_ok_and(|symbol| {
            matches!(symbol.position, FragmentPosition::Whole | FragmentPosition::Last)
        })
    }
}

pub(crate) fn inner_of(body: Bytes) -> Bytes {
    let (_, inner) = split_predecessor(body);
    split_stamp(inner).1
}

/// More packets are never in flight.
const PACKETS_MAX: usize = 1 << 15;
/// Bytes kept, at most; most are also in the encoder's pool, and counted there.
const BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn symbol(position: FragmentPosition, body: &[u8]) -> Bytes {
        let mut bytes = BytesMut::new();
        Symbol { position, body }.write(&mut bytes);
        bytes.freeze()
    }

    fn packets(unacknowledged: &mut Unacknowledged) -> Vec<Vec<u8>> {
        unacknowledged.take().into_iter().map(|unfinished| unfinished.packet.to_vec()).collect()
    }

    #[test]
    fn what_the_peer_has_is_not_sent_on() {
        let mut unacknowledged = Unacknowledged::default();
        for id in 5..10_u32 {
            let symbol = symbol(FragmentPosition::Whole, &[0x45, id as u8]);
            unacknowledged.on_sent(PacketId(id), at(id.into()), symbol);
        }
        unacknowledged.on_done(PacketId(7));
        unacknowledged.on_done(PacketId(5));
        unacknowledged.on_done(PacketId(4));
        unacknowledged.on_done(PacketId(99));
        assert_eq!(packets(&mut unacknowledged), [[0x45, 6], [0x45, 8], [0x45, 9]]);
        assert_eq!((packets(&mut unacknowledged).len(), unacknowledged.bytes), (0, 0));
    }

    #[test]
    fn a_packet_that_was_cut_is_sent_on_whole_or_not_at_all() {
        use FragmentPosition::{First, Last, Middle, Whole};
        let mut unacknowledged = Unacknowledged::default();
        let parts =
            [(First, b"Ea"), (Middle, b"bc"), (Last, b"de"), (Whole, b"Ef"), (First, b"Eg")];
        for (id, (position, body)) in (0..).zip(parts) {
            unacknowledged.on_sent(PacketId(id), at(1), symbol(position, body));
        }
        unacknowledged.on_done(PacketId(0));
        assert_eq!(packets(&mut unacknowledged), [b"Eabcde".to_vec(), b"Ef".to_vec()]);
        unacknowledged.on_sent(PacketId(5), at(1), symbol(Last, b"h"));
        assert_eq!(packets(&mut unacknowledged), Vec::<Vec<u8>>::new(), "its first is forgotten");
        for (id, (position, body)) in (6..).zip(&parts[..4]) {
            unacknowledged.on_sent(PacketId(id), at(1), symbol(*position, *body));
            unacknowledged.on_done(PacketId(id));
        }
        assert!(unacknowledged.sent.is_empty() && unacknowledged.bytes == 0, "the peer has it");
    }

    #[test]
    fn unacknowledged_packets_are_bounded_by_age_count_and_bytes() {
        let mut unacknowledged = Unacknowledged::default();
        let big = symbol(FragmentPosition::Whole, &[0x45; 1300]);
        (0..100_000)
            .for_each(|id| unacknowledged.on_sent(PacketId(id), at(id.into()), big.clone()));
        assert!(unacknowledged.bytes <= BYTES_MAX && unacknowledged.sent.len() <= PACKETS_MAX);
        let newest = at(99_999);
        unacknowledged.expire(newest, Duration::from_millis(700));
        assert_eq!(unacknowledged.sent.len(), 700);
        assert_eq!(unacknowledged.first, PacketId(99_300));
    }
}
