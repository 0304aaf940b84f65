//! A running instance: its name, its lock, and the list of changes to undo.
//!
//! ```text
//! /run/roadweave/NAME.lock   held while the process lives; holds its pid
//! /run/roadweave/NAME.undo   sysctls that were changed, with their former values
//! /run/roadweave/NAME.dns    path of the directory with the former resolvers
//! /run/roadweave/NAME.sock   the local socket
//! ```
//!
//! All that an instance adds to the system can be cleaned up after a `kill -9`: routes and rules by
//! [`ROUTE_PROTOCOL`] and tables, filters by table name, sysctls by the undo file.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use roadweave_proto::Marks;
use rustix::fs::FlockOperation;

use crate::files::{make_private, private};
use crate::{DeviceError, become_owner_of};

mod settings;

/// Protocol number of our routes and rules (`proto 183` in `ip route`).
pub const ROUTE_PROTOCOL: u8 = 183;

/// An instance's name, with the paths and marks that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    name: String,
    directory: PathBuf,
    marks: Marks,
}

/// Exclusive lock of an instance; the kernel releases it when the process ends.
#[derive(Debug)]
pub struct InstanceLock {
    _file: File,
}

impl Instance {
    /// The instance `name`, of 1 to 24 of `a-z`, `0-9` and `_`, with files in `/run/roadweave`.
    pub fn new(name: &str) -> Result<Self, DeviceError> {
        Self::in_directory(name, RUN_DIRECTORY)
    }

    /// The instance `name`, with its files in `directory`.
    pub fn in_directory(name: &str, directory: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(good) {
            return Err(DeviceError::BadInstance { name: name.to_owned() });
        }
        let marks = Marks::default().of_instance(number_of(name));
        Ok(Self { name: name.to_owned(), directory: directory.as_ref().to_owned(), marks })
    }

    /// Restricts its marks to the bits of `marks`.
    #[must_use]
    pub fn with_marks(self, marks: Marks) -> Self {
        Self { marks: marks.of_instance(self.number()), ..self }
    }

    /// Its packet and connection marks.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    pub(crate) fn number(&self) -> u16 {
        number_of(&self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its local socket.
    pub fn socket_path(&self) -> PathBuf {
        self.file("sock")
    }

    pub(crate) fn dns_path(&self) -> PathBuf {
        self.file("dns")
    }

    /// The name of its nftables table of packet filters.
    pub fn filter_table(&self) -> String {
        format!("roadweave_{}", self.name)
    }

    pub(crate) fn shares_table(&self) -> String {
        format!("roadweave_{}_shares", self.name)
    }

    pub(crate) fn answers_table(&self) -> String {
        format!("roadweave_{}_answers", self.name)
    }

    /// The name of its table that redirects LAN connections.
    pub fn split_table(&self) -> String {
        format!("roadweave_{}_split", self.name)
    }

    /// The first is the tunnel's, the others uplinks'. From the name, above what people use.
    pub(crate) fn routing_tables(&self) -> RangeInclusive<u32> {
        let first = TABLES_BASE | u32::from(self.number()) << 8;
        first..=first | 0xff
    }

    /// As [`become_owner_of`], for the folder of its files.
    pub fn become_owner(&self) -> Result<(), DeviceError> {
        become_owner_of(&self.directory)
    }

    /// Takes the instance's lock, or fails with [`DeviceError::AlreadyRunning`].
    pub fn lock(&self) -> Result<InstanceLock, DeviceError> {
        let path = self.file("lock");
        let failed = |error| not_in(&self.directory, "lock", &path, error);
        own_directory(&self.directory)?;
        let mut file = private(OpenOptions::new().read(true).write(true).create(true))
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let instance = self.name.clone();
            return Err(DeviceError::AlreadyRunning { instance, pid: pid.trim().parse().ok() });
        }
        // A full disk does not prevent the start: the pid is only for messages.
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write the pid into the lock file");
        }
        Ok(InstanceLock { _file: file })
    }

    /// Fails if another instance since boot had the mark. Call it before cleaning up by the mark.
    pub fn check_tables(&self) -> Result<(), DeviceError> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for path in files.map(|file| file.path()) {
            let is_lock = path.extension().is_some_and(|kind| kind == "lock");
            let Some(name) = path.file_stem().and_then(OsStr::to_str).filter(|_| is_lock) else {
                continue;
            };
            let Ok(other) = Self::in_directory(name, &self.directory) else { continue };
            // Assumes that all instances on a machine use the same mark bits.
            let is_same = other.name != self.name
                && self.marks.of_instance(other.number()).anchor() == self.marks.anchor();
            if is_same {
                let why = format!(
                    "{name} has the same mark as {}: choose another name, or more bits in \
                     packet_marks, or remove {} if {name} is no longer used",
                    self.name,
                    path.display()
                );
                return Err(DeviceError::Unavailable { why });
            }
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> settings::ChangedSettings<'_> {
        settings::ChangedSettings { directory: &self.directory, path: self.file("undo") }
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.directory.join(format!("{}.{extension}", self.name))
    }
}

