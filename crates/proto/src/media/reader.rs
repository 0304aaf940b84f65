//! Consecutive messages of HTTP/1.1: heads as a whole, contents in pieces.
//!
//! ```text
//! head ─► content ─► head ─► ...        what is not understood ─► unread, for ever
//! ```

use crate::media::body::{Body, BodyPart};

/// The longest head that is read, bytes.
pub const HEAD_MAX: usize = 8 * 1024;
/// The most fields in it.
pub const FIELDS_MAX: usize = 64;

crate::named! {
    /// Why a connection is not read any further.
    Unread {
        /// Not HTTP/1.
        NotHttp = "not-http",
        /// A head has more than [`HEAD_MAX`] bytes, or more than [`FIELDS_MAX`] fields.
        TooLong = "too-long",
        /// The end of the content is ambiguous.
        Ambiguous = "ambiguous",
        /// It switches to another protocol.
        Upgraded = "upgraded",
        /// Too many requests wait for their responses.
        TooMany = "too-many-requests",
    }
}

pub(crate) trait HeadParser {
    /// `bytes` may begin with a head. Returns its length and the content that follows, if complete.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(usize, Option<Body>)>, Unread>;

    /// Content of the last head, which begins at `at` of the fed bytes.
    fn content(&mut self, at: usize, content: &[u8]);
}

#[derive(Debug)]
enum ReaderState {
    Head(Vec<u8>),
    Content(Body),
    Unread(Unread),
}

#[derive(Debug)]
pub(crate) struct Reader(ReaderState);

impl Default for Reader {
    fn default() -> Self {
        Self(ReaderState::Head(Vec::new()))
    }
}

impl Reader {
    pub(crate) fn unread(&self) -> Option<Unread> {
        match self.0 {
            ReaderState::Unread(why) => Some(why),
            _ => None,
        }
    }

    pub(crate) fn give_up(&mut self, why: Unread) {
        if self.unread().is_none() {
            self.0 = ReaderState::Unread(why);
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8], parser: &mut impl HeadParser) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let read = match &mut self.0 {
                ReaderState::Unread(_) => return,
                ReaderState::Head(buffer) => read_head(buffer, rest, parser),
                ReaderState::Content(body) => match body.take(rest) {
                    BodyPart::Content(length) => {
                        parser.content(at, &rest[..length]);
                        at += length;
                        continue;
                    }
                    BodyPart::Framing(length) => {
                        at += length;
                        continue;
                    }
                    BodyPart::End => Ok(Some((0, None))),
                    BodyPart::Bad => Err(Unread::Ambiguous),
                },
            };
            match read {
                Ok(None) => return,
                Ok(Some((length, body))) => {
                    at += length;
                    self.0 =
                        body.map_or_else(|| ReaderState::Head(Vec::new()), ReaderState::Content);
                }
                Err(why) => self.0 = ReaderState::Unread(why),
            }
        }
    }
}

/// Reads a head that begins in `buffer` and continues in `rest`. Returns how many bytes of `rest`
/// belong to it once it is complete; otherwise appends them to `buffer`.
fn read_head(
    buffer: &mut Vec<u8>,
    rest: &[u8],
    parser: &mut impl HeadParser,
) -> Result<Option<(usize, Option<Body>)>, Unread> {
    if buffer.is_empty() {
        // Empty lines before a head are ignored (RFC 9112 section 2.2).
        let empty = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if empty > 0 {
            return Ok(Some((empty, None)));
        }
        let shown = &rest[..rest.len().min(HEAD_MAX)];
        let read = parser.head(shown)?;
        if read.is_none() {
            if rest.len() >= HEAD_MAX {
                return Err(Unread::TooLong);
            }
            buffer.extend_from_slice(rest);
        }
        return Ok(read);
    }
    let before = buffer.len();
    let new = &rest[..rest.len().min(HEAD_MAX - before)];
    buffer.extend_from_slice(new);
    // A head ends with a line: without a new line it cannot be complete.
    let read = if new.contains(&b'\n') { parser.head(buffer)? } else { None };
    match read {
        Some((length, body)) => Ok(Some((length.saturating_sub(before), body))),
        None if buffer.len() >= HEAD_MAX => Err(Unread::TooLong),
        None => Ok(None),
    }
}

pub(crate) fn refused(error: httparse::Error) -> Unread {
    match error {
        httparse::Error::TooManyHeaders => Unread::TooLong,
        _ => Unread::NotHttp,
    }
}

pub(crate) fn values<'a>(
    fields: &'a [httparse::Header<'_>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// The content by the fields (RFC 9112 section 6.3), if any; an error if they contradict.
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
