//! Recordings as CSV; docs/traces.md describes the format for users.
//!
//! ```text
//! t_ms,capacity_kbps,rtt_ms,loss     values hold from their time until the next row
//! 0,52365,91.0,0                     capacity of the recorded direction
//! 100,,56.2,0                        a blank cell: unknown, the previous value holds
//! 200,39849,,1                       loss is a share of packets, 0..1
//!
//! t_ms,bytes,delay_ms,loss           the same as `roadweave record` measures it
//! 0,,21.4,0.01                       one-way delay instead of the round trip
//! 3,2800,,                           a delivery opportunity: 2,800 bytes may leave at 3 ms
//! 5000,,,                            the last row only ends the recording
//! ```
//!
//! Columns may be in any order, and all but `t_ms` may be absent. A column without values takes its
//! default: 20 Mbit/s, [`UNKNOWN_RTT`], no loss. A first known value also holds before its time.
//! Empty lines and lines that begin with `#` are skipped. A recording repeats; its last row lasts
//! as long as the row before it, unless there is a column `bytes`.

mod write;

pub use write::format_csv;

use std::time::Duration;

use roadweave_proto::Rate;

use crate::capacity::{Capacity, Opportunities};
use crate::drive::Drive;
use crate::error::TraceError;
use crate::timeline::Timeline;
use crate::trace::Trace;

/// The round-trip time of recordings that lack it.
pub const UNKNOWN_RTT: Duration = Duration::from_millis(50);

/// Parses the trace in `text`, of a link with the round-trip time `rtt` unless it has one; errors
/// name `file`.
pub fn parse_csv(file: &str, text: &str, rtt: Duration) -> Result<Trace, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let at = |line: usize| Location { file, line: line + 1, column: 1 };
    let Some((number, header)) = lines.next() else {
        return Err(at(0).error("the file is empty".into(), HEADER_CURE));
    };
    let header = Header::parse(at(number), header.trim_start_matches('\u{feff}'))?;

    let mut times: Vec<u64> = Vec::new();
    let mut columns: [Vec<Option<f64>>; FIELDS.len()] = Default::default();
    let mut last = 0;
    for (number, line) in lines {
        last = number;
        let row = header.row(at(number), line)?;
        let time = (row[TIME].unwrap_or(0.0) * 1e6).round() as u64;
        if times.last().is_some_and(|&before| time <= before) {
            let location = Location { column: header.column_of(TIME, line), ..at(number) };
            let problem = "the time is not later than in the row before".into();
            return Err(location.error(problem, "t_ms ascends from row to row"));
        }
        times.push(time);
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    if times.is_empty() {
        return Err(
            at(last + 1).error("no rows after the header".into(), "each row is a point in time")
        );
    }
    let has_bytes = header.cells[BYTES].is_some();
    if has_bytes && times[times.len() - 1] == 0 {
        let problem = "the last row is at 0".into();
        return Err(
            at(last).error(problem, "with a column `bytes` the last row ends the recording")
        );
    }
    if length(&times, has_bytes) < PERIOD_NANOS_MIN {
        let problem = "the recording is shorter than a millisecond".into();
        return Err(at(last).error(problem, "t_ms counts milliseconds; at least 1 is needed"));
    }
    build(&times, &columns, has_bytes, rtt)
}

fn build(
    times: &[u64],
    columns: &[Vec<Option<f64>>; FIELDS.len()],
    has_bytes: bool,
    unknown_rtt: Duration,
) -> Result<Trace, TraceError> {
    let length = length(times, has_bytes);
    let rates = timeline(times, length, &columns[CAPACITY], |kbps| {
        Rate::from_bps((kbps * 1e3).round() as u64)
    })?;
    let one_way = |ms: f64| Duration::from_nanos((ms * 1e6).round() as u64);
    let rtt = timeline(times, length, &columns[RTT], |ms| one_way(ms / 2.0))?;
    let delay = timeline(times, length, &columns[DELAY], one_way)?;
    let loss = timeline(times, length, &columns[LOSS], |share| share)?;
    let capacity = match opportunities(times, length, &columns[BYTES]).filter(|_| has_bytes) {
        Some(opportunities) => Capacity::Opportunities(opportunities),
        None => Capacity::Rates(rates.unwrap_or_else(|| Timeline::constant(Drive::DOWNLINK))),
    };
    Ok(Trace::new(
        capacity,
        delay.or(rtt).unwrap_or_else(|| Timeline::constant(unknown_rtt / 2)),
        loss.unwrap_or_else(|| Timeline::constant(0.0)),
    ))
}

fn length(times: &[u64], last_row_ends: bool) -> u64 {
    match times {
        [.., last] if last_row_ends => *last,
        [.., before, last] => last + (last - before),
        _ => times[0] + LONE_ROW_NANOS,
    }
}

fn opportunities(times: &[u64], length: u64, column: &[Option<f64>]) -> Option<Opportunities> {
    let slots = times.iter().zip(column).filter_map(|(&at, cell)| {
        let bytes = (*cell)?.round() as u64;
        Some((Duration::from_nanos(at), bytes))
    });
    Opportunities::with_bytes(slots, Duration::from_nanos(length))
}

