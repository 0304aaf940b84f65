//! Synthetic cellular links with the statistics of recorded ones.
//!
//! ```text
//! seed ─┬─> shared by all links ──┐
//!       └─> of each link alone ───┴─> normal score ─> quantiles of the operator ─> capacity ─┐
//!       ├─> handovers, scheduling gaps: pauses, after a gap the queued bytes ────────────────┼─> Trace
//!       ├─> round-trip time: slow wander and spikes with a heavy tail ───────────────────────┤
//!       └─> loss: blackouts of some hundred ms to half a minute ─────────────────────────────┘
//! ```
//!
//! The shared part makes operators weakly dependent: most in slow changes (the terrain), least in
//! fast changes (other users of a cell).
//!
//! Source: the targets are the published statistics of the PAM 2025 multi-carrier driving data set
//! (uplink throughput, RTT and loss of three US operators); delivery gaps of LTE are those of
//! mahimahi's recordings.

use std::time::Duration;

use roadweave_proto::{Rate, SplitMix64};

use crate::capacity::Capacity;
use crate::random::Random;
use crate::timeline::{Timeline, nanos};
use crate::trace::{Trace, stepped};

pub use operator::{Gaps, Operator, RttQuantiles};
pub use set::DriveSet;

mod operator;
mod pauses;
mod set;

/// A cellular uplink of `operator` that repeats after `length`.
///
/// Links of one `seed` with different `index` belong to one drive and depend on each other weakly;
/// equal arguments give equal traces. The delay is half the round-trip time.
pub fn synthetic_trace(seed: u64, index: u64, operator: &Operator, length: Duration) -> Trace {
    trace_of(seed, index, operator, &Character::USUAL, length)
}

fn trace_of(
    seed: u64,
    index: u64,
    operator: &Operator,
    character: &Character,
    length: Duration,
) -> Trace {
    let length = length.max(STEP);
    let own = SplitMix64::word(seed, OWN + index);
    let scores = normal_scores(seed, own, character, length);
    let mut rates: Vec<f64> = scores.iter().map(|&score| operator.capacity_at(score)).collect();
    flicker(&mut Random::part(own, FLICKER), character.flicker, &mut rates);
    let pauses = pauses::Pauses::draw(&mut Random::part(own, PAUSES), operator, length);
    let pauses = if character.in_steps { pauses.in_steps(STEP) } else { pauses };
    Trace::new(
        Capacity::Rates(pauses.apply(&rates, STEP, length)),
        delays(&mut Random::part(own, DELAY), &operator.rtt, character, length),
        blackouts(&mut Random::part(own, LOSS), operator, length),
    )
}

/// How a link of one drive differs from other links of its operator.
struct Character {
    /// Added to the normal score of the capacity.
    level: f64,
    components: &'static [Component],
    /// Factor of the components' variation.
    volatility: f64,
    /// Factor of the components' shared part, 0 to 1.
    shared: f64,
    /// The deviation of the capacity's logarithm within half a second.
    flicker: f64,
    /// Whether gaps begin at a [`STEP`] and last whole steps.
    in_steps: bool,
    /// The round-trip time between spikes.
    wander: Wander,
    /// Factor of the number of spikes.
    spikes: f64,
}

struct Wander {
    /// The deviation of the lasting part.
    deviation: f64,
    /// The share of it that remains at the next [`PROBE`].
    keep: f64,
    /// The deviation of each probe's independent part.
    noise: f64,
}

impl Character {
    const USUAL: Self = Self {
        level: 0.0,
        components: &COMPONENTS,
        volatility: 1.0,
        shared: 1.0,
        flicker: 0.0,
        in_steps: false,
        wander: Wander { deviation: RTT_WANDER, keep: 0.7, noise: 0.0 },
        spikes: 1.0,
    };
}

/// A normal process, a value per [`STEP`]: a sum of components with different memory.
fn normal_scores(
    shared_seed: u64,
    own_seed: u64,
    character: &Character,
    length: Duration,
) -> Vec<f64> {
    let count = steps(length, STEP);
    let mut scores = vec![character.level; count];
    for (index, component) in (0_u64..).zip(character.components) {
        let shared = component.shared * character.shared;
        for (seed, share) in [(shared_seed, shared), (own_seed, 1.0 - shared)] {
            let scale = character.volatility * (component.weight * share).sqrt();
            let mut random = Random::part(seed, SCORES + index);
            let keep = (-STEP.as_secs_f64() / component.memory_seconds).exp();
            let renew = (1.0 - keep * keep).sqrt();
            let mut value = random.normal();
            for score in &mut scores {
                *score += scale * value;
                value = keep * value + renew * random.normal();
            }
        }
    }
    scores
}

