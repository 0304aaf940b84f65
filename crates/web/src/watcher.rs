//! A thread reads the client's status: often while the page is open, else once a second for charts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::Result;
use roadweave_linux::detected_technology;
use roadweave_node::history::History;
use roadweave_node::local;
use roadweave_proto::Technology;

use crate::samples::Samples;
use crate::signal;

pub(crate) const WATCHED: Duration = Duration::from_millis(200);
const UNWATCHED: Duration = Duration::from_secs(1);
/// The page counts as open for this long after a request.
const LOOK: Duration = Duration::from_millis(1_500);

#[derive(Clone, Debug)]
pub(crate) struct Watcher {
    shared: Arc<WatcherShared>,
    reader: Thread,
}

#[derive(Debug)]
struct WatcherShared {
    socket: PathBuf,
    begun: Instant,
    seen: Mutex<WatchedStatus>,
    /// Time of the last request, ms since the start; 0: none yet.
    looked_ms: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct WatchedStatus {
    pub(crate) history: History,
    pub(crate) samples: Samples,
    pub(crate) technologies: BTreeMap<String, Option<Technology>>,
    pub(crate) levels: BTreeMap<String, i32>,
}

impl Watcher {
    pub(crate) fn start(socket: PathBuf) -> Result<Self> {
        let seen = WatchedStatus {
            history: History::new(WATCHED),
            samples: Samples::default(),
            technologies: BTreeMap::new(),
            levels: BTreeMap::new(),
        };
        let (begun, looked_ms) = (Instant::now(), AtomicU64::new(0));
        let shared = Arc::new(WatcherShared { socket, begun, seen: Mutex::new(seen), looked_ms });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("status".to_owned());
        let reader = thread.spawn(move || theirs.read_on())?.thread().clone();
        Ok(Self { shared, reader })
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, WatchedStatus> {
        self.shared.lock()
    }

    pub(crate) fn look(&self) {
        let was_watched = self.shared.is_watched();
        self.shared.looked_ms.store(self.elapsed_ms().max(1), Ordering::Release);
        if !was_watched {
            self.reader.unpark();
        }
    }

    pub(crate) fn elapsed_ms(&self) -> u64 {
        self.shared.elapsed_ms()
    }

    pub(crate) fn begun(&self) -> Instant {
        self.shared.begun
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.shared.socket
    }
}

impl WatcherShared {
    fn read_on(&self) {
        loop {
            let begun = Instant::now();
            let read = local::status(&self.socket);
            let now = Instant::now();
            {
                let mut seen = self.lock();
                match read {
                    Ok(status) => seen.history.take(now, status),
                    Err(error) => seen.history.miss(now, error.to_string()),
                }
                seen.keep(now - self.begun);
            }
            self.wait(begun);
        }
    }

    fn wait(&self, begun: Instant) {
        loop {
            let interval = if self.is_watched() { WATCHED } else { UNWATCHED };
            let left = interval.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    fn is_watched(&self) -> bool {
        let looked_ms = self.looked_ms.load(Ordering::Acquire);
        looked_ms > 0 && self.elapsed_ms().saturating_sub(looked_ms) < LOOK.as_millis() as u64
    }

    fn elapsed_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, WatchedStatus> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedStatus {
    fn keep(&mut self, at: Duration) {
        let links = &self.history.links;
        self.samples.keep(at, &self.history);
        self.technologies.retain(|name, _| links.contains_key(name));
        for name in links.keys().filter(|name| !name.is_empty()) {
            if !self.technologies.contains_key(name) {
                self.technologies.insert(name.clone(), detected_technology(name));
            }
        }
        let has_wifi = self.technologies.values().any(|it| *it == Some(Technology::Wifi));
        self.levels = if has_wifi { signal::levels() } else { BTreeMap::new() };
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use roadweave_node::status::{ClientStatus, RoleStatus, Status};
    use roadweave_tunnel::UplinkReport;

    pub(crate) fn status_of(client: ClientStatus) -> Status {
        Status { uptime_seconds: 1.0, role: RoleStatus::Client(client), ..Status::default() }
    }

    pub(crate) fn uplink(name: &str) -> UplinkReport {
        UplinkReport { name: name.to_owned(), ..UplinkReport::default() }
    }
}
