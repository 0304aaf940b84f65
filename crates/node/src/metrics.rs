//! Metrics over HTTP, to monitor many machines: `/metrics`, `/healthz`, `/readyz`. The answers show
//! tenants and proxies with their traffic, but no clients, and no secrets. At most: four of sixteen
//! permits for one address, each for [`CALL_MAX`]; the loop asked twice a second.

mod http;
mod load;
mod text;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roadweave_linux::threads::{lock, spawn};
use roadweave_linux::{Callers, DeviceError};
use serde_json::Value;

use self::http::{HttpAnswer, read_request};
use self::load::{ProcessLoad, Used};
use crate::local::{RequestSender, RpcError};
use crate::status::Status;

const CALL_MAX: Duration = Duration::from_secs(5);
const CALLERS_MAX: usize = 16;
const CALLERS_OF_ONE_MAX: usize = 4;
const FRESH: Duration = Duration::from_millis(500);

const RETRY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct MetricsListener {
    address: SocketAddr,
    socket: Option<TcpListener>,
}

impl MetricsListener {
    /// A failure is logged and ends nothing: any user of the machine can take the port.
    pub(crate) fn bind(address: SocketAddr) -> Self {
        let socket = TcpListener::bind(address).inspect_err(|error| {
            tracing::warn!("cannot listen for metrics at {address}: {error}; trying again");
        });
        Self { address, socket: socket.ok() }
    }

    fn wait(self) -> TcpListener {
        let Self { address, mut socket } = self;
        loop {
            if let Some(socket) = socket {
                return socket;
            }
            std::thread::sleep(RETRY);
            socket = TcpListener::bind(address).ok();
            if socket.is_some() {
                tracing::info!("listening for metrics at {address}");
            }
        }
    }

    pub(crate) fn start(self, sender: RequestSender) -> Result<(), DeviceError> {
        let served = Arc::new(Served {
            sender,
            summary: Mutex::default(),
            load: Mutex::default(),
            addresses: Mutex::default(),
        });
        let serve = move |stream: TcpStream| {
            if let Err(error) = served.serve(&stream) {
                tracing::debug!(%error, "a metrics connection failed");
            }
        };
        let callers = Callers::new("the metrics socket", CALLERS_MAX);
        spawn("metrics", move || callers.take(self.wait().incoming(), serve)).map(drop)
    }
}

struct Served {
    sender: RequestSender,
    summary: Mutex<Option<Summary>>,
    load: Mutex<ProcessLoad>,
    /// Callers share the permit of their address.
    addresses: Mutex<HashMap<IpAddr, Arc<()>>>,
}

struct Summary {
    at: Instant,
    status: Result<Status, RpcError>,
}

impl Served {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let deadline = Instant::now() + CALL_MAX;
        let address = stream.peer_addr()?.ip();
        let Some(_permit) = self.permit(address) else { return Ok(()) };
        let answer = match read_request(stream, deadline)? {
            Ok(path) => self.answer(&path),
            Err(refusal) => refusal,
        };
        answer.write(stream, deadline)
    }

    fn permit(&self, address: IpAddr) -> Option<Arc<()>> {
        let mut addresses = lock(&self.addresses);
        addresses.retain(|_, permit| Arc::strong_count(permit) > 1);
        let permit = addresses.entry(address).or_default();
        (Arc::strong_count(permit) <= CALLERS_OF_ONE_MAX).then(|| permit.clone())
    }

    fn answer(&self, path: &str) -> HttpAnswer {
        if !["/metrics", "/healthz", "/readyz"].contains(&path) {
            return HttpAnswer::text(404, "there are /metrics, /healthz and /readyz\n");
        }
        match (path, self.summary()) {
            (_, Err(error)) => HttpAnswer::text(503, format!("{error}\n")),
            ("/metrics", Ok(status)) => HttpAnswer::open_metrics(text::encode(status, self.used())),
            ("/readyz", Ok(status)) => match status.role.unready() {
                Some(why) => HttpAnswer::text(503, format!("{why}\n")),
                None => HttpAnswer::text(200, "ok\n"),
            },
            (_, Ok(_)) => HttpAnswer::text(200, "ok\n"),
        }
    }

    fn summary(&self) -> Result<Status, RpcError> {
        let mut last = lock(&self.summary);
        let summary = match last.take().filter(|summary| summary.at.elapsed() < FRESH) {
            Some(summary) => summary,
            None => {
                let status = self
                    .sender
                    .ask("summary", Value::Null)
                    .and_then(|value| serde_json::from_value(value).map_err(RpcError::internal));
                Summary { at: Instant::now(), status }
            }
        };
        last.insert(summary).status.clone()
    }

    fn used(&self) -> Used {
        lock(&self.load).measure()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc::sync_channel;

    use roadweave_linux::Waker;

    use roadweave_linux::netns::wait_within;

    use super::*;

    fn world() -> (SocketAddr, std::sync::mpsc::Receiver<crate::local::LocalRequest>) {
        let (queue, asked) = sync_channel(16);
        let listener = MetricsListener::bind("127.0.0.1:0".parse().expect("one"));
        let socket = listener.socket.as_ref().expect("a port");
        let address = socket.local_addr().expect("bound");
        listener.start(RequestSender::new(queue, Waker::new().expect("one"))).expect("a thread");
        (address, asked)
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let _ = write!(stream, "GET {path} HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_port_that_another_program_has_is_listened_at_once_it_is_free() {
        let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = holder.local_addr().expect("bound");
        let (queue, _asked) = sync_channel(16);
        let listener = MetricsListener::bind(address);
        assert!(listener.socket.is_none());
        listener.start(RequestSender::new(queue, Waker::new().expect("one"))).expect("a thread");
        drop(holder);
        wait_within(Duration::from_secs(60), "nobody listens", || {
            TcpStream::connect(address).is_ok()
        });
        assert!(get(address, "/nowhere").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn however_many_ask_the_event_loop_is_asked_once() {
        let (address, asked) = world();
        let callers: Vec<_> =
            (0..4).map(|_| std::thread::spawn(move || get(address, "/healthz"))).collect();
        let request = asked.recv_timeout(CALL_MAX).expect("it is asked");
        assert_eq!(request.method, "summary");
        request.answer(Err(RpcError::method_not_found("summary")));
        for caller in callers {
            let answer = caller.join().expect("no panic");
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        }
        assert!(asked.try_recv().is_err(), "it was asked more than once");
    }

    #[test]
    fn one_address_leaves_permits_to_others() {
        let (address, _asked) = world();
        let start = Instant::now();
        let mut silent = Vec::new();
        while silent.len() < CALLERS_OF_ONE_MAX || !get(address, "/").is_empty() {
            assert!(start.elapsed() < CALL_MAX, "it gives away the permits of others");
            silent.push(TcpStream::connect(address).expect("it listens"));
        }
        drop(silent);
        let start = Instant::now();
        while !get(address, "/").starts_with("HTTP/1.1 404 ") {
            assert!(start.elapsed() < CALL_MAX, "no permit is given back");
        }
    }
}
