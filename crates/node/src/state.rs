//! State files: what strategies learned, usage of metered uplinks, and bindings of an anchor.
//!
//! ```text
//! DIRECTORY/INSTANCE.learned.json
//! {"version":1,"peers":{"<public key>":{"<lane>":{..}, ..}, ..}}
//! DIRECTORY/INSTANCE.bindings.json
//! {"version":1,"bindings":[{"device":"<public key>","tenant":"..","number":3, ..}, ..]}
//! DIRECTORY/INSTANCE.usage.json
//! {"version":2,"uplinks":{"<uplink>":{"2026-11-27":123, ..}, ..}}
//! ```
//!
//! Files are replaced atomically, by a thread, so that slow flash does not delay packets.
//! Unreadable files are logged and ignored: strategies learn again, and usage counts from zero.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use roadweave_identity::{PublicKey, Signature};
use roadweave_linux::files::{self, check_owner, invalid, make_private, read};
use roadweave_proto::wire::Binding;
use roadweave_tunnel::{Learned, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// State that is kept in a file of its own.
pub trait Persisted: Clone + Default + PartialEq + Send + Sync + 'static {
    /// The file's name after that of the instance.
    const NAME: &'static str;

    /// Encodes the state as text.
    fn encode(&self) -> io::Result<String>;

    /// Decodes the state from text.
    fn decode(text: &str) -> io::Result<Self>;
}

/// A state file of one instance.
#[derive(Debug)]
pub struct StateFile<T = Learned> {
    pub(crate) path: PathBuf,
    written: Arc<T>,
    writer: Option<JoinHandle<bool>>,
    is_failing: Arc<AtomicBool>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    peers: BTreeMap<String, BTreeMap<String, Value>>,
}

impl<T: Persisted> StateFile<T> {
    /// The file of the instance `name` in `directory`. It is not accessed yet.
    pub fn new(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("{name}.{}.json", T::NAME));
        Self { path, written: Arc::default(), writer: None, is_failing: Arc::default() }
    }

    /// Reads the state; the default if the file does not exist or is not readable.
    pub fn read(&mut self) -> T {
        let kept = match read(&self.path).and_then(|text| T::decode(&text)) {
            Ok(kept) => kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
            Err(error) => {
                let file = self.path.display();
                tracing::warn!("{file} is not used, starting without its contents: {error}");
                return T::default();
            }
        };
        self.written = Arc::new(kept.clone());
        kept
    }

    /// Writes `kept` in a thread, if new and none runs. Whether the file will hold it on success.
    pub fn write(&mut self, kept: &T) -> bool {
        let is_writing = self.writer.as_ref().is_some_and(|old| !old.is_finished());
        if !is_writing {
            self.finish();
        }
        if *kept == *self.written {
            return true;
        }
        if is_writing {
            return false;
        }
        let (path, kept) = (self.path.clone(), Arc::new(kept.clone()));
        let (contents, is_failing) = (kept.clone(), Arc::clone(&self.is_failing));
        let work = move || {
            let result = contents.encode().and_then(|text| replace(&path, &text));
            log_result(&path, &result, &is_failing);
            result.is_ok()
        };
        match std::thread::Builder::new().name("state".to_owned()).spawn(work) {
            Ok(writer) => {
                self.writer = Some(writer);
                self.written = kept;
            }
            Err(error) => {
                tracing::warn!("cannot write {}: {error}", self.path.display());
                return false;
            }
        }
        true
    }

    /// Writes `kept` at the end of the process, waiting at most one second per write.
    pub fn write_last(&mut self, kept: &T) {
        if self.finish_soon() {
            self.write(kept);
            self.finish_soon();
        }
    }

    fn finish_soon(&mut self) -> bool {
        let is_over = |writer: &JoinHandle<bool>| {
            (0..LAST_MAX.as_millis()).any(|_| {
                std::thread::sleep(Duration::from_millis(u64::from(!writer.is_finished())));
                writer.is_finished()
            })
        };
        let is_over = self.writer.as_ref().is_none_or(is_over);
        match is_over {
            true => self.finish(),
            false => {
                let file = self.path.display();
                tracing::error!(
                    "{file} could not be written at the end: the disk does not respond"
                );
            }
        }
        is_over
    }

    fn finish(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if !writer.join().unwrap_or(false) {
            self.written = Arc::default();
        }
    }
}

impl Persisted for Learned {
    const NAME: &'static str = "learned";

