//! `/etc/resolv.conf`, if unmanaged. Its former text is kept in `DIRECTORY/NAME.resolv.json`.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::DeviceError;
use crate::files::{self, beside, check_owner};

#[derive(Debug)]
pub(super) struct ResolvConf {
    path: PathBuf,
    saved: PathBuf,
    name: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedResolvConf {
    /// Our text; if the file differs, another program has written it.
    ours: String,
    before: Before,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Before {
    Nothing,
    Contents(String),
    Link(PathBuf),
}

impl ResolvConf {
    pub(super) fn new(name: &str, path: &Path, directory: &Path) -> Self {
        let saved = directory.join(format!("{name}.resolv.json"));
        Self { path: path.to_owned(), saved, name: name.to_owned() }
    }

    pub(super) fn set(&self, servers: &[IpAddr]) -> Result<(), DeviceError> {
        let (name, saved) = (&self.name, self.saved.display());
        let remark = format!("{OF_OURS}{name}), {WHILE}{saved}{HAS_BEFORE}\n");
        let ours = text(servers, &remark);
        let before = match self.read_saved() {
            // Our text is there already, as after a crash: keep the contents saved before.
            Some(saved) if self.holds(&saved.ours) => saved.before,
            _ => self.read_before().map_err(|error| self.failed(error))?,
        };
        let saved = SavedResolvConf { ours: ours.clone(), before };
        let json = serde_json::to_string(&saved).expect("strings serialize");
        if let Some(directory) = self.saved.parent() {
            files::make_private(directory).map_err(|error| self.failed(error))?;
        }
        self.saved
            .parent()
            .map_or(Ok(()), check_owner)
            .and_then(|()| files::replace(&self.saved, json.as_bytes(), 0o600))
            .map_err(|error| {
                let (path, saved) = (self.path.display(), self.saved.display());
                let what = format!("change {path}: its content could not be saved in {saved}");
                DeviceError::System { what, source: error }
            })?;
        write(&self.path, &ours, 0o644).map_err(|error| self.failed(error))
    }

    pub(super) fn restore(&self) -> Result<bool, DeviceError> {
        let Some(saved) = self.read_saved() else { return Ok(false) };
        let is_ours = self.holds(&saved.ours);
        if is_ours {
            match &saved.before {
                Before::Nothing => fs::remove_file(&self.path),
                Before::Contents(text) => write(&self.path, text, 0o644),
                Before::Link(target) => link(&self.path, target),
            }
            .map_err(|error| self.failed(error))?;
        }
        fs::remove_file(&self.saved).map_err(|error| self.failed(error))?;
        Ok(is_ours)
    }

    /// Whether the file has our text, or that of another client, whose resolvers are as good.
    pub(super) fn is_ours(&self) -> bool {
        let is_anothers = || {
            let text = fs::read_to_string(&self.path).unwrap_or_default();
            text.starts_with(OF_OURS) && !text.starts_with(&format!("{OF_OURS}{})", self.name))
        };
        self.read_saved().is_some_and(|saved| self.holds(&saved.ours)) || is_anothers()
    }

    fn holds(&self, text: &str) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|found| found == text)
    }

    fn read_saved(&self) -> Option<SavedResolvConf> {
        match files::read(&self.saved) {
            Ok(text) => serde_json::from_str(&text).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("{} is not used: {error}", self.saved.display());
                None
            }
        }
    }

    fn read_before(&self) -> io::Result<Before> {
        match fs::read_link(&self.path) {
            Ok(target) => return Ok(Before::Link(target)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Before::Nothing),
            Err(_) => {}
        }
        let text = fs::read_to_string(&self.path)?;
        // If it is another client's text, save what was there before both.
        Ok(Before::Contents(before(Path::new("/"), &text).unwrap_or(text)))
    }

    fn failed(&self, error: io::Error) -> DeviceError {
        DeviceError::system(format!("change {}", self.path.display()), error)
    }
}

/// The contents of a file before a client wrote `text`; `None` if it is not a client's text.
pub(crate) fn before(root: &Path, text: &str) -> Option<String> {
    let (_, rest) = text.lines().next()?.strip_prefix(OF_OURS)?.split_once(WHILE)?;
    let under_root = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let saved = under_root(Path::new(rest.strip_suffix(HAS_BEFORE)?));
    let saved: SavedResolvConf = serde_json::from_str(&files::read(&saved).ok()?).ok()?;
    match saved.before {
        Before::Nothing => Some(String::new()),
        Before::Contents(text) => Some(text),
        Before::Link(target) => {
            fs::read_to_string(under_root(&Path::new("/etc").join(target))).ok()
        }
    }
}

pub(super) fn text(servers: &[IpAddr], remark: &str) -> String {
    let lines = servers.iter().map(|server| format!("nameserver {server}\n"));
    remark.to_owned() + &lines.collect::<String>()
}

/// The name servers of a file like `/etc/resolv.conf`.
pub fn nameservers(path: &Path) -> Vec<IpAddr> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let address = (words.next() == Some("nameserver")).then(|| words.next())??;
        address.split('%').next()?.parse().ok()
    };
    text.lines().filter_map(address).collect()
}

/// Replaces a file atomically. A container's mount point can only be overwritten.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    match files::replace(path, text.as_bytes(), mode) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => fs::write(path, text),
        result => result,
    }
}

