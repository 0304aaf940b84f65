//! Tells the vehicle's program that what was sent before a key frame is worth nothing any more.
//!
//! ```text
//! a key frame is to come ─► the newest word ─► a thread ─► socket: asks, and is answered
//! ```
//!
//! A word goes by the RTP timestamp, so that its order among the packets does not matter. Nothing
//! waits for the thread: while the program does not take a word, the newest one waits alone.

mod answer;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use self::answer::Answer;
use crate::feedback::Lines;

/// The way to the program; it ends when this is dropped.
#[derive(Debug)]
pub struct Supersede(Arc<Slot>);

/// What is worth nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Older {
    /// Whose packets (SSRC).
    pub ssrc: u32,
    /// Older than this, in RTP's time modulo 2^32.
    pub timestamp: u32,
    /// Which connection to the program it was that asked for the key frame.
    pub connection: u64,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: Option<Older>,
    is_over: bool,
}

impl Supersede {
    /// By the program at `socket`, of the packets in `lane`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(socket: PathBuf, lane: String) -> io::Result<Self> {
        let slot = Arc::<Slot>::default();
        let client = Client { socket, lane, slot: Arc::clone(&slot) };
        thread::Builder::new().name("supersede".into()).spawn(move || client.run())?;
        Ok(Self(slot))
    }

    /// Tells it soon; a word that still waits is forgotten.
    pub fn tell(&self, older: Older) {
        self.0.state().next = Some(older);
        self.0.changed.notify_one();
    }
}

impl Drop for Supersede {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_one();
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next word, or `None` at the end.
    fn next(&self) -> Option<Older> {
        let waits = |state: &mut State| !state.is_over && state.next.is_none();
        let state = self.changed.wait_while(self.state(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.next.take().filter(|_| !state.is_over)
    }
}

/// The thread's side.
struct Client {
    socket: PathBuf,
    lane: String,
    slot: Arc<Slot>,
}

impl Client {
    fn run(self) {
        // The connection to a program that does not know how.
        let mut unable = None;
        while let Some(older) = self.slot.next() {
            if unable == Some(older.connection) {
                continue;
            }
            let socket = self.socket.display();
            match self.ask(older) {
                Ok(Answer::Done(packets)) => tracing::debug!("{packets} packets are given up"),
                Ok(Answer::NoMethod) => {
                    tracing::warn!("{socket}: the program gives up no packets; it is older");
                    unable = Some(older.connection);
                }
                Ok(Answer::Refused(why)) => tracing::debug!("{socket}: {why}"),
                Err(error) => tracing::debug!("{socket}: {error}"),
            }
        }
    }

    /// On a connection of its own, which no other word waits behind.
    fn ask(&self, older: Older) -> io::Result<Answer> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(SILENCE_MOST))?;
        stream.set_read_timeout(Some(SILENCE_MOST))?;
        stream.write_all(&answer::question(older, &self.lane))?;
        let mut lines = Lines::new(stream.take(ANSWER_MOST));
        Ok(lines.read()?.flatten().map_or_else(Answer::none, Answer::parse))
    }
}

/// An answer after so long is of no use.
const SILENCE_MOST: Duration = Duration::from_millis(500);
/// Bytes of an answer.
const ANSWER_MOST: u64 = 4096;

#[cfg(test)]
mod tests;
