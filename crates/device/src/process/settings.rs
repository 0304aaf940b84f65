//! The sysctls that an instance changes, and what they were before.
//!
//! ```text
//! change: note "key, old, new" in NAME.undo ─► write the sysctl
//! end:    the notes, the last first         ─► write the old value ─► strike the note
//! ```
//!
//! Where the disk has no room for a note, it is kept in memory: an orderly end undoes the change,
//! and only after a crash it is left.
//!
//! Two instances may want the same setting. The later one finds it changed and copies the earlier
//! one's note, so that both know what it was originally, and the last of them to end restores it.
//! Notes name the network namespace, since namespaces may share `/run`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::{Instance, own_directory, private};
use crate::{DeviceError, files, sysctl};

/// One setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Undo {
    sysctl: String,
    old: String,
    new: String,
    /// The network namespace's inode.
    #[serde(default)]
    namespace: u64,
}

/// The notes that found no room on the disk, by the files that they belong to.
type Unwritten = BTreeMap<PathBuf, Vec<Undo>>;

/// Threads of one process take turns with the notes.
static TURN: Mutex<Unwritten> = Mutex::new(BTreeMap::new());

fn take_turn() -> MutexGuard<'static, Unwritten> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// Sets a sysctl until [`Instance::restore_settings`]; nothing happens if it has the value by
    /// the will of others.
    ///
    /// # Errors
    /// What the kernel says, or when the undo file cannot be written.
    pub fn change_setting(&self, key: &str, value: &str) -> Result<(), DeviceError> {
        let mut turn = take_turn();
        let current = sysctl::read(key)?;
        let mut old = current.clone();
        if current == value {
            if self.undos(&turn).iter().any(|undo| undo.sysctl == key && undo.new == value) {
                return Ok(());
            }
            let Some(theirs) = self.shared(key, value) else { return Ok(()) };
            old = theirs.old;
        }
        let namespace = namespace();
        let undo = Undo { sysctl: key.to_owned(), old, new: value.to_owned(), namespace };
        // Written first: after a crash between both, the undo finds the old value and rests. Once,
        // however often another program changes it.
        if !self.undos(&turn).contains(&undo) {
            self.note(&mut turn, undo)?;
        }
        if current == value { Ok(()) } else { sysctl::write(key, value) }
    }

    /// Appends to the list; what finds no room there stays in memory, which is told once.
    fn note(&self, turn: &mut Unwritten, undo: Undo) -> Result<(), DeviceError> {
        own_directory(&self.directory)?;
        let path = self.file("undo");
        match append(&path, &line(&undo)) {
            Err(error) if is_full(&error) => {
                let notes = turn.entry(path.clone()).or_default();
                if notes.is_empty() {
                    tracing::warn!(
                        "cannot write {}: {error}; if this program is killed, settings that it has \
                         changed are not put back",
                        path.display()
                    );
                }
                notes.push(undo);
                Ok(())
            }
            result => result
                .map_err(|error| DeviceError::system(format!("write {}", path.display()), error)),
        }
    }

    /// What a setting was before any instance changed it, a crashed one among them.
    ///
    /// # Errors
    /// When there is no such key.
    pub(crate) fn original_setting(&self, key: &str) -> Result<String, DeviceError> {
        let turn = take_turn();
        let current = sysctl::read(key)?;
        let noted = self.undos(&turn).into_iter().find(|undo| undo.sysctl == key);
        let noted = noted.filter(|undo| undo.new == current);
        let original = noted.or_else(|| self.shared(key, &current)).map(|undo| undo.old);
        Ok(original.unwrap_or(current))
    }

    /// Undoes all of [`Instance::change_setting`], the last first. A setting that somebody else has
    /// changed since, or whose interface is gone, stays as it is, and so does one that another
    /// instance needs.
    ///
    /// Returns the keys that the kernel would not have restored; they stay noted.
    pub fn restore_settings(&self) -> Vec<String> {
        self.restore(|_| true)
    }

    /// Undoes it for the keys that are `mine`, and keeps the others in the list.
    pub(crate) fn restore(&self, mine: impl Fn(&str) -> bool) -> Vec<String> {
        let mut turn = take_turn();
        let here = namespace();
        let (mut kept, mut failed) = (Vec::new(), Vec::new());
        for undo in self.undos(&turn).into_iter().rev() {
            if !mine(&undo.sysctl) {
                kept.push(undo);
            } else if undo.is_in(here)
                && sysctl::read(&undo.sysctl).is_ok_and(|value| value == undo.new)
                && self.shared(&undo.sysctl, &undo.new).is_none()
                && let Err(error) = sysctl::write(&undo.sysctl, &undo.old)
            {
                tracing::warn!(%error, "a setting could not be restored; the next start tries again");
                failed.push(undo.sysctl.clone());
                kept.push(undo);
            }
        }
        kept.reverse();
        self.keep(&mut turn, kept);
        failed
    }

    /// Makes the list that of `undos`.
    fn keep(&self, turn: &mut Unwritten, undos: Vec<Undo>) {
        let path = self.file("undo");
        turn.remove(&path);
        if undos.is_empty() {
            let _ = fs::remove_file(path);
            return;
        }
        let rest: String = undos.iter().map(line).collect();
        match files::replace(&path, rest.as_bytes(), 0o600) {
            // The old list holds more than these, which does no harm.
            Err(error) if is_full(&error) => _ = turn.insert(path, undos),
            Err(error) => {
                tracing::warn!(%error, "the list of changed settings is longer than it should be");
            }
            Ok(()) => {}
        }
    }

    /// Our own notes, each once, the first first.
    fn undos(&self, turn: &Unwritten) -> Vec<Undo> {
        let path = self.file("undo");
        let mut undos = read(&path);
        for undo in turn.get(&path).into_iter().flatten() {
            if !undos.contains(undo) {
                undos.push(undo.clone());
            }
        }
        undos
    }

    /// Another instance's note that it set `key` to `value` in this namespace.
    fn shared(&self, key: &str, value: &str) -> Option<Undo> {
        let here = namespace();
        let own = self.file("undo");
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<_> = files.map(|file| file.path()).collect();
        paths.sort();
        paths
            .iter()
            .filter(|path| **path != own && path.extension().is_some_and(|kind| kind == "undo"))
            .flat_map(|path| read(path))
            .find(|undo| undo.sysctl == key && undo.new == value && undo.is_in(here))
    }
}

impl Undo {
    /// Zero stands for any namespace.
    fn is_in(&self, namespace: u64) -> bool {
        self.namespace == namespace || self.namespace == 0
    }
}

/// Adds a line, or nothing.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = private(OpenOptions::new().append(true).create(true)).open(path)?;
    let before = file.metadata()?.len();
    file.write_all(line.as_bytes()).inspect_err(|_| {
        // Half a line would spoil the next one.
        let _ = file.set_len(before);
    })
}

fn line(undo: &Undo) -> String {
    serde_json::to_string(undo).expect("strings serialize") + "\n"
}

/// Whether the disk has no room, or this user none on it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn read(path: &Path) -> Vec<Undo> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The network namespace of the calling thread.
fn namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}
