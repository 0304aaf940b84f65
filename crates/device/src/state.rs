//! What strategies have learned of the networks, kept over restarts.
//!
//! ```text
//! DIRECTORY/INSTANCE.learned.json
//! {"version":1,"peers":{"<public key>":{"<lane>":{..}, ..}, ..}}
//! ```
//!
//! The file is replaced as a whole: a process that dies while writing leaves the old one. It is written by
//! a thread, since a slow flash must not hold up the tunnel. What cannot be read is told and left out.
//! Nothing depends on it: strategies learn again.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use roadweave_tunnel::Learned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file of one instance.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// What was written last.
    written: Learned,
    writer: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    peers: BTreeMap<String, BTreeMap<String, Value>>,
}

impl StateFile {
    /// The file of the instance `name` in `directory`; nothing is read or made yet.
    pub fn new(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("{name}.learned.json"));
        Self { path, written: Learned::new(), writer: None }
    }

    /// Reads what was written last; nothing if there is nothing, or nothing that can be read.
    pub fn read(&mut self) -> Learned {
        let learned = match read(&self.path) {
            Ok(learned) => learned,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Learned::new(),
            Err(error) => {
                let file = self.path.display();
                tracing::warn!("{file} is not used, what it says is learned again: {error}");
                return Learned::new();
            }
        };
        self.written = learned.clone();
        learned
    }

    /// Writes `learned` before long, unless it is there already or the last write is still under way.
    pub fn write(&mut self, learned: &Learned) {
        if *learned == self.written || self.writer.as_ref().is_some_and(|old| !old.is_finished()) {
            return;
        }
        self.finish();
        let (path, contents) = (self.path.clone(), learned.clone());
        let work = move || replace(&path, &contents);
        match std::thread::Builder::new().name("state".to_owned()).spawn(work) {
            Ok(writer) => {
                self.writer = Some(writer);
                self.written = learned.clone();
            }
            Err(error) => tracing::warn!("cannot write {}: {error}", self.path.display()),
        }
    }

    /// Writes `learned` before it returns, unless it is there already: the process ends.
    pub fn write_last(&mut self, learned: &Learned) {
        self.finish();
        self.write(learned);
        self.finish();
    }

    /// Waits for the write that is under way.
    fn finish(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if let Ok(Err(error)) = writer.join() {
            tracing::warn!("cannot write {}: {error}", self.path.display());
            self.written = Learned::new();
        }
    }
}

fn read(path: &Path) -> io::Result<Learned> {
    let mut text = String::new();
    let length = File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    if length as u64 > BYTES_MAX {
        return Err(invalid(format!("it is longer than {BYTES_MAX} bytes")));
    }
    let contents: Contents =
        serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if contents.version != VERSION {
        let message = format!("its version is {}, this program knows {VERSION}", contents.version);
        return Err(invalid(message));
    }
    let lanes = |lanes: BTreeMap<String, Value>| {
        lanes.into_iter().map(|(name, learned)| (name, learned.to_string())).collect()
    };
    Ok(contents.peers.into_iter().map(|(key, of_peer)| (key, lanes(of_peer))).collect())
}

/// Puts a new file in the place of the old one.
fn replace(path: &Path, learned: &Learned) -> io::Result<()> {
    let lanes = |lanes: &BTreeMap<String, String>| {
        let lane = |(name, text): (&String, &String)| {
            Ok((name.clone(), serde_json::from_str(text).map_err(io::Error::other)?))
        };
        lanes.iter().map(lane).collect::<io::Result<BTreeMap<String, Value>>>()
    };
    let peer =
        |(key, of_peer): (&String, &BTreeMap<String, String>)| Ok((key.clone(), lanes(of_peer)?));
    let peers = learned.iter().map(peer).collect::<io::Result<_>>()?;
    let text = serde_json::to_string(&Contents { version: VERSION, peers })?;
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let new = path.with_extension("json.new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(directory)?.sync_all()
}

const VERSION: u32 = 1;
/// A thousand peers with what RAVEN learns of three networks each.
const BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let name = format!("roadweave-state-{}-{test}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn learned(value: u32) -> Learned {
        let lanes = BTreeMap::from([("small".to_owned(), format!("{{\"a\":[0.25,{value}]}}"))]);
        Learned::from([("key=".to_owned(), lanes)])
    }

    #[test]
    fn what_was_written_is_read_again_after_a_restart() {
        let directory = Directory::new("again");
        let mut file = StateFile::new(&directory.0.join("sub"), "rw0");
        assert_eq!(file.read(), Learned::new());
        for value in [1, 2] {
            file.write(&learned(value));
            file.finish();
            assert_eq!(StateFile::new(&directory.0.join("sub"), "rw0").read(), learned(value));
        }
        let names: Vec<_> = fs::read_dir(directory.0.join("sub"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["rw0.learned.json"], "nothing is left beside it");
    }

    #[test]
    fn a_broken_file_is_as_none_and_is_replaced() {
        let directory = Directory::new("broken");
        fs::create_dir_all(&directory.0).unwrap();
        let path = directory.0.join("rw0.learned.json");
        for broken in ["", "{\"version\":1", "{\"version\":9,\"peers\":{}}", "[1]", "\u{0}\u{1}"] {
            fs::write(&path, broken).unwrap();
            let mut file = StateFile::new(&directory.0, "rw0");
            assert_eq!(file.read(), Learned::new(), "{broken:?}");
            file.write(&learned(3));
            file.finish();
            assert_eq!(StateFile::new(&directory.0, "rw0").read(), learned(3));
        }
    }

    #[test]
    fn what_has_not_changed_is_not_written_and_a_failure_is_tried_again() {
        let directory = Directory::new("same");
        let mut file = StateFile::new(&directory.0, "rw0");
        // A file stands where the directory should be.
        fs::write(&directory.0, "in the way").unwrap();
        file.write(&learned(1));
        file.finish();
        fs::remove_file(&directory.0).unwrap();
        file.write(&learned(1));
        file.finish();
        fs::remove_file(directory.0.join("rw0.learned.json")).unwrap();
        file.write(&learned(1));
        file.finish();
        assert!(!directory.0.join("rw0.learned.json").exists(), "it was written once");
        file.write(&Learned::new());
        file.finish();
        assert_eq!(StateFile::new(&directory.0, "rw0").read(), Learned::new());
    }
}
