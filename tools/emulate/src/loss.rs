//! Loss in bursts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::timeline::{Timeline, nanos};

/// The Gilbert-Elliott channel: packets switch between a good and a bad state, each with a loss.
///
/// ```text
///          enter_bad
///   good ─────────────> bad
///    loss_good <─────── loss_bad
///          leave_bad
/// ```
///
/// Source: Gilbert 1960, Elliott 1963 (Bell System Technical Journal).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability that a packet in the good state is followed by the bad state, 0..=1.
    pub enter_bad: f64,
    /// Probability that a packet in the bad state is followed by the good state, 0..=1.
    pub leave_bad: f64,
    /// Share of packets lost in the good state, 0..=1.
    pub loss_good: f64,
    /// Share of packets lost in the bad state, 0..=1.
    pub loss_bad: f64,
}

/// Loss of a link beside that of its recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddedLoss {
    /// Loses each packet with probability `share`.
    Independent { share: f64 },
    /// Loses `share` of the packets in bursts of `packets` in the mean.
    Bursts { share: f64, packets: f64 },
    /// Loses `share` of the packets, all in stretches of `ms` in the mean, which lose `within` of
    /// their packets. Stretches and the times between them are exponential.
    Stretches { share: f64, within: f64, ms: f64 },
}

#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    model: GilbertElliott,
    bad: bool,
}

impl GilbertElliott {
    /// A channel that loses the share `loss` (0..1) in bursts of `mean_burst` packets, at least 1.
    pub fn bursts(loss: f64, mean_burst: f64) -> Self {
        let leave_bad = 1.0 / mean_burst.max(1.0);
        let loss = loss.clamp(0.0, 1.0);
        let enter_bad = if loss < 1.0 { (leave_bad * loss / (1.0 - loss)).min(1.0) } else { 1.0 };
        Self { enter_bad, leave_bad, loss_good: 0.0, loss_bad: 1.0 }
    }

    /// A channel that loses each packet independently with probability `loss`.
    pub fn independent(loss: f64) -> Self {
        Self { enter_bad: 0.0, leave_bad: 1.0, loss_good: loss, loss_bad: loss }
    }
}

impl LossProcess {
    pub fn new(model: GilbertElliott) -> Self {
        Self { model, bad: false }
    }

    /// Whether the next packet is lost.
    pub fn is_lost(&mut self, random: &mut Random) -> bool {
        let change = if self.bad { self.model.leave_bad } else { self.model.enter_bad };
        if random.chance(change) {
            self.bad = !self.bad;
        }
        random.chance(if self.bad { self.model.loss_bad } else { self.model.loss_good })
    }
}

/// `recorded` with stretches of `ms` in the mean that lose `within`, `share` in all; one pass of
/// `length`.
pub(crate) fn with_stretches(
    recorded: &Timeline<f64>,
    (share, within, ms): (f64, f64, f64),
    length: Duration,
    random: &mut Random,
) -> Timeline<f64> {
    let bad_ns = ms.max(1.0) * 1e6;
    let good_ns = bad_ns * (within / share.max(1e-9) - 1.0).max(0.0);
    let length_ns = nanos(length);
    let mut steps = Vec::new();
    let mut bad = random.chance(share / within.max(1e-9));
    let (mut at, mut changes) = (0, random.exponential(if bad { bad_ns } else { good_ns }) as u64);
    while at < length_ns {
        while changes <= at {
            bad = !bad;
            let lasting = random.exponential(if bad { bad_ns } else { good_ns }) as u64;
            changes = changes.saturating_add(lasting).saturating_add(1);
        }
        let span = recorded.span(at);
        let arriving = (1.0 - span.value) * if bad { 1.0 - within } else { 1.0 };
        steps.push((Duration::from_nanos(at), 1.0 - arriving));
        at = span.end.unwrap_or(u64::MAX).min(changes);
    }
    Timeline::of_changes(steps, length).expect("steps ascend from zero, all before the end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(model: GilbertElliott, packets: usize) -> (f64, f64) {
        let mut random = Random::new(3);
        let mut process = LossProcess::new(model);
        let lost: Vec<bool> = (0..packets).map(|_| process.is_lost(&mut random)).collect();
        let count = lost.iter().filter(|&&lost| lost).count() as f64;
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        (count / packets as f64, count / bursts.max(1.0))
    }

    #[test]
    fn bursts_have_the_given_mean_and_share() {
        let (loss, burst) = run(GilbertElliott::bursts(0.02, 5.0), 400_000);
        assert!((loss - 0.02).abs() < 0.002, "loss {loss}");
        assert!((burst - 5.0).abs() < 0.4, "burst {burst}");
    }

    #[test]
    fn independent_loss_comes_in_short_runs() {
        let (loss, burst) = run(GilbertElliott::independent(0.1), 200_000);
        assert!((loss - 0.1).abs() < 0.005, "loss {loss}");
        assert!((burst - 1.0 / 0.9).abs() < 0.03, "burst {burst}");
    }

    #[test]
    fn stretches_lose_their_share_beside_what_was_recorded() {
        let s = Duration::from_secs;
        let recorded = Timeline::of_changes([(s(0), 0.0), (s(1), 1.0)], s(4)).expect("ascending");
        let mut random = Random::new(5);
        let loss = with_stretches(&recorded, (0.06, 0.6, 200.0), s(4_000), &mut random);
        let first = |at: Duration| at.as_nanos() % 4_000_000_000 < 1_000_000_000;
        let (mut at, mut lost, mut bad) = (Duration::ZERO, 0.0, Vec::new());
        for (lasting, share) in loss.iter() {
            if first(at) {
                lost += share * lasting.as_secs_f64();
                bad.extend((share > 0.0).then_some(lasting.as_secs_f64()));
                assert!([0.0, 0.6].contains(&share), "{share}");
            } else {
                assert_eq!(share, 1.0);
            }
            at += lasting;
        }
        assert!((lost / 1_000.0 - 0.06).abs() < 0.006, "{lost}");
        let mean = bad.iter().sum::<f64>() / bad.len() as f64;
        assert!((0.15..0.2).contains(&mean), "{mean}: the recording cuts some");
    }

    #[test]
    fn the_extremes_lose_nothing_and_everything() {
        assert_eq!(run(GilbertElliott::bursts(0.0, 3.0), 1_000).0, 0.0);
        assert_eq!(run(GilbertElliott::independent(1.0), 1_000).0, 1.0);
    }
}