fn timeline<V: Copy + PartialEq>(
    times: &[u64],
    length: u64,
    column: &[Option<f64>],
    value_of: impl Fn(f64) -> V,
) -> Result<Option<Timeline<V>>, TraceError> {
    let known = times.iter().zip(column).filter(|(at, _)| **at < length);
    let known =
        known.filter_map(|(&at, cell)| Some((Duration::from_nanos(at), value_of((*cell)?))));
    let mut known: Vec<(Duration, V)> = known.collect();
    let Some(first) = known.first_mut() else { return Ok(None) };
    first.0 = Duration::ZERO;
    Ok(Some(Timeline::of_changes(known, Duration::from_nanos(length))?))
}

struct Header {
    /// By field: the index of its cell.
    cells: [Option<usize>; FIELDS.len()],
    count: usize,
}

impl Header {
    fn parse(location: Location<'_>, line: &str) -> Result<Self, TraceError> {
        let mut cells = [None; FIELDS.len()];
        let names: Vec<&str> = line.split(',').collect();
        for (index, name) in names.iter().enumerate() {
            let location = Location { column: column_of(line, index), ..location };
            let Some(field) = FIELDS.iter().position(|field| field.name == name.trim()) else {
                let problem = format!("unknown column `{}`", name.trim());
                return Err(location.error(problem, HEADER_CURE));
            };
            if cells[field].replace(index).is_some() {
                return Err(location.error(format!("column `{}` twice", name.trim()), HEADER_CURE));
            }
        }
        if cells[TIME].is_none() {
            return Err(location.error("no column `t_ms`".into(), HEADER_CURE));
        }
        for (one, other) in [(CAPACITY, BYTES), (RTT, DELAY)] {
            if let (Some(first), Some(second)) = (cells[one], cells[other]) {
                let location = Location { column: column_of(line, first.max(second)), ..location };
                let names = (FIELDS[one].name, FIELDS[other].name);
                let problem = format!("both `{}` and `{}`", names.0, names.1);
                return Err(location.error(problem, "a recording has one of the two"));
            }
        }
        Ok(Self { cells, count: names.len() })
    }

    fn row(
        &self,
        location: Location<'_>,
        line: &str,
    ) -> Result<[Option<f64>; FIELDS.len()], TraceError> {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != self.count {
            let column = column_of(line, self.count.min(cells.len()));
            let problem = format!("{} cells", cells.len());
            let cure = format!("the header has {} columns; leave unknown cells blank", self.count);
            return Err(Location { column, ..location }.error(problem, &cure));
        }
        let mut row = [None; FIELDS.len()];
        for (field, index) in self.cells.iter().enumerate() {
            let Some(index) = *index else { continue };
            let location = Location { column: column_of(line, index), ..location };
            let cell = cells[index].trim();
            if !cell.is_empty() || field == TIME {
                row[field] = Some(FIELDS[field].parse(location, cell)?);
            }
        }
        Ok(row)
    }

    fn column_of(&self, field: usize, line: &str) -> usize {
        self.cells[field].map_or(1, |index| column_of(line, index))
    }
}

struct Field {
    name: &'static str,
    max: f64,
    cure: &'static str,
}

impl Field {
    fn parse(&self, location: Location<'_>, cell: &str) -> Result<f64, TraceError> {
        match cell.parse::<f64>() {
            Ok(value) if (0.0..=self.max).contains(&value) => Ok(value),
            _ => Err(location.error(format!("`{cell}` is not a valid {}", self.name), self.cure)),
        }
    }
}

#[derive(Clone, Copy)]
struct Location<'a> {
    file: &'a str,
    line: usize,
    column: usize,
}

impl Location<'_> {
    fn error(self, problem: String, cure: &str) -> TraceError {
        let Self { file, line, column } = self;
        TraceError::Format { file: file.into(), line, column, problem, cure: cure.into() }
    }
}

fn column_of(line: &str, index: usize) -> usize {
    let before: usize = line.split(',').take(index).map(|cell| cell.chars().count() + 1).sum();
    before + 1
}

const TIME: usize = 0;
const CAPACITY: usize = 1;
const RTT: usize = 2;
const LOSS: usize = 3;
const BYTES: usize = 4;
const DELAY: usize = 5;
const FIELDS: [Field; 6] = [
    Field { name: "t_ms", max: 1e12, cure: "the time is a number of milliseconds from 0 to 1e12" },
    Field {
        name: "capacity_kbps",
        max: 1e9,
        cure: "the capacity is a number of kbit/s from 0 to 1e9, or blank when unknown",
    },
    Field {
        name: "rtt_ms",
        max: 1e6,
        cure: "the round-trip time is a number of milliseconds from 0 to 1e6, or blank when unknown",
    },
    Field {
        name: "loss",
        max: 1.0,
        cure: "the loss is a share of packets from 0 to 1, or blank when unknown",
    },
    Field {
        name: "bytes",
        max: 1e9,
        cure: "the bytes that may leave at that time are a number from 0 to 1e9, or blank for none",
    },
    Field {
        name: "delay_ms",
        max: 1e6,
        cure: "the one-way delay is a number of milliseconds from 0 to 1e6, or blank when unknown",
    },
];
const HEADER_CURE: &str =
    "the first line names the columns: t_ms,capacity_kbps,rtt_ms,loss or t_ms,bytes,delay_ms,loss";
/// The shortest recording, since each pass costs work.
const PERIOD_NANOS_MIN: u64 = 1_000_000;
const LONE_ROW_NANOS: u64 = 100_000_000;

#[cfg(test)]
mod tests;
