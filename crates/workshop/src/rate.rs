//! Rates as people write them.

use std::ops::RangeInclusive;

use roadweave_types::Rate;

/// Bounds of the rate of a video.
pub const VIDEO: RangeInclusive<Rate> = Rate::from_kbps(100)..=Rate::from_kbps(200_000);

/// A rate of `bounds`: 50M, 800k, 1.5G, or bits per second.
///
/// # Errors
/// In words for the command line: what would be right.
pub fn parse(text: &str, bounds: &RangeInclusive<Rate>) -> Result<Rate, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1e9),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1e6),
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        _ => (text, 1.0),
    };
    let bps = number.parse::<f64>().map_or(0.0, |number| number * unit);
    // A number that is none becomes 0, one that is too large the largest there is.
    let rate = Rate::from_bps(bps.round() as u64);
    if bounds.contains(&rate) {
        return Ok(rate);
    }
    let (least, most) = (short(*bounds.start()), short(*bounds.end()));
    Err(format!("a rate from {least} to {most} bit/s, such as 30M"))
}

/// The rate of a video.
///
/// # Errors
/// As [`parse`].
pub fn parse_video(text: &str) -> Result<Rate, String> {
    parse(text, &VIDEO)
}

/// A rate as [`parse`] takes it.
fn short(rate: Rate) -> String {
    match rate.as_bps() {
        bps if bps % 1_000_000_000 == 0 => format!("{}G", bps / 1_000_000_000),
        bps if bps % 1_000_000 == 0 => format!("{}M", bps / 1_000_000),
        bps if bps % 1_000 == 0 => format!("{}k", bps / 1_000),
        bps => bps.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        let bounds = Rate::from_kbps(100)..=Rate::from_kbps(10_000_000);
        let check = |text, bps| assert_eq!(parse(text, &bounds), Ok(Rate::from_bps(bps)), "{text}");
        check("50M", 50_000_000);
        check("1.5g", 1_500_000_000);
        check("800k", 800_000);
        check("0.5m", 500_000);
        check("2e6", 2_000_000);
        check("10G", 10_000_000_000);
        for wrong in ["", "M", "30", "-5M", "50 M", "99k", "11G", "1e99", "nan", "NaNM", "fast"] {
            let expected = "a rate from 100k to 10G bit/s, such as 30M";
            assert_eq!(parse(wrong, &bounds), Err(expected.to_owned()), "{wrong}");
        }
    }
}
