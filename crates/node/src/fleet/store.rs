//! A member's state directory: its key, and the agent's state.
//!
//! ```text
//! DIRECTORY/fleet.lock    held by the program that uses the rest
//! DIRECTORY/fleet.key     the private key, made here and never sent
//! DIRECTORY/fleet.0       two generations of the agent's state, written in turn
//! DIRECTORY/fleet.1       one line: format, generation, length, digest; then JSON
//! ```
//!
//! A write replaces the older generation as a whole, so a power cut leaves the newer one. A damaged
//! one has another digest and is ignored; signed contents are verified again ([`Agent::restore`]).
//!
//! [`Agent::restore`]: roadweave_fleet::Agent::restore

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use roadweave_fleet::Digest;
use roadweave_identity::Identity;
use roadweave_linux::files::{self, check_owner, invalid, make_private, private};
use roadweave_linux::random_bytes;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

#[derive(Debug)]
pub(super) struct StateStore {
    directory: PathBuf,
    _lock: File,
    generation: u64,
    pub(super) is_failing: bool,
    writing: Option<Receiver<io::Result<()>>>,
}

/// Why the state of a member cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or a file in it cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another program uses the state directory.
    #[error(
        "{} is in use: a client or server with this state directory is running",
        path.display()
    )]
    InUse {
        /// The lock.
        path: PathBuf,
    },
    /// The key file is invalid.
    #[error("{} holds no key; remove it, and join with a new token", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
    },
    /// Others may read the key.
    #[error("other users can read {} (mode {mode:04o}): chmod 600 it", path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl StateStore {
    pub(super) fn is_there(directory: &Path) -> bool {
        GENERATIONS.iter().any(|name| directory.join(name).exists())
    }

    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| StoreError::File { path, source }
        };
        make_private(directory).and_then(|()| check_owner(directory)).map_err(failed(directory))?;
        let path = directory.join("fleet.lock");
        let lock = private(OpenOptions::new().write(true).create(true)).open(&path);
        let lock = lock.or_else(|error| read_only(directory, error)).map_err(failed(&path))?;
        if !lock_soon(&lock) {
            return Err(StoreError::InUse { path });
        }
        let directory = directory.to_owned();
        Ok(Self { directory, _lock: lock, generation: 0, is_failing: false, writing: None })
    }

    pub(super) fn key(&self) -> Result<Identity, StoreError> {
        let path = self.key_path();
        match self.read_key(&path) {
            Err(StoreError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let failed = |source| StoreError::File { path: path.clone(), source };
        let seed = random_bytes().map_err(|error| failed(io::Error::other(error)))?;
        let identity = Identity::from_seed(seed);
        let text = Zeroizing::new(identity.to_base64() + "\n");
        files::replace(&path, text.as_bytes(), 0o600).map_err(failed)?;
        self.sync().map_err(failed)?;
        Ok(identity)
    }

    fn read_key(&self, path: &Path) -> Result<Identity, StoreError> {
        let failed = |source| StoreError::File { path: path.to_owned(), source };
        let file = private(OpenOptions::new().read(true)).open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(StoreError::Exposed { path: path.to_owned(), mode });
        }
        let mut text = Zeroizing::new(String::with_capacity(KEY_MAX as usize + 1));
        file.take(KEY_MAX).read_to_string(&mut text).map_err(failed)?;
        Identity::from_base64(&text).map_err(|_| StoreError::Key { path: path.to_owned() })
    }

    pub(super) fn key_path(&self) -> PathBuf {
        self.directory.join("fleet.key")
    }

    pub(super) fn read<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut found: Vec<(u64, T)> = Vec::new();
        for name in GENERATIONS {
            let path = self.directory.join(name);
            match read_bytes(&path).and_then(|bytes| decode(&bytes)) {
                Ok(persisted) => found.push(persisted),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!("{} is not used: {error}", path.display());
                }
            }
        }
        let (generation, persisted) =
            found.into_iter().max_by_key(|(generation, _)| *generation)?;
        self.generation = generation;
        Some(persisted)
    }

    /// Returns whether it succeeded. The first failure is logged.
    pub(super) fn write(&mut self, persisted: &impl Serialize) -> bool {
        self.finish();
        self.begin(persisted, || ());
        self.finish().unwrap_or(false)
    }

    /// Writes in a thread, as a disk may hang. Calls `done` once [`StateStore::poll`] has a result.
    pub(super) fn begin(
        &mut self,
        persisted: &impl Serialize,
        done: impl FnOnce() + Send + 'static,
    ) {
        let (path, directory) = (self.next_path(), self.directory.clone());
        let bytes = encode(self.generation + 1, persisted);
        let (written, outcome) = channel();
        let no_thread = written.clone();
        let work = move || {
            let result = bytes.and_then(|bytes| files::replace(&path, &bytes, 0o600));
            let _ = written.send(result.and_then(|()| File::open(directory)?.sync_all()));
            done();
        };
        if let Err(error) = std::thread::Builder::new().name("state".into()).spawn(work) {
            let _ = no_thread.send(Err(error));
        }
        self.writing = Some(outcome);
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    pub(super) fn poll(&mut self) -> Option<bool> {
        match self.writing.as_ref()?.try_recv() {
            Ok(written) => {
                self.writing = None;
                Some(self.on_written(&written))
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.finish(),
        }
    }

    fn finish(&mut self) -> Option<bool> {
        let panicked = |_| Err(io::Error::other("the write panicked"));
        let written = self.writing.take()?.recv().unwrap_or_else(panicked);
        Some(self.on_written(&written))
    }

    fn next_path(&self) -> PathBuf {
        self.directory.join(GENERATIONS[((self.generation + 1) % 2) as usize])
    }

    fn on_written(&mut self, written: &io::Result<()>) -> bool {
        let path = self.next_path();
        match written {
            Ok(()) => {
                self.generation += 1;
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("{} is written again", path.display());
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        "cannot write {}: {error}; changes from the fleet are in force, but lost \
                         at the next start; trying again",
                        path.display()
                    );
                }
            }
        }
        written.is_ok()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

fn read_only(directory: &Path, error: io::Error) -> io::Result<File> {
    let full = [Errno::ROFS, Errno::NOSPC, Errno::DQUOT, Errno::ACCESS];
    if !full.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
        return Err(error);
    }
    private(OpenOptions::new().read(true))
        .open(directory.join("fleet.lock"))
        .or_else(|_| File::open(directory))
}

