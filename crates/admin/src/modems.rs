//! `roadweave modems`: tells a client what ModemManager knows of the modems under its uplinks.
//!
//! ```text
//! ModemManager ─ busctl, every 5 s ─► facts, bounded and in range ─► the client's local socket
//! ```
//!
//! It is no part of the client, whose program would grow by D-Bus, and which a modem's firmware or
//! an operator shall not reach by a name they choose. Nothing is kept between two readings:
//! whatever ends and comes back meanwhile is there again with the next one, and what is told no
//! more vanishes from the client by itself.

mod bus;
mod facts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use roadweave_device::local::{RequestError, TellModem, tell_modem};
use roadweave_device::{ModemFacts, Signal, Signals, wait_readable};
use roadweave_terminal::out;
use roadweave_types::peer_text;

/// Tells a client what ModemManager knows of its modems: operator, technology, signal, SIM, APN
///
/// It asks over D-Bus every five seconds, waits for a ModemManager and a client that do not run
/// yet, and starts neither.
#[derive(Debug, clap::Args)]
pub struct ModemsArgs {
    /// The socket of the client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// The D-Bus that ModemManager is on, as `unix:path=..`; default: the machine's
    #[arg(long, value_name = "ADDRESS")]
    bus: Option<String>,
}

impl ModemsArgs {
    /// # Errors
    /// When D-Bus is silent for so long that only another start helps.
    pub fn run(&self) -> Result<()> {
        let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
        let mut complaint = Complaint::default();
        while signals.take().is_none() {
            let began = Instant::now();
            match self.read()? {
                Ok(modems) => complaint.set(self.tell(modems)),
                Err(why) => complaint.set(Some(why)),
            }
            let left = INTERVAL.saturating_sub(began.elapsed());
            if wait_readable(&signals, left).is_err() {
                sleep(left);
            }
        }
        Ok(())
    }

    /// What all modems tell, by their interfaces, or why nothing is known.
    ///
    /// # Errors
    /// When the answer takes too long.
    fn read(&self) -> Result<Result<BTreeMap<String, ModemFacts>, String>> {
        let (sender, receiver) = channel();
        let bus = self.bus.clone();
        // A bus that takes a connection and says nothing is waited for without end.
        spawn(move || _ = sender.send(bus::modems(bus.as_deref())));
        match receiver.recv_timeout(READ_TIMEOUT) {
            Ok(read) => Ok(read),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                Ok(Err("the modems could not be asked".to_owned()))
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                bail!("D-Bus has not answered within {} s", READ_TIMEOUT.as_secs())
            }
        }
    }

    /// Tells the client; returns what went wrong.
    fn tell(&self, modems: BTreeMap<String, ModemFacts>) -> Option<String> {
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

/// What is wrong, which is told once for as long as it lasts.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn set(&mut self, why: Option<String>) {
        if self.0 == why {
            return;
        }
        match &why {
            Some(why) => out::note(format_args!("{}; trying again", peer_text(why.as_bytes()))),
            None => out::note("the modems are told of again"),
        }
        self.0 = why;
    }
}

/// How often the modems are asked.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long that may take.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
