//! Mahimahi's traces: one line per delivery opportunity of 1,500 bytes, its time in ms.
//!
//! Lines may repeat a time; the trace repeats without end, with the last time as its period.
//!
//! Source: mahimahi, src/frontend/link_queue.cc.

use std::time::Duration;

use crate::capacity::Opportunities;
use crate::error::TraceError;

/// The delivery opportunities that `text` lists; `file` is what errors call it.
///
/// # Errors
/// [`TraceError::Format`] with the place and what would be right there.
pub fn parse_mahimahi(file: &str, text: &str) -> Result<Opportunities, TraceError> {
    let error = |line: usize, problem: String, cure: &str| TraceError::Format {
        file: file.into(),
        line,
        column: 1,
        problem,
        cure: cure.into(),
    };
    let mut before = 0;
    let mut at = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let cell = line.trim_end();
        let ms = cell.parse::<u64>().ok().filter(|&ms| ms <= MS_MAX).ok_or_else(|| {
            let cure = "each line is the time of one delivery opportunity, in whole milliseconds";
            error(index + 1, format!("`{cell}` is no time"), cure)
        })?;
        if ms < before {
            let problem = format!("{ms} ms comes before {before} ms of the line above");
            return Err(error(index + 1, problem, "times never descend"));
        }
        before = ms;
        at.push(Duration::from_millis(ms));
    }
    let lines = at.len();
    Opportunities::new(at).ok_or_else(|| {
        let problem = if lines == 0 { "the file is empty" } else { "every time is 0" };
        error(lines.max(1), problem.into(), "the last time is the period and must be above 0")
    })
}

/// More than 30 years.
const MS_MAX: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opportunities_repeat_with_the_last_time_as_period() {
        let opportunities = parse_mahimahi("x.mm", "0\n3\n3\r\n7\n").unwrap();
        assert_eq!(opportunities.period(), Duration::from_millis(7));
    }

    #[test]
    fn errors_name_the_place_and_the_cure() {
        let check = |text: &str, expected: &str| {
            let error = parse_mahimahi("x.mm", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check("", "x.mm:1:1: the file is empty; the last time is the period");
        check("0\n0\n", "x.mm:2:1: every time is 0; the last time is the period");
        check("1\n\n2\n", "x.mm:2:1: `` is no time; each line is the time");
        check("1\n2.5\n", "x.mm:2:1: `2.5` is no time; each line");
        check("1\n-2\n", "x.mm:2:1: `-2` is no time; each line");
        check("5\n4\n", "x.mm:2:1: 4 ms comes before 5 ms of the line above; times never descend");
    }
}
