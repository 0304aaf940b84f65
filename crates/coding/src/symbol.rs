//! The prefix that lets a repaired symbol find its own end.
//!
//! ```text
//!  0                   1
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//! +---+---------------------------+------------------ - -
//! |pos|          length           | length bytes
//! +---+---------------------------+------------------ - -
//! ```
//!
//! Padding with zeros hides the length of a packet, so the length is coded with it.
//! `roadweave_proto::wire` writes and reads the prefix; here only the length matters, to cut
//! repaired symbols and to reject impossible ones.

use bytes::Bytes;

/// Bytes of the prefix of a symbol.
pub const SYMBOL_PREFIX_BYTES: usize = 2;

/// The longest symbol, bytes: the prefix, and the largest value of its 14 bits of length.
pub const SYMBOL_BYTES_MAX: usize = SYMBOL_PREFIX_BYTES + LENGTH_MASK as usize;

/// The length of the symbol at the start of `padded`, prefix included, bytes.
///
/// `padded`: a symbol and any number of zero bytes after it. `None` if it is shorter than its
/// prefix claims, if something other than zero follows, or if the symbol is empty (a prefix without
/// bytes), which no sender makes and which only wrong arithmetic yields.
pub fn symbol_len(padded: &[u8]) -> Option<usize> {
    let (prefix, rest) = padded.split_first_chunk::<SYMBOL_PREFIX_BYTES>()?;
    let length = usize::from(u16::from_be_bytes(*prefix) & LENGTH_MASK);
    if length == 0 || length > rest.len() || rest[length..].iter().any(|byte| *byte != 0) {
        return None;
    }
    Some(SYMBOL_PREFIX_BYTES + length)
}

pub(crate) fn is_symbol(bytes: &[u8]) -> bool {
    let Some((prefix, rest)) = bytes.split_first_chunk::<SYMBOL_PREFIX_BYTES>() else {
        return false;
    };
    !rest.is_empty() && usize::from(u16::from_be_bytes(*prefix) & LENGTH_MASK) == rest.len()
}

/// Copies a symbol to an allocation of its own.
pub(crate) fn unshare(symbol: &mut Bytes) {
    *symbol = Bytes::copy_from_slice(symbol);
}

const LENGTH_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(padded: &[u8], expected: Option<usize>) {
        assert_eq!(symbol_len(padded), expected, "{padded:?}");
    }

    #[test]
    fn a_symbol_ends_where_its_prefix_says() {
        check(&[0x00, 3, 1, 2, 3], Some(5));
        check(&[0xc0, 3, 1, 2, 3, 0, 0], Some(5));
        check(&[0x40, 3, 1, 2, 0, 0], Some(5));
    }

    #[test]
    fn what_no_sender_writes_is_no_symbol() {
        check(&[], None);
        check(&[0], None);
        check(&[0, 0], None);
        check(&[0, 0, 0, 0], None);
        check(&[0, 4, 1, 2, 3], None);
        check(&[0, 2, 1, 2, 3], None);
        check(&[0xff, 0xff, 1, 2, 3], None);
    }
}
