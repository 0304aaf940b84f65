//! How far model and kernel are apart, as a table and as JSON.

use roadweave_lab::tcp::Algorithm;
use serde::Serialize;

use super::settings::{Setting, Task};
use crate::table::{bare, right_aligned};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    rows: Vec<Row>,
    /// Of all rows: the share that is apart by at most a tenth, and what half of them are apart by
    /// at most.
    within_a_tenth: f64,
    apart_median: f64,
}

/// One task.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    setting: String,
    congestion: Algorithm,
    task: String,
    /// Mbit/s for a task without an end, seconds for others.
    kernel: Figures,
    model: Figures,
    /// The model's median by the kernel's, less one.
    apart: f64,
    /// The same of the means.
    apart_mean: f64,
}

/// Figures of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    median: f64,
    mean: f64,
    least: f64,
    most: f64,
}

impl Figures {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[half],
            _ if sorted.is_empty() => 0.0,
            _ => f64::midpoint(sorted[half - 1], sorted[half]),
        };
        Self {
            median,
            mean: sorted.iter().sum::<f64>() / sorted.len().max(1) as f64,
            least: sorted.first().copied().unwrap_or_default(),
            most: sorted.last().copied().unwrap_or_default(),
        }
    }
}

impl Row {
    /// `kernel`, `model`: a figure for each round.
    pub(super) fn new(
        setting: &Setting,
        congestion: Algorithm,
        task: Task,
        kernel: &[f64],
        model: &[f64],
    ) -> Self {
        let (kernel, model) = (Figures::of(kernel), Figures::of(model));
        let apart = |model: f64, kernel: f64| model / kernel.max(f64::MIN_POSITIVE) - 1.0;
        Self {
            setting: setting.to_string(),
            congestion,
            task: task.to_string(),
            kernel,
            model,
            apart: apart(model.median, kernel.median),
            apart_mean: apart(model.mean, kernel.mean),
        }
    }
}

impl Results {
    pub(super) fn new(rows: Vec<Row>) -> Self {
        let apart: Vec<f64> = rows.iter().map(|row| row.apart.abs()).collect();
        let within = apart.iter().filter(|apart| **apart <= 0.1).count();
        Self {
            within_a_tenth: within as f64 / rows.len().max(1) as f64,
            apart_median: Figures::of(&apart).median,
            rows,
        }
    }

    /// A table for people.
    pub(super) fn in_words(&self) -> String {
        let mut table = bare();
        table.set_header([
            "link",
            "control",
            "task",
            "kernel",
            "from - to",
            "model",
            "from - to",
            "apart",
            "means",
        ]);
        for row in &self.rows {
            let span = |it: Figures| format!("{:.2} - {:.2}", it.least, it.most);
            table.add_row([
                row.setting.clone(),
                row.congestion.to_string(),
                row.task.clone(),
                format!("{:.2}", row.kernel.median),
                span(row.kernel),
                format!("{:.2}", row.model.median),
                span(row.model),
                format!("{:+.0} %", row.apart * 1e2),
                format!("{:+.0} %", row.apart_mean * 1e2),
            ]);
        }
        format!(
            "{}\nbulk: Mbit/s; others: seconds. Within 10 %: {:.0} % of {}; half of them within {:.0} %.\n",
            right_aligned(table, 3),
            self.within_a_tenth * 1e2,
            self.rows.len(),
            self.apart_median * 1e2,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_medians_of_both_are_compared() {
        let setting = super::super::settings::SETTINGS[0];
        let row = |model: &[f64]| {
            Row::new(&setting, Algorithm::Bbr, Task::Bulk, &[9.0, 10.0, 30.0], model)
        };
        let near = row(&[10.5, 10.5]);
        assert!((near.apart - 0.05).abs() < 1e-9, "{near:?}");
        assert!((near.apart_mean - (10.5 * 3.0 / 49.0 - 1.0)).abs() < 1e-9, "{near:?}");
        let results = Results::new(vec![near, row(&[5.0])]);
        assert_eq!((results.within_a_tenth, results.rows[1].apart), (0.5, -0.5));
        assert!((results.apart_median - 0.275).abs() < 1e-9);
    }
}
