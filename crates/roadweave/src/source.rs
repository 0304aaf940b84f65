//! The files of the roles that others connect to: a server, a proxy, an anchor.

use std::path::PathBuf;
use std::time::Duration;

use roadweave_config::{AnchorFile, FileError, PrivateKey, ProxyFile, ServerFile, Validate};
use roadweave_device::fleet::{FleetOptions, Membership, Merged as Applied};
use roadweave_device::{Reread, ServerReload};
use roadweave_identity::PublicKey;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::member::{Source, is_other_key, may_be_missing};
use crate::run::{ignored, warnings};

// The default paths of files. After a join the file may be missing.
pub const SERVER_FILE: &str = "/etc/roadweave/server.toml";
pub const PROXY_FILE: &str = "/etc/roadweave/proxy.toml";
pub const ANCHOR_FILE: &str = "/etc/roadweave/anchor.toml";

/// A role that others connect to, which may be a member of a fleet.
pub trait MemberFile: Validate + DeserializeOwned + Serialize {
    /// The path of the file, which may be missing after a join.
    const USUAL: &str;

    /// The state directory and the private key of the member.
    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey);
}

impl MemberFile for ServerFile {
    const USUAL: &str = SERVER_FILE;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }
}

impl MemberFile for ProxyFile {
    const USUAL: &str = PROXY_FILE;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }
}

impl MemberFile for AnchorFile {
    const USUAL: &str = ANCHOR_FILE;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }
}

impl Source {
    /// The file of a server, a proxy or an anchor.
    pub fn read_as<F: MemberFile>(&self) -> Result<F, FileError> {
        let mut file: F = match roadweave_config::load(&self.path) {
            Err(error) if may_be_missing(&error, &self.path, F::USUAL) => {
                roadweave_config::parse(&self.path, "")?
            }
            result => result?,
        };
        if let Some(directory) = &self.state_directory {
            file.member().0.clone_from(directory);
        }
        Ok(file)
    }

    /// Reads the file again, at each call, for a member of this key that has `started`: `fields`
    /// count without a restart, as `read` has them.
    pub fn reload<F: MemberFile>(
        self,
        started: F,
        key: PublicKey,
        fields: &'static [&'static str],
        read: impl Fn(&F) -> Result<ServerReload, String>,
    ) -> impl FnMut() -> Result<Reread<ServerReload>, String> {
        move || {
            let mut file: F = self.read_as().map_err(|error| error.to_string())?;
            warn_of(&file);
            let other_key = is_other_key(file.member().1.take(), key)?;
            let ignored = ignored(&started, &file, fields, other_key);
            Ok(Reread { read: read(&file)?, ignored })
        }
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
