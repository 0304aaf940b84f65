//! A host's responses: their priority, and where the first picture ends.

use std::collections::VecDeque;

use crate::media::body::Body;
use crate::media::mp4::{FirstFrame, FrameEnd};
use crate::media::priority::priority_of;
use crate::media::reader::{FIELDS_MAX, HeadParser, Reader, Unread, content_of, refused, values};
use crate::media::requests::Request;
use crate::wire::StreamPriority;

/// Requests that wait for their responses; browsers do not pipeline.
const EXPECTED_MAX: usize = 64;

/// What a piece of responses holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseMarks {
    /// Length of its part up to the last byte of a first picture.
    pub urgent: usize,
    /// Heads in it.
    pub heads: usize,
    /// First pictures whose end was found.
    pub frames: usize,
    /// The priority in its last head, if there is a head (RFC 9218).
    pub priority: Option<Option<StreamPriority>>,
}

/// Reads the bytes from a host to its client.
#[derive(Debug, Default)]
pub struct Responses {
    reader: Reader,
    state: ResponseState,
}

#[derive(Debug, Default)]
struct ResponseState {
    expected: VecDeque<Request>,
    frame: Option<Box<FirstFrame>>,
    /// A first picture has passed, and no other video has begun since.
    has_begun: bool,
    seen: ResponseMarks,
}

impl Responses {
    /// Notes a request of the client.
    pub fn expect(&mut self, request: Request) {
        if self.state.expected.len() >= EXPECTED_MAX {
            return self.reader.give_up(Unread::TooMany);
        }
        self.state.expected.push_back(request);
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> ResponseMarks {
        self.reader.feed(bytes, &mut self.state);
        std::mem::take(&mut self.state.seen)
    }

    /// Why reading has ended, if it has.
    pub fn unread(&self) -> Option<Unread> {
        self.reader.unread()
    }
}

impl HeadParser for ResponseState {
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(usize, Option<Body>)>, Unread> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(bytes).map_err(refused)? {
            httparse::Status::Partial => return Ok(None),
            httparse::Status::Complete(length) => length,
        };
        let (status, fields) = (response.code.unwrap_or(0), &*response.headers);
        if status == 101 {
            return Err(Unread::Upgraded);
        }
        let request = *self.expected.front().ok_or(Unread::NotHttp)?;
        if (100..200).contains(&status) {
            return Ok(Some((length, None)));
        }
        self.expected.pop_front();
        self.seen.heads += 1;
        self.seen.priority = Some(values(fields, "Priority").next().and_then(priority_of));
        self.frame = None;
        if request.head_only || matches!(status, 204 | 304) {
            return Ok(Some((length, None)));
        }
        self.frame = self.first_frame(&request, status, fields).map(Box::new);
        Ok(Some((length, Some(content_of(fields)?.unwrap_or(Body::UntilClose)))))
    }

    fn content(&mut self, at: usize, content: &[u8]) {
        let Some(frame) = &mut self.frame else { return };
        let (before, was) = (frame.offset(), frame.end());
        frame.feed(content);
        let end = frame.end();
        let within = match end {
            FrameEnd::Unknown => content.len() as u64,
            FrameEnd::At(end) => end.saturating_sub(before).min(content.len() as u64),
            FrameEnd::Nowhere => 0,
        };
        if within > 0 {
            self.seen.urgent = at + within as usize;
        }
        if frame.is_file() && was == FrameEnd::Unknown {
            self.has_begun = false;
        }
        if was == FrameEnd::Unknown && matches!(end, FrameEnd::At(_)) {
            self.has_begun = true;
            self.seen.frames += 1;
        }
        if end != FrameEnd::Unknown && within < content.len() as u64 {
            self.frame = None;
        }
    }
}

impl ResponseState {
    /// The reader of a video's first picture, if the player's report says that it waits for one.
    /// Without a report, the first picture of each file counts, and of segments the first of a
    /// connection or after a file: later ones go into a buffer.
    fn first_frame(
        &self,
        request: &Request,
        status: u16,
        fields: &[httparse::Header<'_>],
    ) -> Option<FirstFrame> {
        let kind = values(fields, "Content-Type").next()?;
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_video = KINDS.iter().any(|known| kind.eq_ignore_ascii_case(known));
        if !is_video || values(fields, "Content-Encoding").next().is_some() {
            return None;
        }
        let start = match status {
            200 => 0,
            206 => range_start(values(fields, "Content-Range").next()?)?,
            _ => return None,
        };
        match request.cmcd {
            Some(cmcd) => (cmcd.left_ms() == Some(0)).then(|| FirstFrame::new(start)),
            None if self.has_begun => Some(FirstFrame::of_file(start)),
            None => Some(FirstFrame::new(start)),
        }
    }
}

/// Content types made of boxes (RFC 4337, ISO/IEC 23000-19).
const KINDS: [&[u8]; 4] =
    [b"video/mp4", b"video/iso.segment", b"application/mp4", b"video/quicktime"];

/// The start of a range: `bytes 0-499/1234`.
fn range_start(value: &[u8]) -> Option<u64> {
    let value = std::str::from_utf8(value).ok()?.trim();
    let (first, _) = value.strip_prefix("bytes ")?.split_once('-')?;
    first.parse().ok()
}
