//! Requests for other hosts in plain HTTP: `GET http://host/path` (RFC 9112 section 3.2.2). With
//! one request for each connection, bytes for one host cannot reach another.

use httparse::Header;
use roadweave_proto::{ServerHost, ServerName};

use super::asked::{Asked, Dialect};
use super::http::{Head, destination_of, refused};

/// Hop-by-hop fields (RFC 9110 section 7.6.1), and `Host`, which is rewritten.
const OF_CONNECTION: [&str; 9] = [
    "Connection",
    "Host",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Upgrade",
];

pub(super) fn read(head: &Head<'_>) -> Option<Asked> {
    let target = head.target.strip_prefix("http://")?;
    Some(forward(head, target).unwrap_or_else(|(status, why)| refused(status, why)))
}

fn forward(request: &Head<'_>, target: &str) -> Result<Asked, (u16, &'static str)> {
    let bad = |why| (400, why);
    let method = request.method;
    if method == "TRACE" {
        return Err((405, "this method is not forwarded"));
    }
    let at = target.find(['/', '?', '#']).unwrap_or(target.len());
    let (authority, rest) = target.split_at(at);
    let path = rest.split('#').next().unwrap_or_default();
    let path = match (method, path) {
        ("OPTIONS", "") => "*".to_owned(),
        (_, path) if path.starts_with('/') => path.to_owned(),
        (_, path) => format!("/{path}"),
    };
    let name: ServerName = authority
        .parse()
        .or_else(|_| format!("{authority}:80").parse())
        .map_err(|_| bad("an http:// target needs a host"))?;
    let destination = destination_of(&name).ok_or(bad("an http:// target needs a host"))?;
    let fields = request.fields;
    let content = content(fields)?;
    let host = match (name.host(), name.port()) {
        (ServerHost::Address(address), 80) if address.is_ipv6() => format!("[{address}]"),
        (ServerHost::Address(address), 80) => address.to_string(),
        (ServerHost::Name(host), 80) => host.to_string(),
        _ => name.to_string(),
    };
    let version = request.version;
    let mut head = format!("{method} {path} HTTP/1.{version}\r\nHost: {host}\r\n").into_bytes();
    for field in fields.iter().filter(|field| passes(field, fields)) {
        head.extend_from_slice(field.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(field.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Via: 1.1 roadweave\r\nConnection: close\r\n\r\n");
    let (length, dialect, head) = (request.length, Dialect::Forwarded, Some((head, content)));
    Ok(Asked::Connect { length, destination, dialect, head })
}

fn passes(field: &Header<'_>, fields: &[Header<'_>]) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    let connection = fields.iter().filter(|it| it.name.eq_ignore_ascii_case("Connection"));
    let is_named = connection.flat_map(|it| it.value.split(|byte| *byte == b',')).any(|name| {
        // `Connection` must not remove the length of the content.
        let name = name.trim_ascii();
        name.eq_ignore_ascii_case(field.name.as_bytes()) && !is("Content-Length")
    });
    !OF_CONNECTION.iter().any(|name| is(name)) && !is_named
}

fn content(fields: &[Header<'_>]) -> Result<u64, (u16, &'static str)> {
    let named = |name: &'static str| {
        fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name))
    };
    if named("Transfer-Encoding").next().is_some() {
        return Err((411, "send Content-Length, or use CONNECT"));
    }
    let mut lengths = named("Content-Length");
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(0),
        (Some(field), None) if field.value.iter().all(u8::is_ascii_digit) => {
            let length = std::str::from_utf8(field.value).ok().and_then(|it| it.parse().ok());
            length.ok_or((400, "Content-Length is not a number"))
        }
        _ => Err((400, "Content-Length is repeated, or not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::http;
    use super::*;

    fn check(head: &str, expected: Result<(&str, u64), u16>) {
        let found = match http::read(head.as_bytes(), &[], &[read]) {
            Asked::Connect { head: Some((head, content)), .. } => {
                Ok((String::from_utf8(head).expect("text"), content))
            }
            Asked::Refused { answer, .. } => {
                Err(String::from_utf8_lossy(&answer[9..12]).parse().expect("a status"))
            }
            other => panic!("{other:?}"),
        };
        let found = found.as_ref().map(|(head, content)| (head.as_str(), *content));
        assert_eq!(found.map_err(|status| *status), expected, "{head}");
    }

    const END: &str = "Via: 1.1 roadweave\r\nConnection: close\r\n\r\n";

    #[test]
    fn a_request_goes_on_without_what_is_of_its_connection() {
        check(
            "GET http://a.example/v/1.mp4?CMCD=su HTTP/1.1\r\nHost: other\r\nRange: bytes=0-\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: secret\r\nX-Own: 1\r\n\
             Connection: keep-alive, x-own, Content-Length\r\nContent-Length: 5\r\n\r\n",
            Ok((
                &format!(
                    "GET /v/1.mp4?CMCD=su HTTP/1.1\r\nHost: a.example\r\nRange: bytes=0-\r\n\
                     Content-Length: 5\r\n{END}"
                ),
                5,
            )),
        );
        let line = |first: &str, expected: &str| {
            check(&format!("{first}\r\n\r\n"), Ok((&format!("{expected}\r\n{END}"), 0)));
        };
        line("GET http://a.example HTTP/1.0", "GET / HTTP/1.0\r\nHost: a.example");
        line("GET http://a.example:81?x#y HTTP/1.1", "GET /?x HTTP/1.1\r\nHost: a.example:81");
        line("GET http://[2001:db8::1]/ HTTP/1.1", "GET / HTTP/1.1\r\nHost: [2001:db8::1]");
        line("OPTIONS http://192.0.2.1 HTTP/1.1", "OPTIONS * HTTP/1.1\r\nHost: 192.0.2.1");
    }

    #[test]
    fn what_cannot_go_on_is_refused_with_a_status() {
        let head = |target: &str, fields: &str| format!("PUT {target} HTTP/1.1\r\n{fields}\r\n");
        for target in ["http://", "http:///x", "http://user@a/", "http://a:0/", "http://a:x/"] {
            check(&head(target, ""), Err(400));
        }
        check(&head("http://a/", "Transfer-Encoding: chunked\r\n"), Err(411));
        for length in ["x", "+1", "-1", "99999999999999999999", "1\r\nContent-Length: 2"] {
            check(&head("http://a/", &format!("Content-Length: {length}\r\n")), Err(400));
        }
        check("TRACE http://a/ HTTP/1.1\r\n\r\n", Err(405));
    }
}
