//! The stamps of frames between their packets and their pictures.

use std::collections::VecDeque;

use crate::stamp::Stamp;

/// Stamps by the time that their frames' packets are given, in ns.
///
/// The times of the jitter buffer are no names for frames: after a gap several frames may have the
/// same one, or an earlier one than those before, which decoders then put right in their own way.
#[derive(Debug)]
pub struct Stamps {
    under_way: VecDeque<(u64, Stamp)>,
    newest: Option<(u64, Stamp)>,
}

impl Stamps {
    /// None yet.
    pub fn new() -> Self {
        Self { under_way: VecDeque::new(), newest: None }
    }

    /// A packet of time `pts` has this stamp; the time that it is given instead, which is that of
    /// its frame alone and behind that of all frames before.
    pub fn add(&mut self, pts: u64, stamp: Stamp) -> u64 {
        if let Some((at, _)) = self.newest.filter(|(_, newest)| *newest == stamp) {
            return at;
        }
        let at = self.newest.map_or(pts, |(at, _)| pts.max(at + 2 * ROUNDED_BY_MOST_NS));
        if self.under_way.len() >= FRAMES_MOST {
            self.under_way.pop_front();
        }
        self.under_way.push_back((at, stamp));
        self.newest = Some((at, stamp));
        at
    }

    /// The stamp of the frame of time `pts`; it and those before it are not needed any more.
    pub fn find(&mut self, pts: u64) -> Option<Stamp> {
        let is_it = |(at, _): &(u64, Stamp)| at.abs_diff(pts) < ROUNDED_BY_MOST_NS;
        let found = self.under_way.iter().position(is_it)?;
        self.under_way.drain(..=found).next_back().map(|(_, stamp)| stamp)
    }

    /// Another sender.
    pub fn clear(&mut self) {
        *self = Self::new();
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
        assert_eq!(stamps.under_way.len(), FRAMES_MOST);
        assert_eq!(stamps.find(0), None);
        assert_eq!(stamps.find(800 * 33_000_000), Some(stamp(800)));
        assert_eq!(stamps.find(999 * 33_000_000 + 500), Some(stamp(999)));
        assert_eq!(stamps.under_way.len(), 0);
        stamps.add(0, stamp(0));
        stamps.clear();
        assert_eq!(stamps.find(0), None);
    }

    #[test]
    fn each_frame_has_a_time_of_its_own_whatever_the_jitter_buffer_says() {
        let mut stamps = Stamps::new();
        let mut times = Vec::new();
        for (number, pts) in [(1, 90_000_000), (2, 90_000_000), (3, 50_000_000), (4, 120_000_000)] {
            let at = stamps.add(pts, stamp(number));
            // Its last packet came later.
            assert_eq!(stamps.add(pts + 7_000_000, stamp(number)), at);
            times.push(at);
        }
        assert_eq!(times, [90_000_000, 92_000_000, 94_000_000, 120_000_000]);
        let found: Vec<_> = times.iter().filter_map(|at| stamps.find(at + 500)).collect();
        assert_eq!(found, [1, 2, 3, 4].map(stamp));
        assert_eq!(stamps.find(94_000_000), None);
    }
}
