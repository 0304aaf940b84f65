//! What a player reports of its buffer by CMCD (CTA-5004), versions 1 and 2.
//!
//! ```text
//! GET /v/7.m4s?CMCD=bl%3D2300%2Csid%3D%226e2fb550%22      version 1, in the query
//! CMCD-Request: bl=2300,su                                version 1, in fields of the head
//! e=t,bl=(2300),sid="6e2fb550",ts=1764000000000,v=2       version 2, a report of an event
//! ```
//!
//! Only the keys `bl`, `br`, `bs`, `sid` and `su` are read.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// One request or report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cmcd {
    /// Play-time in the buffer, milliseconds (`bl`); the shortest of several.
    pub buffer_ms: Option<u64>,
    /// Identifies the player's session: a hash of `sid`.
    pub session: Option<u64>,
    /// The rate of the requested content (`br`), kbit/s.
    pub kbps: Option<u64>,
    /// Needed at once: the player starts, seeks, or has run dry (`su`).
    pub startup: bool,
    /// The buffer was empty since the last request (`bs`).
    pub starved: bool,
}

impl Cmcd {
    /// Play-time left, milliseconds; 0 while the player waits for a picture.
    pub fn left_ms(&self) -> Option<u64> {
        match self.buffer_ms {
            _ if self.startup => Some(0),
            None if self.starved => Some(0),
            left => left,
        }
    }

    /// Reads one report, or the value of a field.
    pub fn of_items(report: &str) -> Self {
        let mut cmcd = Self::default();
        cmcd.take_items(report);
        cmcd
    }

    /// Reads the target of a request; `None` without CMCD.
    pub(crate) fn of_target(target: &str) -> Option<Self> {
        let (_, query) = target.split_once('?')?;
        let value = query.split('&').find_map(|part| part.strip_prefix("CMCD="))?;
        Some(Self::of_items(&decoded(value)))
    }

    pub(crate) fn take_items(&mut self, report: &str) {
        for item in items(report) {
            match item.split_once('=').unwrap_or((item, "")) {
                ("bl", value) => self.buffer_ms = least(value).or(self.buffer_ms),
                ("br", value) => self.kbps = least(value).or(self.kbps),
                ("sid", value) => self.session = Some(player_of(value.trim_matches('"'))),
                ("su", value) => self.startup = is_true(value),
                ("bs", value) => self.starved = is_true(value),
                _ => {}
            }
        }
    }
}

/// The number of a player with this name.
pub fn player_of(name: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn items(report: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut depth) = (false, 0_u32);
    let divides = move |letter: char| {
        match letter {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && !quoted && depth == 0
    };
    report.split(divides).map(str::trim)
}

/// The least number of a list; each may have parameters.
fn least(value: &str) -> Option<u64> {
    let numbers = value.trim_matches(['(', ')']).split_whitespace();
    let number = |number: &str| {
        let whole = number.split([';', '.']).next().unwrap_or_default();
        whole.parse::<u64>().ok()
    };
    numbers.filter_map(number).min()
}

/// True has no value in version 1 (`su`), or is written out (`su=?1`).
fn is_true(value: &str) -> bool {
    matches!(value, "" | "?1" | "true")
}

fn decoded(value: &str) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let hex = |at: usize| behind.get(at).and_then(|digit| (*digit as char).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &behind[2..];
            }
            _ => {
                out.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(report: &str, expected: Cmcd) {
        assert_eq!(Cmcd::of_items(report), expected, "{report}");
    }

    #[test]
    fn keys_are_read_with_their_types() {
        let session = Some(player_of("6e2fb550"));
        let expected =
            Cmcd { buffer_ms: Some(2300), session, kbps: Some(3200), startup: true, starved: true };
        check("bl=2300,br=3200,bs,sid=\"6e2fb550\",su,tp=6000", expected);
        check("su=?0,bs=false,bl=(900;v 1500;a)", Cmcd { buffer_ms: Some(900), ..Cmcd::default() });
        check("nor=\"a,bl=1\",x=(bl=1,su),bl=-3,br=x", Cmcd::default());
        check("", Cmcd::default());
    }

    #[test]
    fn the_query_is_read_where_it_is_percent_encoded() {
        let target = "/v/7.m4s?a=1&CMCD=bl%3D21300%2csid%3D%22a%22&b=2";
        let expected =
            Cmcd { buffer_ms: Some(21_300), session: Some(player_of("a")), ..Cmcd::default() };
        assert_eq!(Cmcd::of_target(target), Some(expected));
        let startup = Cmcd { startup: true, ..Cmcd::default() };
        assert_eq!(Cmcd::of_target("/?CMCD=%%2%zz,su"), Some(startup));
        assert_eq!(["/CMCD=su", "/?XCMCD=su"].map(Cmcd::of_target), [None, None]);
    }

    #[test]
    fn who_waits_for_a_picture_has_nothing_left() {
        let left = |report| Cmcd::of_items(report).left_ms();
        assert_eq!(["bl=9000", "bl=9000,bs"].map(left), [Some(9000); 2]);
        assert_eq!(["bl=9000,su", "bs", "su"].map(left), [Some(0); 3]);
        assert_eq!(left("br=1"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_report_or_none(text in "[a-z=%,;()\"0-9?&.\\PC]{0,200}") {
            let _ = Cmcd::of_items(&text).left_ms();
            let _ = Cmcd::of_target(&text);
            let _ = Cmcd::of_target(&format!("/?CMCD={text}"));
        }
    }
}
