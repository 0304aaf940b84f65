//! The files of the roles that others connect to: a server, a proxy, an anchor.

use std::path::{Path, PathBuf};

use anyhow::Result;
use roadweave_config::{AnchorFile, FileError, PrivateKey, ProxyFile, ServerFile, Validate};
use roadweave_device::fleet::Membership;
use roadweave_device::{MemberOptions, Reread};
use roadweave_fleet::Role;
use roadweave_identity::PublicKey;
use roadweave_terminal::exit::BadInput;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::member::{self, Source, is_other_key, may_be_missing};
use crate::run::{ignored, in_order, warnings};

// The default paths of files. After a join the file may be missing.
pub const SERVER_FILE: &str = "/etc/roadweave/server.toml";
pub const PROXY_FILE: &str = "/etc/roadweave/proxy.toml";
pub const ANCHOR_FILE: &str = "/etc/roadweave/anchor.toml";

/// A role that others connect to, which may be a member of a fleet.
pub trait MemberFile: Validate + DeserializeOwned + Serialize + Clone + Send + 'static {
    /// The path of the file, which may be missing after a join.
    const USUAL: &str;
    const ROLE: Role;

    /// The state directory and the private key of the member.
    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey);

    /// A field that is missing, though no fleet sets it: its name, and what to write.
    fn lack(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

impl MemberFile for ServerFile {
    const USUAL: &str = SERVER_FILE;
    const ROLE: Role = Role::Proxy;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }
}

impl MemberFile for ProxyFile {
    const USUAL: &str = PROXY_FILE;
    const ROLE: Role = Role::Proxy;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        self.tenants.is_empty().then_some(("tenants", "tenants is empty; write [[tenants]]"))
    }
}

impl MemberFile for AnchorFile {
    const USUAL: &str = ANCHOR_FILE;
    const ROLE: Role = Role::Anchor;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        self.tenant.is_empty().then_some(("tenant", "tenant is missing; write its name"))
    }
}

/// What a member runs with; `None` if `check` asks for the check of its file alone.
pub fn options<F: MemberFile>(
    config: &Path,
    check: bool,
    state_directory: Option<&Path>,
) -> Result<Option<MemberOptions<F>>> {
    let source = Source::new(config, state_directory);
    let mut file: F = source.read_as().map_err(BadInput::new)?;
    let lack = file.lack();
    let (directory, key) = file.member();
    member::check(&source.path, key, directory)?;
    if let Some((_, lack)) = lack
        && !Membership::is_there(directory)
    {
        return Err(without(&source.path, lack));
    }
    if check {
        in_order(&source.path, &file)?;
        return Ok(None);
    }
    warn_of(&file);
    let (directory, key) = file.member();
    let membership = Membership::open(directory, F::ROLE)?;
    let identity = member::identity(&source.path, key.take(), membership.as_ref())?;
    let files = source.files();
    let reload = source.reload(file.clone(), identity.public_key(), membership.is_some());
    Ok(Some(MemberOptions { file, identity, reload: Box::new(reload), files, membership }))
}

/// The error that a file has not `what`.
pub fn without(path: &Path, what: &str) -> anyhow::Error {
    let path = path.display();
    BadInput::new(format!("{path}: {what}, or join a fleet with `roadweave join`")).into()
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

    /// Reads the file again, at each call, for a member of this key that has `started`.
    fn reload<F: MemberFile>(
        self,
        started: F,
        key: PublicKey,
        is_member: bool,
    ) -> impl FnMut() -> Result<Reread<F>, String> + Send {
        move || {
            let mut file: F = self.read_as().map_err(|error| error.to_string())?;
            warn_of(&file);
            let other_key = is_other_key(file.member().1.take(), key)?;
            match file.lack() {
                Some((field, lack)) if !is_member && F::RELOADED.contains(&field) => {
                    Err(lack.to_owned())
                }
                _ => Ok(Reread { ignored: ignored(&started, &file, other_key), read: file }),
            }
        }
    }
}

fn warn_of(file: &impl Validate) {
    warnings(file).into_iter().for_each(|warning| tracing::warn!("{warning}"));
}
