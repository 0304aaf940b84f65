//! `roadweave proxy` and `roadweave anchor`.

use std::path::PathBuf;

use anyhow::Result;
use roadweave_config::AnchorFile;
use roadweave_device::fleet::Membership;
use roadweave_device::{run_anchor, run_proxy};
use roadweave_terminal::exit::BadInput;

use crate::source::{ANCHOR_FILE, PROXY_FILE, options, without};

/// Runs a proxy: ends multipath, and passes inner packets on to the anchors of their tenants. It
/// needs no rights over its machine's network.
#[derive(Debug, clap::Args)]
pub struct ProxyArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = PROXY_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

/// Runs an anchor: holds the inner addresses of a tenant's clients, whichever proxies they are at.
#[derive(Debug, clap::Args)]
pub struct AnchorArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = ANCHOR_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

impl ProxyArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the proxy run.
    pub fn run(&self) -> Result<()> {
        match options(&self.config, self.check, self.state_directory.as_deref())? {
            Some(options) => Ok(run_proxy(options)?),
            None => Ok(()),
        }
    }
}

impl AnchorArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the anchor run.
    pub fn run(&self) -> Result<()> {
        let options = options(&self.config, self.check, self.state_directory.as_deref())?;
        let Some(options) = options else { return Ok(()) };
        self.check_tenant(&options.file, options.membership.as_ref())?;
        Ok(run_anchor(options)?)
    }

    /// Checks that the tenant is known, and the same in the file and by the join.
    fn check_tenant(&self, file: &AnchorFile, membership: Option<&Membership>) -> Result<()> {
        let (path, tenant) = (&self.config, &file.tenant);
        match membership.map(Membership::tenant) {
            Some(joined) if !tenant.is_empty() && tenant != joined => {
                let path = path.display();
                let message = format!(
                    "{path}: tenant = \"{tenant}\", and the fleet says that it is {joined}'s"
                );
                Err(BadInput::new(message).into())
            }
            None if tenant.is_empty() => Err(without(path, "tenant is missing")),
            _ => Ok(()),
        }
    }
}
