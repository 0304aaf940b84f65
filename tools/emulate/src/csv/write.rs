//! A trace as CSV, so that reading it gives the trace back.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::capacity::Capacity;
use crate::timeline::{Timeline, nanos};
use crate::trace::Trace;

/// One pass of `trace` as CSV: `t_ms,capacity_kbps,delay_ms,loss`, or with `bytes` instead of the
/// capacity if the trace has delivery opportunities.
///
/// Reading it gives an equal trace if capacity, delay and loss have the same length. With rates,
/// the last value is written twice if it would otherwise last too long or too short.
pub fn format_csv(trace: &Trace) -> String {
    let length = trace.length().map_or(CONSTANT_NANOS, nanos);
    let mut times = changes(trace, length);
    match &**trace.capacity() {
        Capacity::Opportunities(opportunities) => {
            times.extend(opportunities.iter().map(|slot| nanos(slot.0)));
            times.insert(length);
            let mut slots = opportunities.iter().peekable();
            let bytes = |text: &mut String, at| {
                let mut bytes = 0;
                while let Some((_, more)) = slots.next_if(|slot| nanos(slot.0) == at) {
                    bytes += more;
                }
                if bytes > 0 {
                    let _ = write!(text, "{bytes}");
                }
            };
            rows("t_ms,bytes,delay_ms,loss\n", trace, times, length, bytes)
        }
        Capacity::Rates(rates) => {
            // The last row lasts as long as the one before it.
            let last = times.last().copied().unwrap_or(0);
            let before = times.iter().rev().nth(1).map_or(0, |&before| last - before);
            if length - last != before && length - last > 1 {
                times.insert(last + (length - last) / 2);
            }
            let mut written = None;
            let rate = |text: &mut String, at| {
                let rate = rates.at(Duration::from_nanos(at)).as_bps();
                if written.replace(rate) != Some(rate) {
                    let _ = write!(text, "{}", rate as f64 / 1e3);
                }
            };
            rows("t_ms,capacity_kbps,delay_ms,loss\n", trace, times, length, rate)
        }
    }
}

fn rows(
    header: &str,
    trace: &Trace,
    times: BTreeSet<u64>,
    length: u64,
    mut capacity: impl FnMut(&mut String, u64),
) -> String {
    let mut text = header.to_owned();
    let (mut last_delay, mut last_loss) = (None, None);
    for nanos_at in times {
        millis(&mut text, nanos_at);
        text.push(',');
        capacity(&mut text, nanos_at);
        text.push(',');
        let at = Duration::from_nanos(nanos_at);
        let (delay, loss) = (trace.delay().at(at), trace.loss().at(at));
        if nanos_at < length && last_delay.replace(delay) != Some(delay) {
            millis(&mut text, nanos(delay));
        }
        text.push(',');
        if nanos_at < length && last_loss.replace(loss) != Some(loss) {
            let _ = write!(text, "{loss}");
        }
        text.push('\n');
    }
    text
}

/// The times in ns at which a rate, delay or loss changes within one pass, zero included.
fn changes(trace: &Trace, length: u64) -> BTreeSet<u64> {
    let mut times = BTreeSet::from([0]);
    add_changes(trace.delay(), length, &mut times);
    add_changes(trace.loss(), length, &mut times);
    if let Capacity::Rates(rates) = &**trace.capacity() {
        add_changes(rates, length, &mut times);
    }
    times
}

fn add_changes<V: Copy>(timeline: &Timeline<V>, length: u64, times: &mut BTreeSet<u64>) {
    let mut at = 0;
    while let Some(end) = timeline.span(at).end.filter(|&end| end < length) {
        times.insert(end);
        at = end;
    }
}

fn millis(text: &mut String, nanos: u64) {
    let (whole, rest) = (nanos / 1_000_000, nanos % 1_000_000);
    let _ = write!(text, "{whole}");
    if rest > 0 {
        let digits = format!("{rest:06}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
}

/// Length in ns of a constant trace.
const CONSTANT_NANOS: u64 = 1_000_000_000;
