//! The round trips of one network, to learn from; bounded.

use std::collections::VecDeque;

/// In order of time, in runs: the time between two runs is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Log {
    runs: VecDeque<Vec<(f64, f64)>>,
    samples: usize,
    is_over: bool,
}

impl Log {
    /// Takes a round trip and its time, seconds; `false` if it is too soon after the last one.
    pub(super) fn add(&mut self, at: f64, rtt: f64) -> bool {
        let newest = self.runs.back().and_then(|run| run.last()).filter(|_| !self.is_over);
        if newest.is_some_and(|(before, _)| at < before + SPACING) {
            return false;
        }
        if newest.is_none() {
            self.runs.push_back(Vec::new());
            self.is_over = false;
        }
        if let Some(run) = self.runs.back_mut() {
            run.push((at, rtt));
            self.samples += 1;
        }
        if self.samples > LOG_MAX + LOG_SLACK {
            self.forget(self.samples - LOG_MAX);
        }
        true
    }

    /// The next sample is of another time axis.
    pub(super) fn end_run(&mut self) {
        self.is_over = true;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.samples
    }

    /// Each `(time, round trip)` ascending by time.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[(f64, f64)]> {
        self.runs.iter().map(Vec::as_slice)
    }

    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = &[(f64, f64)]> {
        let mut surplus = self.samples.saturating_sub(count);
        self.runs().filter_map(move |run| {
            let gone = surplus.min(run.len());
            surplus -= gone;
            Some(&run[gone..]).filter(|rest| !rest.is_empty())
        })
    }

    fn forget(&mut self, mut surplus: usize) {
        while surplus > 0
            && let Some(oldest) = self.runs.front_mut()
        {
            let gone = surplus.min(oldest.len());
            oldest.drain(..gone);
            surplus -= gone;
            self.samples -= gone;
            if oldest.is_empty() {
                self.runs.pop_front();
            }
        }
    }
}

/// Three hours of one sample a second are 10,800; a minute of steady use is 600.
pub(super) const LOG_MAX: usize = 2048;
const LOG_SLACK: usize = 256;
/// The least time between two samples, seconds.
const SPACING: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_keeps_the_newest() {
        let mut log = Log::default();
        for at in 0..20_000 {
            if at % 700 == 0 {
                log.end_run();
            }
            assert!(log.add(f64::from(at), 0.05));
            assert!(log.len() <= LOG_MAX + LOG_SLACK);
        }
        let kept: Vec<f64> = log.runs().flatten().map(|(at, _)| *at).collect();
        assert_eq!(kept.len(), log.len());
        assert!(kept.len() >= LOG_MAX && kept[kept.len() - 1] == 19_999.0);
        assert!(log.runs().all(|run| !run.is_empty() && run.len() <= 700));
    }

    #[test]
    fn samples_of_one_moment_count_once() {
        let mut log = Log::default();
        let taken = [0.0, 0.01, 0.09, 0.11, 0.2, 0.22].map(|at| log.add(at, 0.05));
        assert_eq!(taken, [true, false, false, true, false, true]);
        log.end_run();
        assert!(log.add(0.0, 0.05), "another run, another clock");
        assert_eq!((log.len(), log.runs().count()), (4, 2));
    }
}