fn link(path: &Path, target: &Path) -> io::Result<()> {
    let new = beside(path);
    let _ = fs::remove_file(&new);
    symlink(target, &new)?;
    fs::rename(&new, path)
}

/// Our text starts with the client's name, and where the former contents are saved.
const OF_OURS: &str = "# Of roadweave (";
const WHILE: &str = "while its session is up; ";
const HAS_BEFORE: &str = " has what was here before.";

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    struct Box {
        folder: TempDir,
        file: ResolvConf,
    }

    impl Box {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let file = of("rw0", &folder);
            Self { folder, file }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("resolv.conf")
        }

        fn again(&self) -> ResolvConf {
            of("rw0", &self.folder)
        }
    }

    fn of(name: &str, folder: &TempDir) -> ResolvConf {
        let folder = folder.path();
        ResolvConf::new(name, &folder.join("resolv.conf"), &folder.join("state"))
    }

    const OURS: [u8; 4] = [10, 77, 0, 1];

    #[test]
    fn what_was_there_comes_back_also_after_a_kill_and_a_second_start() {
        let machine = Box::new();
        let old = "search example.org\nnameserver 192.168.8.1\n";
        fs::write(machine.path(), old).unwrap();
        machine.file.set(&[OURS.into()]).unwrap();
        assert_eq!(nameservers(&machine.path()), [IpAddr::from(OURS)]);
        machine.again().set(&[OURS.into()]).unwrap();
        assert!(machine.again().restore().unwrap());
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);
        assert!(!machine.again().restore().unwrap(), "once");
    }

    #[test]
    fn a_link_becomes_a_link_again_and_nothing_becomes_nothing() {
        let machine = Box::new();
        machine.file.set(&[OURS.into()]).unwrap();
        assert!(machine.file.restore().unwrap());
        assert!(!machine.path().exists());
        symlink("../run/stub.conf", machine.path()).unwrap();
        machine.file.set(&[OURS.into()]).unwrap();
        assert_eq!(nameservers(&machine.path()), [IpAddr::from(OURS)]);
        assert!(machine.file.restore().unwrap());
        assert_eq!(fs::read_link(machine.path()).unwrap(), Path::new("../run/stub.conf"));
    }

    #[test]
    fn what_another_program_wrote_since_is_theirs() {
        let machine = Box::new();
        fs::write(machine.path(), "nameserver 1.1.1.1\n").unwrap();
        machine.file.set(&[OURS.into()]).unwrap();
        assert!(machine.file.is_ours());
        let theirs = "nameserver 10.1.0.1\n";
        fs::write(machine.path(), theirs).unwrap();
        assert!(!machine.file.is_ours());
        assert!(!machine.file.restore().unwrap());
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), theirs);
        machine.file.set(&[OURS.into()]).unwrap();
        machine.file.set(&[OURS.into()]).unwrap();
        assert!(machine.file.restore().unwrap());
        assert_eq!(fs::read_to_string(machine.path()).unwrap(), theirs);
    }

    #[test]
    fn two_clients_do_not_put_each_others_resolvers_back() {
        let old = "nameserver 1.1.1.1\n";
        for the_first_ends_first in [true, false] {
            let machine = Box::new();
            let second = of("rw1", &machine.folder);
            fs::write(machine.path(), old).unwrap();
            machine.file.set(&[OURS.into()]).unwrap();
            second.set(&[[10, 78, 0, 1].into()]).unwrap();
            assert!(machine.file.is_ours() && second.is_ours(), "no quarrel");
            if the_first_ends_first {
                assert!(!machine.file.restore().unwrap());
                assert!(second.restore().unwrap());
            } else {
                assert!(second.restore().unwrap());
                assert!(!machine.file.is_ours());
                machine.file.set(&[OURS.into()]).unwrap();
                assert!(machine.file.restore().unwrap());
            }
            assert_eq!(fs::read_to_string(machine.path()).unwrap(), old);
        }
    }

    #[test]
    fn what_others_may_have_put_into_the_folder_is_not_put_back() {
        use std::os::unix::fs::PermissionsExt as _;
        let machine = Box::new();
        fs::write(machine.path(), "nameserver 1.1.1.1\n").unwrap();
        machine.file.set(&[OURS.into()]).unwrap();
        let mode = |mode| {
            let state = machine.folder.path().join("state");
            fs::set_permissions(state, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o777);
        assert!(!machine.file.restore().unwrap());
        let error = machine.file.set(&[OURS.into()]).unwrap_err().to_string();
        assert!(error.contains("other users can write in its folder"), "{error}");
        mode(0o700);
        assert!(machine.file.restore().unwrap());
    }

    #[test]
    fn the_resolvers_of_a_file_are_its_nameserver_lines() {
        let machine = Box::new();
        let text = "# nameserver 9.9.9.9\nnameserver 10.1.0.1\nsearch nameserver\n\
                    nameserver fe80::1%eth1\nnameserver\nnameserver x\n\
                    nameserver 192.0.2.1:5353\nnameserver [::1]:53\nnameserver 192.0.2.1#x\n";
        fs::write(machine.path(), text).unwrap();
        let expected: [IpAddr; 2] = ["10.1.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(nameservers(&machine.path()), expected);
        assert!(nameservers(&machine.folder.path().join("none")).is_empty());
    }
}
