//! The statistics of both ends; the caller supplies the time.

pub mod delays;
pub mod received;
pub mod sent;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportSpan {
    Second,
    Whole,
}

fn bps(bytes: u64, seconds: f64) -> u64 {
    (bytes as f64 * 8.0 / seconds.max(1e-3)) as u64
}

/// Rounded for people and files.
pub fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
