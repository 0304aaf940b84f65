//! The level of WiFi, if the driver reports it. Levels of modems are in the client's status.

use std::collections::BTreeMap;
use std::fs;

const WIRELESS: &str = "/proc/net/wireless";

pub(crate) fn levels() -> BTreeMap<String, i32> {
    parse(&fs::read_to_string(WIRELESS).unwrap_or_default())
}

/// ```text
/// Inter-| sta-|   Quality        |   Discarded packets
///  face | tus | link level noise |  nwid  crypt   frag
///  wlan0: 0000   54.  -56.  -256        0      0      0
/// ```
fn parse(text: &str) -> BTreeMap<String, i32> {
    let level = |line: &str| {
        let (name, figures) = line.split_once(':')?;
        let level = figures.split_whitespace().nth(2)?.trim_end_matches('.').parse().ok()?;
        // Other values are on a scale that only the driver knows.
        (-120..0).contains(&level).then(|| (name.trim().to_owned(), level))
    };
    text.lines().skip(2).filter_map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_all_else_is_left_out() {
        let text = "Inter-| sta-|   Quality\n face | tus | link level noise\n \
                    wlan0: 0000   54.  -56.  -256\n  wlp2s0: 0000   54.  200.  0\n  odd: 0000\n\n";
        assert_eq!(parse(text), BTreeMap::from([("wlan0".to_owned(), -56)]));
        assert!(parse("").is_empty());
    }
}
