//! The symbol: the unit of coding, and the content of a source datagram.
//!
//! ```text
//!  0                   1
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//! +---+---------------------------+-------------------
//! |pos|          length           |  length bytes ...
//! +---+---------------------------+-------------------
//! ```
//!
//! The prefix is coded too: length and position survive the zero-padding (CellFusion 4.3.1).

use bytes::BufMut;

/// Bytes of the prefix.
pub const SYMBOL_HEADER: usize = 2;

/// Most inner bytes of a symbol.
pub const MAX_SYMBOL_BODY: usize = (1 << 14) - 1;

/// The place of a symbol among the fragments of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentPosition {
    /// The whole packet.
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

/// Why bytes are not a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymbolError {
    #[error("symbol of {0} bytes has no room for its prefix")]
    Truncated(usize),
    #[error("symbol claims {claimed} bytes and holds {held}")]
    Length { claimed: usize, held: usize },
}

impl<'a> Symbol<'a> {
    /// Parses a symbol without padding.
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

    /// Appends prefix and body, of at most [`MAX_SYMBOL_BODY`] bytes, to `out`.
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
        use FragmentPosition::{First, Last, Middle, Whole};
        for position in [Whole, First, Middle, Last] {
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
