//! Recordings as CSV: `t_ms,capacity_kbps,rtt_ms,loss`.
//!
//! ```text
//! t_ms,capacity_kbps,rtt_ms,loss     values hold from their time until the next row
//! 0,52365,91.0,0                     capacity of the recorded direction
//! 100,,56.2,0                        a blank cell: unknown, the value before it stays
//! 200,39849,,1                       loss is a share of packets, 0..1
//! ```
//!
//! Columns may be in any order, and all but `t_ms` may be absent. What is never known takes its
//! value from [`Unknown`]; what becomes known later has its first known value from the start.
//! Empty lines and lines that begin with `#` are skipped. When a recording is over, it starts
//! again; its last row lasts as long as the row before it.

use std::time::Duration;

use roadweave_types::Rate;

use crate::capacity::Capacity;
use crate::error::TraceError;
use crate::timeline::{AtEnd, Timeline};
use crate::trace::Trace;

/// The values of what a recording says nothing about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unknown {
    /// Capacity: 20 Mbit/s by default.
    pub capacity: Rate,
    /// Round-trip time of the idle link: 50 ms by default.
    pub rtt: Duration,
    /// Share of packets lost, 0..=1: none by default.
    pub loss: f64,
}

impl Default for Unknown {
    fn default() -> Self {
        Self { capacity: Rate::from_kbps(20_000), rtt: Duration::from_millis(50), loss: 0.0 }
    }
}

impl Unknown {
    /// The link that never changes and has these values.
    pub fn trace(&self) -> Trace {
        Trace::constant(self.capacity, self.rtt / 2).with_loss(Timeline::constant(self.loss))
    }
}

/// The trace that `text` describes; `file` is what errors call it.
///
/// # Errors
/// [`TraceError::Format`] with the place and what would be right there.
pub fn parse_csv(file: &str, text: &str, unknown: Unknown) -> Result<Trace, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let at = |line: usize| Place { file, line: line + 1, column: 1 };
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
        let time = (row[TIME].unwrap_or(0.0) * 1e6) as u64;
        if times.last().is_some_and(|&before| time <= before) {
            let place = Place { column: header.column_of(TIME, line), ..at(number) };
            let problem = "the time is not later than that of the row before".into();
            return Err(place.error(problem, "t_ms ascends from row to row"));
        }
        times.push(time);
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    if times.is_empty() {
        return Err(at(last + 1).error("no row follows the header".into(), "each row is a time"));
    }
    build(&times, &columns, unknown)
}

fn build(
    times: &[u64],
    columns: &[Vec<Option<f64>>; FIELDS.len()],
    unknown: Unknown,
) -> Result<Trace, TraceError> {
    let rates =
        timeline(times, &columns[CAPACITY], |kbps| Rate::from_bps((kbps * 1e3).round() as u64))?;
    let delay =
        timeline(times, &columns[RTT], |ms| Duration::from_nanos((ms * 1e6 / 2.0).round() as u64))?;
    let loss = timeline(times, &columns[LOSS], |share| share)?;
    Ok(Trace::new(
        Capacity::Rates(rates.unwrap_or_else(|| Timeline::constant(unknown.capacity))),
        delay.unwrap_or_else(|| Timeline::constant(unknown.rtt / 2)),
        loss.unwrap_or_else(|| Timeline::constant(unknown.loss)),
    ))
}

/// The timeline of one column; `None` when nothing of it is known.
fn timeline<V: Copy + PartialEq>(
    times: &[u64],
    column: &[Option<f64>],
    value_of: impl Fn(f64) -> V,
) -> Result<Option<Timeline<V>>, TraceError> {
    let known = times.iter().zip(column).filter_map(|(&at, cell)| Some((at, value_of((*cell)?))));
    let mut steps: Vec<(Duration, V)> = Vec::new();
    for (at, value) in known {
        match steps.last() {
            None => steps.push((Duration::ZERO, value)),
            Some(&(_, before)) if before == value => {}
            Some(_) => steps.push((Duration::from_nanos(at), value)),
        }
    }
    if steps.is_empty() {
        return Ok(None);
    }
    let last_step = match times {
        [.., before, last] => last - before,
        _ => LONE_ROW_NANOS,
    };
    let length = Duration::from_nanos(times[times.len() - 1] + last_step);
    Ok(Some(Timeline::new(steps, length, AtEnd::Repeat)?))
}