/// FNV-1a, folded to 16 bits.
fn number_of(name: &str) -> u16 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) as u16
}

fn not_in(directory: &Path, verb: &str, path: &Path, error: std::io::Error) -> DeviceError {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            DeviceError::NoRunDirectory { directory: directory.to_owned() }
        }
        _ => DeviceError::system(format!("{verb} {}", path.display()), error),
    }
}

/// Creates `directory` if needed, private to this user: others could block or redirect its files.
pub fn own_directory(directory: &Path) -> Result<(), DeviceError> {
    let failed = |error| not_in(directory, "make", directory, error);
    match make_private(directory) {
        // Perhaps a dangling link; checked below.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        result => result.map_err(failed)?,
    }
    let there = fs::symlink_metadata(directory).map_err(failed)?;
    let me = rustix::process::geteuid().as_raw();
    let refuse = |why: String| {
        let directory = directory.to_owned();
        Err(DeviceError::UnsafeDirectory { directory, why })
    };
    if there.is_symlink() {
        return refuse("it is a symbolic link".to_owned());
    }
    if !there.is_dir() {
        return refuse("it is not a folder".to_owned());
    }
    if there.uid() != me {
        if me != 0 {
            return Err(DeviceError::NoRunDirectory { directory: directory.to_owned() });
        }
        return refuse(format!("it belongs to another user (uid {})", there.uid()));
    }
    if there.mode() & 0o077 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

const RUN_DIRECTORY: &str = "/run/roadweave";
const NAME_MAX: usize = 24;
const TABLES_BASE: u32 = 0x5200_0000;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn instance() -> (TempDir, Instance) {
        let folder = tempfile::tempdir().unwrap();
        let instance = Instance::in_directory("client", folder.path().join("run")).unwrap();
        (folder, instance)
    }

    #[test]
    fn the_folder_and_the_files_are_for_their_owner_alone() {
        let (_folder, instance) = instance();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::create_dir(&instance.directory).unwrap();
        fs::set_permissions(&instance.directory, Permissions::from_mode(0o755)).unwrap();
        fs::write(instance.file("lock"), "1\n").unwrap();
        fs::set_permissions(instance.file("lock"), Permissions::from_mode(0o644)).unwrap();
        drop(instance.lock().unwrap());
        assert_eq!(mode(&instance.directory), 0o700);
        assert_eq!(mode(&instance.file("lock")), 0o600);
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_or_the_lock_is_refused() {
        let (_folder, instance) = instance();
        let elsewhere = instance.directory.with_extension("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &instance.directory).unwrap();
        let error = instance.lock().unwrap_err().to_string();
        assert!(error.contains("is a symbolic link") && error.contains("remove it"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing was written there");
        fs::remove_file(&instance.directory).unwrap();
        fs::create_dir(&instance.directory).unwrap();
        let victim = elsewhere.join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, instance.file("lock")).unwrap();
        assert!(instance.lock().is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let (_folder, instance) = instance();
        fs::create_dir(&instance.directory).unwrap();
        if std::os::unix::fs::chown(&instance.directory, Some(65_534), None).is_ok() {
            let error = instance.lock().unwrap_err().to_string();
            assert!(error.contains("belongs to another user (uid 65534)"), "{error}");
        }
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
    fn an_instance_whose_numbers_are_taken_names_their_owner() {
        let (_folder, here) = instance();
        here.check_tables().unwrap();
        let tables = |name: &str| Instance::new(name).unwrap().routing_tables();
        let mut seen = std::collections::HashMap::new();
        let names = (0..100_000).map(|number| format!("rw{number}"));
        let (first, second) = names
            .into_iter()
            .find_map(|name| Some((seen.insert(tables(&name), name.clone())?, name)))
            .expect("there are only so many numbers");
        let of = |name: &str| Instance::in_directory(name, &here.directory).unwrap();
        let (first, second) = (of(&first), of(&second));
        let lock = first.lock().unwrap();
        first.check_tables().unwrap();
        let error = second.check_tables().unwrap_err().to_string();
        assert!(error.contains(first.name()) && error.contains(second.name()), "{error}");
        drop(lock);
        second.check_tables().unwrap_err();
    }

    #[test]
    fn with_few_bits_another_name_may_have_the_same_mark() {
        let (_folder, here) = instance();
        let few = Marks::within(0x00ff_0000).unwrap();
        let of = |name: &str| Instance::in_directory(name, &here.directory).unwrap();
        let first = of("rwa");
        let mark = |it: &Instance| it.clone().with_marks(few).marks().anchor();
        let names = (0..).map(|number| format!("rw{number}"));
        let second =
            names.map(|name| of(&name)).find(|it| mark(it) == mark(&first)).expect("few numbers");
        drop(first.lock().unwrap());
        second.check_tables().unwrap();
        let error = second.with_marks(few).check_tables().unwrap_err().to_string();
        assert!(
            error.contains("rwa has the same mark") && error.contains("packet_marks"),
            "{error}"
        );
    }

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        for name in ["", "../x", "a/b", "Client", "a b", "twenty_five_letters_are_too"] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
    }
}
