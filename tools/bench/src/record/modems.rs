//! Records modem readings beside the traces.
//!
//! A thread polls a client's local socket every 5 s; the lines are written to NAME.modem.jsonl at
//! the end. The recording does not wait for it: without an answer only the lines are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use roadweave_linux::Clock;
use roadweave_node::{ModemFacts, local};
use roadweave_proto::{Instant, peer_text};
use serde_json::{Value, json};
use tracing::warn;

#[derive(Debug)]
pub struct ModemLog {
    lines: Arc<Mutex<ModemLines>>,
    /// Dropping this ends the thread.
    _going: Sender<()>,
}

impl ModemLog {
    pub fn start(socket: PathBuf, clock: Clock) -> anyhow::Result<Self> {
        let lines = Arc::<Mutex<ModemLines>>::default();
        let (going, ended) = channel();
        let shared = Arc::clone(&lines);
        let thread = std::thread::Builder::new().name("modems".to_owned());
        let thread = thread.spawn(move || ask(&socket, clock, &shared, &ended));
        thread.context("cannot start a thread")?;
        Ok(Self { lines, _going: going })
    }

    /// The readings of `interface`, one JSON line each; `None` without any.
    pub fn of(&self, interface: &str) -> Option<String> {
        let lines = lock(&self.lines);
        lines.0.get(interface).map(|lines| lines.concat())
    }
}

#[derive(Debug, Default)]
struct ModemLines(BTreeMap<String, Vec<String>>);

impl ModemLines {
    /// Adds a reading without confidential facts.
    fn add(&mut self, now: Instant, interface: String, facts: &ModemFacts) {
        let is_new = !self.0.contains_key(&interface);
        if facts.check().is_err() || is_new && self.0.len() >= INTERFACES_MAX {
            return;
        }
        let lines = self.0.entry(interface).or_default();
        if lines.len() < LINES_MAX {
            let seconds = now.since(Instant::ZERO).as_secs_f64();
            lines.push(format!("{}\n", json!({ "seconds": seconds, "facts": facts })));
        }
    }
}

fn ask(socket: &Path, clock: Clock, lines: &Mutex<ModemLines>, ended: &Receiver<()>) {
    let mut is_answering = true;
    loop {
        match local::request(socket, "summary", &Value::Null) {
            Ok(mut status) => {
                is_answering = true;
                // Daemons other than clients have no modems.
                let modems = serde_json::from_value(status["modems"].take());
                let modems: BTreeMap<String, ModemFacts> = modems.unwrap_or_default();
                let (now, mut lines) = (clock.now(), lock(lines));
                modems.into_iter().for_each(|(name, facts)| lines.add(now, name, &facts));
            }
            Err(error) if is_answering => {
                is_answering = false;
                let error = error.to_string();
                warn!("cannot record modems now: {}", peer_text(error.as_bytes()));
            }
            Err(_) => {}
        }
        if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Ignores poison: nothing under the lock can panic halfway.
fn lock(lines: &Mutex<ModemLines>) -> MutexGuard<'_, ModemLines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client updates its readings at the same interval.
const INTERVAL: Duration = Duration::from_secs(5);
/// Limit per interface: more than the longest recording has.
const LINES_MAX: usize = 2_048;
const INTERFACES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_hold_nothing_that_no_modem_says() {
        let mut lines = ModemLines::default();
        let at = Instant::from_millis(5_250);
        let facts = ModemFacts { rsrp_dbm: Some(-95.5), ..ModemFacts::default() };
        let hostile = ModemFacts { operator: Some("\u{1b}[2J".to_owned()), ..facts.clone() };
        lines.add(at, "wwan0".to_owned(), &hostile);
        assert!(lines.0.is_empty());
        lines.add(at, "wwan0".to_owned(), &facts);
        let line = "{\"facts\":{\"rsrp_dbm\":-95.5},\"seconds\":5.25}\n";
        assert_eq!(lines.0["wwan0"], [line]);
        (0..10_000).for_each(|_| lines.add(at, "wwan0".to_owned(), &facts));
        (0..10_000).for_each(|number| lines.add(at, format!("w{number}"), &facts));
        assert_eq!((lines.0["wwan0"].len(), lines.0.len()), (LINES_MAX, INTERFACES_MAX));
    }
}
