//! The part of HTTP/1.1 (RFC 9112) that a proxy needs: the head of one request.

use httparse::Header;
use roadweave_proto::wire::Destination;
use roadweave_proto::{ServerHost, ServerName};

use super::asked::Asked;
use super::end::ListenerEnd;
use super::reply::{answer, answer_with};

pub(super) const HEAD_MAX: usize = 8 * 1024;
const FIELDS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    pub(super) version: u8,
    pub(super) fields: &'a [Header<'a>],
    pub(super) length: usize,
    pub(super) rest: &'a [u8],
    /// The origins of pages that may report and listen.
    pub(super) origins: &'a [String],
}

impl<'a> Head<'a> {
    pub(super) fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    pub(super) fn query(&self) -> Option<&'a str> {
        self.target.split_once('?').map(|(_, query)| query)
    }

    pub(super) fn value_of(&self, name: &str) -> Option<&'a [u8]> {
        let named = self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    /// `None` if the origin is not allowed, `Some(None)` if the request names none.
    pub(super) fn allowed_origin(&self) -> Option<Option<&'a str>> {
        match self.value_of("Origin").map(std::str::from_utf8) {
            None => Some(None),
            Some(Ok(origin)) if self.origins.iter().any(|known| known == origin) => {
                Some(Some(origin))
            }
            Some(_) => None,
        }
    }
}

/// Reads a request by the first of `kinds` that knows its head.
pub(super) fn read(
    bytes: &[u8],
    origins: &[String],
    kinds: &[fn(&Head<'_>) -> Option<Asked>],
) -> Asked {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Asked::More,
        Ok(httparse::Status::Partial) => return refused(431, "the head is too long"),
        Ok(httparse::Status::Complete(length)) => length,
        Err(httparse::Error::TooManyHeaders) => return refused(431, "too many fields"),
        Err(_) => return refused(400, "not an HTTP request"),
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return refused(400, "not an HTTP request");
    };
    let (version, fields) = (request.version.unwrap_or(1), &*request.headers);
    let head = Head { method, target, version, fields, length, rest: &bytes[length..], origins };
    let asked = kinds.iter().find_map(|read| read(&head));
    asked.unwrap_or_else(|| Asked::Refused { answer: route(target), end: ListenerEnd::Served })
}

pub(super) fn refused(status: u16, why: &str) -> Asked {
    Asked::Refused { answer: answer(status, why), end: ListenerEnd::BadRequest }
}

pub(super) fn destination_of(name: &ServerName) -> Option<Destination> {
    match name.host() {
        ServerHost::Address(address) => Destination::of_address(*address, name.port()),
        ServerHost::Name(host) => Destination::of_name(host, name.port()),
    }
}

fn route(target: &str) -> Vec<u8> {
    match target.starts_with('/') {
        true => answer(404, "not found"),
        false => answer_with(405, "use CONNECT", "Allow: CONNECT\r\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::HTTP;
    use super::*;

    fn check(head: &str, expected: &str) {
        let found = match read(head.as_bytes(), &[], &HTTP) {
            Asked::More => "more".to_owned(),
            Asked::Connect { length, destination, head: Some(_), .. } => {
                assert_eq!(length, head.len());
                format!("to {:?}", destination.port())
            }
            Asked::Connect { length, destination, .. } => {
                assert_eq!(length, head.len());
                format!("{:?}", (destination.host(), destination.port()))
            }
            Asked::Refused { answer, .. } | Asked::Reported { answer, .. } => {
                String::from_utf8_lossy(&answer[9..12]).into_owned()
            }
            Asked::Greeted { .. } | Asked::Listen { .. } => unreachable!("nobody asks for that"),
        };
        assert_eq!(found, expected, "{head:?}");
    }

    #[test]
    fn connect_leads_to_a_destination_and_all_else_is_answered() {
        let connect = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        check(&connect("a.example:443"), "(Name(\"a.example\"), 443)");
        check(&connect("192.0.2.1:80"), "(Address(192.0.2.1), 80)");
        check(&connect("[2001:db8::1]:80"), "(Address(2001:db8::1), 80)");
        for target in ["a.example", "a.example:0", "a.example:65536", "/", "http://a/", "a_b c:1"] {
            check(&connect(target), "400");
        }
        check("CONNECT a.example:443 HTTP/1.1\r\nHost", "more");
        check("GET /v1/qo HTTP/1.1\r\n\r\n", "404");
        check("POST /v1/qoe?x HTTP/1.1\r\nContent-Length: 4\r\n\r\n", "more");
        check("GET http://a.example/ HTTP/1.1\r\n\r\n", "to 80");
        check("GET http://a.example:0/ HTTP/1.1\r\n\r\n", "400");
        check("GET https://a.example/ HTTP/1.1\r\n\r\n", "405");
        check("\x16\x03\x01\x02", "400");
        check(&format!("GET / HTTP/1.1\r\nF: {}", "a".repeat(HEAD_MAX)), "431");
        let many: String = (0..=FIELDS_MAX).map(|number| format!("F{number}: 1\r\n")).collect();
        check(&format!("GET / HTTP/1.1\r\n{many}\r\n"), "431");
    }
}