/// Scatters `rates`, one per [`STEP`], by `deviation` of their logarithm; the mean of each half
/// second is preserved.
fn flicker(random: &mut Random, deviation: f64, rates: &mut [f64]) {
    if deviation <= 0.0 {
        return;
    }
    let mut value = random.normal();
    for half_second in rates.chunks_mut(5) {
        let before: f64 = half_second.iter().sum();
        for rate in half_second.iter_mut() {
            *rate *= (deviation * value).exp();
            value =
                FLICKER_KEEP * value + (1.0 - FLICKER_KEEP * FLICKER_KEEP).sqrt() * random.normal();
        }
        let after: f64 = half_second.iter().sum();
        for rate in half_second.iter_mut() {
            *rate *= before / after;
        }
    }
}

/// One-way delays, a value per [`PROBE`].
///
/// Spikes start at random with a Pareto-distributed height and halve from value to value, but not
/// faster than packets queued behind each other can arrive.
fn delays(
    random: &mut Random,
    rtt: &RttQuantiles,
    character: &Character,
    length: Duration,
) -> Timeline<Duration> {
    let spikes = rtt.spikes();
    let chance = (spikes.chance * character.spikes).min(0.5);
    let Wander { deviation, keep, noise } = character.wander;
    let mut wander = random.normal();
    let mut spike = 0.0_f64;
    let values = (0..steps(length, PROBE)).map(|_| {
        wander = keep * wander + (1.0 - keep * keep).sqrt() * random.normal();
        let own = if noise > 0.0 { noise * random.normal() } else { 0.0 };
        spike = (spike * RttQuantiles::DECAY).max(spike - FALL_MS_MAX);
        if random.chance(chance) {
            let height =
                RttQuantiles::SPIKE_MS * (1.0 - random.unit()).powf(-1.0 / spikes.exponent);
            // High spikes therefore last longer, and are rarer in return.
            if random.chance(spikes.kept(height, FALL_MS_MAX)) {
                spike = spike.max(height.min(SPIKE_MS_MAX));
            }
        }
        let rtt_ms = rtt.p50_ms * (deviation * wander + own).exp() + spike;
        Duration::from_nanos((rtt_ms / 2.0 * 1e6) as u64)
    });
    stepped(values, PROBE, length)
}

/// Total loss for whole [`PROBE`]s at a time.
fn blackouts(random: &mut Random, operator: &Operator, length: Duration) -> Timeline<f64> {
    let burst = operator.loss_burst_probes.max(1.0);
    let begins = operator.loss / (1.0 - operator.loss) / burst;
    // One burst in ten is eight times as long and forms the tail.
    let short = (burst / 1.7).max(1.0);
    let long = (burst - 0.9 * short) * 10.0;
    let mut left = 0;
    let values = (0..steps(length, PROBE)).map(|_| {
        if left > 0 {
            left -= 1;
        } else if random.chance(begins / (1.0 + begins)) {
            let mean = if random.chance(0.1) { long } else { short };
            left = random.geometric(mean);
        }
        if left > 0 { 1.0 } else { 0.0 }
    });
    stepped(values, PROBE, length)
}

fn steps(length: Duration, step: Duration) -> usize {
    usize::try_from(nanos(length).div_ceil(nanos(step))).unwrap_or(usize::MAX).max(1)
}

/// A part of the normal score: its share of the variance, its memory, and the share that all links
/// of a drive have in common.
struct Component {
    weight: f64,
    memory_seconds: f64,
    shared: f64,
}

/// Fitted to the autocorrelation of uplink throughput within runs (0.92 at 0.5 s, 0.55 at 5 s, 0.35
/// at 10 s) and to the correlation between operators (0.15 within runs).
const COMPONENTS: [Component; 3] = [
    Component { weight: 0.4, memory_seconds: 120.0, shared: 0.4 },
    Component { weight: 0.54, memory_seconds: 13.0, shared: 0.17 },
    Component { weight: 0.06, memory_seconds: 2.0, shared: 0.1 },
];

const STEP: Duration = Duration::from_millis(100);
/// Step of delay and loss: the interval of the probes that recorded them.
const PROBE: Duration = Duration::from_millis(200);
/// The relative deviation of the round-trip time between spikes.
const RTT_WANDER: f64 = 0.12;
/// Twice the length of a probe, since a delay is half a round-trip time.
const FALL_MS_MAX: f64 = 400.0;
/// The share of a capacity's deviation within half a second that remains after a [`STEP`].
const FLICKER_KEEP: f64 = 0.5;
const SPIKE_MS_MAX: f64 = 15_000.0;

// Parts of a seed, so that each source of randomness has its own generator.
const SCORES: u64 = 0;
const PAUSES: u64 = 100;
const DELAY: u64 = 101;
const LOSS: u64 = 102;
const FLICKER: u64 = 103;
const OWN: u64 = 1_000;

fn rate(mbps: f64) -> Rate {
    Rate::from_bps((mbps * 1e6).round() as u64)
}

#[cfg(test)]
mod tests;
