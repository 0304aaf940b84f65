//! The stamps of frames between packets and pictures.

use std::collections::VecDeque;

use crate::stamp::Stamp;

/// Stamps by the time given to their frames' packets, in ns.
///
/// The times of the jitter buffer do not identify frames: after a gap several frames may have the
/// same time, or an earlier time than previous frames, and decoders correct these in their own way.
#[derive(Debug)]
pub struct Stamps {
    under_way: VecDeque<(u64, Stamp)>,
    newest: Option<(u64, Stamp)>,
}

impl Stamps {
    pub fn new() -> Self {
        Self { under_way: VecDeque::new(), newest: None }
    }

    /// Stores the stamp of a packet of time `pts`; returns the time to use instead, unique to its
    /// frame and later than those of all previous frames.
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

    /// The stamp of the frame of time `pts`; removes it and earlier ones.
    pub fn find(&mut self, pts: u64) -> Option<Stamp> {
        let is_it = |(at, _): &(u64, Stamp)| at.abs_diff(pts) < ROUNDED_BY_MOST_NS;
        let found = self.under_way.iter().position(is_it)?;
        self.under_way.drain(..=found).next_back().map(|(_, stamp)| stamp)
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

/// Frames between depayloader and display, lost ones included.
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
            assert_eq!(stamps.add(pts + 7_000_000, stamp(number)), at);
            times.push(at);
        }
        assert_eq!(times, [90_000_000, 92_000_000, 94_000_000, 120_000_000]);
        let found: Vec<_> = times.iter().filter_map(|at| stamps.find(at + 500)).collect();
        assert_eq!(found, [1, 2, 3, 4].map(stamp));
        assert_eq!(stamps.find(94_000_000), None);
    }
}
