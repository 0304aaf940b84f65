//! Rates on command lines, by the parser of all programs.

use std::ops::RangeInclusive;

use roadweave_proto::Rate;
use roadweave_terminal::rate::parse_bps;

/// Bounds of the rate of a video.
pub const VIDEO: RangeInclusive<Rate> = Rate::from_kbps(100)..=Rate::from_kbps(200_000);

/// A rate of `bounds`, as [`parse_bps`] takes it.
///
/// # Errors
/// In words for the command line: what would be right.
pub fn parse(text: &str, bounds: &RangeInclusive<Rate>) -> Result<Rate, String> {
    let bounds = bounds.start().as_bps()..=bounds.end().as_bps();
    parse_bps(text, &bounds).map(Rate::from_bps)
}

/// The rate of a video.
///
/// # Errors
/// As [`parse`].
pub fn parse_video(text: &str) -> Result<Rate, String> {
    parse(text, &VIDEO)
}
