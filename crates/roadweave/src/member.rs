//! Settings of a member of a fleet: its own file, and below that its fleet.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use roadweave_config::{ClientFile, FileError, Merged, PrivateKey};
use roadweave_device::fleet::Membership;
use roadweave_identity::{Identity, PublicKey};
use roadweave_terminal::exit::BadInput;

/// The default path of a client's file. After a join the file may be missing.
pub const CLIENT_FILE: &str = "/etc/roadweave/client.toml";

/// The configuration of the controller in force, for the next reading of the file.
pub type InForce = Arc<Mutex<Option<String>>>;

/// The file of a member, and the state directory that is to count instead of the one in it.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    pub state_directory: Option<PathBuf>,
}

impl Source {
    pub fn new(path: &Path, state_directory: Option<&Path>) -> Self {
        let state_directory = state_directory.map(Path::to_owned);
        Self { path: path.to_owned(), state_directory }
    }

    /// The file of a client, with the fields of `remote` that it lacks.
    pub fn read(&self, remote: Option<&str>) -> Result<Merged, FileError> {
        let text = roadweave_config::read_text(&self.path, true);
        let merge = |text: &str| roadweave_config::merge(&self.path, text, remote);
        let mut merged = match text {
            Ok(text) => merge(&text)?,
            Err(error) if may_be_missing(&error, &self.path, CLIENT_FILE) => merge("")?,
            Err(error) => return Err(error),
        };
        if let Some(directory) = &self.state_directory {
            merged.file.state_directory.clone_from(directory);
        }
        Ok(merged)
    }

    /// Reads the file again, if it exists.
    pub fn files(&self) -> Vec<PathBuf> {
        self.path.exists().then(|| self.path.clone()).into_iter().collect()
    }

    pub fn without_server(&self) -> BadInput {
        BadInput::new(format!(
            "{}: server is missing; write [server] with addresses and public_key (`roadweave init` \
             does), or join a fleet with `roadweave join`",
            self.path.display()
        ))
    }
}

/// A default path may be missing.
pub fn may_be_missing(error: &FileError, path: &Path, usual: &str) -> bool {
    let is_missing = matches!(error, FileError::Read { source, .. }
        if source.kind() == std::io::ErrorKind::NotFound);
    is_missing && path == Path::new(usual)
}

/// Checks that there is a key: this one of the file at `path`, or one from a join.
pub fn check(path: &Path, key: &PrivateKey, directory: &Path) -> Result<()> {
    match key.is_empty() && !Membership::is_there(directory) {
        true => Err(without_key(path)),
        false => Ok(()),
    }
}

fn without_key(path: &Path) -> anyhow::Error {
    BadInput::new(format!(
        "{}: private_key is missing; write one (`roadweave keygen` makes it), or join a fleet with \
         `roadweave join`",
        path.display()
    ))
    .into()
}

/// The identity of this program, from its file at `path` or from the join.
pub fn identity(
    path: &Path,
    key: PrivateKey,
    membership: Option<&Membership>,
) -> Result<Arc<Identity>> {
    let of_fleet = membership.map(Membership::identity);
    if key.is_empty() {
        return of_fleet.ok_or_else(|| without_key(path));
    }
    let of_file = key.identity().map_err(BadInput::new)?;
    match of_fleet {
        Some(joined) if joined.public_key() != of_file.public_key() => Err(BadInput::new(format!(
            "private_key is another than the one that has joined the fleet, {}: remove \
                 private_key from the file, or use another state_directory",
            joined.public_key()
        ))
        .into()),
        _ => Ok(Arc::new(of_file)),
    }
}

/// Whether a file that was read again has a key that differs from `key`.
pub fn is_other_key(read: PrivateKey, key: PublicKey) -> Result<bool, String> {
    match read.is_empty() {
        true => Ok(false),
        false => Ok(read.identity()?.public_key() != key),
    }
}

/// The settings at the start of a client: its file, and below it the configuration of its fleet.
/// One that cannot be used is refused, and the former one is tried.
pub fn begin(
    source: &Source,
    membership: &mut Membership,
    in_force: &InForce,
    file: ClientFile,
) -> Result<ClientFile> {
    while let (Some(version), Some(text)) = membership.configuration() {
        match source.read(Some(&text)) {
            Ok(Merged { file: mut merged, .. }) => {
                // The caller has taken the same key before.
                drop(merged.private_key.take());
                *in_force.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                return Ok(merged);
            }
            Err(error) => {
                tracing::error!("{error}; it is not used");
                membership.refuse(version, &error.to_string());
            }
        }
    }
    Ok(file)
}

/// Reads the client's file and the configuration of its fleet again, at each call.
pub fn merge_client(
    source: Source,
    in_force: InForce,
) -> impl FnMut(Option<&str>) -> Result<(ClientFile, Vec<String>), String> + Send {
    move |remote| {
        let merged = source.read(remote).map_err(|error| error.to_string())?;
        let Merged { mut file, mut pinned } = merged;
        drop(file.private_key.take());
        pinned.extend(file.server.is_some().then(|| "server".to_owned()));
        let remote = remote.map(str::to_owned);
        *in_force.lock().unwrap_or_else(PoisonError::into_inner) = remote;
        Ok((file, pinned))
    }
}
