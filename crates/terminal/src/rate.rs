//! Rates on command lines, the same in every program.

use std::ops::RangeInclusive;

/// A rate within `bounds`, bit/s: 50M, 800k, 1.5G. A plain number is Mbit/s below 100000, else
/// bit/s. The error states the bounds.
pub fn parse_bps(text: &str, bounds: &RangeInclusive<u64>) -> Result<u64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'G' | b'g') => (&text[..text.len() - 1], Some(1e9)),
        Some(b'M' | b'm') => (&text[..text.len() - 1], Some(1e6)),
        Some(b'k' | b'K') => (&text[..text.len() - 1], Some(1e3)),
        _ => (text, None),
    };
    let number: f64 = number.parse().unwrap_or(0.0);
    let unit = unit.unwrap_or(if number < BITS_FROM { 1e6 } else { 1.0 });
    // Not a number becomes 0, too large a number the maximum.
    let bps = (number * unit).round() as u64;
    if bounds.contains(&bps) {
        return Ok(bps);
    }
    let (least, most) = (short(*bounds.start()), short(*bounds.end()));
    Err(format!("a rate from {least} to {most} bit/s, such as 8M; 30 alone is 30M"))
}

fn short(bps: u64) -> String {
    match bps {
        _ if bps.is_multiple_of(1_000_000_000) => format!("{}G", bps / 1_000_000_000),
        _ if bps.is_multiple_of(1_000_000) => format!("{}M", bps / 1_000_000),
        _ if bps.is_multiple_of(1_000) => format!("{}k", bps / 1_000),
        _ => bps.to_string(),
    }
}

/// No user has links of 100 Gbit/s, or of 99 kbit/s.
const BITS_FROM: f64 = 100e3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit_or_is_of_megabits() {
        let bounds = 100_000..=10_000_000_000;
        let check = |text, bps| assert_eq!(parse_bps(text, &bounds), Ok(bps), "{text}");
        check("50M", 50_000_000);
        check("1.5g", 1_500_000_000);
        check("800k", 800_000);
        check("0.5m", 500_000);
        check("10G", 10_000_000_000);
        check("2.5", 2_500_000);
        check("0.1", 100_000);
        check("10000", 10_000_000_000);
        check("100000", 100_000);
        check("2e6", 2_000_000);
        let expected = "a rate from 100k to 10G bit/s, such as 8M; 30 alone is 30M";
        for wrong in [
            "", "M", "0", "0.05", "-5M", "50 M", "99k", "11G", "99999", "1e99", "nan", "NaNM",
            "fast",
        ] {
            assert_eq!(parse_bps(wrong, &bounds), Err(expected.to_owned()), "{wrong}");
        }
    }
}
