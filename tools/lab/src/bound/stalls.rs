//! Stalls that no schedule avoids.
//!
//! A frame is shown when it is complete, or when the player gives up the frames before it, which is
//! [`Player::frame_wait`] after a completion. So every change of the picture coincides with an
//! arrival or follows one within that wait, and none precedes the first complete frame.
//!
//! ```text
//!   arrivals possible   |#########|          |######|
//!   with this wait      |############|       |#########|
//!   frame complete      ....[-------------------------->
//!   showable                [########|       |#########|
//!   unavoidable stall                 <----->                 if longer than 200 ms
//! ```

use std::time::Duration;

use super::slots::{Budget, Slot, budget_of, nanos};
use crate::video::quality::{Player, STALL_GAP};

#[derive(Clone, Copy, Debug)]
pub(super) struct BoundFrame {
    pub captured: u64,
    pub released: u64,
    pub bytes: u64,
}

/// The sum of the stalls that remain if a picture is shown whenever possible.
///
/// `frames` ascend by capture; the last lasts until `stream_end`. The observation ends at `end`.
pub(super) fn unavoidable(
    slots: &[Slot],
    frames: &[BoundFrame],
    player: &Player,
    stream_end: u64,
    end: u64,
) -> Duration {
    let Some(start) = frames.first().map(|frame| frame.captured) else {
        return Duration::ZERO;
    };
    let frame_wait = nanos(player.frame_wait);
    // A departure is rounded up to the next nanosecond.
    let mut showable: Vec<(u64, u64)> = slots
        .iter()
        .map(|slot| (slot.arrival(slot.from), slot.arrival(slot.to + 1).saturating_add(frame_wait)))
        .collect();
    showable.sort_unstable();
    let first = first_completion(slots, frames, end).unwrap_or(end).min(stream_end);
    let mut shown_until = first;
    let mut stalled = stall(start, first);
    for (from, until) in showable {
        stalled += stall(shown_until, from.min(stream_end));
        shown_until = shown_until.max(until);
    }
    Duration::from_nanos(stalled + stall(shown_until, stream_end))
}

fn stall(from: u64, to: u64) -> u64 {
    let gap = to.saturating_sub(from);
    if u128::from(gap) > STALL_GAP.as_nanos() { gap } else { 0 }
}

/// When the first frame can be complete if each frame has the links for itself, unless after `end`.
fn first_completion(slots: &[Slot], frames: &[BoundFrame], end: u64) -> Option<u64> {
    let mut first: Option<u64> = None;
    for frame in frames {
        let end = first.unwrap_or(end);
        if frame.released >= end {
            break;
        }
        first = completion(slots, frame, end).or(first);
    }
    first
}

fn completion(slots: &[Slot], frame: &BoundFrame, end: u64) -> Option<u64> {
    let need = budget_of(frame.bytes);
    if carried(slots, frame.released, end) < need {
        return None;
    }
    let (mut early, mut late) = (frame.released, end);
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        if carried(slots, frame.released, middle) < need { early = middle } else { late = middle }
    }
    Some(early)
}

fn carried(slots: &[Slot], released: u64, time: u64) -> Budget {
    let begun = slots.iter().take_while(|slot| slot.from <= time);
    begun
        .map(|slot| {
            let from = slot.from.max(released);
            let to = slot.to.min(slot.departure(time));
            if from < to { slot.budget(from, to) } else { 0 }
        })
        .sum()
}
