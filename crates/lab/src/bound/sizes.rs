//! The frames of an encoder that knows the future: no other looks better on given links.
//!
//! ```text
//! frames      0      1      2      3
//! capacity    ▕██▏▕█████▏▕▏▕████████▏     each stretch is of use to the frames that are captured
//!              0    0,1   1    2,3        by then, and whose deadline it still meets
//! sizes        ▂      ▄   ▂    ▆   ▆      the narrowest run of frames first, shared evenly; then
//!                                         what is left of it on both sides
//! ```
//!
//! Why nobody does better. A set `X` of frames has, whole and in time, at most the bytes of the
//! stretches that are of use to one of them, by Hall's condition; overheads, queues and losses only
//! make it less. This most is a submodular function of `X`, so the sizes that are possible are a
//! polymatroid.
//!
//! A stretch is of use to a run of frames without gaps. Where one begins before another and ends
//! after it, as with links of different delays, the other is taken for as long as the first
//! ([`widened`]), which can only help; so those that begin later end later, and the tightest sets
//! are runs too: if a stretch reaches over a gap of a set, the frames in the gap add nothing to
//! what the set may have but their own stretches, and if none does, one of the two sides is as
//! tight.
//!
//! To give the run with the least capacity by frame an even share, and to go on with the rest of
//! the stretches on either side, makes the base of the polymatroid that is lexicographically the
//! greatest, and that one maximises the sum of every concave function of the sizes (Fujishige,
//! Lexicographically optimal base of a polymatroid with respect to a weight vector, 1980). SSIM in
//! dB is taken for such a function of the bytes (`video/encoder.rs`).

use std::time::Duration;

use roadweave_emulate::Trace;

use super::slots::{nanos, slots};

/// A video whose encoder knows what the links will carry.
#[derive(Clone, Copy, Debug)]
pub struct Foresight {
    /// Frames per second, at least 1.
    pub fps: u32,
    /// Frames.
    pub frames: usize,
    /// The time from a frame's capture to its last byte.
    pub deadline: Duration,
    /// The most bytes of a frame.
    pub most: f64,
}

/// Bytes that are of use to the frames `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    first: usize,
    last: usize,
    bytes: f64,
}

impl Foresight {
    /// The best sizes of all frames on `links`, bytes; the first is captured at their origin.
    pub fn sizes(&self, links: &[&Trace]) -> Vec<f64> {
        let mut sizes = vec![0.0; self.frames];
        let mut parts = Vec::new();
        if self.frames > 0 {
            parts.push((0, self.frames - 1, self.stretches(links)));
        }
        while let Some((first, last, stretches)) = parts.pop() {
            let (run, share) = narrowest(first, last, &stretches);
            if share >= self.most {
                sizes[first..=last].fill(self.most);
                continue;
            }
            sizes[run.0..=run.1].fill(share);
            if run.0 > first {
                let left = stretches.iter().filter(|it| it.last < run.0).copied().collect();
                parts.push((first, run.0 - 1, left));
            }
            if run.1 < last {
                let right = stretches.iter().filter(|it| it.first > run.1).copied().collect();
                parts.push((run.1 + 1, last, right));
            }
        }
        sizes
    }

    fn captured(&self, frame: usize) -> u64 {
        frame as u64 * 1_000_000_000 / u64::from(self.fps)
    }

    fn stretches(&self, links: &[&Trace]) -> Vec<Stretch> {
        let deadline = nanos(self.deadline);
        let end = self.captured(self.frames).saturating_add(deadline);
        let mut stretches = Vec::new();
        for slot in slots(links, Duration::from_nanos(end)) {
            let mut at = slot.from;
            while at < slot.to {
                // The last frame that is captured by then.
                let number = (u128::from(at) * u128::from(self.fps) / 1_000_000_000) as usize;
                let last = if self.captured(number + 1) <= at { number + 1 } else { number };
                // The first whose deadline it meets.
                let least = slot.arrival(at).saturating_sub(deadline);
                let mut first = (u128::from(least) * u128::from(self.fps) / 1_000_000_000) as usize;
                while self.captured(first) < least {
                    first += 1;
                }
                let until = slot.departure(self.captured(first).saturating_add(deadline));
                let next = self.captured(last + 1).min(until.saturating_add(1)).min(slot.to);
                let next = next.max(at + 1);
                let last = last.min(self.frames - 1);
                if first <= last {
                    let bytes = slot.budget(at, next) as f64 / 8e9;
                    stretches.push(Stretch { first, last, bytes });
                }
                at = next;
            }
        }
        widened(stretches)
    }
}

/// No stretch lies within another any more.
fn widened(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_unstable_by_key(|stretch| (stretch.first, stretch.last));
    let mut last = 0;
    for stretch in &mut stretches {
        last = last.max(stretch.last);
        stretch.last = last;
    }
    stretches
}

