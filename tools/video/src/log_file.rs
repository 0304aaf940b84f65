//! A file that a stream writes without ever waiting for it.
//!
//! ```text
//! pictures ─► queue of limited size ─► a thread ─► disk
//! ```
//!
//! A disk that is full, hangs, or is too slow ends the file, with one warning, but not the stream.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use roadweave_terminal::exit::BadInput;

#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    left: usize,
    /// To the thread; `None` once the file has ended.
    bytes: Option<Sender<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
    /// Closed once all is written.
    done: Receiver<()>,
}

impl LogFile {
    pub fn create(path: &Path) -> Result<Self> {
        let refused = |error| BadInput::new(format!("cannot write {}: {error}", path.display()));
        let mut file = File::create(path).map_err(refused)?;
        let (bytes, to_write) = mpsc::channel::<Vec<u8>>();
        let (until_done, done) = mpsc::channel::<()>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (written, name) = (Arc::clone(&waiting), path.to_owned());
        let write = move || {
            for bytes in to_write {
                if let Err(error) = file.write_all(&bytes) {
                    ends(&name, &error);
                    break;
                }
                written.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            drop(until_done);
        };
        let thread = thread::Builder::new().name("log file".into());
        thread.spawn(write).context("cannot start a thread")?;
        let bytes = Some(bytes);
        Ok(Self { path: path.to_owned(), left: BYTES_MOST, bytes, waiting, done })
    }

    pub fn is_open(&self) -> bool {
        self.bytes.is_some()
    }

    pub fn write(&mut self, bytes: Vec<u8>) {
        let Some(writer) = &self.bytes else { return };
        let length = bytes.len();
        let waiting = self.waiting.load(Ordering::Relaxed);
        let refused = match () {
            () if length > self.left => Some(io::ErrorKind::FileTooLarge.into()),
            () if waiting + length > WAITING_MOST => Some(io::Error::other("the disk is too slow")),
            () => None,
        };
        if let Some(error) = &refused {
            ends(&self.path, error);
        }
        self.waiting.fetch_add(length, Ordering::Relaxed);
        // A thread that has ended has logged the reason.
        if refused.is_some() || writer.send(bytes).is_err() {
            self.bytes = None;
        }
        self.left = self.left.saturating_sub(length);
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.bytes = None;
        let _ = self.done.recv_timeout(LAST_BYTES);
    }
}

fn ends(path: &Path, error: &io::Error) {
    tracing::warn!("{} ends here: {error}", path.display());
}

/// Limits the file, since anyone who reaches the receiver's port can fill it.
const BYTES_MOST: usize = 1 << 31;
/// Some seconds of a stream.
const WAITING_MOST: usize = 8 << 20;
/// How long the program's end waits for the disk.
const LAST_BYTES: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_there_at_the_end_and_a_file_that_is_full_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = LogFile::create(&path).unwrap();
        file.write(b"abc".to_vec());
        file.left = 2;
        file.write(b"def".to_vec());
        file.write(b"g".to_vec());
        assert!(!file.is_open());
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        assert!(LogFile::create(Path::new("/nowhere/log")).is_err());
    }

    #[test]
    fn a_disk_that_takes_nothing_ends_it() {
        let mut file = LogFile::create(Path::new("/dev/full")).unwrap();
        for _ in 0..1_000_000 {
            file.write(vec![0; 1_000]);
        }
        assert!(!file.is_open());
    }

    #[test]
    fn a_disk_that_hangs_ends_it_and_memory_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let _reader = File::options().read(true).write(true).open(&path).unwrap();
        let mut file = LogFile::create(&path).unwrap();
        let taken = (0..).take_while(|_| {
            file.write(vec![0; 1 << 20]);
            file.is_open()
        });
        // One may be in the thread, the others are queued.
        assert!((8..=9).contains(&taken.count()));
    }
}
