//! The best recent value, in constant memory.

/// The best of the present window and the one before. Windows end by `rotate`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    better: fn(f64, f64) -> f64,
    present: Option<f64>,
    previous: Option<f64>,
}

impl Best {
    pub(super) fn greatest() -> Self {
        Self { better: f64::max, present: None, previous: None }
    }

    pub(super) fn least() -> Self {
        Self { better: f64::min, present: None, previous: None }
    }

    pub(super) fn update(&mut self, value: f64) {
        self.present = Some(self.present.map_or(value, |best| (self.better)(best, value)));
    }

    pub(super) fn rotate(&mut self) {
        self.previous = self.present.take();
    }

    pub(super) fn reset(&mut self, value: f64) {
        (self.present, self.previous) = (Some(value), None);
    }

    pub(super) fn get(&self) -> Option<f64> {
        match (self.present, self.previous) {
            (Some(one), Some(other)) => Some((self.better)(one, other)),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_value_stays_for_one_to_two_windows() {
        let mut filter = Best::greatest();
        assert_eq!(filter.get(), None);
        [3.0, 9.0, 5.0].into_iter().for_each(|value| filter.update(value));
        assert_eq!(filter.get(), Some(9.0));
        filter.rotate();
        filter.update(4.0);
        assert_eq!(filter.get(), Some(9.0));
        filter.rotate();
        assert_eq!(filter.get(), Some(4.0));
        filter.rotate();
        assert_eq!(filter.get(), None);
        filter.update(9.0);
        filter.rotate();
        filter.reset(7.0);
        assert_eq!(filter.get(), Some(7.0));
    }
}
