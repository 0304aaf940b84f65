//! Foreign texts, made safe to show.

/// A text chosen by a peer, safe for logs, terminals and pages.
///
/// Characters that control a terminal, end a line or change the writing direction are escaped as in
/// Rust's literals (`\n`, `\u{1b}`, `\u{202e}`), and so is the backslash: escapes cannot be forged.
/// Invalid UTF-8 becomes U+FFFD. The result is cut at [`PEER_TEXT_MAX`] bytes, with an ellipsis.
pub fn peer_text(bytes: &[u8]) -> String {
    // Twice the limit suffices: it cannot become shorter than the limit.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2 * PEER_TEXT_MAX)]);
    let mut shown = String::with_capacity(text.len().min(PEER_TEXT_MAX));
    for character in text.chars() {
        let before = shown.len();
        push_escaped(&mut shown, character);
        if shown.len() > PEER_TEXT_MAX {
            shown.truncate(before);
            while shown.len() + ELLIPSIS.len_utf8() > PEER_TEXT_MAX {
                shown.pop();
            }
            shown.push(ELLIPSIS);
            break;
        }
    }
    shown
}

fn push_escaped(shown: &mut String, character: char) {
    match character {
        '\'' | '"' => shown.push(character),
        // Combining marks are kept after another character, where they belong.
        _ => {
            let mut buffer = [b'a'; 5];
            let length = character.encode_utf8(&mut buffer[1..]).len();
            let text = std::str::from_utf8(&buffer[..=length]).expect("two characters");
            shown.extend(text.escape_debug().skip(1));
        }
    }
}

/// The longest text of a peer, bytes.
pub const PEER_TEXT_MAX: usize = 256;
const ELLIPSIS: char = '…';

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: impl AsRef<[u8]>, expected: &str) {
        assert_eq!(peer_text(text.as_ref()), expected);
    }

    #[test]
    fn what_can_be_read_stays_and_what_steers_is_escaped() {
        check("the server stops", "the server stops");
        check("bus 12 ü «Ω» 車 'a' \"b\" नमस्ते", "bus 12 ü «Ω» 車 'a' \"b\" नमस्ते");
        check("x\n2026-11-22T10:00:00Z  INFO joined", "x\\n2026-11-22T10:00:00Z  INFO joined");
        check("\x1b[2J\r\t\0\u{9b}m", "\\u{1b}[2J\\r\\t\\0\\u{9b}m");
        check(
            "a\u{202e}b\u{2066}c\u{200b}d\u{2028}e\u{feff}",
            "a\\u{202e}b\\u{2066}c\\u{200b}d\\u{2028}e\\u{feff}",
        );
        check("not a \\n newline", "not a \\\\n newline");
        check(b"\xff\xfe", "\u{fffd}\u{fffd}");
        check("", "");
    }

    #[test]
    fn no_text_is_longer_than_the_limit() {
        let fits = "a".repeat(PEER_TEXT_MAX);
        check(&fits, &fits);
        let cut = "a".repeat(PEER_TEXT_MAX - 3) + "…";
        check(fits.clone() + "a", &cut);
        check("a".repeat(100_000), &cut);
        for text in ["\n".repeat(500), "é".repeat(500), "\u{202e}".repeat(500), "x\\".repeat(300)]
        {
            let shown = peer_text(text.as_bytes());
            assert!(shown.len() <= PEER_TEXT_MAX && shown.len() > PEER_TEXT_MAX - 12, "{shown}");
            assert!(shown.ends_with(ELLIPSIS));
        }
    }
}
