//! Sets of offsets, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges<T = ()>(pub(crate) BTreeMap<u64, (u64, T)>);

impl<T: Copy> Ranges<T> {
    pub(crate) fn remove(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return false;
        }
        let mut any = false;
        if let Some((&before, &(before_end, value))) = self.0.range(..range.start).next_back()
            && before_end > range.start
        {
            self.0.insert(before, (range.start, value));
            if before_end > range.end {
                self.0.insert(range.end, (before_end, value));
            }
            any = true;
        }
        while let Some((&start, &(end, value))) = self.0.range(range.clone()).next() {
            self.0.remove(&start);
            if end > range.end {
                self.0.insert(range.end, (end, value));
            }
            any = true;
        }
        any
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, (end, _))| *start..*end)
    }

    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.iter().next()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((&before, &(before_end, ()))) = self.0.range(..=start).next_back()
            && before_end >= start
        {
            (start, end) = (before, end.max(before_end));
        }
        while let Some((&next, &(next_end, ()))) = self.0.range(start..=end).next() {
            end = end.max(next_end);
            self.0.remove(&next);
        }
        self.0.insert(start, (end, ()));
    }

    /// The parts of `range` that are not in the set, ascending.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        if let Some((_, &(end, ()))) = self.0.range(..=range.start).next_back() {
            at = at.max(end);
        }
        for (&start, &(end, ())) in self.0.range(range.start..range.end.max(range.start)) {
            if start > at {
                missing.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    pub(crate) fn touches(&self, range: Range<u64>) -> bool {
        self.0.range(..=range.end).next_back().is_some_and(|(_, (end, ()))| *end >= range.start)
    }

    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.0.range(..=offset).next_back().is_some_and(|(_, (end, ()))| *end > offset)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_offsets(
            steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..20_u64), 0..40),
        ) {
            let (mut ranges, mut model) = (Ranges::<()>::default(), BTreeSet::new());
            for (adds, start, length) in steps {
                let range = start..start + length;
                let touched = range.start.saturating_sub(1)..=range.end;
                let touches = touched.into_iter().any(|at| model.contains(&at));
                prop_assert_eq!(ranges.touches(range.clone()), touches);
                let missing: Vec<u64> = range.clone().filter(|at| !model.contains(at)).collect();
                let found: Vec<u64> = ranges.missing(range.clone()).into_iter().flatten().collect();
                prop_assert_eq!(found, missing);
                if adds {
                    ranges.insert(range.clone());
                    model.extend(range);
                } else {
                    let held = range.clone().any(|at| model.contains(&at));
                    prop_assert_eq!(ranges.remove(range.clone()), held);
                    model.retain(|at| !range.contains(at));
                }
                let held: BTreeSet<u64> = ranges.iter().flatten().collect();
                prop_assert_eq!(&held, &model);
                let ends: Vec<Range<u64>> = ranges.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert!((0..80).all(|at| ranges.contains(at) == model.contains(&at)));
            }
        }
    }
}