    fn encode(&self) -> io::Result<String> {
        let lanes = |lanes: &BTreeMap<String, String>| {
            let lane = |(name, text): (&String, &String)| {
                Ok((name.clone(), serde_json::from_str(text).map_err(io::Error::other)?))
            };
            lanes.iter().map(lane).collect::<io::Result<BTreeMap<String, Value>>>()
        };
        let peer = |(key, of_peer): (&String, &BTreeMap<String, String>)| {
            Ok((key.clone(), lanes(of_peer)?))
        };
        let peers = self.iter().map(peer).collect::<io::Result<_>>()?;
        Ok(serde_json::to_string(&Contents { version: VERSION, peers })?)
    }

    fn decode(text: &str) -> io::Result<Self> {
        let contents: Contents = serde_json::from_str(text)?;
        check_version(contents.version)?;
        let lanes = |lanes: BTreeMap<String, Value>| {
            lanes.into_iter().map(|(name, learned)| (name, learned.to_string())).collect()
        };
        Ok(contents.peers.into_iter().map(|(key, of_peer)| (key, lanes(of_peer))).collect())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageContents {
    version: u32,
    uplinks: Usage,
}

/// Version 1: sums of a calendar month.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MonthContents {
    #[serde(rename = "version")]
    _version: u32,
    month: Option<Month>,
    bytes: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Month {
    year: i16,
    month: i8,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Persisted for Usage {
    const NAME: &'static str = "usage";

    fn encode(&self) -> io::Result<String> {
        let contents = UsageContents { version: USAGE_VERSION, uplinks: self.clone() };
        Ok(serde_json::to_string(&contents)?)
    }

    fn decode(text: &str) -> io::Result<Self> {
        match serde_json::from_str(text)? {
            Version { version: USAGE_VERSION } => {
                Ok(serde_json::from_str::<UsageContents>(text)?.uplinks)
            }
            Version { version: 1 } => {
                let MonthContents { month, bytes, .. } = serde_json::from_str(text)?;
                let month = month.map(|month| (month.year, month.month));
                Usage::of_month(month, bytes).map_err(|error| invalid(error.to_string()))
            }
            Version { version } => Err(unknown_version(version, USAGE_VERSION)),
        }
    }
}

/// The newest binding of each device of an anchor, signed, so that the file cannot forge it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PersistedBindings(pub Vec<(PublicKey, Binding)>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingContents {
    version: u32,
    bindings: Vec<BindingEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingEntry {
    device: PublicKey,
    tenant: String,
    anchor: PublicKey,
    proxy: PublicKey,
    number: u64,
    signature: Signature,
}

impl Persisted for PersistedBindings {
    const NAME: &'static str = "bindings";

    fn encode(&self) -> io::Result<String> {
        let entry = |(device, binding): &(PublicKey, Binding)| BindingEntry {
            device: *device,
            tenant: binding.tenant.clone(),
            anchor: PublicKey::from_bytes(binding.anchor),
            proxy: PublicKey::from_bytes(binding.proxy),
            number: binding.number,
            signature: Signature::from_bytes(binding.signature),
        };
        let bindings = self.0.iter().map(entry).collect();
        Ok(serde_json::to_string(&BindingContents { version: VERSION, bindings })?)
    }

    fn decode(text: &str) -> io::Result<Self> {
        let contents: BindingContents = serde_json::from_str(text)?;
        check_version(contents.version)?;
        let binding = |entry: BindingEntry| {
            let binding = Binding {
                tenant: entry.tenant,
                anchor: *entry.anchor.as_bytes(),
                proxy: *entry.proxy.as_bytes(),
                number: entry.number,
                signature: *entry.signature.as_bytes(),
            };
            (entry.device, binding)
        };
        Ok(Self(contents.bindings.into_iter().map(binding).collect()))
    }
}

fn check_version(version: u32) -> io::Result<()> {
    if version == VERSION { Ok(()) } else { Err(unknown_version(version, VERSION)) }
}

fn unknown_version(version: u32, known: u32) -> io::Error {
    invalid(format!("its version is {version}, and this program supports {known}"))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    make_private(directory)?;
    check_owner(directory)?;
    files::replace(path, text.as_bytes(), 0o600)?;
    File::open(directory)?.sync_all()
}

fn log_result(path: &Path, result: &io::Result<()>, is_failing: &AtomicBool) {
    let was_failing = is_failing.swap(result.is_err(), Ordering::Relaxed);
    match result {
        Err(error) if !was_failing => tracing::warn!(
            "cannot write {}: {error}; the file keeps its previous contents; trying again",
            path.display()
        ),
        Ok(()) if was_failing => tracing::info!("{} is written again", path.display()),
        _ => {}
    }
}

const VERSION: u32 = 1;
const USAGE_VERSION: u32 = 2;
const LAST_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn learned(value: u32) -> Learned {
        let lanes = BTreeMap::from([("small".to_owned(), format!("{{\"a\":[0.25,{value}]}}"))]);
        Learned::from([("key=".to_owned(), lanes)])
    }

    fn write(file: &mut StateFile, learned: &Learned) {
        file.write(learned);
        file.finish();
    }

    fn read<T: Persisted>(directory: &Path) -> T {
        StateFile::new(directory, "rw0").read()
    }

    #[test]
    fn what_was_written_is_read_again_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("sub");
        let mut file = StateFile::new(&folder, "rw0");
        assert_eq!(file.read(), Learned::new());
        for value in [1, 2] {
            write(&mut file, &learned(value));
            assert_eq!(read::<Learned>(&folder), learned(value));
        }
        let names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["rw0.learned.json"], "nothing is left beside it");
    }

