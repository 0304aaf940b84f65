//! Loss in bursts.

use crate::random::Random;

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
    fn the_extremes_lose_nothing_and_everything() {
        assert_eq!(run(GilbertElliott::bursts(0.0, 3.0), 1_000).0, 0.0);
        assert_eq!(run(GilbertElliott::independent(1.0), 1_000).0, 1.0);
    }
}
