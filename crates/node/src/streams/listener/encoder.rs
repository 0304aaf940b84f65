//! Hints for encoders: `GET /v1/encoder`, answered by an event stream (WHATWG HTML, section 9.2),
//! which has its own thread ([`EventStreams`]). Refuses pages not of `streams.origins`.

use std::io::Write as _;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use roadweave_linux::Callers;
use socket2::SockRef;

use super::asked::{Asked, ListenRequest};
use super::end::ListenerEnd;
use super::http::Head;
use super::reply::{answer, answer_with, cross_origin};
use crate::local::{SEND_BUFFER, Subscribe, Subscribers};

const TARGET: &str = "/v1/encoder";

/// An application that asked for an event stream.
#[derive(Debug)]
pub struct Listening {
    pub(super) socket: TcpStream,
    pub(super) request: ListenRequest,
}

pub(super) fn read(head: &Head<'_>) -> Option<Asked> {
    (head.path() == TARGET).then(|| listen(head))
}

fn listen(head: &Head<'_>) -> Asked {
    let refused = |answer| Asked::Refused { answer, end: ListenerEnd::BadRequest };
    let Some(origin) = head.allowed_origin() else {
        return refused(answer(403, "this page's origin is not in streams.origins"));
    };
    if !is_for_box(head) {
        return refused(answer(403, "connect by the box's address, or a name in streams.origins"));
    }
    if origin.is_none() && is_of_page(head) {
        return refused(answer(403, "the page has another origin; see streams.origins"));
    }
    let cors = cross_origin(origin, "GET");
    if head.method != "GET" {
        return refused(answer_with(405, "use GET", &format!("Allow: GET\r\n{cors}")));
    }
    let intervals = Subscribe::INTERVALS_MS;
    let interval = match head.query().and_then(|query| query.strip_prefix("interval_ms=")) {
        None if head.query().is_none() => Some(*intervals.start()),
        None => None,
        Some(text) => text.parse().ok().filter(|interval| intervals.contains(interval)),
    };
    let Some(interval) = interval.map(Duration::from_millis) else {
        return refused(answer_with(400, "interval_ms is from 10 to 1000", &cors));
    };
    Asked::Listen { length: head.length, request: ListenRequest { interval, fields: cors } }
}

/// Whether `Host` is an address or configured name, against DNS rebinding of browsers.
fn is_for_box(head: &Head<'_>) -> bool {
    let Some(host) = head.value_of("Host").map(<[u8]>::trim_ascii) else { return true };
    let Ok(host) = str::from_utf8(host) else { return false };
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
    let without_port = |host: &str| {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        if port.parse::<u16>().is_ok() { name.to_owned() } else { host.to_owned() }
    };
    let name = without_port(host);
    let names = head.origins.iter().filter_map(|origin| origin.split_once("://"));
    is_address || names.map(|(_, host)| without_port(host)).any(|it| it.eq_ignore_ascii_case(&name))
}

/// Whether a browser asks without naming the page's origin, as for an image. Over `http:` to an
/// address it omits Fetch Metadata; `User-Agent`, which pages cannot change, shows it.
fn is_of_page(head: &Head<'_>) -> bool {
    let field = |name: &str| head.value_of(name).map(<[u8]>::trim_ascii);
    match field("Sec-Fetch-Site") {
        Some(site) => site != b"none" && site != b"same-origin",
        None => field("User-Agent").is_some_and(|name| name.starts_with(b"Mozilla/")),
    }
}

/// The event streams of a box, with a thread for each.
#[derive(Debug)]
pub struct EventStreams {
    callers: Arc<Callers>,
}

impl Default for EventStreams {
    fn default() -> Self {
        Self { callers: Callers::new("the event stream", STREAMS_MAX) }
    }
}