    #[test]
    fn what_uplinks_have_carried_is_kept_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let carried = || [("wwan0".to_owned(), 1 << 40)].into();
        let usage = Usage::of_month(Some((2026, 11)), carried()).unwrap();
        StateFile::new(directory.path(), "rw0").write_last(&usage);
        StateFile::new(directory.path(), "rw0").write_last(&learned(1));
        assert_eq!(read::<Usage>(directory.path()), usage);
        let path = directory.path().join("rw0.usage.json");
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"version":2,"uplinks":{"wwan0":{"2026-11-01":1099511627776}}}"#);
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read::<Usage>(directory.path())
        };
        for broken in [
            "",
            "{}",
            "[]",
            &text.replace("\"version\":2", "\"version\":3"),
            &text.replace("11-01", "11-31"),
            r#"{"version":1,"month":{"year":2026,"month":13},"bytes":{"wwan0":1}}"#,
        ] {
            assert_eq!(read(broken), Usage::default(), "{broken}");
        }
        let month =
            r#"{"version":1,"month":{"year":2026,"month":11},"bytes":{"wwan0":1099511627776}}"#;
        assert_eq!(read(month), usage);
        let undated = r#"{"version":1,"month":null,"bytes":{"wwan0":1099511627776}}"#;
        assert_eq!(read(undated), Usage::of_month(None, carried()).unwrap());
    }

    #[test]
    fn a_broken_file_is_as_none_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rw0.learned.json");
        for broken in ["", "{\"version\":1", "{\"version\":9,\"peers\":{}}", "[1]", "\u{0}\u{1}"] {
            fs::write(&path, broken).unwrap();
            let mut file = StateFile::new(directory.path(), "rw0");
            assert_eq!(file.read(), Learned::new(), "{broken:?}");
            write(&mut file, &learned(3));
            assert_eq!(read::<Learned>(directory.path()), learned(3));
        }
    }

    #[derive(Clone, Default, PartialEq)]
    struct Hanging(u8);

    impl Persisted for Hanging {
        const NAME: &'static str = "hanging";

        fn encode(&self) -> io::Result<String> {
            loop {
                std::thread::park();
            }
        }

        fn decode(_: &str) -> io::Result<Self> {
            Ok(Self(0))
        }
    }

    #[test]
    fn the_end_of_the_process_does_not_wait_for_a_disk_that_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = StateFile::<Hanging>::new(directory.path(), "rw0");
        file.write_last(&Hanging(1));
        file.write_last(&Hanging(2));
        assert!(!directory.path().join("rw0.hanging.json").exists());
    }

    #[test]
    fn a_folder_that_others_may_write_in_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode));
        mode(0o777).unwrap();
        let mut file = StateFile::new(directory.path(), "rw0");
        file.write_last(&learned(1));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        mode(0o755).unwrap();
        file.write_last(&learned(1));
        let path = directory.path().join("rw0.learned.json");
        let again = || read::<Learned>(directory.path());
        assert_eq!(again(), learned(1));
        mode(0o777).unwrap();
        assert_eq!(again(), Learned::new());
        mode(0o755).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(again(), Learned::new());
        fs::rename(&elsewhere, &path).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_has_not_changed_is_not_written_and_a_failure_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("kept");
        let mut file = StateFile::new(&folder, "rw0");
        fs::write(&folder, "in the way").unwrap();
        write(&mut file, &learned(1));
        fs::remove_file(&folder).unwrap();
        write(&mut file, &learned(1));
        fs::remove_file(folder.join("rw0.learned.json")).unwrap();
        write(&mut file, &learned(1));
        assert!(!folder.join("rw0.learned.json").exists(), "it was written once");
        write(&mut file, &Learned::new());
        assert_eq!(read::<Learned>(&folder), Learned::new());
    }
}
