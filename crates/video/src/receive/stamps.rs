//! The stamps of frames between their packets and their pictures.

use std::collections::VecDeque;

use crate::stamp::Stamp;

/// Stamps by the time that the jitter buffer has given their packets, in ns.
#[derive(Debug)]
pub struct Stamps(VecDeque<(u64, Stamp)>);

impl Stamps {
    /// None yet.
    pub fn new() -> Self {
        Self(VecDeque::new())
    }

    /// A packet of time `pts` has this stamp.
    pub fn add(&mut self, pts: u64, stamp: Stamp) {
        if self.0.back() == Some(&(pts, stamp)) {
            return;
        }
        if self.0.len() >= FRAMES_MOST {
            self.0.pop_front();
        }
        self.0.push_back((pts, stamp));
    }

    /// The stamp of the frame of time `pts`; it and those before it are not needed any more. Frames
    /// that waited for a gap together get one time from the jitter buffer, and come in order.
    pub fn find(&mut self, pts: u64) -> Option<Stamp> {
        let found = self.0.iter().position(|(at, _)| at.abs_diff(pts) < ROUNDED_BY_MOST_NS)?;
        self.0.drain(..=found).next_back().map(|(_, stamp)| stamp)
    }

    /// Another sender.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Frames between depayloader and display, with those that were lost on the way.
const FRAMES_MOST: usize = 256;
const ROUNDED_BY_MOST_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stamp(number: u16) -> Stamp {
        Stamp { captured: Duration::from_secs(1), number }
    }

    #[test]
    fn frames_find_their_stamps_and_memory_is_bounded() {
        let mut stamps = Stamps::new();
        for number in 0..1000 {
            for _packet in 0..3 {
                stamps.add(u64::from(number) * 33_000_000, stamp(number));
            }
        }
        assert_eq!(stamps.0.len(), FRAMES_MOST);
        assert_eq!(stamps.find(0), None);
        assert_eq!(stamps.find(800 * 33_000_000), Some(stamp(800)));
        assert_eq!(stamps.find(999 * 33_000_000 + 500), Some(stamp(999)));
        assert_eq!(stamps.0.len(), 0);
        stamps.add(0, stamp(0));
        stamps.clear();
        assert_eq!(stamps.find(0), None);
    }

    #[test]
    fn frames_of_one_time_have_stamps_of_their_own() {
        let mut stamps = Stamps::new();
        (1..4).for_each(|number| stamps.add(500, stamp(number)));
        let found = [(); 4].map(|()| stamps.find(500).map(|stamp| stamp.number));
        assert_eq!(found, [Some(1), Some(2), Some(3), None]);
    }
}
