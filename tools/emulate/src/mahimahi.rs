//! Mahimahi's traces: one line per delivery opportunity of 1,500 bytes, its time in ms.
//!
//! Times may repeat; the trace repeats after the last time. The format has neither delay nor loss.
//!
//! Source: mahimahi, src/frontend/link_queue.cc.

use std::fmt::Write as _;
use std::time::Duration;

use crate::capacity::{Capacity, Opportunities};
use crate::error::TraceError;
use crate::timeline::nanos;
use crate::trace::Trace;

/// Parses the delivery opportunities in `text`; errors name `file`.
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
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let cell = line.trim_end();
        let ms = cell.parse::<u64>().ok().filter(|&ms| ms <= MS_MAX).ok_or_else(|| {
            let cure = "each line is the time of one delivery opportunity, in whole milliseconds";
            error(index + 1, format!("`{cell}` is not a time"), cure)
        })?;
        if ms < before {
            let problem = format!("{ms} ms is before {before} ms in the line above");
            return Err(error(index + 1, problem, "times must not decrease"));
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

/// One pass of the capacity of `trace` in Mahimahi's format.
///
/// An opportunity is written at the first whole ms at which its bytes are available, and one at the
/// end, which is the period: up to [`Opportunities::BYTES`] more than the trace has.
pub fn format_mahimahi(trace: &Trace) -> String {
    let length = trace.one_pass();
    let mut lines = TraceLines::default();
    match &**trace.capacity() {
        Capacity::Opportunities(opportunities) => {
            for (at, bytes) in opportunities.until(length) {
                lines.fill(nanos(at), bytes);
            }
        }
        Capacity::Rates(rates) => {
            let (mut at, end) = (0, nanos(length));
            while at < end {
                let span = rates.span(at);
                let until = span.end.unwrap_or(end).min(end);
                lines.flow(at, until, span.value.as_bps());
                at = until;
            }
        }
    }
    lines.finish(nanos(length))
}

#[derive(Debug, Default)]
struct TraceLines {
    text: String,
    ms: u64,
    /// The budget since the last opportunity, in bit/s x ns.
    gathered: u128,
}

impl TraceLines {
    fn fill(&mut self, at: u64, bytes: u64) {
        self.gathered += u128::from(bytes) * 8 * NANOS;
        while self.gathered >= OPPORTUNITY {
            self.gathered -= OPPORTUNITY;
            self.add(at.div_ceil(NANOS_PER_MS));
        }
    }

    fn flow(&mut self, from: u64, until: u64, bps: u64) {
        let before = self.gathered;
        let all = before + u128::from(until - from) * u128::from(bps);
        for number in 1..=all / OPPORTUNITY {
            let takes = (number * OPPORTUNITY - before).div_ceil(u128::from(bps));
            let at = from.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
            self.add(at.div_ceil(NANOS_PER_MS));
        }
        self.gathered = all % OPPORTUNITY;
    }

    fn add(&mut self, ms: u64) {
        self.ms = ms;
        let _ = writeln!(self.text, "{ms}");
    }

    fn finish(mut self, length: u64) -> String {
        let end = length.div_ceil(NANOS_PER_MS);
        if self.text.is_empty() || self.ms < end || self.gathered > 0 {
            self.add(end);
        }
        self.text
    }
}

const NANOS: u128 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;
/// One opportunity, in bit/s x ns.
const OPPORTUNITY: u128 = Opportunities::BYTES as u128 * 8 * NANOS;
/// More than 30 years.
const MS_MAX: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use roadweave_proto::Rate;

    use super::*;
    use crate::timeline::{AtEnd, Timeline};

    fn written(trace: &Trace) -> Vec<u64> {
        format_mahimahi(trace).lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_written_reads_as_the_same_opportunities() {
        let opportunities = parse_mahimahi("x.mm", "\u{feff}0\n3\n3\r\n7\n").unwrap();
        assert_eq!(opportunities.period(), Duration::from_millis(7));
        let capacity = Capacity::Opportunities(opportunities);
        let trace = Trace::constant(Rate::ZERO, Duration::ZERO).with_capacity(capacity);
        assert_eq!(format_mahimahi(&trace), "0\n3\n3\n7\n");
    }

    #[test]
    fn rates_become_opportunities_as_soon_as_their_bytes_are_there() {
        let ms = Duration::from_millis;
        // 1,500 bytes in 12 ms, then in 1.2 ms, then none.
        let rates = [(0, 1_000), (18, 10_000), (21, 0)].map(|(at, r)| (ms(at), Rate::from_kbps(r)));
        let rates = Timeline::new(rates, ms(40), AtEnd::Repeat).unwrap();
        let trace = Trace::constant(Rate::ZERO, ms(1)).with_capacity(Capacity::Rates(rates));
        // Half of an opportunity is available at 18 ms; the last one is the end and has the rest.
        assert_eq!(written(&trace), [12, 19, 20, 21, 40]);
    }

    #[test]
    fn other_opportunities_are_gathered_and_silence_has_one_at_its_end() {
        let ms = Duration::from_millis;
        let slots = [(1, 1_400), (2, 3_100), (9, 10)].map(|(at, bytes)| (ms(at), bytes));
        let slots = Opportunities::with_bytes(slots, Duration::from_micros(9_500)).unwrap();
        let trace =
            Trace::constant(Rate::ZERO, ms(1)).with_capacity(Capacity::Opportunities(slots));
        assert_eq!(written(&trace), [2, 2, 2, 10]);
        assert_eq!(written(&Trace::constant(Rate::ZERO, ms(1))), [1_000]);
    }

    #[test]
    fn errors_name_the_place_and_the_cure() {
        let check = |text: &str, expected: &str| {
            let error = parse_mahimahi("x.mm", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check("", "x.mm:1:1: the file is empty; the last time is the period");
        check("0\n0\n", "x.mm:2:1: every time is 0; the last time is the period");
        check("1\n\n2\n", "x.mm:2:1: `` is not a time; each line is the time");
        check("1\n2.5\n", "x.mm:2:1: `2.5` is not a time; each line");
        check("1\n-2\n", "x.mm:2:1: `-2` is not a time; each line");
        check("5\n4\n", "x.mm:2:1: 4 ms is before 5 ms in the line above; times must not decrease");
    }
}