/// Where each known column stands in a row.
struct Header {
    /// For each of [`FIELDS`]: the number of its cell.
    cells: [Option<usize>; FIELDS.len()],
    count: usize,
}

impl Header {
    fn parse(place: Place<'_>, line: &str) -> Result<Self, TraceError> {
        let mut cells = [None; FIELDS.len()];
        let names: Vec<&str> = line.split(',').collect();
        for (index, name) in names.iter().enumerate() {
            let place = Place { column: column_of(line, index), ..place };
            let Some(field) = FIELDS.iter().position(|field| field.name == name.trim()) else {
                let problem = format!("unknown column `{}`", name.trim());
                return Err(place.error(problem, HEADER_CURE));
            };
            if cells[field].replace(index).is_some() {
                return Err(place.error(format!("column `{}` twice", name.trim()), HEADER_CURE));
            }
        }
        if cells[TIME].is_none() {
            return Err(place.error("no column `t_ms`".into(), HEADER_CURE));
        }
        Ok(Self { cells, count: names.len() })
    }

    fn row(&self, place: Place<'_>, line: &str) -> Result<[Option<f64>; FIELDS.len()], TraceError> {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != self.count {
            let column = column_of(line, self.count.min(cells.len()));
            let problem = format!("{} cells", cells.len());
            let cure = format!("the header has {} columns; leave unknown cells blank", self.count);
            return Err(Place { column, ..place }.error(problem, &cure));
        }
        let mut row = [None; FIELDS.len()];
        for (field, index) in self.cells.iter().enumerate() {
            let Some(index) = *index else { continue };
            let place = Place { column: column_of(line, index), ..place };
            row[field] = FIELDS[field].parse(place, cells[index].trim())?;
        }
        Ok(row)
    }

    fn column_of(&self, field: usize, line: &str) -> usize {
        self.cells[field].map_or(1, |index| column_of(line, index))
    }
}

/// A column: its name and what is right in it.
struct Field {
    name: &'static str,
    max: f64,
    may_be_blank: bool,
    cure: &'static str,
}

impl Field {
    fn parse(&self, place: Place<'_>, cell: &str) -> Result<Option<f64>, TraceError> {
        if cell.is_empty() && self.may_be_blank {
            return Ok(None);
        }
        match cell.parse::<f64>() {
            Ok(value) if (0.0..=self.max).contains(&value) => Ok(Some(value)),
            _ => Err(place.error(format!("`{cell}` is no {}", self.name), self.cure)),
        }
    }
}

#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    line: usize,
    column: usize,
}

impl Place<'_> {
    fn error(self, problem: String, cure: &str) -> TraceError {
        let Self { file, line, column } = self;
        TraceError::Format { file: file.into(), line, column, problem, cure: cure.into() }
    }
}

/// The column, from 1, at which cell `index` of `line` begins.
fn column_of(line: &str, index: usize) -> usize {
    let before: usize = line.split(',').take(index).map(|cell| cell.chars().count() + 1).sum();
    before + 1
}

