//! Durations on command lines.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A number of seconds within `bounds`, such as 12.5. The error states the bounds.
pub fn parse_seconds(text: &str, bounds: &RangeInclusive<f64>) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| bounds.contains(seconds));
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let (least, most) = (bounds.start(), bounds.end());
    seconds.ok_or_else(|| format!("{least} to {most} seconds, such as 12.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_refused_with_the_bounds() {
        assert_eq!(parse_seconds("0.5", &(0.1..=60.0)), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("60", &(0.1..=60.0)), Ok(Duration::from_secs(60)));
        for bad in ["", "nan", "NaN", "inf", "-1", "0", "61", "1e300", "1 s"] {
            let error = parse_seconds(bad, &(0.1..=60.0)).expect_err(bad);
            assert_eq!(error, "0.1 to 60 seconds, such as 12.5");
        }
        assert!(parse_seconds("1e300", &(0.0..=f64::INFINITY)).is_err());
    }
}
