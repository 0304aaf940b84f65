//! The controller's folder: its keys, its certificate, and what must not be in the database.
//!
//! ```text
//! controller.toml           addresses, database
//! controller.key            the controller's identity
//! root.key                  admits keys; if it is kept elsewhere:
//! root.pub                    its public half
//! trust.json                the trust lists that roots have signed
//! certificate.pem, .key     for browsers
//! epoch                     begun by the last init or restore
//! seen.json, heads.json     rollback guard, audit checkpoints
//! lock                      held while it runs
//! ```

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use roadweave_config::load;
use roadweave_fleet::{Signed, TrustList};
use roadweave_identity::Identity;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use rustix::fs::{FlockOperation, flock};
use zeroize::Zeroizing;

use crate::authority::{Authority, Root};
use crate::controller::file::ControllerFile;
use crate::files::{bad, read_if_there, replace};
use crate::keys::StoreKeys;
use crate::oidc::{Oidc, Settings};
use crate::rollback_guard::{AuditCheckpoints, RollbackGuard};
use crate::store::{Database, Store};

pub struct Folder {
    path: PathBuf,
    pub file: ControllerFile,
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self> {
        let config = path.join("controller.toml");
        if !config.exists() {
            return Err(BadInput::new(format!(
                "there is no controller in {}: create one with roadweave-controller init, or \
                 choose another --folder",
                path.display()
            ))
            .into());
        }
        let file = load(&config).map_err(BadInput::new)?;
        Ok(Self { path: path.to_owned(), file })
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn lock(&self) -> Result<File> {
        let path = self.at("lock");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            BadInput::new(format!(
                "another roadweave-controller uses {}; stop it first",
                self.path.display()
            ))
        })?;
        Ok(file)
    }

    pub fn authority(&self) -> Result<Authority> {
        let root = match self.at("root.key").exists() {
            true => Root::Held(identity(&self.at("root.key"))?),
            false => self.root_elsewhere()?,
        };
        let controller = identity(&self.at("controller.key"))?;
        let authority = Authority::new(controller, root, self.file.addresses.clone());
        Ok(authority.with_lists(self.lists()?))
    }

    pub fn lists(&self) -> Result<Vec<Signed<TrustList>>> {
        let path = self.at("trust.json");
        read_if_there(&path)?.map_or(Ok(Vec::new()), |text| parse_lists(&path, &text))
    }

    fn root_elsewhere(&self) -> Result<Root> {
        let key = self.at("root.pub");
        let text = fs::read_to_string(&key).map_err(|error| {
            let hint = "without root.key there must be root.pub, and a trust.json that names it: \
                        see roadweave-controller trust";
            BadInput::new(format!("cannot read {}: {error}; {hint}", key.display()))
        })?;
        Ok(Root::Elsewhere(text.trim().parse().map_err(BadInput::new)?))
    }

    pub fn store_keys(&self) -> Result<StoreKeys> {
        Ok(StoreKeys::new(&identity(&self.at("controller.key"))?))
    }

    pub fn database(&self) -> Result<Database> {
        Ok(self.file.database(&self.path).map_err(BadInput::new)?)
    }

    pub async fn store(&self) -> Result<Store> {
        let database = self.database()?;
        let opened = Store::open(&database, self.store_keys()?).await;
        opened.with_context(|| format!("database {}", database.shown()))
    }

    pub fn audit_checkpoints(&self) -> Result<AuditCheckpoints> {
        let path = self.at("heads.json");
        AuditCheckpoints::open(path.clone())
            .with_context(|| format!("cannot read {}", path.display()))
    }

    pub fn issuer(&self) -> Result<Option<Oidc>> {
        let open = |it: &Settings| Oidc::open(it, &self.path, &self.file.addresses[0]);
        self.file.oidc.as_ref().map(open).transpose()
    }

    /// The epoch begun by `init` or `restore`, 0 before any; independent of the database.
    pub fn epoch(&self) -> i64 {
        let text = fs::read_to_string(self.at("epoch")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    pub fn begin_epoch(&self, epoch: i64) -> Result<()> {
        replace(&self.at("epoch"), &format!("{epoch}\n"))
    }

    pub fn rollback_guard(&self) -> Result<RollbackGuard> {
        let path = self.at("seen.json");
        RollbackGuard::open(path.clone(), self.epoch())
            .with_context(|| format!("cannot read {}", path.display()))
    }

    pub fn certificate(&self) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>)> {
        let own = (self.at("certificate.pem"), self.at("certificate.key"));
        let (certificate, key) = match (&self.file.certificate, &self.file.certificate_key) {
            (Some(certificate), Some(key)) => (self.path.join(certificate), self.path.join(key)),
            _ => own,
        };
        let read = |path: &Path| {
            fs::read(path)
                .map_err(|error| BadInput::new(format!("cannot read {}: {error}", path.display())))
        };
        Ok((read(&certificate)?, Zeroizing::new(read(&key)?)))
    }
}

pub fn parse_lists(path: &Path, text: &str) -> Result<Vec<Signed<TrustList>>> {
    Ok(serde_json::from_str(text).map_err(|error| bad(path, error))?)
}

/// Refuses a file that other users can read.
pub fn identity(path: &Path) -> Result<Identity> {
    Ok(Identity::from_base64(&secret::read(path)?).map_err(|error| bad(path, error))?)
}