const TIME: usize = 0;
const CAPACITY: usize = 1;
const RTT: usize = 2;
const LOSS: usize = 3;
const FIELDS: [Field; 4] = [
    Field {
        name: "t_ms",
        max: 1e12,
        may_be_blank: false,
        cure: "the time is a number of milliseconds from 0 to 1e12",
    },
    Field {
        name: "capacity_kbps",
        max: 1e9,
        may_be_blank: true,
        cure: "the capacity is a number of kbit/s from 0 to 1e9, or blank when unknown",
    },
    Field {
        name: "rtt_ms",
        max: 1e6,
        may_be_blank: true,
        cure: "the round-trip time is a number of milliseconds from 0 to 1e6, or blank when unknown",
    },
    Field {
        name: "loss",
        max: 1.0,
        may_be_blank: true,
        cure: "the loss is a share of packets from 0 to 1, or blank when unknown",
    },
];
const HEADER_CURE: &str = "the first line names the columns: t_ms,capacity_kbps,rtt_ms,loss";
/// How long the only row of a file lasts, ns.
const LONE_ROW_NANOS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, String> {
        parse_csv("x.csv", text, Unknown::default()).map_err(|error| error.to_string())
    }

    fn rates(trace: &Trace) -> &Timeline<Rate> {
        match &**trace.capacity() {
            Capacity::Rates(rates) => rates,
            Capacity::Opportunities(_) => panic!("CSV holds rates"),
        }
    }

    #[test]
    fn rows_hold_until_the_next_and_then_start_again() {
        let trace = parse("t_ms,capacity_kbps,rtt_ms,loss\n0,1000,50,0\n100,2000,60,1\n").unwrap();
        let at = |ms| (rates(&trace).at(ms), trace.delay().at(ms), trace.loss().at(ms));
        let ms = Duration::from_millis;
        assert_eq!(at(ms(99)), (Rate::from_kbps(1_000), ms(25), 0.0));
        assert_eq!(at(ms(199)), (Rate::from_kbps(2_000), ms(30), 1.0));
        assert_eq!(at(ms(200)), (Rate::from_kbps(1_000), ms(25), 0.0));
    }

    #[test]
    fn blank_cells_keep_the_last_value_and_the_first_known_counts_from_the_start() {
        let trace = parse("t_ms,rtt_ms,capacity_kbps\n50,,8\n100,40,\n150,,16\n").unwrap();
        let ms = Duration::from_millis;
        assert_eq!(trace.delay().at(ms(0)), ms(20));
        assert_eq!(rates(&trace).at(ms(0)), Rate::from_kbps(8));
        assert_eq!(rates(&trace).at(ms(149)), Rate::from_kbps(8));
        assert_eq!(rates(&trace).at(ms(150)), Rate::from_kbps(16));
        assert_eq!(trace.length(), Some(ms(200)));
    }

    #[test]
    fn absent_columns_have_their_default() {
        let trace = parse("# walked\n\nt_ms\r\n0\r\n1000\r\n").unwrap();
        assert_eq!(*trace.capacity().as_ref(), Capacity::constant(Rate::from_kbps(20_000)));
        assert_eq!(trace.delay().at(Duration::ZERO), Duration::from_millis(25));
        assert_eq!(trace.loss().at(Duration::ZERO), 0.0);
    }

    #[test]
    fn errors_name_the_place_and_the_cure() {
        let check = |text: &str, place: &str, words: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("x.csv:{place}: ")), "{error}");
            assert!(error.contains(words), "{error}");
        };
        check("", "1:1", "the file is empty");
        check("t_ms,speed\n0,1", "1:6", "unknown column `speed`; the first line names");
        check("loss\n0", "1:1", "no column `t_ms`");
        check("t_ms,loss,loss\n", "1:11", "column `loss` twice");
        check("t_ms,loss\n", "2:1", "no row");
        check("t_ms,loss\n0,0\n0,0", "3:1", "not later");
        check("loss,t_ms\n0,5\n\n0.5,4", "4:5", "not later");
        check("t_ms,loss\n0,0\n9,1.5", "3:3", "`1.5` is no loss; the loss is a share");
        check("t_ms,capacity_kbps\n0,-1", "2:3", "`-1` is no capacity_kbps");
        check("t_ms,rtt_ms\n0,NaN", "2:3", "`NaN` is no rtt_ms");
        check("t_ms,rtt_ms\n,5", "2:1", "`` is no t_ms");
        check("t_ms,rtt_ms\n0,5,6", "2:5", "3 cells; the header has 2 columns");
        check("t_ms,rtt_ms\n0", "2:3", "1 cells");
    }
}
