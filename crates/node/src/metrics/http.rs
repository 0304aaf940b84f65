//! As much of HTTP/1.1 (RFC 9112) as a scraper needs: one request without content, one answer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::http;

const HEAD_MAX: usize = 8 * 1024;
const FIELDS_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpAnswer {
    status: u16,
    content_type: &'static str,
    content: String,
}

impl HttpAnswer {
    pub(super) fn text(status: u16, content: impl Into<String>) -> Self {
        Self { status, content_type: http::TEXT, content: content.into() }
    }

    pub(super) fn open_metrics(content: String) -> Self {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Self { status: 200, content_type, content }
    }

    pub(super) fn write(&self, mut stream: &TcpStream, deadline: Instant) -> io::Result<()> {
        let Self { status, content_type, content } = self;
        let allow = if *status == 405 { "Allow: GET\r\n" } else { "" };
        let answer = http::answer(*status, content_type, allow, content);
        let mut rest = answer.as_bytes();
        while !rest.is_empty() {
            stream.set_write_timeout(Some(left_until(deadline)?))?;
            let written = stream.write(rest)?;
            rest = &rest[written..];
        }
        Ok(())
    }
}

fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(super) fn read_request(
    mut stream: &TcpStream,
    deadline: Instant,
) -> io::Result<Result<String, HttpAnswer>> {
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..length]);
        match parse(&head) {
            None if head.len() >= HEAD_MAX => {
                return Ok(Err(HttpAnswer::text(431, "the head is too long\n")));
            }
            None => {}
            Some(parsed) => return Ok(parsed),
        }
    }
}

fn parse(head: &[u8]) -> Option<Result<String, HttpAnswer>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET"), Some(target)) => {
                Ok(target.split_once('?').map_or(target, |(path, _)| path).to_owned())
            }
            _ => Err(HttpAnswer::text(405, "only GET is served\n")),
        }),
        Err(httparse::Error::TooManyHeaders) => {
            Some(Err(HttpAnswer::text(431, "the head has too many fields\n")))
        }
        Err(error) => Some(Err(HttpAnswer::text(400, format!("not an HTTP request: {error}\n")))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn check(head: &str, expected: Option<Result<&str, u16>>) {
        let parsed = parse(head.as_bytes());
        let parsed = parsed.as_ref().map(|parsed| match parsed {
            Ok(path) => Ok(path.as_str()),
            Err(answer) => Err(answer.status),
        });
        assert_eq!(parsed, expected, "{head:?}");
    }

    #[test]
    fn a_path_is_read_and_all_else_is_refused() {
        check("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Some(Ok("/metrics")));
        check("GET /metrics?collect[]=a HTTP/1.0\r\n\r\n", Some(Ok("/metrics")));
        check("GET /metrics HTTP/1.1\r\nHost: a\r\n", None);
        check("", None);
        check("POST /metrics HTTP/1.1\r\n\r\n", Some(Err(405)));
        check("\x16\x03\x01\x02", Some(Err(400)));
        check("GET /a b HTTP/1.1\r\n\r\n", Some(Err(400)));
        let many: String = (0..=FIELDS_MAX).map(|number| format!("F{number}: 1\r\n")).collect();
        check(&format!("GET / HTTP/1.1\r\n{many}\r\n"), Some(Err(431)));
    }

    fn call(bytes: &[u8], limit: Duration) -> io::Result<Result<String, HttpAnswer>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        caller.write_all(bytes).expect("there is room");
        let (stream, _) = listener.accept().expect("it has connected");
        read_request(&stream, Instant::now() + limit)
    }

    #[test]
    fn a_head_without_end_and_a_caller_who_waits_end() {
        let endless = [b"GET / HTTP/1.1\r\nF: ".as_slice(), &[b'a'; 2 * HEAD_MAX]].concat();
        let answer = call(&endless, Duration::from_secs(60)).expect("an answer");
        assert_eq!(answer.expect_err("refused").status, 431);
        let error = call(b"GET / HT", Duration::from_millis(20)).expect_err("it takes too long");
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_caller_who_takes_little_at_a_time_is_left_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        let (stream, _) = listener.accept().expect("it has connected");
        let ended = std::thread::spawn(move || {
            let answer = HttpAnswer::text(200, "x".repeat(64 << 20));
            let error = answer.write(&stream, Instant::now() + Duration::from_millis(300));
            error.expect_err("it is never all taken")
        });
        while !ended.is_finished() {
            let _ = caller.read(&mut [0; 4096]);
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = ended.join().expect("no panic");
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
    }
}
