//! A value that changes at known times.

use std::time::Duration;

use thiserror::Error;

/// Behaviour after the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The recording starts again.
    Repeat,
    /// The last value of the recording holds.
    Hold,
}

/// A value that is constant between known times, counted from the start of the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline<V> {
    /// Start in ns and value; ascending, the first at 0.
    steps: Vec<(u64, V)>,
    /// Length of a pass in ns; later than the last step.
    length: u64,
    at_end: AtEnd,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span<V> {
    pub value: V,
    /// When the next value begins, ns since the start; `None` if the value never changes.
    pub end: Option<u64>,
}

/// Why steps do not form a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimelineError {
    #[error("a timeline needs at least one value")]
    Empty,
    /// A step does not begin after the previous one, or the first step not at zero.
    #[error(
        "value {index} begins at {at:?}: the first must begin at 0 and each later than the one before"
    )]
    NotAscending {
        /// The step, from 0.
        index: usize,
        at: Duration,
    },
    #[error("the end at {length:?} must be later than the last value's begin")]
    TooShort { length: Duration },
}

impl<V: Copy> Timeline<V> {
    /// A value that never changes.
    pub fn constant(value: V) -> Self {
        Self { steps: vec![(0, value)], length: u64::MAX, at_end: AtEnd::Hold }
    }

    /// A timeline of `steps`, each a start and a value, that ends at `length`.
    pub fn new(
        steps: impl IntoIterator<Item = (Duration, V)>,
        length: Duration,
        at_end: AtEnd,
    ) -> Result<Self, TimelineError> {
        let steps: Vec<(u64, V)> = steps.into_iter().map(|(at, v)| (nanos(at), v)).collect();
        let Some(&(first, _)) = steps.first() else {
            return Err(TimelineError::Empty);
        };
        if first != 0 {
            return Err(TimelineError::NotAscending { index: 0, at: Duration::from_nanos(first) });
        }
        if let Some(index) = steps.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
            let at = Duration::from_nanos(steps[index + 1].0);
            return Err(TimelineError::NotAscending { index: index + 1, at });
        }
        if nanos(length) <= steps[steps.len() - 1].0 {
            return Err(TimelineError::TooShort { length });
        }
        Ok(Self { steps, length: nanos(length), at_end })
    }

    /// The value at `time` after the start.
    pub fn at(&self, time: Duration) -> V {
        self.span(nanos(time)).value
    }

    /// How long one pass takes; `None` if the value is constant.
    pub fn length(&self) -> Option<Duration> {
        (self.steps.len() > 1 || self.length != u64::MAX).then(|| Duration::from_nanos(self.length))
    }

    /// The values of one pass with their durations.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, V)> + '_ {
        let ends = self.steps.iter().skip(1).map(|step| step.0).chain([self.length]);
        self.steps.iter().zip(ends).map(|(&(at, v), end)| (Duration::from_nanos(end - at), v))
    }

    /// The mean of `value_of` in each `step` up to `end`, ns, above 0; the last may be shorter.
    pub(crate) fn means(&self, step: u64, end: u64, value_of: impl Fn(V) -> f64) -> Vec<f64> {
        let mut means = Vec::new();
        let mut span = self.span(0);
        let mut begin = 0;
        while begin < end {
            let next = begin.saturating_add(step).min(end);
            let (mut at, mut sum) = (begin, 0.0);
            while at < next {
                let until = span.end.unwrap_or(u64::MAX).min(next);
                sum += value_of(span.value) * (until - at) as f64;
                at = until;
                if span.end == Some(at) {
                    span = self.span(at);
                }
            }
            means.push(sum / (next - begin) as f64);
            begin = next;
        }
        means
    }

    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The value `time` ns after the start, and when it ends.
    pub(crate) fn span(&self, time: u64) -> Span<V> {
        let (pass, offset) = match self.at_end {
            AtEnd::Repeat => (time - time % self.length, time % self.length),
            AtEnd::Hold => (0, time),
        };
        let next = self.steps.partition_point(|step| step.0 <= offset);
        let end = match (self.steps.get(next), self.at_end) {
            (Some(step), _) => Some(pass.saturating_add(step.0)),
            (None, AtEnd::Repeat) => Some(pass.saturating_add(self.length)),
            (None, AtEnd::Hold) => None,
        };
        Span { value: self.steps[next - 1].1, end }
    }
}

impl<V: Copy + PartialEq> Timeline<V> {
    /// A timeline of `values` with their starts, repeated after `length`; equal neighbours merge.
    pub fn of_changes(
        values: impl IntoIterator<Item = (Duration, V)>,
        length: Duration,
    ) -> Result<Self, TimelineError> {
        let mut steps: Vec<(Duration, V)> = values.into_iter().collect();
        steps.dedup_by(|later, before| later.1 == before.1);
        Self::new(steps, length, AtEnd::Repeat)
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(at_end: AtEnd) -> Timeline<char> {
        let steps = [(0, 'a'), (10, 'b'), (15, 'c')].map(|(at, v)| (Duration::from_nanos(at), v));
        Timeline::new(steps, Duration::from_nanos(20), at_end).expect("ascending steps")
    }

    #[test]
    fn a_repeating_timeline_starts_again() {
        let timeline = timeline(AtEnd::Repeat);
        assert_eq!(timeline.span(0), Span { value: 'a', end: Some(10) });
        assert_eq!(timeline.span(19), Span { value: 'c', end: Some(20) });
        assert_eq!(timeline.span(20), Span { value: 'a', end: Some(30) });
        assert_eq!(timeline.span(52), Span { value: 'b', end: Some(55) });
    }

    #[test]
    fn a_holding_timeline_keeps_its_last_value() {
        let timeline = timeline(AtEnd::Hold);
        assert_eq!(timeline.span(10), Span { value: 'b', end: Some(15) });
        assert_eq!(timeline.span(1_000), Span { value: 'c', end: None });
    }

    #[test]
    fn means_weigh_each_value_by_its_time_over_all_passes() {
        let value_of = |letter| f64::from(u32::from(letter) - u32::from('a'));
        let repeats = timeline(AtEnd::Repeat);
        assert_eq!(repeats.means(20, 50, value_of), [0.75, 0.75, 0.0]);
        assert_eq!(repeats.means(4, 18, value_of), [0.0, 0.0, 0.5, 1.25, 2.0]);
        assert_eq!(timeline(AtEnd::Hold).means(30, 60, value_of), [35.0 / 30.0, 2.0]);
        assert_eq!(Timeline::constant('c').means(7, 10, value_of), [2.0, 2.0]);
    }

    #[test]
    fn steps_out_of_order_are_refused() {
        let ms = Duration::from_millis;
        let new = |steps: &[u64]| {
            Timeline::new(steps.iter().map(|&at| (ms(at), ())), ms(30), AtEnd::Hold).err()
        };
        assert_eq!(new(&[]), Some(TimelineError::Empty));
        assert_eq!(new(&[1]), Some(TimelineError::NotAscending { index: 0, at: ms(1) }));
        assert_eq!(new(&[0, 5, 5]), Some(TimelineError::NotAscending { index: 2, at: ms(5) }));
        assert_eq!(new(&[0, 30]), Some(TimelineError::TooShort { length: ms(30) }));
        assert_eq!(new(&[0, 29]), None);
    }
}
