//! The sysctls that an instance changes, and what they were before.
//!
//! ```text
//! change: note "key, old, new" in NAME.undo ─► write the sysctl
//! end:    the notes, the last first         ─► write the old value ─► strike the note
//! ```
//!
//! Two instances may want the same setting. The later one finds it changed and copies the earlier
//! one's note, so that both know what it was originally, and the last of them to end restores it.
//! Notes name the network namespace, since namespaces may share `/run`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{Instance, own_directory, private};
use crate::{DeviceError, sysctl};

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

/// Threads of one process take turns with the notes.
static TURN: Mutex<()> = Mutex::new(());

impl Instance {
    /// Sets a sysctl until [`Instance::restore_settings`]; nothing happens if it has the value by the
    /// will of others.
    ///
    /// # Errors
    /// What the kernel says, or when the undo file cannot be written.
    pub fn change_setting(&self, key: &str, value: &str) -> Result<(), DeviceError> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = sysctl::read(key)?;
        let mut old = current.clone();
        if current == value {
            if self.undos().iter().any(|undo| undo.sysctl == key && undo.new == value) {
                return Ok(());
            }
            let Some(theirs) = self.shared(key, value) else { return Ok(()) };
            old = theirs.old;
        }
        let namespace = namespace();
        let undo = Undo { sysctl: key.to_owned(), old, new: value.to_owned(), namespace };
        let line = serde_json::to_string(&undo).expect("strings serialize");
        let path = self.file("undo");
        // Written first: after a crash between both, the undo finds the old value and rests.
        own_directory(&self.directory)?;
        private(OpenOptions::new().append(true).create(true))
            .open(&path)
            .and_then(|mut file| writeln!(file, "{line}"))
            .map_err(|error| DeviceError::system(format!("write {}", path.display()), error))?;
        if current == value { Ok(()) } else { sysctl::write(key, value) }
    }

    /// What a setting was before any instance changed it, a crashed one among them.
    ///
    /// # Errors
    /// When there is no such key.
    pub(crate) fn original_setting(&self, key: &str) -> Result<String, DeviceError> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = sysctl::read(key)?;
        let noted = self.undos().into_iter().find(|undo| undo.sysctl == key);
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
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let here = namespace();
        let (mut kept, mut failed) = (Vec::new(), Vec::new());
        for undo in self.undos().into_iter().rev() {
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
        self.keep(&kept);
        failed
    }

    /// Makes the list that of `undos`.
    fn keep(&self, undos: &[Undo]) {
        let path = self.file("undo");
        if undos.is_empty() {
            let _ = fs::remove_file(path);
            return;
        }
        let line = |undo| serde_json::to_string(undo).expect("strings serialize") + "\n";
        let rest: String = undos.iter().map(line).collect();
        // Renamed into place, so that a crash leaves the one list or the other.
        let next = self.file("undo.new");
        let written = private(OpenOptions::new().write(true).create(true).truncate(true))
            .open(&next)
            .and_then(|mut file| file.write_all(rest.as_bytes()))
            .and_then(|()| fs::rename(&next, &path));
        if let Err(error) = written {
            tracing::warn!(%error, "the list of changed settings is longer than it should be");
        }
    }

    /// Our own notes, the first first.
    fn undos(&self) -> Vec<Undo> {
        read(&self.file("undo"))
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

fn read(path: &Path) -> Vec<Undo> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The network namespace of the calling thread.
fn namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}
