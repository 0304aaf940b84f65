//! `roadweave client` and `roadweave router`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use roadweave_config::{ClientFile, RouterFile, Validate};
use roadweave_device::fleet::Membership;
use roadweave_device::{MemberOptions, Reread, run_client, run_router};
use roadweave_fleet::Role;
use roadweave_identity::PublicKey;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::member::{self, CLIENT_FILE, InForce, Source};

/// Runs the client, in the vehicle.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = CLIENT_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

/// Runs a redundant router: every packet on every link, not encrypted, the same on both sides.
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/router.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

impl ClientArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the client run.
    pub fn run(&self) -> Result<()> {
        let source = Source::new(&self.config, self.state_directory.as_deref());
        let mut file = source.read(None).map_err(BadInput::new)?.file;
        member::check(&source.path, &file.private_key, &file.state_directory)?;
        if file.server.is_none() && !Membership::is_there(&file.state_directory) {
            return Err(source.without_server().into());
        }
        if self.check {
            return in_order(&source.path, &file);
        }
        warnings(&file).iter().for_each(|warning| tracing::warn!("{warning}"));
        let mut membership = Membership::open(&file.state_directory, Role::Box)?;
        let identity =
            member::identity(&source.path, file.private_key.take(), membership.as_ref())?;
        if file.server.is_none() && membership.is_none() {
            return Err(source.without_server().into());
        }
        let in_force = Arc::new(Mutex::new(None));
        if let Some(membership) = &mut membership {
            file = member::begin(&source, membership, &in_force, file)?;
        }
        let reload = Box::new(reload_client(
            source.clone(),
            file.clone(),
            identity.public_key(),
            in_force.clone(),
        ));
        let files = source.files();
        let merge = Box::new(member::merge_client(source, in_force));
        Ok(run_client(MemberOptions { file, identity, reload, files, membership }, merge)?)
    }
}

/// Reads a client's file again. `started` is the file of the start.
fn reload_client(
    source: Source,
    started: ClientFile,
    key: PublicKey,
    in_force: InForce,
) -> impl FnMut() -> Result<Reread<ClientFile>, String> + Send {
    move || {
        let remote = in_force.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut file = source.read(remote.as_deref()).map_err(|error| error.to_string())?.file;
        let other_key = member::is_other_key(file.private_key.take(), key)?;
        let ignored = ignored(&started, &file, other_key);
        Ok(Reread { read: file, ignored })
    }
}

/// The changed fields that need a restart. Neither file has its private key, which is kept nowhere
/// in memory; the caller compares keys.
pub(crate) fn ignored<T: Validate + serde::Serialize>(
    started: &T,
    now: &T,
    other_key: bool,
) -> Vec<String> {
    let is_read = |field: &String| {
        T::RELOADED.iter().any(|name| {
            field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let mut ignored: Vec<String> = roadweave_config::differing(started, now)
        .into_iter()
        .filter(|field| !is_read(field))
        .collect();
    if other_key {
        ignored.push("private_key".to_owned());
    }
    ignored
}

/// Warnings of settings that are probably mistakes.
pub(crate) fn warnings(file: &impl Validate) -> Vec<String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    file.warnings(since_1970.as_secs())
}

pub(crate) fn in_order(path: &Path, file: &impl Validate) -> Result<()> {
    for warning in warnings(file) {
        out::note(format_args!("warning: {}: {warning}", path.display()));
    }
    Ok(out::line(format_args!("{} is in order", path.display()))?)
}

impl RouterArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the router run.
    pub fn run(&self) -> Result<()> {
        let file: RouterFile = roadweave_config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config, &file);
        }
        Ok(run_router(file)?)
    }
}
