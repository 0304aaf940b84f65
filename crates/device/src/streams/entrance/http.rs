//! The part of HTTP/1.1 (RFC 9112) that a proxy needs: the head of one request, and answers that
//! end the connection.

use roadweave_proto::wire::Destination;
use roadweave_proto::{ServerHost, ServerName};

use super::forward::{Forward, forward};
use super::handshake::{Asked, Dialect};
use super::{EntranceEnd, encoder, report};
use crate::http;

pub(super) const HEAD_MAX: usize = 8 * 1024;
const FIELDS_MAX: usize = 64;

pub(super) fn read(bytes: &[u8], origins: &[String]) -> Asked {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let refused = |status, why: &str| Asked::Refused {
        answer: answer(status, why),
        end: EntranceEnd::BadRequest,
    };
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Asked::More,
        Ok(httparse::Status::Partial) => return refused(431, "the head is too long"),
        Ok(httparse::Status::Complete(length)) => length,
        Err(httparse::Error::TooManyHeaders) => return refused(431, "too many fields"),
        Err(_) => return refused(400, "no HTTP request"),
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return refused(400, "no HTTP request");
    };
    if method != "CONNECT" {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        if path == encoder::TARGET {
            return encoder::read(method, query, request.headers, length, origins);
        }
        if path == report::TARGET {
            let came = (length, &bytes[length..]);
            return report::read(method, request.headers, came, origins);
        }
        if let Some(target) = target.strip_prefix("http://") {
            return match forward(&request, target) {
                Ok(Forward { destination, head, content }) => {
                    let (dialect, head) = (Dialect::Forwarded, Some((head, content)));
                    Asked::Connect { length, destination, dialect, head }
                }
                Err((status, why)) => refused(status, why),
            };
        }
        return Asked::Refused { answer: route(target), end: EntranceEnd::Served };
    }
    match target.parse::<ServerName>().ok().and_then(|name| destination_of(&name)) {
        Some(destination) => {
            Asked::Connect { length, destination, dialect: Dialect::Http, head: None }
        }
        None => refused(400, "CONNECT wants host:port"),
    }
}

pub(super) fn value_of<'a>(fields: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    let named = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

pub(super) fn destination_of(name: &ServerName) -> Option<Destination> {
    match name.host() {
        ServerHost::Address(address) => Destination::of_address(*address, name.port()),
        ServerHost::Name(host) => Destination::of_name(host, name.port()),
    }
}

fn route(target: &str) -> Vec<u8> {
    match target.starts_with('/') {
        true => answer(404, "there is nothing here"),
        false => answer_with(405, "ask for a connection by CONNECT", "Allow: CONNECT\r\n"),
    }
}

pub(super) fn answer(status: u16, text: &str) -> Vec<u8> {
    answer_with(status, text, "")
}

/// As [`answer`], with further fields, each ending with CRLF.
pub(super) fn answer_with(status: u16, text: &str, fields: &str) -> Vec<u8> {
    let content = if text.is_empty() { String::new() } else { format!("{text}\n") };
    http::answer(status, http::TEXT, fields, &content).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str, expected: &str) {
        let found = match read(head.as_bytes(), &[]) {
            Asked::More => "more".to_owned(),
            Asked::Connect { length, destination, head: Some(_), .. } => {
                assert_eq!(length, head.len());
                format!("to {:?}", destination.port())
            }
            Asked::Connect { length, destination, .. } => {
                assert_eq!(length, head.len());
                format!("{:?}", (destination.host(), destination.port()))
            }
            Asked::Refused { answer, .. } | Asked::Told { answer, .. } => {
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
