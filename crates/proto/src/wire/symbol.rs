//! The symbol: what is coded, and what a source datagram carries.
//!
//! ```text
//!  0                   1
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//! +---+---------------------------+-------------------
//! |pos|          length           |  length bytes ...
//! +---+---------------------------+-------------------
//! ```
//!
//! The prefix is coded together with the bytes, so that the true length of a packet and its place
//! among the fragments survive the zero-padding of CellFusion section 4.3.1.

use bytes::BufMut;

/// Bytes of the prefix.
pub const SYMBOL_HEADER: usize = 2;

/// The longest run of inner bytes that one symbol carries.
pub const MAX_SYMBOL_BODY: usize = (1 << 14) - 1;

/// Which fragment of an inner packet a symbol holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentPosition {
    /// All of it.
    Whole = 0,
    /// The first fragment.
    First = 1,
    /// A fragment between the first and the last.
    Middle = 2,
    /// The last fragment.
    Last = 3,
}

/// A view of one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its place among the fragments.
    pub position: FragmentPosition,
    /// The inner bytes.
    pub body: &'a [u8],
}

/// Why bytes are no symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymbolError {
    /// Fewer bytes than the prefix needs.
    #[error("symbol of {0} bytes has no room for its prefix")]
    Truncated(usize),
    /// The prefix and the number of bytes disagree.
    #[error("symbol claims {claimed} bytes and holds {held}")]
    Length {
        /// What the prefix says.
        claimed: usize,
        /// What follows it.
        held: usize,
    },
}

impl<'a> Symbol<'a> {
    /// Parses a symbol without padding.
    ///
    /// # Errors
    /// When the length in the prefix is not exactly what follows.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, SymbolError> {
        let Some((prefix, body)) = bytes.split_first_chunk::<SYMBOL_HEADER>() else {
            return Err(SymbolError::Truncated(bytes.len()));
        };
        let prefix = u16::from_be_bytes(*prefix);
        let claimed = usize::from(prefix & 0x3fff);
        if claimed != body.len() {
            return Err(SymbolError::Length { claimed, held: body.len() });
        }
        let position = match prefix >> 14 {
            0 => FragmentPosition::Whole,
            1 => FragmentPosition::First,
            2 => FragmentPosition::Middle,
            _ => FragmentPosition::Last,
        };
        Ok(Self { position, body })
    }

    /// Appends prefix and body to `out`.
    ///
    /// # Panics
    /// When the body is longer than [`MAX_SYMBOL_BODY`].
    pub fn write(&self, out: &mut impl BufMut) {
        assert!(self.body.len() <= MAX_SYMBOL_BODY, "a symbol body has at most 16,383 bytes");
        out.put_u16((self.position as u16) << 14 | self.body.len() as u16);
        out.put_slice(self.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_reads_back_as_written() {
        for position in [
            FragmentPosition::Whole,
            FragmentPosition::First,
            FragmentPosition::Middle,
            FragmentPosition::Last,
        ] {
            for length in [0, 1, 1400, MAX_SYMBOL_BODY] {
                let body = vec![0xa5; length];
                let mut bytes = Vec::new();
                Symbol { position, body: &body }.write(&mut bytes);
                assert_eq!(bytes.len(), SYMBOL_HEADER + length);
                assert_eq!(Symbol::parse(&bytes), Ok(Symbol { position, body: &body }));
            }
        }
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        assert_eq!(Symbol::parse(&[0]), Err(SymbolError::Truncated(1)));
        assert_eq!(Symbol::parse(&[0, 2, 9]), Err(SymbolError::Length { claimed: 2, held: 1 }));
        assert_eq!(Symbol::parse(&[0, 1, 9, 0]), Err(SymbolError::Length { claimed: 1, held: 2 }));
    }
}
