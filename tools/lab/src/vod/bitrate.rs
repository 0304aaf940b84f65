//! The bitrate at which a pair of links is of interest: one link alone is just too slow.
//!
//! ```text
//! links as a fluid ─► first estimate ─► watch over each link alone ─► stalls for 1 to 10 %?
//!                                         ▲      a step up or down │ no     │ yes
//!                                         └────────────────────────┘        └─► Chosen
//! ```

use std::time::Duration;

use roadweave_emulate::Capacity;
use roadweave_proto::Rate;

use super::player::{AHEAD_MAX, ProgramKind};
use super::{Over, Pair, ServerTraffic, Setting, Viewing};
use crate::world::WorldError;

/// A bitrate, and its results over each link alone.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub bitrate: Rate,
    /// By link: results of each viewer of a long video.
    pub alone: Vec<Vec<(Viewing, ServerTraffic)>>,
    /// The link with the least stalled time.
    pub best: usize,
    /// Stalled time of that link by the time played; within [`STANDS_STILL`] if possible.
    pub stands_still: f64,
}

/// Desired stalled time of the best link alone, as a share of the time played.
pub const STANDS_STILL: std::ops::RangeInclusive<f64> = 0.01..=0.10;

/// Searches the bitrate at which the best link of `pair` alone stalls within [`STANDS_STILL`], or
/// else the nearest. Fails if the world cannot be created.
pub fn choose(pair: &Pair, setting: Setting) -> Result<Chosen, WorldError> {
    let mut bitrate = guess(pair, setting);
    let (mut too_low, mut too_high) = (None, None);
    let mut nearest: Option<Chosen> = None;
    for _ in 0..STEPS_MAX {
        let chosen = alone(pair, setting, bitrate)?;
        let still = chosen.stands_still;
        let off = |still: f64| (still.max(1e-4) / AIMED_AT).ln().abs();
        if nearest.as_ref().is_none_or(|it| off(still) < off(it.stands_still)) {
            nearest = Some(chosen);
        }
        if STANDS_STILL.contains(&still) {
            break;
        }
        let side = if still < AIMED_AT { &mut too_low } else { &mut too_high };
        *side = Some(bitrate);
        let kbps = |rate: Rate| rate.as_bps() as f64 / 1e3;
        let next = match (too_low, too_high) {
            (Some(low), Some(high)) => (kbps(low) * kbps(high)).sqrt(),
            (Some(low), None) => kbps(low) * STEP,
            (_, high) => high.map_or(kbps(bitrate), kbps) / STEP,
        };
        bitrate = Rate::from_kbps(next.max(1.0) as u64);
    }
    Ok(nearest.expect("there was at least one step"))
}

fn alone(pair: &Pair, setting: Setting, bitrate: Rate) -> Result<Chosen, WorldError> {
    let view = |link: usize, seed| {
        pair.view(&Over::One(link), (ProgramKind::Long, bitrate), setting, seed)
    };
    let of_link = |link| (1..=setting.seeds).map(|seed| view(link, seed)).collect();
    let alone: Vec<Vec<(Viewing, ServerTraffic)>> =
        (0..pair.links.len()).map(of_link).collect::<Result<_, _>>()?;
    let still: Vec<f64> = alone.iter().map(|seen| stands_still(seen)).collect();
    let best = (0..still.len()).min_by(|a, b| still[*a].total_cmp(&still[*b])).unwrap_or(0);
    Ok(Chosen { bitrate, alone, best, stands_still: still[best] })
}

/// Stalled time by the time played, of all viewers together; infinite if nothing was played.
fn stands_still(all: &[(Viewing, ServerTraffic)]) -> f64 {
    let sum = |of: fn(&Viewing) -> Duration| all.iter().map(|(seen, _)| of(seen)).sum::<Duration>();
    let (stalled, played) = (sum(|seen| seen.stalled), sum(|seen| seen.played));
    if played.is_zero() { f64::INFINITY } else { stalled.as_secs_f64() / played.as_secs_f64() }
}

/// The bitrate at which the best link, if used fully, would stall for [`AIMED_AT`].
fn guess(pair: &Pair, setting: Setting) -> Rate {
    let best = |bps: f64| {
        let of_link = |link: &roadweave_emulate::DriveLink| {
            let viewers = (1..=setting.seeds).map(|seed| {
                let from = pair.begins(seed, setting.seeds);
                let part = link.down.part(from, setting.lasting);
                fluid(part.capacity(), setting.lasting, bps)
            });
            let (still, moves) = viewers.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            still / moves.max(f64::MIN_POSITIVE)
        };
        pair.links.iter().map(of_link).fold(f64::INFINITY, f64::min)
    };
    let (mut low, mut high) = (LOWEST, HIGHEST);
    for _ in 0..GUESSES {
        let middle = (low * high).sqrt();
        if best(middle) < AIMED_AT { low = middle } else { high = middle }
    }
    Rate::from_kbps((low * USABLE / 1e3) as u64)
}

fn fluid(capacity: &Capacity, lasting: Duration, bps: f64) -> (f64, f64) {
    let step = GRAIN.as_secs_f64();
    let (mut left, mut still, mut moves) = (0.0_f64, 0.0, 0.0);
    for rate in capacity.mean_rates(GRAIN, lasting) {
        left = (left + rate / bps * step).min(AHEAD_MAX.as_secs_f64());
        if left >= step {
            (left, moves) = (left - step, moves + step);
        } else {
            still += step;
        }
    }
    (still, moves)
}

/// The middle of [`STANDS_STILL`] on a logarithmic scale.
const AIMED_AT: f64 = 0.03;
const USABLE: f64 = 0.9;
const GRAIN: Duration = Duration::from_millis(100);
const GUESSES: u32 = 30;
const LOWEST: f64 = 1e5;
const HIGHEST: f64 = 1e8;
const STEP: f64 = 1.2;
const STEPS_MAX: usize = 7;
