//! `roadweave server`.

use std::path::PathBuf;

use anyhow::Result;
use roadweave_device::run_server;

use crate::source::{SERVER_FILE, options};

/// Runs the server.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = SERVER_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

impl ServerArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the server run.
    pub fn run(&self) -> Result<()> {
        match options(&self.config, self.check, self.state_directory.as_deref())? {
            Some(options) => Ok(run_server(options)?),
            None => Ok(()),
        }
    }
}
