//! A table of our own: replaced as a whole by `nft` in a thread, and compared every 4 s.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use roadweave_proto::Instant;

use super::nft::run_nft;
use super::nftables::{Contents, Nftables};
use crate::threads::spawn;
use crate::{DeviceError, Waker};

/// The kernel's table outlives it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) name: String,
    nftables: Nftables,
    installed: Installed,
}

#[derive(Clone, Copy, Debug)]
enum Installed {
    Unknown,
    Ours(Contents, u32),
    Changed,
}

impl Table {
    pub(crate) fn open(name: String) -> Result<Self, DeviceError> {
        Ok(Self { name, nftables: Nftables::open()?, installed: Installed::Unknown })
    }

    /// On an error the old one stays.
    pub(crate) fn replace(&mut self, text: &str, rules: usize) -> Result<(), DeviceError> {
        // Without it, another program's change between writing and reading would be taken for ours.
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
            Err(error) => tracing::debug!(
                %error,
                table = self.name,
                "cannot read the nftables table"
            ),
        }
        true
    }

    pub(crate) fn counters(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.nftables.counters(&self.name)
    }
}

/// A table that a thread installs: no event loop may wait for `nft`. Dropping joins the thread.
#[derive(Debug)]
pub struct MaintainedTable {
    name: String,
    waker: Option<Waker>,
    table: Option<Table>,
    work: Option<(Receiver<Done>, JoinHandle<()>)>,
    is_stale: bool,
    is_changed: bool,
    next_look: Instant,
}

type Done = (Option<Table>, Result<(), DeviceError>);

/// The outcome of a `MaintainedTable::turn`.
#[derive(Debug)]
pub enum TableTurn {
    /// Nothing was done, or it is not finished.
    Unchanged,
    /// The table was replaced.
    Replaced {
        /// Whether another program had changed it.
        was_changed: bool,
    },
    /// The replacement failed, and is retried at the next look.
    Failed(DeviceError),
}

impl MaintainedTable {
    /// Installs nothing before a [`MaintainedTable::turn`] after [`MaintainedTable::set_stale`].
    pub fn new(name: String, waker: Option<Waker>) -> Self {
        let next_look = Instant::ZERO;
        let (table, work, is_stale, is_changed) = (None, None, false, false);
        Self { name, waker, table, work, is_stale, is_changed, next_look }
    }

    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    /// Replaces the table at the next turn.
    pub fn set_stale(&mut self) {
        self.is_stale = true;
        self.next_look = Instant::ZERO;
    }

    /// Whether the present text is installed.
    pub fn is_in_place(&self) -> bool {
        self.table.is_some() && self.work.is_none() && !self.is_stale
    }

    /// When the next turn is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.work.is_none().then_some(self.next_look)
    }

    /// Collects the thread's result, or checks the table from time to time and begins to replace
    /// it. `text` returns the table's text, given its counters' packets, and its number of rules.
    pub fn turn(
        &mut self,
        now: Instant,
        text: impl FnOnce(&BTreeMap<String, u64>) -> (String, usize),
    ) -> TableTurn {
        if let Some((done, _)) = &self.work {
            return match done.try_recv() {
                Ok(done) => self.take_done(done),
                Err(TryRecvError::Empty) => TableTurn::Unchanged,
                Err(TryRecvError::Disconnected) => {
                    let died = DeviceError::system("put a table in place", io::ErrorKind::Other);
                    self.take_done((None, Err(died)))
                }
            };
        }
        if now < self.next_look {
            return TableTurn::Unchanged;
        }
        self.next_look = now + LOOK;
        self.is_changed |= self.table.as_mut().is_some_and(|table| !table.is_in_place());
        if !self.is_stale && !self.is_changed {
            return TableTurn::Unchanged;
        }
        let (text, rules) = text(&self.counters().unwrap_or_default());
        let (table, name, waker) = (self.table.take(), self.name.clone(), self.waker.clone());
        let (sender, done) = channel();
        let work = move || {
            let _ = sender.send(replaced(table, name, &text, rules));
            waker.iter().for_each(Waker::wake);
        };
        match spawn("table", work) {
            Ok(thread) => {
                self.is_stale = false;
                self.work = Some((done, thread));
                TableTurn::Unchanged
            }
            Err(error) => TableTurn::Failed(error),
        }
    }

    fn take_done(&mut self, (table, result): Done) -> TableTurn {
        self.work = None;
        self.table = table;
        match result {
            Ok(()) => TableTurn::Replaced { was_changed: std::mem::take(&mut self.is_changed) },
            Err(error) => {
                self.is_stale = true;
                TableTurn::Failed(error)
            }
        }
    }

    pub(super) fn counters(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.table.as_mut().map_or_else(|| Ok(BTreeMap::new()), Table::counters)
    }
}

impl Drop for MaintainedTable {
    fn drop(&mut self) {
        // Otherwise it could install the table after its removal.
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
const LOOK: Duration = Duration::from_secs(4);
