//! Messages of HTTP/1.1, one behind the other: heads as a whole, contents as they come.
//!
//! ```text
//! head ─► content ─► head ─► ...        what is not understood ─► unread, for ever
//! ```

use crate::media::body::{Body, Part};

/// The longest head that is read, bytes.
pub const HEAD_MAX: usize = 8 * 1024;
/// The most fields in it.
pub const FIELDS_MAX: usize = 64;

/// Why a connection is not read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// It is no HTTP/1.
    NotHttp,
    /// A head has more than [`HEAD_MAX`] bytes, or more than [`FIELDS_MAX`] fields.
    TooLong,
    /// Nobody knows where its content ends.
    Ambiguous,
    /// It goes on by another protocol.
    Upgraded,
    /// Too many requests wait for their responses.
    TooMany,
}

impl Unread {
    /// The name that statistics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotHttp => "not-http",
            Self::TooLong => "too-long",
            Self::Ambiguous => "ambiguous",
            Self::Upgraded => "upgraded",
            Self::TooMany => "too-many-requests",
        }
    }
}

/// Who is told what is read.
pub(crate) trait Told {
    /// A head may begin with the first of `bytes`; its length and what content follows, if it is
    /// whole.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(usize, Option<Body>)>, Unread>;

    /// Content of the last head, which begins at `at` of the bytes that were shown.
    fn content(&mut self, at: usize, content: &[u8]);
}

/// Where in its direction a connection is.
#[derive(Debug)]
enum Place {
    /// In a head, of which these bytes have come, or before one.
    Head(Vec<u8>),
    Content(Body),
    Unread(Unread),
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Reader(Place);

impl Default for Reader {
    fn default() -> Self {
        Self(Place::Head(Vec::new()))
    }
}

impl Reader {
    /// Why it does not read any further, if so.
    pub(crate) fn unread(&self) -> Option<Unread> {
        match self.0 {
            Place::Unread(why) => Some(why),
            _ => None,
        }
    }

    /// Reads no further.
    pub(crate) fn give_up(&mut self, why: Unread) {
        if self.unread().is_none() {
            self.0 = Place::Unread(why);
        }
    }

    /// Reads what comes next.
    pub(crate) fn feed(&mut self, bytes: &[u8], told: &mut impl Told) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let read = match &mut self.0 {
                Place::Unread(_) => return,
                Place::Head(kept) => read_head(kept, rest, told),
                Place::Content(body) => match body.take(rest) {
                    Part::Content(length) => {
                        told.content(at, &rest[..length]);
                        at += length;
                        continue;
                    }
                    Part::Framing(length) => {
                        at += length;
                        continue;
                    }
                    Part::End => Ok(Some((0, None))),
                    Part::Bad => Err(Unread::Ambiguous),
                },
            };
            match read {
                Ok(None) => return,
                Ok(Some((length, body))) => {
                    at += length;
                    self.0 = body.map_or_else(|| Place::Head(Vec::new()), Place::Content);
                }
                Err(why) => self.0 = Place::Unread(why),
            }
        }
    }
}

/// Reads a head of which `kept` came before `rest`: how many bytes of `rest` are of it, if it ends
/// there; otherwise all of them are kept.
fn read_head(
    kept: &mut Vec<u8>,
    rest: &[u8],
    told: &mut impl Told,
) -> Result<Option<(usize, Option<Body>)>, Unread> {
    if kept.is_empty() {
        // Empty lines before a head say nothing (RFC 9112 section 2.2).
        let empty = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if empty > 0 {
            return Ok(Some((empty, None)));
        }
        let shown = &rest[..rest.len().min(HEAD_MAX)];
        let read = told.head(shown)?;
        if read.is_none() {
            if rest.len() >= HEAD_MAX {
                return Err(Unread::TooLong);
            }
            kept.extend_from_slice(rest);
        }
        return Ok(read);
    }
    let before = kept.len();
    let new = &rest[..rest.len().min(HEAD_MAX - before)];
    kept.extend_from_slice(new);
    // A head ends with a line: until one ends there is no use in reading it again.
    let read = if new.contains(&b'\n') { told.head(kept)? } else { None };
    match read {
        Some((length, body)) => Ok(Some((length.saturating_sub(before), body))),
        None if kept.len() >= HEAD_MAX => Err(Unread::TooLong),
        None => Ok(None),
    }
}

/// Why bytes are no head.
pub(crate) fn refused(error: httparse::Error) -> Unread {
    match error {
        httparse::Error::TooManyHeaders => Unread::TooLong,
        _ => Unread::NotHttp,
    }
}

/// The values of the fields with this name, in their order.
pub(crate) fn values<'a>(
    fields: &'a [httparse::Header<'_>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// The content that fields tell of (RFC 9112 section 6.3), if they tell of any.
///
/// # Errors
/// When they contradict each other.
pub(crate) fn content_of(fields: &[httparse::Header<'_>]) -> Result<Option<Body>, Unread> {
    let mut codings = values(fields, "Transfer-Encoding");
    let mut lengths = values(fields, "Content-Length");
    match (codings.next(), lengths.next()) {
        (Some(coding), None) => {
            let is_chunked = codings.next().is_none() && coding.eq_ignore_ascii_case(b"chunked");
            if is_chunked { Ok(Some(Body::chunked())) } else { Err(Unread::Ambiguous) }
        }
        (None, Some(length)) => {
            let text = std::str::from_utf8(length).unwrap_or_default().trim();
            let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
            let length = text.parse().ok().filter(|_| is_number && lengths.next().is_none());
            length.map(|length| Some(Body::Length(length))).ok_or(Unread::Ambiguous)
        }
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Unread::Ambiguous),
    }
}