/// The run of frames within `first..=last` that has the least bytes for each, and how many.
fn narrowest(first: usize, last: usize, stretches: &[Stretch]) -> ((usize, usize), f64) {
    let count = last - first + 1;
    // Bytes of the stretches that begin by a frame, and of those that end before it.
    let (mut begun, mut ended) = (vec![0.0; count], vec![0.0; count + 1]);
    for stretch in stretches {
        begun[stretch.first - first] += stretch.bytes;
        ended[stretch.last - first + 1] += stretch.bytes;
    }
    for at in 1..count {
        begun[at] += begun[at - 1];
        ended[at] += ended[at - 1];
    }
    let mut best = ((first, last), f64::INFINITY);
    for (from, ended) in ended[..count].iter().enumerate() {
        for (length, begun) in (1_u32..).zip(&begun[from..]) {
            let share = (begun - ended) / f64::from(length);
            if share < best.1 {
                let to = first + from + length as usize - 1;
                best = ((first + from, to), share.max(0.0));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roadweave_emulate::{AtEnd, Capacity, Timeline};
    use roadweave_types::Rate;

    use super::super::matching::{Batch, Matching};
    use super::*;

    fn trace(kbps: &[u64], delay_ms: u64) -> Trace {
        const STEP: Duration = Duration::from_millis(50);
        let steps = (0..).zip(kbps).map(|(at, kbps)| (STEP * at, Rate::from_kbps(*kbps)));
        let length = STEP * kbps.len() as u32;
        let rates = Timeline::new(steps, length, AtEnd::Hold).expect("they ascend");
        Trace::constant(Rate::ZERO, Duration::from_millis(delay_ms))
            .with_capacity(Capacity::Rates(rates))
    }

    fn foresight(frames: usize) -> Foresight {
        Foresight { fps: 20, frames, deadline: Duration::from_millis(100), most: 1e6 }
    }

    #[test]
    fn frames_share_what_a_constant_link_carries_and_no_more_than_they_may_have() {
        let link = trace(&[800], 20);
        let sizes = foresight(40).sizes(&[&link]);
        // 5,000 bytes between two frames; and 30 ms more for all, from the first to the last.
        let total = 800_000.0 / 8.0 * (39.0 / 20.0 + 0.08);
        assert!((sizes.iter().sum::<f64>() - total).abs() < 2_000.0, "{sizes:?}");
        assert!(sizes.iter().all(|size| (size - total / 40.0).abs() < 60.0), "{sizes:?}");
        let most = Foresight { most: 3_000.0, ..foresight(40) }.sizes(&[&link]);
        assert_eq!(most, vec![3_000.0; 40]);
        assert_eq!(foresight(3).sizes(&[&trace(&[0], 20)]), [0.0; 3]);
        assert_eq!(foresight(3).sizes(&[&trace(&[800], 101)]), [0.0; 3], "nothing is in time");
        assert!(foresight(0).sizes(&[&link]).is_empty());
    }

    proptest! {
        /// They can be carried, and none can grow but at the cost of one that is no larger: over
        /// links of one delay, where no stretch lies within another, and nothing is widened.
        #[test]
        fn the_sizes_are_possible_and_nobody_shares_more_evenly(
            first in prop::collection::vec(0..2_000_u64, 1..12),
            second in prop::collection::vec(0..2_000_u64, 1..12),
            delay_ms in 5..90_u64,
        ) {
            let links = [trace(&first, delay_ms), trace(&second, delay_ms)];
            let links = [&links[0], &links[1]];
            let foresight = foresight(10);
            let sizes = foresight.sizes(&links);
            let horizon = Duration::from_secs(2);
            let missing = |sizes: &[f64]| {
                let batch = |(frame, size): (usize, &f64)| Batch {
                    released: foresight.captured(frame),
                    bytes: *size as u64,
                };
                let batches = sizes.iter().enumerate().map(batch).collect();
                let slots = slots(&links, horizon);
                Matching::new(&slots, batches, nanos(horizon)).missing_bytes(nanos(foresight.deadline))
            };
            prop_assert!(missing(&sizes) <= 10, "a byte of each frame is rounded");
            for (frame, size) in sizes.iter().enumerate() {
                // All that are larger give up all that they have beyond it: it still cannot grow.
                let mut other: Vec<f64> = sizes.iter().map(|it| it.min(*size)).collect();
                other[frame] += 50.0;
                prop_assert!(missing(&other) > 20, "frame {frame} of {sizes:?}");
            }
        }

        /// Whatever the links, no sizes that can be carried have a greater sum of a concave
        /// function.
        #[test]
        fn no_sizes_that_can_be_carried_look_better(
            first in prop::collection::vec(0..2_000_u64, 1..12),
            second in prop::collection::vec(0..2_000_u64, 1..12),
            delays_ms in (5..90_u64, 5..140_u64),
            fps in 10..60_u32,
            deadline_ms in 60..300_u64,
            wanted in prop::collection::vec(0..40_000_u64, 10),
        ) {
            let links = [trace(&first, delays_ms.0), trace(&second, delays_ms.1)];
            let links = [&links[0], &links[1]];
            let deadline = Duration::from_millis(deadline_ms);
            let foresight = Foresight { fps, deadline, ..foresight(10) };
            let horizon = Duration::from_secs(3);
            let slots = slots(&links, horizon);
            let missing = |sizes: &[u64]| {
                let batch = |(frame, bytes): (usize, &u64)| Batch {
                    released: foresight.captured(frame),
                    bytes: *bytes,
                };
                let batches = sizes.iter().enumerate().map(batch).collect();
                Matching::new(&slots, batches, nanos(horizon)).missing_bytes(nanos(deadline))
            };
            // As much of each wish as can be carried, in turn.
            let mut carried = vec![0; 10];
            for (frame, wish) in wanted.iter().enumerate() {
                carried[frame] = *wish;
                carried[frame] -= missing(&carried).min(*wish);
            }
            prop_assert_eq!(missing(&carried), 0);
            let looks = |size: f64| (1.0 + size).ln();
            let best: f64 = foresight.sizes(&links).into_iter().map(looks).sum();
            // Up to a byte of each is rounded, which shows where frames have few.
            let least = |size: &u64| looks(size.saturating_sub(1) as f64);
            let other: f64 = carried.iter().map(least).sum();
            prop_assert!(other <= best + 0.02, "{other} for {carried:?}, and not {best}");
        }
    }
}
