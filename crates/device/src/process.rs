//! One running instance: its name, its lock, and the list of what must be undone after it.
//!
//! ```text
//! /run/roadweave/NAME.lock   held while the process lives; says its pid
//! /run/roadweave/NAME.undo   settings that were changed, with what they were before
//! /run/roadweave/NAME.dns    where what its resolvers replaced is kept
//! /run/roadweave/NAME.sock   for `roadweave show`
//! ```
//!
//! All that an instance adds to the system can be told from all else: routes and rules by
//! [`ROUTE_PROTOCOL`] and the tables of the instance, packet filters by the name of their table,
//! settings by the undo file. So the next start can remove what a `kill -9` left.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::DeviceError;

mod settings;

/// Marks our routes and rules (`proto 183` in `ip route`).
pub const ROUTE_PROTOCOL: u8 = 183;

/// The name of an instance and the places that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    name: String,
    directory: PathBuf,
}

/// Proof that no other process runs the instance; the kernel releases it with the process.
#[derive(Debug)]
pub struct InstanceLock {
    _file: File,
}

impl Instance {
    /// The instance `name`, with its files in `/run/roadweave`.
    ///
    /// # Errors
    /// [`DeviceError::BadInstance`] unless it has 1 to 24 lower-case letters, digits and underscores.
    pub fn new(name: &str) -> Result<Self, DeviceError> {
        Self::in_directory(name, RUN_DIRECTORY)
    }

    /// The same, with its files elsewhere.
    ///
    /// # Errors
    /// As [`Instance::new`].
    pub fn in_directory(name: &str, directory: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(good) {
            return Err(DeviceError::BadInstance { name: name.to_owned() });
        }
        Ok(Self { name: name.to_owned(), directory: directory.as_ref().to_owned() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its control socket lies.
    pub fn socket_path(&self) -> PathBuf {
        self.file("sock")
    }

    /// Where it is noted that it changed the machine's resolvers.
    pub(crate) fn dns_path(&self) -> PathBuf {
        self.file("dns")
    }

    /// The name of its table of packet filters.
    pub fn filter_table(&self) -> String {
        format!("roadweave_{}", self.name)
    }

    /// The name of its table that marks what comes in by uplinks.
    pub(crate) fn answers_table(&self) -> String {
        format!("roadweave_{}_answers", self.name)
    }

    /// Its routing tables: the first for the tunnel, the others for uplinks.
    ///
    /// The numbers come from the name, so that they are found again, and lie beyond those that
    /// people choose.
    pub fn routing_tables(&self) -> RangeInclusive<u32> {
        // FNV-1a, folded to 16 bits.
        let hash = self
            .name
            .bytes()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let first = TABLES_BASE | ((hash ^ (hash >> 16)) & 0xffff) << 8;
        first..=first | 0xff
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// [`DeviceError::AlreadyRunning`] while another process holds it.
    pub fn lock(&self) -> Result<InstanceLock, DeviceError> {
        let path = self.file("lock");
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                DeviceError::NoRunDirectory { directory: self.directory.clone() }
            }
            _ => DeviceError::system(format!("lock {}", path.display()), error),
        };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            // Who it is only helps the reader of the message.
            let _ = file.read_to_string(&mut pid);
            let instance = self.name.clone();
            return Err(DeviceError::AlreadyRunning { instance, pid: pid.trim().parse().ok() });
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(InstanceLock { _file: file })
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.directory.join(format!("{}.{extension}", self.name))
    }
}

const RUN_DIRECTORY: &str = "/run/roadweave";
const NAME_MAX: usize = 24;
const TABLES_BASE: u32 = 0x5200_0000;

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(test: &str) -> Instance {
        let directory =
            std::env::temp_dir().join(format!("roadweave-{}-{test}", std::process::id()));
        Instance::in_directory("client", directory).unwrap()
    }

    #[test]
    fn a_second_process_is_told_who_runs_already() {
        let instance = instance("lock");
        let lock = instance.lock().unwrap();
        // The lock belongs to the open file, so this process can play the second one.
        let error = instance.lock().unwrap_err().to_string();
        let pid = std::process::id();
        assert!(
            error.starts_with(&format!("instance client is already running (pid {pid})")),
            "{error}"
        );
        drop(lock);
        drop(instance.lock().unwrap());
        fs::remove_dir_all(&instance.directory).unwrap();
    }

    #[test]
    fn instances_have_tables_of_their_own() {
        let tables = |name| Instance::new(name).unwrap().routing_tables();
        assert_eq!(tables("client"), tables("client"));
        assert_eq!(tables("client").count(), 256);
        assert!(!tables("client").contains(tables("server").start()));
        assert!(tables("client").start() >= &TABLES_BASE);
    }

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        for name in ["", "../x", "a/b", "Client", "a b", "twenty_five_letters_are_too"] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
    }
}
