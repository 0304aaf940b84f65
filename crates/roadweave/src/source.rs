//! The files of the roles that others connect to: a server, a proxy, an anchor.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_config::{AnchorFile, FileError, ProxyFile, ServerFile, Validate};
use roadweave_device::fleet::{FleetOptions, Membership, Merged as Applied};
use serde::de::DeserializeOwned;

use crate::files::{ANCHOR_FILE, PROXY_FILE, SERVER_FILE};
use crate::member::{existing, may_be_missing};
use crate::run::warnings;

/// The file of a server, a proxy or an anchor.
#[derive(Debug)]
pub struct Source<F> {
    pub path: PathBuf,
    state_directory: Option<PathBuf>,
    file: PhantomData<fn() -> F>,
}

/// A role that others connect to, which may be a member of a fleet.
pub trait MemberFile: Validate + DeserializeOwned {
    /// The path of the file, which may be missing after a join.
    const USUAL: &str;

    /// The state directory of the member.
    fn state_directory(&mut self) -> &mut PathBuf;
}

impl MemberFile for ServerFile {
    const USUAL: &str = SERVER_FILE;

    fn state_directory(&mut self) -> &mut PathBuf {
        &mut self.state_directory
    }
}

impl MemberFile for ProxyFile {
    const USUAL: &str = PROXY_FILE;

    fn state_directory(&mut self) -> &mut PathBuf {
        &mut self.state_directory
    }
}

impl MemberFile for AnchorFile {
    const USUAL: &str = ANCHOR_FILE;

    fn state_directory(&mut self) -> &mut PathBuf {
        &mut self.state_directory
    }
}

impl<F: MemberFile> Source<F> {
    pub fn new(path: &Path, state_directory: Option<&Path>) -> Self {
        let state_directory = state_directory.map(Path::to_owned);
        Self { path: path.to_owned(), state_directory, file: PhantomData }
    }

    pub fn read(&self) -> Result<F, FileError> {
        let mut file: F = match roadweave_config::load(&self.path) {
            Err(error) if may_be_missing(&error, &self.path, F::USUAL) => {
                roadweave_config::parse(&self.path, "")?
            }
            result => result?,
        };
        if let Some(directory) = &self.state_directory {
            file.state_directory().clone_from(directory);
        }
        Ok(file)
    }

    /// Reads the file again, if it exists.
    pub fn files(&self) -> Vec<PathBuf> {
        existing(&self.path)
    }
}

/// The membership of a server, a proxy or an anchor in its fleet.
pub fn in_fleet(membership: Membership, offline_max: Option<Duration>) -> FleetOptions<()> {
    let merge = |remote: Option<&str>| match remote {
        None => Ok(Applied { reload: (), pinned: Vec::new() }),
        Some(_) => Err("this is set by its own file alone".to_owned()),
    };
    FleetOptions { membership, merge: Box::new(merge), offline_max }
}

pub(crate) fn warn_of(file: &impl Validate) {
    warnings(file).into_iter().for_each(|warning| tracing::warn!("{warning}"));
}
