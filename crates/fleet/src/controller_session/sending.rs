//! Splits data that is larger than one message.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PublishedTable;
use crate::envelope::Signed;
use crate::frame::{Down, FRAME_MAX};
use crate::revocation::{Head, Revocation};
use crate::table::{Entry, Table, TableChange, TableHead};

const ENTRIES_AT_ONCE: usize = 100;
const KEYS_AT_ONCE: usize = 500;
const MEMBERS_BYTES: usize = FRAME_MAX - 8 * 1024;

/// Messages with `entries`; the last one has the head. Without entries, one message with the head.
pub(super) fn revocation_frames(
    entries: &[Revocation],
    head: &Signed<Head>,
) -> impl Iterator<Item = Down> {
    let mut chunks: Vec<Vec<Revocation>> =
        entries.chunks(ENTRIES_AT_ONCE).map(<[Revocation]>::to_vec).collect();
    if chunks.is_empty() {
        chunks.push(Vec::new());
    }
    let last = chunks.len() - 1;
    let head = head.clone();
    chunks.into_iter().enumerate().map(move |(index, entries)| Down::Revoke {
        entries,
        head: (index == last).then(|| head.clone()),
    })
}

#[derive(Debug)]
pub(super) struct TableSending {
    anew: bool,
    set: VecDeque<Arc<Entry>>,
    gone: Vec<roadweave_identity::PublicKey>,
    head: Option<Signed<TableHead>>,
}

impl TableSending {
    /// `table` as a change of `former`, or of any table.
    pub(super) fn new(table: &PublishedTable, former: Option<&Table>) -> Self {
        let change = table.table.since(former.unwrap_or(&Table::default()));
        Self {
            anew: former.is_none(),
            set: change.set.into(),
            gone: change.gone,
            head: Some(table.head.clone()),
        }
    }

    pub(super) fn next(&mut self) -> Option<Down> {
        self.head.as_ref()?;
        let (mut set, mut bytes) = (Vec::new(), 0);
        while let Some(entry) = self.set.front() {
            bytes += entry.bytes() + 1;
            if bytes > MEMBERS_BYTES && !set.is_empty() {
                break;
            }
            set.extend(self.set.pop_front());
        }
        let rest = self.gone.len().saturating_sub(KEYS_AT_ONCE);
        let gone = if set.is_empty() { self.gone.split_off(rest) } else { Vec::new() };
        let is_last = self.set.is_empty() && self.gone.is_empty();
        let head = if is_last { self.head.take() } else { None };
        let anew = std::mem::take(&mut self.anew);
        Some(Down::Members(TableChange { anew, set, gone, head }))
    }
}