impl EventStreams {
    pub(crate) fn begin(&self, listening: Listening, subscribers: &Subscribers) {
        let Listening { socket, request } = listening;
        let place = (!self.callers.is_full()).then(|| subscribers.subscribe()).flatten();
        let Some(subscription) = place else {
            let _ = (&socket).write(&answer(503, "the maximum number of listeners is reached"));
            let _ = socket.shutdown(Shutdown::Write);
            return;
        };
        self.callers.begin(socket, move |socket| {
            let _ = socket.set_nonblocking(false);
            let _ = socket.set_write_timeout(Some(WRITE_MAX));
            // A large buffer would hide a vanished listener.
            let _ = SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER);
            let _ = SockRef::from(&socket).set_tcp_user_timeout(Some(WRITE_MAX));
            let ListenRequest { interval, fields } = request;
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
                 {fields}Connection: close\r\n\r\n"
            );
            let written = (&socket).write_all(head.as_bytes());
            let write = |word: &str| (&socket).write_all(format!("data: {word}\n\n").as_bytes());
            let _ = written.and_then(|()| subscription.send_all(interval, write));
        });
    }
}

/// A few only, since subscribers of the local socket need room too.
const STREAMS_MAX: usize = 4;
const WRITE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::http;
    use super::*;

    fn check(request: &str, expected: Result<u64, &str>) {
        let request = format!("{request}\r\n\r\n");
        let found =
            match http::read(request.as_bytes(), &["https://crew.example".to_owned()], &[read]) {
                Asked::Listen { length, request: asked } => {
                    assert_eq!(length, request.len());
                    Ok(asked.interval.as_millis() as u64)
                }
                Asked::Refused { answer, .. } => {
                    Err(String::from_utf8_lossy(&answer[9..12]).into_owned())
                }
                other => panic!("{other:?}"),
            };
        assert_eq!(found, expected.map_err(str::to_owned), "{request}");
    }

    #[test]
    fn who_asks_for_an_event_stream_gets_one_as_often_as_it_wants() {
        check("GET /v1/encoder HTTP/1.1", Ok(10));
        check("GET /v1/encoder?interval_ms=100 HTTP/1.1", Ok(100));
        for query in ["interval_ms=9", "interval_ms=1001", "interval_ms=", "lane=video", ""] {
            check(&format!("GET /v1/encoder?{query} HTTP/1.1"), Err("400"));
        }
        check("POST /v1/encoder HTTP/1.1", Err("405"));
    }

    #[test]
    fn no_page_listens_whose_origin_is_not_named() {
        let from = |origin: &str| format!("GET /v1/encoder HTTP/1.1\r\nOrigin: {origin}");
        check(&from("https://crew.example"), Ok(10));
        check(&from("https://evil.example"), Err("403"));
        check(&from("null"), Err("403"));
        let fetched = |site: &str, host: &str| {
            format!("GET /v1/encoder HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: {site}")
        };
        check(&fetched("cross-site", "192.168.50.1:1080"), Err("403"));
        check(&fetched("same-origin", "evil.example:1080"), Err("403"));
        check(&fetched("same-origin", "192.168.50.1:1080"), Ok(10));
        check(&fetched("none", "[fd00::1]:1080"), Ok(10));
        let picture = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: image/avif,*/*;q=0.8";
        let asked =
            |fields: &str| format!("GET /v1/encoder HTTP/1.1\r\nHost: 192.168.50.1\r\n{fields}");
        check(&asked(picture), Err("403"));
        check(&asked(&format!("{picture}\r\nOrigin: https://crew.example")), Ok(10));
        check(&asked("User-Agent: curl/8.5.0\r\nAccept: */*"), Ok(10));
    }

    #[test]
    fn only_an_address_or_a_name_of_the_file_leads_to_the_stream() {
        let to = |host: &str| format!("GET /v1/encoder HTTP/1.1\r\nHost: {host}");
        for host in ["192.168.50.1:1080", "192.168.50.1", "[fd00::1]:1080", "fd00::1"] {
            check(&to(host), Ok(10));
        }
        for host in ["crew.example", "crew.example:1080", "Crew.Example"] {
            check(&to(host), Ok(10));
        }
        for host in ["evil.example:1080", "evil.example", "localhost", "", "crew.example.evil"] {
            check(&to(host), Err("403"));
        }
    }
}
