//! Numbers far ahead of all others: the peer after an outage, or a corrupted packet.
//!
//! ```text
//! ... 6 7 8 ────────── more than 1,024 ──────────► 9000 9001     in doubt: they wait
//!     9 10 11 ... still come                       9002          three that ascend: all are taken
//! ```
//!
//! A false jump would silence the peer: all numbers up to it would be late. So a jump is believed
//! when three numbers near one another confirm it, unless over four times as many come below them:
//! a slower link may still bring older ones. Time does not count: a peer may send rarely.
//!
//! Packets in doubt wait no longer than others. A refused packet's copy counts as the first.

use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{Instant, PacketId};

/// Numbers that may be missing in a row without a doubt; a false number costs no more than these.
const NEAR: u32 = 1024;
const WITNESSES: u32 = 3;
/// More new numbers below than this many for each of them refute it.
const WEIGHT: u32 = 4;
const COPIES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct SequenceJumps {
    highest: Option<PacketId>,
    doubtful: Option<Doubtful>,
    pub(super) forgotten: u64,
}

#[derive(Debug, Default)]
struct Doubtful {
    highest: PacketId,
    witnesses: u32,
    meanwhile: u32,
    copies: Vec<Copy>,
}

#[derive(Debug)]
pub(super) struct Copy {
    pub(super) came: Instant,
    pub(super) link: usize,
    pub(super) id: PacketId,
    pub(super) packet: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plausibility {
    Near,
    /// The peer is there now; so are the copies that were kept ([`SequenceJumps::take_copies`]).
    Jump,
    /// Unknown: keep the copy ([`SequenceJumps::keep`]).
    Doubt,
}

impl SequenceJumps {
    pub(super) fn judge(&mut self, id: PacketId) -> Plausibility {
        let Some(highest) = self.highest else { return Plausibility::Near };
        if id.distance(highest) <= NEAR as i32 {
            return Plausibility::Near;
        }
        let is_there = |place: &Doubtful| id.distance(place.highest).unsigned_abs() <= NEAR;
        if !self.doubtful.as_ref().is_some_and(is_there) {
            self.forget();
        }
        let begun = || Doubtful { highest: id, ..Doubtful::default() };
        let place = self.doubtful.get_or_insert_with(begun);
        if place.witnesses == 0 || place.highest.precedes(id) {
            place.highest = id;
            place.witnesses = WITNESSES.min(place.witnesses + 1);
        }
        if place.witnesses == WITNESSES { Plausibility::Jump } else { Plausibility::Doubt }
    }

    pub(super) fn note(&mut self, id: PacketId) {
        if self.highest.is_none_or(|highest| highest.precedes(id)) {
            self.highest = Some(id);
        }
        if let Some(place) = &mut self.doubtful {
            place.meanwhile += 1;
            let is_near = place.highest.distance(id) <= NEAR as i32;
            if is_near || place.meanwhile > WEIGHT * place.witnesses {
                self.forget();
            }
        }
    }

    pub(super) fn keep(&mut self, copy: Copy) {
        match &mut self.doubtful {
            Some(place) if place.copies.len() < COPIES_MAX => place.copies.push(copy),
            _ => self.forgotten += 1,
        }
    }

    pub(super) fn take_copies(&mut self, now: Instant, max_buffer: Duration) -> Vec<Copy> {
        let place = self.doubtful.as_mut();
        let mut copies = place.map_or_else(Vec::new, |place| std::mem::take(&mut place.copies));
        let before = copies.len();
        copies.retain(|copy| now.since(copy.came) <= max_buffer);
        self.forgotten += (before - copies.len()) as u64;
        copies
    }

    pub(super) fn reset(&mut self) {
        self.forget();
        self.highest = None;
    }

    fn forget(&mut self) {
        self.forgotten += self.doubtful.take().map_or(0, |place| place.copies.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(jumps: &mut SequenceJumps, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let (mut taken, mut handed) = (Vec::new(), 0);
        for id in numbers.into_iter().map(PacketId) {
            handed += 1;
            let copy = Copy { came: Instant::ZERO, link: 0, id, packet: Bytes::new() };
            let believed = match jumps.judge(id) {
                Plausibility::Near => vec![copy],
                Plausibility::Jump => {
                    let mut copies = jumps.take_copies(Instant::ZERO, Duration::ZERO);
                    copies.push(copy);
                    copies
                }
                Plausibility::Doubt => {
                    jumps.keep(copy);
                    Vec::new()
                }
            };
            taken.extend(believed.iter().map(|copy| copy.id.0));
            believed.iter().for_each(|copy| jumps.note(copy.id));
        }
        let copies = jumps.doubtful.as_ref().map_or(0, |place| place.copies.len());
        assert!(copies <= COPIES_MAX);
        assert_eq!(taken.len() + copies + jumps.forgotten as usize, handed);
        taken
    }

    #[test]
    fn a_leap_needs_three_that_ascend() {
        for begin in [0, u32::MAX - 500, 1 << 31] {
            let at = |ahead: u32| begin.wrapping_add(ahead);
            let near = [0, 1_024].map(at);
            let ahead = [2_500, 2_500, 2_501, 2_499, 2_501].map(at);
            let taken = |more: &[u32]| {
                taken(&mut SequenceJumps::default(), [&near[..], &ahead[..], more].concat())
            };
            assert_eq!(taken(&[]), near);
            assert_eq!(taken(&[at(2_502)]), [&near[..], &ahead, &[at(2_502)]].concat());
        }
    }

    #[test]
    fn numbers_that_are_not_near_one_another_are_no_leap() {
        let mut jumps = SequenceJumps::default();
        let wild = (1..10).map(|step| step * 200_000_000);
        assert_eq!(taken(&mut jumps, [7].into_iter().chain(wild)), [7]);
    }

    #[test]
    fn a_few_do_not_outweigh_a_stream_that_goes_on() {
        let mut jumps = SequenceJumps::default();
        let outliers = |number: u32| (number % 5 == 4).then_some(65_536 + number);
        let stream = (0..2_000_u32).flat_map(|number| [Some(number), outliers(number)]);
        let taken = taken(&mut jumps, stream.flatten());
        assert_eq!(taken, (0..2_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_slower_link_does_not_hide_where_the_peer_is() {
        let mut jumps = SequenceJumps::default();
        // It still brings what precedes the outage, twice as much as comes from behind it.
        let both = (0..1_000_u32).flat_map(|step| [2 * step, 2 * step + 1, 20_000 + step]);
        assert_eq!(taken(&mut jumps, both).len(), 3_000);
    }

    #[test]
    fn what_is_in_doubt_is_bounded() {
        let mut jumps = SequenceJumps::default();
        taken(&mut jumps, [0]);
        assert!(taken(&mut jumps, [5_000; 1_000]).is_empty());
    }
}