/// Retries for a moment: an ending predecessor, or a child process before exec, may hold the lock.
fn lock_soon(file: &File) -> bool {
    let lock = || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let lock_later = |_| {
        std::thread::sleep(LOCK_RETRY);
        lock()
    };
    lock() || (0..LOCK_RETRIES).any(lock_later)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(invalid(format!("it is longer than {BYTES_MAX} bytes"))),
        false => Ok(bytes),
    }
}

fn encode(generation: u64, persisted: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(persisted)?;
    let length = body.len();
    let digest = String::from(digest(generation, &body));
    let head = format!("{FORMAT} {generation} {length} {digest}\n");
    Ok([head.as_bytes(), &body].concat())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<(u64, T)> {
    let cut = || invalid("it is damaged, for example by a power cut".to_owned());
    let end = bytes.iter().take(HEAD_MAX).position(|byte| *byte == b'\n').ok_or_else(cut)?;
    let (head, body) = (&bytes[..end], &bytes[end + 1..]);
    let head = std::str::from_utf8(head).map_err(|_| cut())?;
    let rest = head.strip_prefix(FORMAT).ok_or_else(cut)?;
    let mut words = rest.split_ascii_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (generation, length) = (number().ok_or_else(cut)?, number().ok_or_else(cut)?);
    let said = words.next().map(|word| Digest::try_from(word.to_owned()));
    if body.len() as u64 != length || said != Some(Ok(digest(generation, body))) {
        return Err(cut());
    }
    let persisted = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("it is from another version: {error}")))?;
    Ok((generation, persisted))
}

fn digest(generation: u64, body: &[u8]) -> Digest {
    Digest::of([generation.to_be_bytes().as_slice(), body])
}

const GENERATIONS: [&str; 2] = ["fleet.0", "fleet.1"];
const LOCK_RETRIES: usize = 25;
const LOCK_RETRY: Duration = Duration::from_millis(20);
const FORMAT: &str = "roadweave-fleet 1";
const HEAD_MAX: usize = 200;
/// A table of 65,536 members with chains of four statements each.
const BYTES_MAX: u64 = 512 << 20;
const KEY_MAX: u64 = 100;

#[cfg(test)]
mod tests;
