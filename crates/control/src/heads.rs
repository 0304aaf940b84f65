//! Audit checkpoints: the head of each tenant's audit log, on the controller's own disk, so that a
//! log truncated in the database is detected. Each change written here updates its tenant's.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::floor::{ChainEnd, KeptFile};

/// The last serial and hash of each tenant's log, in a file.
#[derive(Debug, Default)]
pub struct Heads(KeptFile<BTreeMap<String, ChainEnd>>);

impl Heads {
    /// Reads the file; a missing one is empty.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self(KeptFile::open(path, |ends| ends)?))
    }

    /// The last seen end of a tenant's log.
    pub fn of(&self, tenant: &str) -> Option<(i64, String)> {
        self.0.value().get(tenant).map(|end| (end.serial, end.hash.clone()))
    }

    /// Records the end of a tenant's log, unless a later one was seen.
    pub fn saw(&self, tenant: &str, serial: i64, hash: String) {
        let mut ends = self.0.value();
        if ends.get(tenant).is_none_or(|end| end.serial < serial) {
            ends.insert(tenant.to_owned(), ChainEnd { serial, hash });
        }
    }

    pub fn keep(&self) {
        self.0.keep("ends of audit logs cannot be kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heads.json");
        let heads = Heads::open(path.clone()).unwrap();
        assert_eq!(heads.of("tram"), None);
        heads.saw("tram", 7, "abc".to_owned());
        heads.saw("tram", 6, "older".to_owned());
        assert_eq!(heads.of("tram"), Some((7, "abc".to_owned())));
        heads.keep();
        assert_eq!(Heads::open(path.clone()).unwrap().of("tram"), Some((7, "abc".to_owned())));
        std::fs::write(&path, "no JSON").unwrap();
        assert!(Heads::open(path).is_err());
    }
}
