//! Programs of fleet members: client here, others in `serving`. The file's settings come first.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use roadweave_config::{ClientFile, FileError, Merged, PrivateKey, Validate};
use roadweave_fleet::Role;
use roadweave_identity::{Identity, PublicKey};
use roadweave_node::fleet::Membership;
use roadweave_node::{MemberOptions, Reread, run_client};
use roadweave_terminal::exit::BadInput;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::run::{ignored, in_order, warnings};

// Without a comment of its own: each command has one.
#[derive(Debug, clap::Args)]
pub struct MemberArgs<F: MemberFile> {
    /// The configuration file; optional after `roadweave join`
    #[arg(long, value_name = "FILE", default_value = F::USUAL)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
    #[arg(skip)]
    file: PhantomData<F>,
}

pub trait MemberFile: Validate + DeserializeOwned + Serialize + Clone + Send + 'static {
    const USUAL: &str;
    const ROLE: Role;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey);

    /// The name of a missing field that no fleet sets, and what to write.
    fn lack(&self) -> Option<(&'static str, &'static str)>;

    fn read(source: &Source) -> Result<Self, FileError> {
        source.load()
    }

    fn run(source: Source, options: MemberOptions<Self>) -> Result<()>;
}

impl<F: MemberFile> MemberArgs<F> {
    pub fn run(&self) -> Result<()> {
        let state_directory = self.state_directory.clone();
        let source =
            Source { path: self.config.clone(), state_directory, in_force: InForce::default() };
        let mut file = F::read(&source).map_err(BadInput::new)?;
        let lack = file.lack();
        let (directory, key) = file.member();
        if key.is_empty() && !Membership::is_there(directory) {
            return Err(source.without_key());
        }
        if let Some((_, lack)) = lack
            && !Membership::is_there(directory)
        {
            return Err(source.without(lack));
        }
        if self.check {
            return in_order(&source.path, &file);
        }
        warn_of(&file);
        let (directory, key) = file.member();
        let membership = Membership::open(directory, F::ROLE)?;
        let identity = source.identity(key.take(), membership.as_ref())?;
        let files = source.path.exists().then(|| source.path.clone()).into_iter().collect();
        let (key, is_member) = (identity.public_key(), membership.is_some());
        let reload = Box::new(source.clone().reload(file.clone(), key, is_member));
        F::run(source, MemberOptions { file, identity, reload, files, membership })
    }
}

impl MemberFile for ClientFile {
    const USUAL: &str = "/etc/roadweave/client.toml";
    const ROLE: Role = Role::Box;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        let write = "server is missing; write [server] with addresses and public_key (`roadweave \
                     init` does)";
        self.server.is_none().then_some(("server", write))
    }

    fn read(source: &Source) -> Result<Self, FileError> {
        let remote = source.in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(source.merged(remote.as_deref())?.file)
    }

    fn run(source: Source, mut options: MemberOptions<Self>) -> Result<()> {
        if let (Some((_, lack)), None) = (options.file.lack(), &options.membership) {
            return Err(source.without(lack));
        }
        if let Some(membership) = &mut options.membership {
            options.file = begin(&source, membership, options.file)?;
        }
        let (file, key) = (options.file.clone(), options.identity.public_key());
        options.reload = Box::new(source.clone().reload(file, key, true));
        Ok(run_client(options, Box::new(merge_client(source)))?)
    }
}

type InForce = Arc<Mutex<Option<String>>>;

#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    state_directory: Option<PathBuf>,
    in_force: InForce,
}

impl Source {
    fn load<F: MemberFile>(&self) -> Result<F, FileError> {
        let mut file = roadweave_config::check(&self.path, &self.text::<F>()?)?;
        self.set_directory(&mut file);
        Ok(file)
    }

