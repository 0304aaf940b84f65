//! The rollback guard, on the controller's own disk: the epoch begun here, the latest change seen,
//! and the head of the chain of revocations. Beside it the audit checkpoints: the head of each
//! tenant's audit log, by which truncation in the database is detected. A restored older database,
//! or a standby that lagged, would reuse numbers of changes that members hold and then ignore, and
//! of a lost revocation. A writer of the database could raise its epoch; a root key held here would
//! sign it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::store::error::StoreError;

#[derive(Debug, Default)]
pub struct RollbackGuard {
    /// The epoch that `init` or `restore` has begun; `None` accepts any.
    epoch: Option<i64>,
    seen: StateFile<SeenDatabase>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainEnd {
    /// The last number; 0 for an empty chain.
    pub serial: i64,
    pub hash: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SeenDatabase {
    epoch: i64,
    change: i64,
    revocations: ChainEnd,
}

impl RollbackGuard {
    pub fn open(path: PathBuf, epoch: i64) -> io::Result<Self> {
        let of_epoch = |seen: SeenDatabase| match seen.epoch == epoch {
            true => seen,
            false => SeenDatabase { epoch, ..SeenDatabase::default() },
        };
        Ok(Self { epoch: Some(epoch), seen: StateFile::open(path, of_epoch)? })
    }

    pub fn change(&self) -> i64 {
        self.seen.value().change
    }

    pub fn revocations(&self) -> ChainEnd {
        self.seen.value().revocations.clone()
    }

    pub fn record_change(&self, number: i64) {
        let mut seen = self.seen.value();
        seen.change = seen.change.max(number);
    }

    pub fn record_revocations(&self, serial: i64, hash: &str) {
        let mut seen = self.seen.value();
        if serial > seen.revocations.serial {
            seen.revocations = ChainEnd { serial, hash: hash.to_owned() };
        }
    }

    /// Refuses a database of another epoch ([`StoreError::Older`]).
    pub fn check_epoch(&self, found: i64) -> Result<(), StoreError> {
        let Some(epoch) = self.epoch else { return Ok(()) };
        let why = match found.cmp(&epoch) {
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Less => format!(
                "is of epoch {found}, but this controller has used epoch {epoch}: it is an older \
                 copy. {WAY_OUT}"
            ),
            std::cmp::Ordering::Greater => format!(
                "is of epoch {found}, but this controller has started at most epoch {epoch}: only \
                 init and restore start one. If restore ran in another folder, copy its file epoch \
                 into this one; otherwise the database was altered outside the controller. \
                 {WAY_OUT}"
            ),
        };
        Err(StoreError::Older(why))
    }

    /// Refuses a database whose latest change `found` is before `seen` ([`StoreError::Older`]).
    pub fn check_change(found: i64, seen: i64) -> Result<(), StoreError> {
        if found >= seen {
            return Ok(());
        }
        Err(StoreError::Older(format!(
            "ends at change {found}, but this controller has seen change {seen}: it is an older \
             copy. {WAY_OUT}"
        )))
    }

    /// [`StoreError::Older`] if the entry at the seen serial is missing or different.
    pub fn check_revocations(seen: &ChainEnd, found: Option<&str>) -> Result<(), StoreError> {
        if seen.serial == 0 || found == Some(&*seen.hash) {
            return Ok(());
        }
        let how = if found.is_some() { "differs" } else { "is missing" };
        Err(StoreError::Older(format!(
            "is an older copy, or was altered outside the controller: revocation {}, which this \
             controller signed, {how}. {WAY_OUT}",
            seen.serial
        )))
    }

    pub fn save(&self) {
        self.seen.save("cannot store the state seen of the database");
    }
}

#[derive(Debug, Default)]
struct StateFile<T> {
    path: Option<PathBuf>,
    value: Mutex<T>,
    written: Mutex<T>,
}

impl<T: Clone + Default + PartialEq + Serialize + DeserializeOwned> StateFile<T> {
    /// Keeps the `valid` part of the file.
    fn open(path: PathBuf, valid: impl FnOnce(T) -> T) -> io::Result<Self> {
        let value = valid(match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => T::default(),
            Err(error) => return Err(error),
        });
        let written = Mutex::new(value.clone());
        Ok(Self { path: Some(path), value: Mutex::new(value), written })
    }

    fn value(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, failure: &str) {
        let Some(path) = &self.path else { return };
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.value().clone();
        if *written == now {
            return;
        }
        let text = serde_json::to_string_pretty(&now).unwrap_or_default();
        match files::put(path, &text) {
            Ok(()) => *written = now,
            Err(error) => tracing::warn!(path = %path.display(), %error, "{failure}"),
        }
    }
}

const WAY_OUT: &str = "To continue with its contents, back them up with roadweave-controller \
                       backup and restore them into an empty database: this starts a new epoch, \
                       and proxies return the missing revocations";

#[derive(Debug, Default)]
pub struct AuditCheckpoints(StateFile<BTreeMap<String, ChainEnd>>);

impl AuditCheckpoints {
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self(StateFile::open(path, |ends| ends)?))
    }

    pub fn of(&self, tenant: &str) -> Option<(i64, String)> {
        self.0.value().get(tenant).map(|end| (end.serial, end.hash.clone()))
    }

    pub fn record(&self, tenant: &str, serial: i64, hash: String) {
        let mut ends = self.0.value();
        if ends.get(tenant).is_none_or(|end| end.serial < serial) {
            ends.insert(tenant.to_owned(), ChainEnd { serial, hash });
        }
    }

    pub fn save(&self) {
        self.0.save("cannot store the ends of audit logs");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_was_seen_outlives_the_process_and_ends_with_the_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.json");
        let rollback_guard = RollbackGuard::open(path.clone(), 3).unwrap();
        assert_eq!(
            (rollback_guard.change(), rollback_guard.revocations()),
            (0, ChainEnd::default())
        );
        rollback_guard.record_change(7);
        rollback_guard.record_change(6);
        rollback_guard.record_revocations(2, "b");
        rollback_guard.record_revocations(1, "a");
        fs::write(path.with_extension("new"), "of a crash").unwrap();
        rollback_guard.save();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = RollbackGuard::open(path.clone(), 3).unwrap();
        let end = ChainEnd { serial: 2, hash: "b".to_owned() };
        assert_eq!((again.change(), again.revocations()), (7, end.clone()));
        assert!(RollbackGuard::check_revocations(&end, Some("b")).is_ok());
        assert!(RollbackGuard::check_revocations(&end, Some("c")).is_err());
        assert!(RollbackGuard::check_revocations(&end, None).is_err());
        let restored = RollbackGuard::open(path.clone(), 4).unwrap();
        assert_eq!((restored.change(), restored.revocations()), (0, ChainEnd::default()));
        fs::write(&path, "").unwrap();
        assert!(RollbackGuard::open(path, 3).is_err());
    }

    #[test]
    fn an_epoch_that_was_not_begun_here_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let rollback_guard = RollbackGuard::open(folder.path().join("seen.json"), 3).unwrap();
        assert!(rollback_guard.check_epoch(3).is_ok());
        for (found, part) in [
            (2, "older copy"),
            (4, "only init and restore"),
            (i64::MAX, "epoch 9223372036854775807"),
        ] {
            let error = rollback_guard.check_epoch(found).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("restore"), "{error}");
        }
        assert!(rollback_guard.check_epoch(-3).is_err());
    }

    #[test]
    fn an_end_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heads.json");
        let audit_checkpoints = AuditCheckpoints::open(path.clone()).unwrap();
        assert_eq!(audit_checkpoints.of("tram"), None);
        audit_checkpoints.record("tram", 7, "abc".to_owned());
        audit_checkpoints.record("tram", 6, "older".to_owned());
        assert_eq!(audit_checkpoints.of("tram"), Some((7, "abc".to_owned())));
        audit_checkpoints.save();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            AuditCheckpoints::open(path.clone()).unwrap().of("tram"),
            Some((7, "abc".to_owned()))
        );
        fs::write(&path, "no JSON").unwrap();
        assert!(AuditCheckpoints::open(path).is_err());
    }
}
