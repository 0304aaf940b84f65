//! `roadweave release`: removes what an instance left behind at its end.

use anyhow::Result;
use roadweave_linux::{Instance, cleanup};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Removes the rules, routes, packet filters and settings that a stopped instance left behind.
///
/// After a crash, or a stop with routes.kill_switch, packets that belong in the tunnel are refused
/// until the next start. After this command they leave unencrypted, outside the tunnel.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "down")]
pub struct ReleaseArgs {
    /// The instance: tun.name of its configuration file
    #[arg(value_name = "NAME")]
    instance: String,
}

impl ReleaseArgs {
    pub fn run(&self) -> Result<()> {
        let instance = Instance::new(&self.instance).map_err(BadInput::new)?;
        instance.become_owner()?;
        let lock = instance.lock()?;
        cleanup(&instance, &lock)?;
        Ok(out::line(format_args!("removed everything that {} left behind", self.instance))?)
    }
}
