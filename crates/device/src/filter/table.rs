//! A table of our own: put in place as a whole, and looked at whether it still is what it was.

use std::collections::BTreeMap;
use std::io;

use super::nftables::{Contents, Nftables};
use super::run_nft;
use crate::DeviceError;

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
    ///
    /// # Errors
    /// As [`Nftables::open`].
    pub(crate) fn open(name: String) -> Result<Self, DeviceError> {
        Ok(Self { name, nftables: Nftables::open()?, installed: Installed::Unknown })
    }

    /// Puts what `text` says in the place of the table, in one step; it has so many rules then.
    ///
    /// # Errors
    /// As [`run_nft`]; the table is the old one then.
    pub(crate) fn replace(&mut self, text: &str, rules: usize) -> Result<(), DeviceError> {
        self.installed = Installed::Unknown;
        // What others change between our writing and our reading would pass for ours.
        for _ in 0..TRIES {
            let before = self.nftables.generation();
            run_nft(text)?;
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

const TRIES: usize = 5;