    fn merged(&self, remote: Option<&str>) -> Result<Merged, FileError> {
        let text = self.text::<ClientFile>()?;
        let mut merged = roadweave_config::merge(&self.path, &text, remote)?;
        self.set_directory(&mut merged.file);
        Ok(merged)
    }

    fn text<F: MemberFile>(&self) -> Result<Zeroizing<String>, FileError> {
        match roadweave_config::read_text(&self.path, F::HAS_SECRET) {
            Err(FileError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound && self.path == Path::new(F::USUAL) =>
            {
                Ok(Zeroizing::default())
            }
            text => text,
        }
    }

    fn set_directory(&self, file: &mut impl MemberFile) {
        if let Some(directory) = &self.state_directory {
            file.member().0.clone_from(directory);
        }
    }

    fn reload<F: MemberFile>(
        self,
        started: F,
        key: PublicKey,
        is_member: bool,
    ) -> impl FnMut() -> Result<Reread<F>, String> + Send {
        move || {
            let mut file = F::read(&self).map_err(|error| error.to_string())?;
            if F::ROLE != Role::Box {
                warn_of(&file);
            }
            let other_key = is_other_key(file.member().1.take(), key)?;
            match file.lack() {
                Some((field, lack)) if !is_member && F::RELOADED.contains(&field) => {
                    Err(lack.to_owned())
                }
                _ => Ok(Reread { ignored: ignored(&started, &file, other_key), read: file }),
            }
        }
    }

    fn identity(&self, key: PrivateKey, membership: Option<&Membership>) -> Result<Arc<Identity>> {
        let of_fleet = membership.map(Membership::identity);
        if key.is_empty() {
            return of_fleet.ok_or_else(|| self.without_key());
        }
        let of_file = key.identity().map_err(BadInput::new)?;
        match of_fleet {
            Some(joined) if joined.public_key() != of_file.public_key() => {
                Err(BadInput::new(format!(
                    "private_key differs from the key that joined the fleet, {}: remove \
                     private_key from the file, or use another state_directory",
                    joined.public_key()
                ))
                .into())
            }
            _ => Ok(Arc::new(of_file)),
        }
    }

    fn without_key(&self) -> anyhow::Error {
        self.without("private_key is missing; write one (`roadweave keygen` makes it)")
    }

    pub fn without(&self, what: &str) -> anyhow::Error {
        let path = self.path.display();
        BadInput::new(format!("{path}: {what}; or join a fleet with `roadweave join`")).into()
    }
}

fn warn_of(file: &impl Validate) {
    warnings(file).into_iter().for_each(|warning| tracing::warn!("{warning}"));
}

fn is_other_key(read: PrivateKey, key: PublicKey) -> Result<bool, String> {
    match read.is_empty() {
        true => Ok(false),
        false => Ok(read.identity()?.public_key() != key),
    }
}

/// A configuration of the fleet that cannot be used is refused, and the former one is tried.
fn begin(source: &Source, membership: &mut Membership, file: ClientFile) -> Result<ClientFile> {
    while let (Some(version), Some(text)) = membership.configuration() {
        match source.merged(Some(&text)) {
            Ok(Merged { file: mut merged, .. }) => {
                drop(merged.private_key.take());
                *source.in_force.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                return Ok(merged);
            }
            Err(error) => {
                tracing::error!("{error}; this configuration is not used");
                membership.refuse(version, &error.to_string());
            }
        }
    }
    Ok(file)
}

fn merge_client(
    source: Source,
) -> impl FnMut(Option<&str>) -> Result<(ClientFile, Vec<String>), String> + Send {
    move |remote| {
        let merged = source.merged(remote).map_err(|error| error.to_string())?;
        let Merged { mut file, mut pinned } = merged;
        drop(file.private_key.take());
        pinned.extend(file.server.is_some().then(|| "server".to_owned()));
        let remote = remote.map(str::to_owned);
        *source.in_force.lock().unwrap_or_else(PoisonError::into_inner) = remote;
        Ok((file, pinned))
    }
}
