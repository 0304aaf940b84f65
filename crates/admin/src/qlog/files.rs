//! The folder of the files: their number, size and names, and a full disk.
//!
//! ```text
//! records ─► room in the file? ─► written, or the file is cut to whole records and ended
//!                 └ none: the next file; the oldest one is removed first
//! ```
//!
//! A peer's name cannot choose a path, and only this user's files with names of this form go.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, open, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::hooks::program;

#[derive(Clone, Copy, Debug)]
pub(super) struct TraceLimits {
    pub(super) bytes_max: u64,
    pub(super) files_max: usize,
}

#[derive(Debug)]
pub(super) struct TracePart {
    file: File,
    name: String,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Files {
    folder: OwnedFd,
    path: PathBuf,
    limits: TraceLimits,
    begun: u64,
    open: BTreeSet<String>,
    failed: Option<Duration>,
    lost: u64,
    notices: VecDeque<String>,
}

impl Files {
    /// Fails if it is no folder, others could write to it, or another process writes there.
    pub(super) fn open(path: &Path, limits: TraceLimits) -> Result<Self, String> {
        let path = program::folder(path)?;
        let failed = |error: Errno| format!("{}: {}", path.display(), io::Error::from(error));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(&path, flags, Mode::empty()).map_err(failed)?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let path = path.display();
                return Err(format!(
                    "another `roadweave qlog` writes to {path}: choose another folder"
                ));
            }
            Err(error) => return Err(failed(error)),
        }
        let (open, notices) = (BTreeSet::new(), VecDeque::new());
        Ok(Self { folder, path, limits, begun: 0, open, failed: None, lost: 0, notices })
    }

    /// `None` if the records are lost. `now`: the run's clock; `unix_ms` and `peer` name the file.
    pub(super) fn begin(
        &mut self,
        now: Duration,
        unix_ms: u128,
        peer: &str,
        records: &[u8],
    ) -> Option<TracePart> {
        if self.failed.is_some_and(|at| now.saturating_sub(at) < RETRY) {
            self.lost += 1;
            return None;
        }
        self.begun += 1;
        let name = format!("{PREFIX}{unix_ms:013}-{:06}-{}{SUFFIX}", self.begun, safe(peer));
        match self.create(&name, records) {
            Ok(file) => {
                self.open.insert(name.clone());
                if self.failed.take().is_some() {
                    let lost = self.lost;
                    self.notices.push_back(format!(
                        "files can be written again; {lost} readings are missing"
                    ));
                }
                Some(TracePart { file, name, bytes: records.len() as u64 })
            }
            Err(error) => {
                self.lost += 1;
                self.fail(now, &name, &error);
                None
            }
        }
    }

    /// Writes all of the records, or ends the file and returns `false`.
    pub(super) fn append(&mut self, now: Duration, part: &mut TracePart, records: &[u8]) -> bool {
        if part.bytes + records.len() as u64 > self.limits.bytes_max.saturating_sub(LAST) {
            return false;
        }
        self.append_last(now, part, records)
    }

    /// Writes the last records of a session, at most [`LAST`] bytes, for which room is kept.
    pub(super) fn append_last(
        &mut self,
        now: Duration,
        part: &mut TracePart,
        records: &[u8],
    ) -> bool {
        let written = part.file.write_all(records);
        match &written {
            Ok(()) => part.bytes += records.len() as u64,
            Err(error) => {
                let _ = part.file.set_len(part.bytes);
                self.fail(now, &part.name, error);
            }
        }
        written.is_ok()
    }

    pub(super) fn end(&mut self, part: TracePart) {
        self.open.remove(&part.name);
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn notices(&mut self) -> impl Iterator<Item = String> {
        self.notices.drain(..)
    }

    fn create(&self, name: &str, records: &[u8]) -> io::Result<File> {
        self.make_room()?;
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(records);
        if written.is_err() {
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
        written.map(|()| file)
    }

    fn make_room(&self) -> io::Result<()> {
        let mut names = self.own_names()?;
        while names.len() >= self.limits.files_max {
            let oldest = names.iter().find(|name| !self.open.contains(*name)).cloned();
            let oldest = oldest.ok_or_else(|| io::Error::other("all files are in use"))?;
            match unlinkat(&self.folder, &oldest, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            names.remove(&oldest);
        }
        Ok(())
    }

    fn own_names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !is_own(name) {
                continue;
            }
            match statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) => {
                    let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
                    if is_file && there.st_uid == geteuid().as_raw() {
                        names.insert(name.to_owned());
                    }
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(names)
    }

    fn fail(&mut self, now: Duration, name: &str, error: &io::Error) {
        if self.failed.replace(now).is_none() {
            let path = self.path.join(name);
            self.notices.push_back(format!(
                "cannot write {}: {error}; new readings are lost until it can be written",
                path.display()
            ));
        }
    }
}

fn is_own(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits >= 13 && rest[digits..].starts_with('-') && rest.ends_with(SUFFIX)
}

fn safe(peer: &str) -> String {
    let is_harmless = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    peer.chars()
        .map(|letter| if is_harmless(letter) { letter } else { '_' })
        .take(PEER_MAX)
        .collect()
}

const PREFIX: &str = "roadweave-";
const SUFFIX: &str = ".sqlog";
const PEER_MAX: usize = 40;
/// Bytes kept for the last records: 32 paths, as many lanes with long names, the end.
pub(super) const LAST: u64 = 65_536;
const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
