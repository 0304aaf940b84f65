//! Figures over HTTP, for those who watch many machines: `/metrics`, `/healthz`, `/readyz`.
//!
//! ```text
//! Prometheus, an orchestrator ─► http: a thread for each, 16 at a time ─► Asker ─► event loop
//!                                  ◄─ text: OpenMetrics ◄─ a summary: no session of its own ◄─┘
//! ```
//!
//! Whoever reaches the address reads: names of tenants, of proxies, how much passes; no client's
//! name, no key that opens anything. A stranger can keep 16 threads busy for [`CALL_MAX`] each, and
//! ask the event loop what `roadweave show` asks it; packets do not wait for either.

mod http;
mod load;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use self::http::{Answer, read_request};
use self::load::Load;
use crate::DeviceError;
use crate::callers::Callers;
use crate::local::Asker;
use crate::status::Status;

/// The longest time for which a caller is served.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Callers at a time.
const CALLERS_MAX: usize = 16;

/// The socket of the figures, while nobody is answered yet.
#[derive(Debug)]
pub(crate) struct MetricsListener(TcpListener);

impl MetricsListener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// When the address is another's, or none of this machine.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::system(format!("listen for metrics at {address}"), error);
        TcpListener::bind(address).map(Self).map_err(failed)
    }

    /// Answers from now on, as long as the program runs.
    ///
    /// # Errors
    /// When the system has no thread.
    pub(crate) fn start(self, asker: Asker) -> Result<(), DeviceError> {
        let Self(listener) = self;
        let load = Arc::new(Mutex::new(Load::default()));
        let serve = move |stream: TcpStream| {
            if let Err(error) = serve(&stream, &asker, &load) {
                tracing::debug!(%error, "a caller of the metrics broke off");
            }
        };
        let callers = Callers::new("the socket of the metrics", CALLERS_MAX);
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || callers.take(listener.incoming(), serve))
            .map(drop)
            .map_err(|error| DeviceError::system("start a thread", error))
    }
}

fn serve(stream: &TcpStream, asker: &Asker, load: &Mutex<Load>) -> io::Result<()> {
    let answer = match read_request(stream, CALL_MAX)? {
        Ok(path) => answer(&path, asker, load),
        Err(refusal) => refusal,
    };
    answer.write(stream, CALL_MAX)
}

fn answer(path: &str, asker: &Asker, load: &Mutex<Load>) -> Answer {
    if !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return Answer::text(404, "there are /metrics, /healthz and /readyz\n");
    }
    let status = match asker.ask("summary", Value::Null) {
        Ok(summary) => serde_json::from_value::<Status>(summary),
        Err(error) => return Answer::text(503, format!("{error}\n")),
    };
    let status = match status {
        Ok(status) => status,
        Err(error) => return Answer::text(500, format!("{error}\n")),
    };
    match path {
        "/metrics" => {
            let load = load.lock().unwrap_or_else(PoisonError::into_inner).tell();
            Answer::open_metrics(text::encode(status, load))
        }
        "/readyz" if status.role.is_draining() => {
            Answer::text(503, "draining: it takes no new clients\n")
        }
        _ => Answer::text(200, "ok\n"),
    }
}
