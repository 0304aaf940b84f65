//! A client's requests.

use crate::media::body::Body;
use crate::media::cmcd::Cmcd;
use crate::media::priority::priority_of;
use crate::media::reader::{FIELDS_MAX, HeadParser, Reader, Unread, content_of, refused, values};
use crate::wire::StreamPriority;

/// A request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// HEAD: only the head is requested.
    pub head_only: bool,
    /// Its priority, if given (RFC 9218).
    pub priority: Option<StreamPriority>,
    /// Its player's report, if any (CTA-5004).
    pub cmcd: Option<Cmcd>,
}

/// Reads the bytes from a client to its host.
#[derive(Debug, Default)]
pub struct Requests(Reader);

impl Requests {
    /// Reads the next bytes; calls `on` for each complete head.
    pub fn feed(&mut self, bytes: &[u8], on: impl FnMut(Request)) {
        let mut heads = RequestHeads { on, upgrades: false };
        self.0.feed(bytes, &mut heads);
        if heads.upgrades {
            self.0.give_up(Unread::Upgraded);
        }
    }

    /// Why reading has ended, if it has.
    pub fn unread(&self) -> Option<Unread> {
        self.0.unread()
    }
}

struct RequestHeads<F> {
    on: F,
    upgrades: bool,
}

impl<F: FnMut(Request)> HeadParser for RequestHeads<F> {
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(usize, Option<Body>)>, Unread> {
        if self.upgrades {
            return Err(Unread::Upgraded);
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let length = match request.parse(bytes).map_err(refused)? {
            httparse::Status::Partial => return Ok(None),
            httparse::Status::Complete(length) => length,
        };
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let fields = &*request.headers;
        let body = content_of(fields)?;
        (self.on)(Request {
            head_only: method == "HEAD",
            priority: values(fields, "Priority").next().and_then(priority_of),
            cmcd: cmcd_of(target, fields),
        });
        self.upgrades = method == "CONNECT" || values(fields, "Upgrade").next().is_some();
        Ok(Some((length, body)))
    }

    fn content(&mut self, _at: usize, _content: &[u8]) {}
}

fn cmcd_of(target: &str, fields: &[httparse::Header<'_>]) -> Option<Cmcd> {
    let mut cmcd = Cmcd::of_target(target);
    for name in ["CMCD-Request", "CMCD-Object", "CMCD-Status", "CMCD-Session"] {
        for value in values(fields, name) {
            let value = String::from_utf8_lossy(value);
            cmcd.get_or_insert_default().take_items(&value);
        }
    }
    cmcd
}
