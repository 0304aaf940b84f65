//! `roadweave top`: a running client or server on one screen, for a crew.
//!
//! ```text
//! reader: a thread ─ status, twice a second ─► history ─► screen
//!        ▲                                                  │
//!        └──────────── an uplink to pause or resume ◄─ keys ┴─► end
//! ```
//!
//! If the instance ends or hangs, the screen says so. Keys never wait for it.

mod cursor;
mod reader;
mod row;
mod screen;

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use roadweave_linux::{Signal, Signals};
use roadweave_node::history::History;
use roadweave_node::local::{self, SetUplink};
use roadweave_terminal::exit::BadInput;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::cursor::Cursor;
use self::reader::{INTERVAL, StatusReader};

const KEYS: Duration = Duration::from_millis(100);

/// Shows a running client or server on one screen, for a crew
#[derive(Debug, clap::Args)]
#[command(after_help = LEGEND)]
pub struct TopArgs {
    /// The socket of the running client or server
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
}

const LEGEND: &str = "\
Goodput counts inner packets: `up` entered the tunnel, `down` came out of it. The target
is the smallest one sent to an encoder. `p99` covers the round trips of the best usable
path in the last minute; a stall is a time in that minute without a usable path. The
lines below an uplink show the last minute, newest at the right: the rate of both
directions, the round trip, the loss up to 100 %. `left` is what remains of the daily or
monthly cap, whichever is reached first.

Keys: arrows, j and k select an uplink, p pauses or resumes it, q and Ctrl-C quit.";

impl TopArgs {
    pub fn run(&self) -> Result<()> {
        if !std::io::stdout().is_terminal() {
            let why = "standard output is not a terminal: use `roadweave show --watch 1`";
            return Err(BadInput::new(why).into());
        }
        let mut history = History::new(INTERVAL);
        history.take(Instant::now(), local::status(&self.socket)?);
        let reader = StatusReader::start(self.socket.clone())?;
        let keys = keyboard().context("there is no terminal to read keys from")?;
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        // A panic restores the terminal before it prints.
        let ended = ratatui::try_init()
            .context("cannot set up the terminal")
            .and_then(|mut terminal| watch(&mut terminal, history, &reader, &keys, &mut signals));
        ratatui::restore();
        ended
    }
}

fn watch(
    terminal: &mut DefaultTerminal,
    mut history: History,
    reader: &StatusReader,
    keys: &OwnedFd,
    signals: &mut Signals,
) -> Result<()> {
    let mut cursor = Cursor::default();
    while signals.take().is_none() {
        loop {
            match reader.messages.try_recv() {
                Ok(message) => message.apply(&mut history, Instant::now()),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(anyhow!("the reader has stopped")),
            }
        }
        terminal.draw(|frame| screen::draw(frame, &history, cursor, Instant::now()))?;
        wait(keys)?;
        let has_event = event::poll(Duration::ZERO).or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        })?;
        if !has_event {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match action(key) {
                Action::End => return Ok(()),
                Action::Move(steps) => cursor.step(&history, steps),
                Action::Pause => pause(reader, &mut history, cursor),
                Action::Nothing => {}
            }
        }
    }
    Ok(())
}

fn keyboard() -> io::Result<OwnedFd> {
    match io::stdin().is_terminal() {
        true => Ok(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)?),
        false => File::open("/dev/tty").map(OwnedFd::from),
    }
}

/// Waits for a key. Fails when the terminal is gone, where crossterm would read without end.
fn wait(keys: &OwnedFd) -> Result<()> {
    let mut fds = [PollFd::new(keys, PollFlags::IN)];
    let most = Timespec::try_from(KEYS)?;
    match poll(&mut fds, Some(&most)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    match fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        true => Err(anyhow!("the terminal is gone")),
        false => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    End,
    Move(isize),
    Pause,
    Nothing,
}

fn action(key: KeyEvent) -> Action {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Action::End,
        _ if control => Action::Nothing,
        KeyCode::Char('q') => Action::End,
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Char('p') => Action::Pause,
        _ => Action::Nothing,
    }
}

fn pause(reader: &StatusReader, history: &mut History, cursor: Cursor) {
    let Some((uplink, is_paused)) = cursor.uplink(history) else { return };
    let change = SetUplink { uplink, paused: Some(!is_paused), ..SetUplink::default() };
    if reader.changes.try_send(change).is_err() {
        history.add_event(Instant::now(), "waiting for the previous change".to_owned());
    }
}

#[cfg(test)]
mod tests;
