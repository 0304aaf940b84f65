//! The report of a speed test.

use std::time::Duration;

use roadweave_proto::wire::{LoadCounts, LoadDirection, TestRefusal};
use serde::{Deserialize, Serialize};

/// The state of a speed test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpeedtestState {
    /// It is under way.
    #[default]
    Running,
    /// Everything is measured.
    Done,
    /// It ended early; the report has what was measured by then.
    Failed,
}

/// The report of a speed test so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedtestReport {
    /// The state of the test.
    pub state: SpeedtestState,
    /// Why it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is being measured, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<String>,
    /// The address of the server.
    pub server: String,
    /// Bytes that the test used, about: headers are counted by a constant.
    pub used_bytes: u64,
    /// One for each uplink; then one for all together, if several were measured.
    pub rows: Vec<SpeedtestRow>,
}

/// The results of one uplink, or of all together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedtestRow {
    /// The uplink's name; `None` for all together.
    pub uplink: Option<String>,
    /// Why it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The least round trip of the seconds before the test, milliseconds.
    pub idle_rtt_ms: Option<f64>,
    /// From the server.
    pub down: Option<LoadReport>,
    /// To the server.
    pub up: Option<LoadReport>,
}

/// The results of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Bits per second of QUIC datagrams that arrived after the first quarter of the time; `None`
    /// if too few did.
    pub bps: Option<u64>,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Seconds from the first to the last of them.
    pub seconds: f64,
    /// The mean round trip under load, milliseconds, if known.
    pub loaded_rtt_ms: Option<f64>,
    /// The share that did not arrive, 0 to 1, if known.
    pub loss: Option<f64>,
    /// Whether a limit of bytes ended it early: `--limit`, or the server's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_short: bool,
}

impl LoadReport {
    pub(super) fn new(received: &LoadCounts, sent: Option<&LoadCounts>, is_short: bool) -> Self {
        let bytes = sent.map_or(received.bytes, |sent| received.bytes.min(sent.bytes));
        let (steady, micros) = match received.steady_micros >= STEADY_MIN_MICROS {
            true => (received.steady_bytes.min(bytes), received.steady_micros),
            // The first datagram starts the clock and does not count.
            false => {
                let first = bytes.checked_div(received.packets).unwrap_or(0);
                (bytes - first, received.micros)
            }
        };
        let bps = u128::from(steady) * 8_000_000 / u128::from(micros.max(1));
        let loss = |sent: &LoadCounts| {
            let lost = sent.packets.saturating_sub(received.packets);
            (sent.packets > 0).then(|| lost as f64 / sent.packets as f64)
        };
        let rtt = sent.map(|sent| sent.rtt_micros).filter(|micros| *micros > 0);
        Self {
            bps: (micros >= MIN_MICROS).then(|| u64::try_from(bps).unwrap_or(u64::MAX)),
            bytes,
            seconds: Duration::from_micros(received.micros).as_secs_f64(),
            loaded_rtt_ms: rtt.map(|micros| micros as f64 / 1e3),
            loss: sent.and_then(loss),
            is_short,
        }
    }
}

impl SpeedtestReport {
    pub(super) fn name_of(&self, row: usize, direction: LoadDirection) -> String {
        let uplink = self.rows.get(row).and_then(|row| row.uplink.as_deref());
        let direction = match direction {
            LoadDirection::Up => "up",
            LoadDirection::Down => "down",
        };
        format!("{} {direction}", uplink.unwrap_or("all together"))
    }
}

/// Why a speed test cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpeedtestError {
    /// There is no session with a server.
    #[error("there is no session with a server")]
    NoSession,
    /// Another one is under way.
    #[error("another speed test is under way")]
    UnderWay,
    /// The duration is zero or too long.
    #[error("a direction is measured for more than 0 and at most 10 seconds")]
    Duration,
    /// There is no such uplink.
    #[error("there is no uplink \"{name}\"; there are: {known}")]
    UnknownUplink {
        /// The name that was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The limit of bytes is too low.
    #[error("this many uplinks need at least {least} bytes")]
    Limit {
        /// The fewest bytes that are enough.
        least: u64,
    },
    /// All uplinks are left out.
    #[error("no uplink is left to measure: {0}")]
    NothingLeft(String),
}

pub(super) fn refusal(why: TestRefusal) -> &'static str {
    match why {
        TestRefusal::Off => {
            "the server does not allow speed tests; set [speedtest] enabled = true in its \
             configuration"
        }
        TestRefusal::UnderWay => "the server has another speed test of this client under way",
        TestRefusal::TooOften => {
            "this client has no speed tests left in this hour: speedtest.tests_per_hour in the \
             server's configuration"
        }
        TestRefusal::TooMany => "the server is measuring other clients; try again in a minute",
        TestRefusal::UnknownPath => "the server does not know this path",
        TestRefusal::Other => "the server refused the speed test without a reason",
    }
}

const MIN_MICROS: u64 = 20_000;
/// The first quarter is left out if the rest lasted this long.
const STEADY_MIN_MICROS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_after_the_beginning_and_no_word_is_believed_beyond_what_was_sent() {
        let sent = LoadCounts { packets: 1_000, bytes: 1_000_000, rtt_micros: 45_500, ..all(1) };
        let received = LoadCounts { packets: 990, steady_bytes: 750_000, ..all(990) };
        let report = LoadReport::new(&received, Some(&sent), false);
        assert_eq!(report.bps, Some(8_000_000));
        assert_eq!((report.loss, report.loaded_rtt_ms), (Some(0.01), Some(45.5)));
        let lie = LoadCounts { packets: u64::MAX, bytes: u64::MAX, ..all(u64::MAX) };
        let report = LoadReport::new(&lie, Some(&sent), false);
        assert_eq!((report.bps, report.loss), (Some(10_666_666), Some(0.0)));
        let unknown = LoadReport::new(&received, None, false);
        assert_eq!((unknown.loss, unknown.loaded_rtt_ms), (None, None));
        let nothing = LoadReport::new(&LoadCounts::default(), Some(&sent), false);
        assert_eq!((nothing.bps, nothing.loss), (None, Some(1.0)));
    }

    fn all(thousands: u64) -> LoadCounts {
        let bytes = thousands.saturating_mul(1_000);
        let (micros, steady_micros) = (1_000_000, 750_000);
        LoadCounts { bytes, micros, steady_bytes: bytes, steady_micros, ..LoadCounts::default() }
    }

    #[test]
    fn of_a_short_test_all_but_the_first_datagram_counts() {
        let received =
            LoadCounts { packets: 101, bytes: 101_000, micros: 100_000, ..LoadCounts::default() };
        assert_eq!(LoadReport::new(&received, Some(&received), true).bps, Some(8_000_000));
    }
}
