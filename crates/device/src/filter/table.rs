//! A table of our own: put in place as a whole, and looked at whether it still is what it was.
//!
//! ```text
//! stale, or changed by others ─► thread: nft ─► waker of the event loop ─► Turn::Replaced, Failed
//!            ▲ every 4 s                                │ failed
//!            └───────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use roadweave_proto::Instant;

use super::nftables::{Contents, Nftables};
use super::run_nft;
use crate::{DeviceError, Waker};

/// One table of the family `inet`, in the network namespace where it was opened. It outlives its
/// owner.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    nftables: Nftables,
    installed: Installed,
}

/// What is known of the kernel's table since the last replacement.
#[derive(Clone, Copy, Debug)]
enum Installed {
    /// The table could not be looked at.
    Unknown,
    /// The table is ours: its contents, and the generation when it was looked at.
    Ours(Contents, u32),
    /// Somebody changed it at the same time.
    Changed,
}

impl Table {
    /// Changes nothing yet.
    pub(crate) fn open(name: String) -> Result<Self, DeviceError> {
        Ok(Self { name, nftables: Nftables::open()?, installed: Installed::Unknown })
    }

    /// Puts what `text` says in the place of the table, in one step; it has so many rules then.
    ///
    /// # Errors
    /// As [`run_nft`]; the table is the old one then.
    pub(crate) fn replace(&mut self, text: &str, rules: usize) -> Result<(), DeviceError> {
        // What others change between our writing and our reading would pass for ours.
        for _ in 0..TRIES {
            let before = self.nftables.generation();
            run_nft(text)?;
            self.installed = Installed::Unknown;
            let contents = self.nftables.contents(&self.name);
            let after = self.nftables.generation();
            let (Ok(before), Ok(contents), Ok(after)) = (before, contents, after) else { break };
            let is_ours = contents.rules == rules;
            self.installed = match is_ours {
                true => Installed::Ours(contents, after),
                false => Installed::Changed,
            };
            if is_ours && after == before.wrapping_add(1) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the table is as it was put in place. Cheap while nobody changes any table.
    pub(crate) fn is_in_place(&mut self) -> bool {
        let (installed, generation) = match self.installed {
            Installed::Ours(contents, generation) => (contents, generation),
            Installed::Unknown => return true,
            Installed::Changed => return false,
        };
        let Ok(now) = self.nftables.generation() else { return true };
        if now == generation {
            return true;
        }
        match self.nftables.contents(&self.name) {
            Ok(contents) if contents == installed => {
                self.installed = Installed::Ours(contents, now)
            }
            Ok(_) => return false,
            // What cannot be read now is looked at the next time.
            Err(error) => tracing::debug!(%error, table = self.name, "it could not be looked at"),
        }
        true
    }

    /// The packets that each of its named counters has seen.
    pub(crate) fn counters(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.nftables.counters(&self.name)
    }
}

/// A table that a thread puts in place, so that no event loop waits for `nft`. The thread ends
/// before this is dropped.
#[derive(Debug)]
pub(crate) struct KeptTable {
    name: String,
    /// Wakes the event loop when the thread ends.
    waker: Option<Waker>,
    table: Option<Table>,
    work: Option<(Receiver<Done>, JoinHandle<()>)>,
    /// The table is not what it should be.
    is_stale: bool,
    /// Another program has changed it.
    is_changed: bool,
    next_look: Instant,
}

type Done = (Option<Table>, Result<(), DeviceError>);

/// What became of a table in a turn.
#[derive(Debug)]
pub enum Turn {
    /// Nothing, or not yet.
    Unchanged,
    /// It was put in place.
    Replaced {
        /// Another program had changed it.
        was_changed: bool,
    },
    /// It was not put in place; it is tried again at the next look.
    Failed(DeviceError),
}

impl KeptTable {
    /// Installs nothing before the first [`KeptTable::turn`] after [`KeptTable::set_stale`].
    pub(crate) fn new(name: String, waker: Option<Waker>) -> Self {
        let next_look = Instant::ZERO;
        let (table, work, is_stale, is_changed) = (None, None, false, false);
        Self { name, waker, table, work, is_stale, is_changed, next_look }
    }

    /// `waker` wakes for [`KeptTable::turn`] from now on.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// The table is to be replaced at the next turn.
    pub(crate) fn set_stale(&mut self) {
        self.is_stale = true;
        self.next_look = Instant::ZERO;
    }

    /// Whether the table was put in place as it is wanted now.
    pub(crate) fn is_in_place(&self) -> bool {
        self.table.is_some() && self.work.is_none() && !self.is_stale
    }

    /// When [`KeptTable::turn`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        // The end of the thread wakes the loop.
        self.work.is_none().then_some(self.next_look)
    }

    /// Takes what the thread has done, or looks from time to time whether the table is as it should
    /// be, and begins to replace it if not. `text` makes the table's text from the packets of its
    /// counters, and counts its rules.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        text: impl FnOnce(&BTreeMap<String, u64>) -> (String, usize),
    ) -> Turn {
        if let Some((done, _)) = &self.work {
            return match done.try_recv() {
                Ok(done) => self.take_done(done),
                Err(TryRecvError::Empty) => Turn::Unchanged,
                Err(TryRecvError::Disconnected) => {
                    let died = DeviceError::system("put a table in place", io::ErrorKind::Other);
                    self.take_done((None, Err(died)))
                }
            };
        }
        if now < self.next_look {
            return Turn::Unchanged;
        }
        self.next_look = now + LOOK;
        self.is_changed |= self.table.as_mut().is_some_and(|table| !table.is_in_place());
        if !self.is_stale && !self.is_changed {
            return Turn::Unchanged;
        }
        let (text, rules) = text(&self.counters().unwrap_or_default());
        let (table, name, waker) = (self.table.take(), self.name.clone(), self.waker.clone());
        let (sender, done) = channel();
        let work = move || {
            // The receiver is there as long as this thread.
            let _ = sender.send(replaced(table, name, &text, rules));
            waker.iter().for_each(Waker::wake);
        };
        match std::thread::Builder::new().name("table".to_owned()).spawn(work) {
            Ok(thread) => {
                self.is_stale = false;
                self.work = Some((done, thread));
                Turn::Unchanged
            }
            Err(error) => Turn::Failed(DeviceError::system("start a thread", error)),
        }
    }

    fn take_done(&mut self, (table, result): Done) -> Turn {
        self.work = None;
        self.table = table;
        match result {
            Ok(()) => Turn::Replaced { was_changed: std::mem::take(&mut self.is_changed) },
            Err(error) => {
                self.is_stale = true;
                Turn::Failed(error)
            }
        }
    }

    /// The packets that each of its named counters has seen; none while it is being replaced.
    pub(super) fn counters(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.table.as_mut().map_or_else(|| Ok(BTreeMap::new()), Table::counters)
    }
}

impl Drop for KeptTable {
    fn drop(&mut self) {
        // Else it could put the table in place after it was removed.
        self.work.take().map(|(_, thread)| thread.join());
    }
}

fn replaced(table: Option<Table>, name: String, text: &str, rules: usize) -> Done {
    match table.map_or_else(|| Table::open(name), Ok) {
        Ok(mut table) => {
            let result = table.replace(text, rules);
            (Some(table), result)
        }
        Err(error) => (None, Err(error)),
    }
}

const TRIES: usize = 5;
/// How often it is looked at whether the table is as it should be, and a failure is tried again.
const LOOK: Duration = Duration::from_secs(4);
