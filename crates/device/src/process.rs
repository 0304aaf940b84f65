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

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use roadweave_proto::Marks;
use rustix::fs::{FlockOperation, OFlags};

use crate::{DeviceError, become_owner_of};

mod settings;

/// Marks our routes and rules (`proto 183` in `ip route`).
pub const ROUTE_PROTOCOL: u8 = 183;

/// The name of an instance, and the places and marks that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    name: String,
    directory: PathBuf,
    marks: Marks,
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
    /// [`DeviceError::BadInstance`] unless it has 1 to 24 lower-case letters, digits and
    /// underscores.
    pub fn new(name: &str) -> Result<Self, DeviceError> {
        Self::in_directory(name, RUN_DIRECTORY)
    }

    /// The instance called `name`, with its files in `directory` in place of `/run/roadweave`.
    ///
    /// # Errors
    /// As [`Instance::new`].
    pub fn in_directory(name: &str, directory: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(good) {
            return Err(DeviceError::BadInstance { name: name.to_owned() });
        }
        let marks = Marks::default().of_instance(number_of(name));
        Ok(Self { name: name.to_owned(), directory: directory.as_ref().to_owned(), marks })
    }

    /// The same instance, whose marks lie in the bits of `marks`.
    #[must_use]
    pub fn with_marks(self, marks: Marks) -> Self {
        Self { marks: marks.of_instance(self.number()), ..self }
    }

    /// The marks of its packets and connections.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// The number that tells it from others, from its name.
    pub(crate) fn number(&self) -> u16 {
        number_of(&self.name)
    }

    /// The instance's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the instance's local socket.
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

    /// The name of its table that bounds what one source takes of the kernel's tables.
    pub(crate) fn shares_table(&self) -> String {
        format!("roadweave_{}_shares", self.name)
    }

    /// The name of its table that marks what comes in by uplinks.
    pub(crate) fn answers_table(&self) -> String {
        format!("roadweave_{}_answers", self.name)
    }

    /// The name of its table that says which connections of the LAN end here.
    pub(crate) fn split_table(&self) -> String {
        format!("roadweave_{}_split", self.name)
    }

    /// Its routing tables: the first for the tunnel, the others for uplinks.
    ///
    /// The numbers come from the name, so that they are found again, and lie beyond those that
    /// people choose.
    pub fn routing_tables(&self) -> RangeInclusive<u32> {
        let first = TABLES_BASE | u32::from(self.number()) << 8;
        first..=first | 0xff
    }

    /// As [`become_owner_of`] the folder of its files.
    ///
    /// # Errors
    /// As [`become_owner_of`].
    pub fn become_owner(&self) -> Result<(), DeviceError> {
        become_owner_of(&self.directory)
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
        own_directory(&self.directory)?;
        let mut file = private(OpenOptions::new().read(true).write(true).create(true))
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            // Who it is only helps the reader of the message.
            let _ = file.read_to_string(&mut pid);
            let instance = self.name.clone();
            return Err(DeviceError::AlreadyRunning { instance, pid: pid.trim().parse().ok() });
        }
        // Whose it is only helps the reader of a message: a full disk keeps nobody from starting.
        let told = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = told {
            tracing::debug!(%error, "the lock does not say whose it is");
        }
        Ok(InstanceLock { _file: file })
    }

    /// Looks whether no other instance that has run since the machine started has the same mark, by
    /// which the kernel still knows its connections; call it before anything is removed that bears
    /// it.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] with its name.
    pub(crate) fn check_tables(&self) -> Result<(), DeviceError> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for path in files.map(|file| file.path()) {
            let is_lock = path.extension().is_some_and(|kind| kind == "lock");
            let Some(name) = path.file_stem().and_then(OsStr::to_str).filter(|_| is_lock) else {
                continue;
            };
            let Ok(other) = Self::in_directory(name, &self.directory) else { continue };
            // All programs of a machine are to have the same bits.
            let is_same = other.name != self.name
                && self.marks.of_instance(other.number()).anchor() == self.marks.anchor();
            if is_same {
                let why = format!(
                    "{name} has the same mark as {}: choose another name, more bits in \
                     packet_marks, or remove {} if {name} never runs again",
                    self.name,
                    path.display()
                );
                return Err(DeviceError::Unavailable { why });
            }
        }
        Ok(())
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.directory.join(format!("{}.{extension}", self.name))
    }
}

/// The number of the instance `name`: FNV-1a, folded to 16 bits.
fn number_of(name: &str) -> u16 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) as u16
}

/// A file for its owner alone, which is no link to another.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
}

/// Makes sure that `directory` is there, belongs to this user, and is closed to all others: whoever
/// could write there could keep an instance from starting, or lead its files astray.
///
/// # Errors
/// [`DeviceError::UnsafeDirectory`] when it is a link or another user's; it stays as it is.
pub(crate) fn own_directory(directory: &Path) -> Result<(), DeviceError> {
    let shown = directory.display();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            DeviceError::NoRunDirectory { directory: directory.to_owned() }
        }
        _ => DeviceError::system(format!("make {shown}"), error),
    };
    match DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        // A link to nowhere; what it is comes to light below.
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
        return refuse("it is a link to another place".to_owned());
    }
    if !there.is_dir() {
        return refuse("it is no folder".to_owned());
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
    fn the_folder_and_the_files_are_for_their_owner_alone() {
        let instance = instance("modes");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::create_dir(&instance.directory).unwrap();
        fs::set_permissions(&instance.directory, Permissions::from_mode(0o755)).unwrap();
        // As an earlier version left it.
        fs::write(instance.file("lock"), "1\n").unwrap();
        fs::set_permissions(instance.file("lock"), Permissions::from_mode(0o644)).unwrap();
        drop(instance.lock().unwrap());
        assert_eq!(mode(&instance.directory), 0o700);
        assert_eq!(mode(&instance.file("lock")), 0o600);
        fs::remove_dir_all(&instance.directory).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_or_the_lock_is_refused() {
        let instance = instance("link");
        let elsewhere = instance.directory.with_extension("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &instance.directory).unwrap();
        let error = instance.lock().unwrap_err().to_string();
        assert!(error.contains("is a link") && error.contains("remove it"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "nothing was written there");
        fs::remove_file(&instance.directory).unwrap();
        fs::create_dir(&instance.directory).unwrap();
        let victim = elsewhere.join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, instance.file("lock")).unwrap();
        assert!(instance.lock().is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_dir_all(&instance.directory).unwrap();
        fs::remove_dir_all(&elsewhere).unwrap();
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let instance = instance("foreign");
        fs::create_dir(&instance.directory).unwrap();
        // Only root can give a folder away.
        if std::os::unix::fs::chown(&instance.directory, Some(65_534), None).is_ok() {
            let error = instance.lock().unwrap_err().to_string();
            assert!(error.contains("belongs to another user (uid 65534)"), "{error}");
        }
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
    fn an_instance_whose_numbers_are_taken_is_told_by_whom() {
        let here = instance("tables");
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
        // Its connections live on in the kernel.
        drop(lock);
        second.check_tables().unwrap_err();
        fs::remove_dir_all(&here.directory).unwrap();
    }

    #[test]
    fn with_few_bits_another_name_may_have_the_same_mark() {
        let here = instance("few-bits");
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
        fs::remove_dir_all(&here.directory).unwrap();
    }

    #[test]
    fn a_name_that_could_leave_its_directory_is_refused() {
        for name in ["", "../x", "a/b", "Client", "a b", "twenty_five_letters_are_too"] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
    }
}
