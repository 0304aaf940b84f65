//! Detects captive portals: networks that answer with a login page.
//!
//! All input is hostile: it is bounded in bytes and in time, and a URL must have legal characters.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use roadweave_proto::{Instant, ProbeUrl};
use socket2::{Domain, Protocol, Socket, Type};

use crate::Clock;
use crate::lookup::{self, LookupRequest, Network, advertised_portal};
use crate::udp::bind_to_interface;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No login is needed.
    Open,
    /// Login is needed, at this address if one is known.
    Portal(Option<String>),
    /// No result, for this reason.
    Nothing(String),
}

/// Probes in the calling thread's namespace, at most half a minute or until `interest` is dropped.
pub fn run(url: &ProbeUrl, request: LookupRequest, interest: &Weak<()>) -> Finding {
    let network = request.network.clone();
    let found = lookup::run(request, interest);
    let reason = || found.reason.clone().unwrap_or_else(|| "no address was found".to_owned());
    let mut nothing = Finding::Nothing(reason());
    for server in found.servers.iter().take(ADDRESSES_MAX) {
        if interest.strong_count() == 0 {
            break;
        }
        let finding = match ask(url, &network, *server) {
            Ok(answer) => judge(url, &answer),
            Err(error) => Finding::Nothing(format!("{server}: {error}")),
        };
        match finding {
            Finding::Nothing(_) => nothing = finding,
            Finding::Portal(None) => {
                let advertised = advertised_portal(Path::new("/"), &network);
                return Finding::Portal(advertised.and_then(|advertised| legal(&advertised)));
            }
            finding => return finding,
        }
    }
    nothing
}

fn ask(url: &ProbeUrl, network: &Network, server: SocketAddr) -> io::Result<Vec<u8>> {
    let clock = Clock::start();
    let left = |deadline: Instant| match deadline.since(clock.now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    bind_to_interface(&socket, &network.interface).map_err(io::Error::other)?;
    socket.connect_timeout(&server.into(), CONNECT_TIMEOUT)?;
    let deadline = clock.now() + ANSWER_TIMEOUT;
    socket.set_write_timeout(Some(left(deadline)?))?;
    let (target, host) = (url.target(), url.authority());
    let question = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: roadweave\r\nAccept: */*\r\n\
         Cache-Control: no-cache\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    while answer.len() < ANSWER_MAX && !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        socket.set_read_timeout(Some(left(deadline)?))?;
        match socket.read(&mut buffer)? {
            0 => break,
            length => answer.extend(&buffer[..length]),
        }
    }
    Ok(answer)
}

fn judge(url: &ProbeUrl, answer: &[u8]) -> Finding {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = response.parse(answer) else {
        return Finding::Nothing("the answer is not HTTP".to_owned());
    };
    let header = |name: &str| {
        let mut headers = response.headers.iter();
        headers.find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };
    let has_content =
        answer.len() > length || header("Content-Length").is_some_and(|length| length != b"0");
    match response.code.unwrap_or_default() {
        204 if !has_content => Finding::Open,
        // RFC 6585 section 6 defines 511 for portals; most redirect.
        200..=399 | 511 => Finding::Portal(header("Location").and_then(|to| page(url, to))),
        code => Finding::Nothing(format!("the answer has status {code}")),
    }
}

fn page(url: &ProbeUrl, location: &[u8]) -> Option<String> {
    let location = std::str::from_utf8(location).ok()?.trim();
    let whole = if location.starts_with("//") {
        format!("http:{location}")
    } else if location.starts_with('/') {
        format!("http://{}{location}", url.authority())
    } else {
        location.to_owned()
    };
    legal(&whole)
}

/// `url`, if short http(s) in RFC 3986's characters, without user information (disguises hosts).
fn legal(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || LETTERS.contains(&byte);
    let is_legal = is_http && !host.is_empty() && !host.contains('@') && url.len() <= URL_MAX;
    (is_legal && url.bytes().all(is_letter)).then(|| url.to_owned())
}

const LETTERS: &[u8] = b"-._~:/?#[]@!$&'()*+,;=%";
const URL_MAX: usize = 512;
const ADDRESSES_MAX: usize = 2;
const ANSWER_MAX: usize = 8_192;
const HEADERS_MAX: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> ProbeUrl {
        "http://probe.example/generate_204".parse().expect("an address")
    }

    fn check(answer: &str, expected: &Finding) {
        assert_eq!(judge(&url(), answer.as_bytes()), *expected, "{answer:?}");
    }

    fn portal(url: &str) -> Finding {
        Finding::Portal(Some(url.to_owned()))
    }

    #[test]
    fn only_an_empty_204_is_open_and_only_pages_and_ways_to_them_are_portals() {
        check("HTTP/1.1 204 No Content\r\n\r\n", &Finding::Open);
        check("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", &Finding::Open);
        check("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", &Finding::Portal(None));
        check("HTTP/1.1 204 No Content\r\n\r\n<html>", &Finding::Portal(None));
        check("HTTP/1.0 200 OK\r\n\r\n<html>", &Finding::Portal(None));
        check("HTTP/1.1 511 Log in\r\n\r\n", &Finding::Portal(None));
        let found = "HTTP/1.1 302 Found\r\nlocation: https://login.example/?a=%20b\r\n\r\n";
        check(found, &portal("https://login.example/?a=%20b"));
        for code in [404, 500, 503, 100, 600] {
            let answer = judge(&url(), format!("HTTP/1.1 {code} X\r\n\r\n").as_bytes());
            assert!(matches!(answer, Finding::Nothing(_)), "{code}: {answer:?}");
        }
        for broken in ["", "HTTP/1.1 204 No Con", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 302 Found\r\n"] {
            let answer = judge(&url(), broken.as_bytes());
            assert!(matches!(answer, Finding::Nothing(_)), "{broken:?}: {answer:?}");
        }
        let many = format!("HTTP/1.1 204 X\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(matches!(judge(&url(), many.as_bytes()), Finding::Nothing(_)));
    }

    #[test]
    fn where_a_login_page_is_stays_an_address_of_http_and_of_plain_letters() {
        let page = |location: &str| page(&url(), location.as_bytes());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(page("/login?to=1"), some("http://probe.example/login?to=1"));
        assert_eq!(page("//10.0.0.1/x"), some("http://10.0.0.1/x"));
        assert_eq!(page("HTTPS://[fe80::1]/"), some("HTTPS://[fe80::1]/"));
        let long = format!("http://a/{}", "x".repeat(URL_MAX));
        for hostile in [
            "",
            "login",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data://x",
            "http://",
            "http:///x",
            "https://bank.example@evil.example/",
            "http://a/\u{1b}[2J",
            "http://a/\" onload=\"x",
            "http://a/<script>",
            "http://\u{430}.example/",
            "http://a/ b",
            &long,
        ] {
            assert_eq!(page(hostile), None, "{hostile:?}");
        }
        assert_eq!(super::page(&url(), b"http://a/\xff"), None);
    }
}
