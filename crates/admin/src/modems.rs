//! `roadweave modems`: reports the modems under the uplinks to a client.
//!
//! ```text
//! ModemManager ─ busctl ─┐
//! a modem itself ─ AT ───┼─ every 5 s ─► facts, bounded and in range ─► the client's local socket
//! uqmi, the kernel ──────┘
//! ```
//!
//! It is not part of the client: no D-Bus there, and no modem firmware near it. Nothing is kept
//! between readings, so a returned modem is found; unreported facts expire in the client.

mod at;
mod bus;
mod facts;
mod program;
mod reader;
mod sysfs;
mod uqmi;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use roadweave_linux::{Signal, Signals, wait_readable};
use roadweave_node::ModemFacts;
use roadweave_node::local::{RequestError, TellModem, tell_modem};
use roadweave_proto::peer_text;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use self::reader::{ModemReader, ModemReading};

/// Reports modems to a client: operator, technology, signal, SIM, APN
///
/// Queries ModemManager over D-Bus every five seconds, or, if it does not answer, each modem
/// itself, by AT commands or uqmi. It waits for ModemManager, modems and the client to appear, and
/// starts none of them.
#[derive(Debug, clap::Args)]
pub struct ModemsArgs {
    /// The socket of the client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// The D-Bus of ModemManager, as `unix:path=..`; default: the system bus
    #[arg(long, value_name = "ADDRESS")]
    bus: Option<String>,
    /// The serial device for AT commands of the modem behind INTERFACE, instead of ModemManager and
    /// of devices found by itself; may be repeated, once per modem
    #[arg(long, value_name = "INTERFACE=DEVICE", value_parser = parse_port)]
    at: Vec<(String, PathBuf)>,
    /// Where /sys, /proc and /dev are, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

impl ModemsArgs {
    pub fn run(&self) -> Result<()> {
        let mut named = BTreeMap::new();
        for (interface, port) in &self.at {
            if named.insert(interface.clone(), port.clone()).is_some() {
                return Err(BadInput::new(format!("--at: `{interface}` is given twice")).into());
            }
        }
        let (bus, root) = (self.bus.clone(), self.root.clone());
        let mut reader = ModemReader { bus, root, named, ..ModemReader::default() };
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let mut complaints = Complaints::default();
        while signals.take().is_none() {
            let began = Instant::now();
            let Some((back, mut reading)) = read(reader, &mut signals)? else { break };
            reader = back;
            reading.complaints.extend(self.report(reading.facts));
            complaints.set(reading.complaints);
            let left = INTERVAL.saturating_sub(began.elapsed());
            if wait_readable(&signals, left).is_err() {
                sleep(left);
            }
        }
        Ok(())
    }

    fn report(&self, modems: BTreeMap<String, ModemFacts>) -> Option<String> {
        for (uplink, facts) in modems {
            match tell_modem(&self.socket, &TellModem { uplink, facts }) {
                Ok(_) => {}
                Err(RequestError::Refused(error)) => return Some(error.message),
                Err(error) => return Some(error.to_string()),
            }
        }
        None
    }
}

fn read(
    mut reader: ModemReader,
    signals: &mut Signals,
) -> Result<Option<(ModemReader, ModemReading)>> {
    let (sender, receiver) = channel();
    // In a thread: a silent bus, or a device whose driver hangs, blocks without end.
    spawn(move || {
        let reading = reader.read();
        _ = sender.send((reader, reading));
    });
    let deadline = Instant::now() + READ_TIMEOUT;
    while Instant::now() < deadline {
        match receiver.recv_timeout(SIGNAL_INTERVAL) {
            Ok(read) => return Ok(Some(read)),
            Err(RecvTimeoutError::Disconnected) => bail!("cannot query the modems"),
            Err(RecvTimeoutError::Timeout) if signals.take().is_some() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    bail!("D-Bus or a modem has not answered within {} s", READ_TIMEOUT.as_secs())
}

fn parse_port(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=');
    let parts = parts.filter(|(name, port)| facts::is_interface(name) && port.starts_with('/'));
    let (name, port) = parts.ok_or("not INTERFACE=DEVICE, as in wwan0=/dev/ttyUSB2")?;
    Ok((name.to_owned(), port.into()))
}

#[derive(Debug, Default)]
struct Complaints(BTreeSet<String>);

impl Complaints {
    fn set(&mut self, now: BTreeSet<String>) {
        for why in now.difference(&self.0) {
            out::note(format_args!("{}; trying again", peer_text(why.as_bytes())));
        }
        if now.is_empty() && !self.0.is_empty() {
            out::note("reporting the modems again");
        }
        self.0 = now;
    }
}

const INTERVAL: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const SIGNAL_INTERVAL: Duration = Duration::from_millis(200);
