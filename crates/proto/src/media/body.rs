//! The length of a message's content, and its place among the bytes (RFC 9112 sections 6 and 7).
//!
//! ```text
//! chunked:  size [; extension] CRLF | data | CRLF | ... | 0 CRLF | trailers | CRLF
//! ```

/// Bytes of a line that is not data: a size with its extensions, a trailer.
const LINE_MAX: usize = 4096;
const TRAILERS_MAX: usize = 8192;

#[derive(Debug)]
pub(crate) enum Body {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPart {
    Content(usize),
    Framing(usize),
    End,
    Bad,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Chunked {
    Size { size: u64, digits: usize },
    Extension { size: u64, length: usize },
    Data(u64),
    DataEnd,
    Trailer { line: usize, all: usize },
    Over,
}

impl Body {
    pub(crate) fn chunked() -> Self {
        Self::Chunked(Chunked::Size { size: 0, digits: 0 })
    }

    /// Takes the first part of `bytes`, which is not empty unless the message is over.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> BodyPart {
        match self {
            Self::Length(0) | Self::Chunked(Chunked::Over) => BodyPart::End,
            Self::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= length as u64;
                BodyPart::Content(length)
            }
            Self::UntilClose => BodyPart::Content(bytes.len()),
            Self::Chunked(chunked) => chunked.take(bytes),
        }
    }
}

impl Chunked {
    fn take(&mut self, bytes: &[u8]) -> BodyPart {
        if let Self::Data(left) = self {
            let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            *left -= length as u64;
            if *left == 0 {
                *self = Self::DataEnd;
            }
            return BodyPart::Content(length);
        }
        let mut taken = 0;
        for &byte in bytes {
            if matches!(self, Self::Data(_) | Self::Over) {
                break;
            }
            taken += 1;
            match self.after(byte) {
                Some(next) => *self = next,
                None => return BodyPart::Bad,
            }
        }
        BodyPart::Framing(taken)
    }

    fn after(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16)?;
                // More digits overflow, or are leading zeros that no implementation sends.
                (digits < 16).then_some(Self::Size {
                    size: size << 4 | u64::from(digit),
                    digits: digits + 1,
                })
            }
            (Self::Size { digits: 0, .. }, _) => None,
            (Self::Size { size, .. } | Self::Extension { size, .. }, b'\n') => Some(match size {
                0 => Self::Trailer { line: 0, all: 0 },
                size => Self::Data(size),
            }),
            (Self::Size { size, .. }, _) => Some(Self::Extension { size, length: 1 }),
            (Self::Extension { size, length }, _) => {
                (length < LINE_MAX).then_some(Self::Extension { size, length: length + 1 })
            }
            (Self::DataEnd, b'\r') => Some(Self::DataEnd),
            (Self::DataEnd, b'\n') => Some(Self::Size { size: 0, digits: 0 }),
            (Self::Trailer { line: 0, .. }, b'\n') => Some(Self::Over),
            (Self::Trailer { all, .. }, b'\n') => Some(Self::Trailer { line: 0, all: all + 1 }),
            (Self::Trailer { line, all }, byte) => {
                let line = line + usize::from(byte != b'\r');
                (all < TRAILERS_MAX).then_some(Self::Trailer { line, all: all + 1 })
            }
            (Self::DataEnd | Self::Data(_) | Self::Over, _) => None,
        }
    }
}
