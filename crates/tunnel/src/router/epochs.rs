//! Which epoch of the peer is present, and which packets of a former one may still be new.
//!
//! ```text
//! present ── another, unknown one ───────► former: (epoch, highest number)
//!    ▲                                          │
//!    └── the present one is silent, and this one says something new ◄┘
//! ```
//!
//! Packets of a former epoch are old copies, as a rule. But an epoch from a corrupted packet must
//! not silence the peer for good. So a former one returns with a number above all that came of it,
//! or with a hello that answers what was sent after the present epoch was last heard.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, PacketId};

const FORMER_MAX: usize = 8;
const FORMER_SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Epochs {
    present: Option<Epoch>,
    heard: Instant,
    former: VecDeque<Epoch>,
    pub(super) restarts: u64,
    /// Packets that the peer has sent: from the first that came to the highest, in each epoch.
    pub(super) packets: u64,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    id: u32,
    /// The highest number when it last ended: it and all below may have come.
    over_at: Option<PacketId>,
    highest: Option<PacketId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Sign {
    Packet(PacketId),
    /// A hello, and when the hello was sent that it answers, if any.
    Hello(Option<Instant>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Present,
    Past,
    First,
    Restarted,
}

impl Epochs {
    pub(super) fn admit(&mut self, now: Instant, epoch: u32, sign: Sign) -> Admission {
        if let Some(present) = self.present.filter(|present| present.id == epoch) {
            if matches!(sign, Sign::Packet(id) if !is_above(id, present.over_at)) {
                return Admission::Past;
            }
            self.heard = now;
            return Admission::Present;
        }
        let former = self.former.iter().position(|former| former.id == epoch);
        let mut begun = Epoch { id: epoch, over_at: None, highest: None };
        if let Some(at) = former {
            if now.since(self.heard) < FORMER_SILENCE || !self.is_new(&self.former[at], sign) {
                return Admission::Past;
            }
            let highest = self.former[at].highest;
            (begun.over_at, begun.highest) = (highest, highest);
            self.former.remove(at);
        }
        self.heard = now;
        let Some(before) = self.present.replace(begun) else { return Admission::First };
        self.former.push_back(before);
        if self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
        self.restarts += 1;
        Admission::Restarted
    }

    pub(super) fn is_present(&self, epoch: u32) -> bool {
        self.present.is_some_and(|present| present.id == epoch)
    }

    pub(super) fn note(&mut self, id: PacketId) {
        let Some(present) = &mut self.present else { return };
        match present.highest {
            None => self.packets += 1,
            Some(highest) if highest.precedes(id) => {
                self.packets += u64::from(id.0.wrapping_sub(highest.0));
            }
            Some(_) => return,
        }
        present.highest = Some(id);
    }

    fn is_new(&self, former: &Epoch, sign: Sign) -> bool {
        match sign {
            Sign::Packet(id) => is_above(id, former.highest),
            Sign::Hello(answered) => answered.is_some_and(|said| said > self.heard),
        }
    }
}

fn is_above(id: PacketId, highest: Option<PacketId>) -> bool {
    highest.is_none_or(|highest| highest.precedes(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut epochs = Epochs::default();
        for epoch in 0..10_000 {
            epochs.admit(Instant::ZERO, epoch, Sign::Hello(None));
            assert!(epochs.former.len() <= FORMER_MAX);
        }
        assert_eq!(epochs.restarts, 9_999);
    }

    #[test]
    fn a_hello_brings_an_epoch_back_only_as_an_answer_to_what_was_said_since() {
        let mut epochs = Epochs::default();
        let ms = Instant::from_millis;
        epochs.admit(ms(0), 1, Sign::Hello(None));
        epochs.admit(ms(500), 2, Sign::Hello(None));
        for old in [None, Some(ms(400)), Some(ms(500))] {
            assert_eq!(epochs.admit(ms(3_000), 1, Sign::Hello(old)), Admission::Past);
        }
        assert_eq!(epochs.admit(ms(1_499), 1, Sign::Hello(Some(ms(501)))), Admission::Past);
        assert_eq!(epochs.admit(ms(3_000), 1, Sign::Hello(Some(ms(501)))), Admission::Restarted);
    }
}
