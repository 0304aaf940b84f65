//! Sysctls that an instance changes, and their former values. The note in `NAME.undo` is written
//! before the sysctl. If the disk is full, notes are kept in memory, and are lost only by a crash.
//! Several instances may change one sysctl: a later one copies the earlier one's note, and the last
//! to end restores the value. Notes name the network namespace, as namespaces may share `/run`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::own_directory;
use crate::files::private;
use crate::threads::lock;
use crate::{DeviceError, files, sysctl};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Undo {
    sysctl: String,
    old: String,
    new: String,
    #[serde(default)]
    namespace: u64,
}

type Unwritten = BTreeMap<PathBuf, Vec<Undo>>;

static TURN: Mutex<Unwritten> = Mutex::new(BTreeMap::new());

fn take_turn() -> MutexGuard<'static, Unwritten> {
    lock(&TURN)
}

/// The sysctls that an instance changed, noted at `path`.
#[derive(Debug)]
pub(crate) struct ChangedSettings<'a> {
    pub(super) directory: &'a Path,
    pub(super) path: PathBuf,
}

impl ChangedSettings<'_> {
    /// Sets a sysctl until `restore`, unless it has the value and no instance set it.
    pub(crate) fn change(&self, key: &str, value: &str) -> Result<(), DeviceError> {
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
        // Written first: after a crash in between, the undo finds the old value and does nothing. A
        // note is written once, however often another program changes the value.
        if !self.undos(&turn).contains(&undo) {
            self.note(&mut turn, undo)?;
        }
        if current == value { Ok(()) } else { sysctl::write(key, value) }
    }

    fn note(&self, turn: &mut Unwritten, undo: Undo) -> Result<(), DeviceError> {
        own_directory(self.directory)?;
        match append(&self.path, &line(&undo)) {
            Err(error) if is_full(&error) => {
                let notes = turn.entry(self.path.clone()).or_default();
                if notes.is_empty() {
                    tracing::warn!(
                        "cannot write {}: {error}; if this program is killed, the settings it \
                         changed are not restored",
                        self.path.display()
                    );
                }
                notes.push(undo);
                Ok(())
            }
            result => result.map_err(|error| {
                DeviceError::system(format!("write {}", self.path.display()), error)
            }),
        }
    }

    pub(crate) fn original(&self, key: &str) -> Result<String, DeviceError> {
        let turn = take_turn();
        let current = sysctl::read(key)?;
        let noted = self.undos(&turn).into_iter().find(|undo| undo.sysctl == key);
        let noted = noted.filter(|undo| undo.new == current);
        let original = noted.or_else(|| self.shared(key, &current)).map(|undo| undo.old);
        Ok(original.unwrap_or(current))
    }

    /// Restores the last first, except those that another program changed, whose interface is gone,
    /// or that another instance needs. Returns keys that the kernel refused; they stay noted.
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

    fn keep(&self, turn: &mut Unwritten, undos: Vec<Undo>) {
        turn.remove(&self.path);
        if undos.is_empty() {
            let _ = fs::remove_file(&self.path);
            return;
        }
        let rest: String = undos.iter().map(line).collect();
        match files::replace(&self.path, rest.as_bytes(), 0o600) {
            // The longer old list does no harm.
            Err(error) if is_full(&error) => _ = turn.insert(self.path.clone(), undos),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "settings that were restored could not be removed from the list of changed \
                     settings"
                );
            }
            Ok(()) => {}
        }
    }

    fn undos(&self, turn: &Unwritten) -> Vec<Undo> {
        let mut undos = read(&self.path);
        for undo in turn.get(&self.path).into_iter().flatten() {
            if !undos.contains(undo) {
                undos.push(undo.clone());
            }
        }
        undos
    }

    fn shared(&self, key: &str, value: &str) -> Option<Undo> {
        let (here, own) = (namespace(), &self.path);
        let files = fs::read_dir(self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<_> = files.map(|file| file.path()).collect();
        paths.sort();
        paths
            .iter()
            .filter(|path| *path != own && path.extension().is_some_and(|kind| kind == "undo"))
            .flat_map(|path| read(path))
            .find(|undo| undo.sysctl == key && undo.new == value && undo.is_in(here))
    }
}

impl Undo {
    /// Zero matches any namespace.
    fn is_in(&self, namespace: u64) -> bool {
        self.namespace == namespace || self.namespace == 0
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = private(OpenOptions::new().append(true).create(true)).open(path)?;
    let before = file.metadata()?.len();
    file.write_all(line.as_bytes()).inspect_err(|_| {
        // A partial line would corrupt the next one.
        let _ = file.set_len(before);
    })
}

fn line(undo: &Undo) -> String {
    serde_json::to_string(undo).expect("strings serialize") + "\n"
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn read(path: &Path) -> Vec<Undo> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}
