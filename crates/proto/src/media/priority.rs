//! The HTTP field `Priority` (RFC 9218 section 5), a dictionary: `u` and `i` are read.

use crate::wire::StreamPriority;

/// The requested priority. Missing, invalid and out-of-range parameters have their defaults, and
/// unknown ones are ignored (RFC 9218 section 4).
pub(crate) fn priority_of(value: &[u8]) -> Option<StreamPriority> {
    let value = std::str::from_utf8(value).ok()?;
    let (mut urgency, mut incremental) = (StreamPriority::default().urgency(), false);
    for member in value.split(',') {
        // Parameters of parameters are ignored.
        let member = member.split(';').next().unwrap_or_default();
        let (key, value) = member.split_once('=').unwrap_or((member, ""));
        match (key.trim(), value.trim()) {
            ("u", value) => {
                if let &[digit @ b'0'..=b'7'] = value.as_bytes() {
                    urgency = digit - b'0';
                }
            }
            ("i", "" | "?1") => incremental = true,
            ("i", "?0") => incremental = false,
            _ => {}
        }
    }
    Some(StreamPriority::new(urgency, incremental))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_rfc_has_them() {
        let check = |value: &str, urgency, incremental| {
            let expected = StreamPriority::new(urgency, incremental);
            assert_eq!(priority_of(value.as_bytes()), Some(expected), "{value}");
        };
        check("u=5, i", 5, true);
        check("u=0", 0, false);
        check("i=?1,u=7", 7, true);
        check("i=?0", 3, false);
        check("", 3, false);
        check("u=8, u=-1, u=2.5, u=\"1\", x=y", 3, false);
        check("u=1;x=3, i;y", 1, true);
        check("u=1, u=2", 2, false);
        assert_eq!(priority_of(b"u=\xff"), None);
    }
}
