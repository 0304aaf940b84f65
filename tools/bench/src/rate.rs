//! Rates on command lines.

use std::ops::RangeInclusive;

use roadweave_proto::Rate;
use roadweave_terminal::rate::parse_bps;

pub const VIDEO: RangeInclusive<Rate> = Rate::from_kbps(100)..=Rate::from_kbps(200_000);

pub fn parse(text: &str, bounds: &RangeInclusive<Rate>) -> Result<Rate, String> {
    let bounds = bounds.start().as_bps()..=bounds.end().as_bps();
    parse_bps(text, &bounds).map(Rate::from_bps)
}

pub fn parse_video(text: &str) -> Result<Rate, String> {
    parse(text, &VIDEO)
}
