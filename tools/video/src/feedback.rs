//! Subscribes to frame targets at the vehicle's program, over its local socket.
//!
//! ```text
//! socket ─► lines ─► message ─► Latest ◄─ read before each frame
//!   └─ lost: reconnect after 0.1 s, 0.2 s, ... 2 s
//! ```
//!
//! The socket may be absent, end, or fall silent at any time: the last target is valid for
//! [`VALID_FOR`], since the program repeats it at least each second.

mod lines;
mod message;

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use self::lines::LineReader;
use self::message::TunnelMessage;
use crate::sizing::Target;

#[derive(Debug)]
pub struct Feedback {
    latest: Arc<Mutex<Latest>>,
    stop: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackState {
    /// The program does not answer.
    Absent,
    /// The program answers without a target for the lane.
    NoTarget,
    /// The program gave a target recently.
    Followed,
}

#[derive(Debug, Default)]
struct Latest {
    connected: bool,
    target: Option<(Instant, Target)>,
    /// The renewal counter last received on this connection.
    heard: Option<u64>,
    renewals: Renewals,
    bad_lines: u64,
}

/// Requests to restart with a key frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewals {
    pub count: u64,
    pub connection: u64,
}

impl Feedback {
    pub fn subscribe(socket: PathBuf, lane: String) -> io::Result<Self> {
        let latest = Arc::<Mutex<Latest>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let client =
            FeedbackClient { socket, lane, latest: Arc::clone(&latest), stop: Arc::clone(&stop) };
        thread::Builder::new().name("feedback".into()).spawn(move || client.run())?;
        Ok(Self { latest, stop })
    }

    pub fn target(&self, now: Instant) -> Option<Target> {
        lock(&self.latest).valid(now)
    }

    pub fn renewals(&self) -> Renewals {
        lock(&self.latest).renewals
    }

    pub fn state(&self, now: Instant) -> FeedbackState {
        let latest = lock(&self.latest);
        match (latest.connected, latest.valid(now)) {
            (_, Some(_)) => FeedbackState::Followed,
            (true, None) => FeedbackState::NoTarget,
            (false, None) => FeedbackState::Absent,
        }
    }

    pub fn bad_lines(&self) -> u64 {
        lock(&self.latest).bad_lines
    }
}

impl Drop for Feedback {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Latest {
    fn on_connected(&mut self) {
        self.heard = None;
        self.renewals.connection += 1;
    }

    /// Renewals before the connection do not count. A lower counter means a restarted program.
    fn on_renewals(&mut self, counter: u64) {
        let is_rise = self.heard.replace(counter).is_some_and(|before| counter > before);
        self.renewals.count += u64::from(is_rise);
    }

    fn valid(&self, now: Instant) -> Option<Target> {
        let (at, target) = self.target?;
        (now.saturating_duration_since(at) < VALID_FOR).then_some(target)
    }
}

struct FeedbackClient {
    socket: PathBuf,
    lane: String,
    latest: Arc<Mutex<Latest>>,
    stop: Arc<AtomicBool>,
}

impl FeedbackClient {
    fn run(self) {
        let mut wait = RETRY_FIRST;
        let mut is_logged = false;
        while !self.is_over() {
            let began = Instant::now();
            let result = UnixStream::connect(&self.socket).and_then(|stream| self.follow(stream));
            let was_connected = std::mem::take(&mut lock(&self.latest).connected);
            if was_connected && began.elapsed() > RETRY_MOST {
                wait = RETRY_FIRST;
            }
            if !self.is_over() && (was_connected || !is_logged) {
                let socket = self.socket.display();
                let why = result.err().map_or("it ended".to_owned(), |error| error.to_string());
                tracing::warn!("cannot get targets from {socket}: {why}; trying again");
                is_logged = true;
            }
            thread::sleep(wait);
            wait = (wait * 2).min(RETRY_MOST);
        }
    }

    fn follow(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(SILENCE_MOST))?;
        stream.set_read_timeout(Some(SILENCE_MOST))?;
        stream.write_all(message::SUBSCRIBE)?;
        lock(&self.latest).on_connected();
        let mut lines = LineReader::new(stream);
        while !self.is_over() {
            let Some(line) = lines.read()? else { return Ok(()) };
            let message = line.map_or(TunnelMessage::Bad, |line| message::parse(line, &self.lane));
            let mut latest = lock(&self.latest);
            match message {
                TunnelMessage::Subscribed => {
                    latest.connected = true;
                    tracing::info!("following targets from {}", self.socket.display());
                }
                TunnelMessage::Lane(said) => {
                    latest.connected = true;
                    latest.target = said.target.map(|target| (Instant::now(), target));
                    said.renewals.into_iter().for_each(|counter| latest.on_renewals(counter));
                }
                TunnelMessage::Refused(why) => return Err(io::Error::other(why)),
                TunnelMessage::Other => {}
                TunnelMessage::Bad => latest.bad_lines += 1,
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Validity of a target, which the program repeats at least each second.
const VALID_FOR: Duration = Duration::from_secs(3);
/// After this silence the program is asked again.
const SILENCE_MOST: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
