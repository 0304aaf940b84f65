//! Reports to the vehicle's program the packets that a key frame has superseded.
//!
//! ```text
//! a key frame follows ─► the newest report ─► a thread ─► socket: request, response
//! ```
//!
//! Reports use RTP timestamps, so that their order among the packets does not matter. The sender
//! never waits for the thread: only the newest report is queued.

mod answer;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use self::answer::SupersedeAnswer;
use crate::feedback::LineReader;

/// The reporter; it ends when this is dropped.
#[derive(Debug)]
pub struct Supersede(Arc<Mailbox>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Older {
    pub ssrc: u32,
    /// All packets older than this RTP timestamp, modulo 2^32.
    pub timestamp: u32,
    pub connection: u64,
}

#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<MailboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct MailboxState {
    next: Option<Older>,
    is_over: bool,
}

impl Supersede {
    pub fn start(socket: PathBuf, lane: String) -> io::Result<Self> {
        let mailbox = Arc::<Mailbox>::default();
        let client = SupersedeClient { socket, lane, mailbox: Arc::clone(&mailbox) };
        thread::Builder::new().name("supersede".into()).spawn(move || client.run())?;
        Ok(Self(mailbox))
    }

    /// Reports soon; replaces a report that is still queued.
    pub fn report(&self, older: Older) {
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

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Older> {
        let waits = |state: &mut MailboxState| !state.is_over && state.next.is_none();
        let state = self.changed.wait_while(self.state(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.next.take().filter(|_| !state.is_over)
    }
}

struct SupersedeClient {
    socket: PathBuf,
    lane: String,
    mailbox: Arc<Mailbox>,
}

impl SupersedeClient {
    fn run(self) {
        // The connection of a program that lacks the method.
        let mut unable = None;
        while let Some(older) = self.mailbox.next() {
            if unable == Some(older.connection) {
                continue;
            }
            let socket = self.socket.display();
            match self.ask(older) {
                Ok(SupersedeAnswer::Done(packets)) => {
                    tracing::debug!("{packets} packets are withdrawn")
                }
                Ok(SupersedeAnswer::NoMethod) => {
                    tracing::warn!("{socket}: the program is older and cannot withdraw packets");
                    unable = Some(older.connection);
                }
                Ok(SupersedeAnswer::Refused(why)) => tracing::debug!("{socket}: {why}"),
                Err(error) => tracing::debug!("{socket}: {error}"),
            }
        }
    }

    /// Each request has its own connection.
    fn ask(&self, older: Older) -> io::Result<SupersedeAnswer> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(SILENCE_MOST))?;
        stream.set_read_timeout(Some(SILENCE_MOST))?;
        stream.write_all(&answer::question(older, &self.lane))?;
        let mut lines = LineReader::new(stream.take(ANSWER_MOST));
        Ok(lines.read()?.flatten().map_or_else(SupersedeAnswer::none, SupersedeAnswer::parse))
    }
}

/// Later answers are useless.
const SILENCE_MOST: Duration = Duration::from_millis(500);
const ANSWER_MOST: u64 = 4096;

#[cfg(test)]
mod tests;
