//! Times without capacity: handovers, scheduling gaps, outages.

use std::time::Duration;

use roadweave_proto::Rate;

use super::operator::Operator;
use super::{rate, steps};
use crate::random::Random;
use crate::timeline::{Timeline, nanos};

/// Handovers, gaps and outages of one link, unordered.
pub(super) struct Pauses(Vec<Pause>);

#[derive(Clone, Copy)]
struct Pause {
    begin: u64,
    end: u64,
    /// Whether the missed bytes are delivered afterwards.
    repaid: bool,
}

impl Pauses {
    pub fn draw(random: &mut Random, operator: &Operator, length: Duration) -> Self {
        let mut pauses = Vec::new();
        draw_events(random, operator.handovers_per_minute, 0.0, length, |random, begin| {
            pauses.push(Pause { begin, end: begin + handover(random), repaid: false });
            0
        });
        for (gaps, repaid) in [(operator.gaps, true), (operator.outages, false)] {
            draw_events(random, gaps.per_minute, gaps.mean_ms(), length, |random, begin| {
                let lasts = (gaps.exceeded_by(random.unit()) * 1e6) as u64;
                pauses.push(Pause { begin, end: begin + lasts, repaid });
                lasts
            });
        }
        Self(pauses)
    }

    pub fn in_steps(mut self, step: Duration) -> Self {
        let step = nanos(step);
        for gap in self.0.iter_mut().filter(|pause| pause.repaid) {
            let steps = (gap.end - gap.begin + step / 2) / step;
            gap.begin = gap.begin / step * step;
            gap.end = gap.begin + steps * step;
        }
        self
    }

    /// Applies the pauses to `rates` (Mbit/s, one per `step`) over `length`.
    ///
    /// The bytes of a gap are repaid at an even rate over [`REPAY`], in addition to the link's own.
    pub fn apply(&self, rates: &[f64], step: Duration, length: Duration) -> Timeline<Rate> {
        let mut edges: Vec<u64> =
            (0_u64..).zip(0..steps(length, step)).map(|(index, _)| index * nanos(step)).collect();
        for pause in &self.0 {
            edges.extend([pause.begin, pause.end, pause.end + REPAY]);
        }
        edges.sort_unstable();
        edges.dedup();
        edges.retain(|&edge| edge < nanos(length));

        let mut begins: Vec<Pause> = self.0.clone();
        begins.sort_unstable_by_key(|pause| pause.begin);
        let mut begins = begins.into_iter().peekable();
        let (mut paused_until, mut repaid) = (0, false);
        let mut debt = Debt::default();
        let mut out: Vec<(Duration, Rate)> = Vec::with_capacity(edges.len());
        for (index, &edge) in edges.iter().enumerate() {
            while let Some(pause) = begins.next_if(|pause| pause.begin <= edge) {
                repaid = pause.repaid || (repaid && paused_until > edge);
                paused_until = paused_until.max(pause.end);
            }
            let until = edges.get(index + 1).copied().unwrap_or(nanos(length));
            let own = rates[usize::try_from(edge / nanos(step)).unwrap_or(0).min(rates.len() - 1)];
            let left = if edge < paused_until {
                if repaid {
                    debt.owe(own, until - edge);
                }
                0.0
            } else {
                own + debt.repay(edge, until)
            };
            out.push((Duration::from_nanos(edge), rate(left)));
        }
        Timeline::of_changes(out, length).expect("edges ascend from zero, all before the end")
    }
}

/// Bytes of gaps not yet delivered, in Mbit/s x ns.
#[derive(Default)]
struct Debt {
    owed: f64,
    paying: f64,
    /// End of the current repayment; 0 if none was started since the last gap.
    until: u64,
}

impl Debt {
    fn owe(&mut self, rate: f64, lasting: u64) {
        self.owed += rate * lasting as f64;
        self.until = 0;
    }

    /// The additional rate from `begin` to `end`.
    fn repay(&mut self, begin: u64, end: u64) -> f64 {
        if self.owed <= 0.0 {
            return 0.0;
        }
        if self.until == 0 {
            self.until = begin + REPAY;
            self.paying = self.owed / REPAY as f64;
        }
        if begin >= self.until {
            self.owed = 0.0;
            return 0.0;
        }
        self.owed -= self.paying * (end - begin) as f64;
        self.paying
    }
}

/// Calls `event` with the time in ns of each event of a memoryless process. `event` returns the
/// length in ns, on average `mean_ms`.
fn draw_events(
    random: &mut Random,
    per_minute: f64,
    mean_ms: f64,
    length: Duration,
    mut event: impl FnMut(&mut Random, u64) -> u64,
) {
    if per_minute <= 0.0 {
        return;
    }
    let between = (60e9 / per_minute - mean_ms * 1e6).max(0.0);
    let mut at = 0.0;
    loop {
        at += random.exponential(between);
        if at >= nanos(length) as f64 {
            return;
        }
        // Events of zero length must not make the loop endless.
        at += (event(random, at as u64) as f64).max(1.0);
    }
}

/// Length of a handover, ns: p50, p90 and p99 are 60, 130 and 640 ms.
fn handover(random: &mut Random) -> u64 {
    let score = random.normal();
    let slope = if score < 1.282 {
        (130.0_f64 / 60.0).ln() / 1.282
    } else {
        (640.0_f64 / 130.0).ln() / 1.044
    };
    let ms = 130.0 * (slope * (score - 1.282)).exp();
    (ms.min(HANDOVER_MS_MAX) * 1e6) as u64
}

/// Duration over which the bytes of a gap are delivered, ns.
const REPAY: u64 = 1_000_000_000;
const HANDOVER_MS_MAX: f64 = 3_000.0;
