//! What a speed test has to tell.

use std::time::Duration;

use roadweave_proto::wire::{LoadCounts, LoadDirection, TestRefusal};
use serde::{Deserialize, Serialize};

/// How a speed test goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpeedtestState {
    /// It is under way.
    #[default]
    Running,
    /// All is measured.
    Done,
    /// It ended before that; what was measured by then is told.
    Failed,
}

/// A speed test: what is measured so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedtestReport {
    /// Whether it is over.
    pub state: SpeedtestState,
    /// Why it ended too early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is being measured, for a person to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<String>,
    /// The address of the server.
    pub server: String,
    /// Bytes that it has taken, about: headers are counted by a constant.
    pub used_bytes: u64,
    /// An uplink each; then all together, if several were measured.
    pub rows: Vec<SpeedtestRow>,
}

/// What is measured of an uplink, or of all together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedtestRow {
    /// The uplink; without one these are all that were measured, together.
    pub uplink: Option<String>,
    /// Why it is not measured, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The least round trip of the seconds before the test, milliseconds.
    pub idle_rtt_ms: Option<f64>,
    /// From the server.
    pub down: Option<LoadReport>,
    /// To the server.
    pub up: Option<LoadReport>,
}

/// What one direction carried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Bits a second that arrived, QUIC datagrams as they are, after the first quarter of the time;
    /// `None` if too little came to tell.
    pub bps: Option<u64>,
    /// Bytes that arrived.
    pub bytes: u64,
    /// From the first to the last of them.
    pub seconds: f64,
    /// The mean round trip of packets meanwhile, milliseconds, if it is known.
    pub loaded_rtt_ms: Option<f64>,
    /// The share that did not arrive, 0 to 1, if it is known.
    pub loss: Option<f64>,
    /// Whether bytes have ended it before its time: `--limit`, or the server's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_short: bool,
}

impl LoadReport {
    /// Of what was `received` of what was `sent`; neither is believed to be more than the other
    /// allows.
    pub(super) fn new(received: &LoadCounts, sent: Option<&LoadCounts>, is_short: bool) -> Self {
        let bytes = sent.map_or(received.bytes, |sent| received.bytes.min(sent.bytes));
        let (steady, micros) = match received.steady_micros >= STEADY_MIN_MICROS {
            true => (received.steady_bytes.min(bytes), received.steady_micros),
            // What came first has begun the time, and is no part of it.
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
    /// What a step measures.
    pub(super) fn name_of(&self, row: usize, direction: LoadDirection) -> String {
        let uplink = self.rows.get(row).and_then(|row| row.uplink.as_deref());
        let direction = match direction {
            LoadDirection::Up => "up",
            LoadDirection::Down => "down",
        };
        format!("{} {direction}", uplink.unwrap_or("all together"))
    }
}

/// Why no speed test begins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpeedtestError {
    /// The client is with no server.
    #[error("there is no session with a server")]
    NoSession,
    /// One is under way.
    #[error("another speed test is under way")]
    UnderWay,
    /// It would take too long, or no time.
    #[error("a direction is measured for more than 0 and at most 10 seconds")]
    Duration,
    /// There is no such uplink.
    #[error("there is no uplink \"{name}\"; there are: {known}")]
    UnknownUplink {
        /// The name that was given.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// It may take too few bytes.
    #[error("so many uplinks are not measured with less than {least} bytes")]
    Limit {
        /// The fewest bytes for them.
        least: u64,
    },
    /// All uplinks are left out.
    #[error("no uplink is left to measure: {0}")]
    NothingLeft(String),
}

/// What a person is told of a server that grants no test.
pub(super) fn refusal(why: TestRefusal) -> &'static str {
    match why {
        TestRefusal::Off => {
            "the server allows no speed tests; its configuration may: [speedtest] enabled = true"
        }
        TestRefusal::UnderWay => "the server has another speed test of this client under way",
        TestRefusal::TooOften => {
            "the server allows no more speed tests of this client in this hour: \
             speedtest.tests_per_hour of its configuration"
        }
        TestRefusal::TooMany => "the server measures others now; ask again in a minute",
        TestRefusal::UnknownPath => "the server knows no such path",
        TestRefusal::Other => "the server refuses the speed test and does not say why",
    }
}

/// A rate over less time says nothing.
const MIN_MICROS: u64 = 20_000;
/// What came after the first quarter counts alone if it took as long.
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

    /// So many thousand bytes in a second, of which the last three quarters count.
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
