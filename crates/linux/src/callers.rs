//! Serves the callers of a listening socket, a thread for each, up to a maximum.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::threads::spawn;

/// Serves the callers of a listening socket, a thread for each.
#[derive(Debug)]
pub struct Callers {
    name: &'static str,
    most: usize,
    /// Each caller has a share of it.
    places: Arc<()>,
    stop: AtomicBool,
}

impl Callers {
    /// At most `most` callers at a time; `name` is the service, for the log.
    pub fn new(name: &'static str, most: usize) -> Arc<Self> {
        Arc::new(Self { name, most, places: Arc::default(), stop: AtomicBool::new(false) })
    }

    /// Takes no more callers.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Whether the maximum of callers is served.
    pub fn is_full(&self) -> bool {
        Arc::strong_count(&self.places) > self.most
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Serves each of `incoming` in a thread until stopped; closes callers beyond the maximum.
    pub fn take<S: Send + 'static>(
        self: &Arc<Self>,
        incoming: impl Iterator<Item = io::Result<S>>,
        serve: impl Fn(S) + Clone + Send + 'static,
    ) {
        let mut is_failing = false;
        for stream in incoming {
            if self.is_stopped() {
                return;
            }
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    // Most likely out of file descriptors: the next call returns at once.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(
                            "{} cannot accept connections: {error}; trying again",
                            self.name
                        );
                    }
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            if std::mem::take(&mut is_failing) {
                tracing::info!("{} accepts connections again", self.name);
            }
            self.begin(stream, serve.clone());
        }
    }

    /// Serves one caller in its own thread, unless the maximum is served.
    pub fn begin<S: Send + 'static>(
        self: &Arc<Self>,
        stream: S,
        serve: impl FnOnce(S) + Send + 'static,
    ) {
        if self.is_full() {
            return;
        }
        let place = Arc::clone(&self.places);
        let _ = spawn("caller", move || {
            serve(stream);
            drop(place);
        });
    }
}

const PAUSE: Duration = Duration::from_millis(100);
