//! The controller's folder: its keys, its certificate, and what must not be in the database.
//!
//! ```text
//! controller.toml           addresses, database
//! controller.key            who the controller is
//! root.key                  who admits, unless that is kept elsewhere:
//! root.pub                    then its public half
//! trust.json                what roots have signed: whom the fleet may trust
//! certificate.pem, .key     for browsers
//! epoch                     the one that init or restore has begun
//! seen.json, heads.json     what the database must not fall behind
//! lock                      held while it runs
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
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
use crate::controller::oidc::OidcFile;
use crate::floor::Floor;
use crate::heads::Heads;
use crate::keys::StoreKeys;
use crate::oidc::Oidc;
use crate::store::{Database, Store};

/// A controller's folder.
pub struct Folder {
    path: PathBuf,
    /// Its configuration.
    pub file: ControllerFile,
}

impl Folder {
    /// The folder at `path`, which `init` has made.
    ///
    /// # Errors
    /// When the folder is no controller's, or its file has a fault.
    pub fn open(path: &Path) -> Result<Self> {
        let config = path.join("controller.toml");
        if !config.exists() {
            return Err(BadInput::new(format!(
                "there is no controller in {}: roadweave-controller init makes one, --folder names \
                 another place",
                path.display()
            ))
            .into());
        }
        let file = load(&config).map_err(BadInput::new)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The path of a file in the folder.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes sure that nobody else works in this folder, as long as the answer is kept.
    ///
    /// # Errors
    /// When somebody else works in this folder.
    pub fn lock(&self) -> Result<File> {
        let path = self.at("lock");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            BadInput::new(format!(
                "another roadweave-controller works in {}; stop it first",
                self.path.display()
            ))
        })?;
        Ok(file)
    }

    /// The controller's keys, as the folder has them.
    ///
    /// # Errors
    /// When a file with a key is missing or has none.
    pub fn authority(&self) -> Result<Authority> {
        let root = match self.at("root.key").exists() {
            true => Root::Held(identity(&self.at("root.key"))?),
            false => self.root_elsewhere()?,
        };
        let controller = identity(&self.at("controller.key"))?;
        let authority = Authority::new(controller, root, self.file.addresses.clone());
        Ok(authority.with_lists(self.lists()?))
    }

    /// The lists of trust that roots have signed, from the first to the last.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn lists(&self) -> Result<Vec<Signed<TrustList>>> {
        let path = self.at("trust.json");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let lists = serde_json::from_str(&text);
        Ok(lists.map_err(|error| BadInput::new(format!("{}: {error}", path.display())))?)
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

    /// The keys of the store, which grow out of the controller's.
    ///
    /// # Errors
    /// As [`Folder::authority`].
    pub fn store_keys(&self) -> Result<StoreKeys> {
        Ok(StoreKeys::new(&identity(&self.at("controller.key"))?))
    }

    /// The database's address.
    ///
    /// # Errors
    /// When the file has no usable address of a database.
    pub fn database(&self) -> Result<Database> {
        Ok(self.file.database(&self.path).map_err(BadInput::new)?)
    }

    /// The database, opened.
    ///
    /// # Errors
    /// When the database cannot be opened.
    pub async fn store(&self) -> Result<Store> {
        let database = self.database()?;
        let opened = Store::open(&database, self.store_keys()?).await;
        opened.with_context(|| format!("database {}", database.shown()))
    }

    /// The ends of audit logs that were seen.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn heads(&self) -> Result<Heads> {
        let path = self.at("heads.json");
        Heads::open(path.clone()).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Where people sign in who have no password here.
    ///
    /// # Errors
    /// When a file of it cannot be read.
    pub fn issuer(&self) -> Result<Option<Oidc>> {
        let open = |it: &OidcFile| it.open(&self.path, &self.file.addresses[0]);
        self.file.oidc.as_ref().map(open).transpose()
    }

    /// The epoch that was begun here, 0 before any; whatever the database says.
    pub fn epoch(&self) -> i64 {
        let text = fs::read_to_string(self.at("epoch")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Begins an epoch.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin_epoch(&self, epoch: i64) -> Result<()> {
        replace(&self.at("epoch"), &format!("{epoch}\n"))
    }

    /// What the database must not fall behind.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn floor(&self) -> Result<Floor> {
        let path = self.at("seen.json");
        Floor::open(path.clone(), self.epoch())
            .with_context(|| format!("cannot read {}", path.display()))
    }

    /// Certificate and key for browsers, PEM.
    ///
    /// # Errors
    /// When one of the two files cannot be read.
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

/// The private key in a file that nobody else may read.
///
/// # Errors
/// Which file, and what is wrong with it.
pub fn identity(path: &Path) -> Result<Identity> {
    let identity = Identity::from_base64(&secret::read(path)?);
    Ok(identity.map_err(|error| BadInput::new(format!("{}: {error}", path.display())))?)
}

/// Writes a file for its owner alone, in the place of one that is there, whole or not at all.
///
/// # Errors
/// Which file, and why.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let written = write_new(&new, text).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that must not be there yet.
///
/// # Errors
/// When the file is there already, or there is no room.
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
