//! `roadweave uplink`: pauses an uplink of a running client, or changes its policy.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use roadweave_node::local::{SetUplink, set_uplink};
use roadweave_proto::Policy;
use roadweave_tunnel::Caps;
use serde::{Deserialize as _, Serialize};
use serde_json::json;

use crate::set::print_change;

/// Pauses an uplink of a running client, or changes its policy, until the client restarts
#[derive(Debug, clap::Args)]
pub struct UplinkArgs {
    /// The socket of the running client
    #[arg(long, global = true, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Stops using an uplink
    Pause {
        /// The uplink's interface
        name: String,
        /// Pause it even if it is the last one in use
        #[arg(long)]
        force: bool,
    },
    /// Resumes a paused uplink
    Resume {
        /// The uplink's interface
        name: String,
    },
    /// Overrides the configured policy of an uplink
    Set(SetArgs),
}

#[derive(Debug, clap::Args, Serialize)]
struct SetArgs {
    /// The uplink's interface
    #[serde(rename = "uplink")]
    name: String,
    #[command(flatten)]
    #[serde(flatten)]
    policy: PolicyArgs,
}

#[derive(Debug, clap::Args, Serialize)]
#[group(required = true, multiple = true)]
struct PolicyArgs {
    /// When it is used
    #[arg(long)]
    priority: Option<Priority>,
    /// Its share of the traffic among uplinks of equal priority
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(Policy::WEIGHT_MAX)))]
    weight: Option<u8>,
    /// The highest rate in each direction, kilobits per second; 0 for no limit
    #[arg(long, value_name = "KBPS")]
    rate_limit_kbps: Option<u64>,
    /// Megabytes in a month, both directions together, beyond which it is a backup; 0 for no cap
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(..=Caps::MB_MAX))]
    monthly_cap_mb: Option<u64>,
    /// Megabytes in a day (UTC), both directions together, beyond which it is a backup; 0 for no
    /// cap
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(..=Caps::MB_MAX))]
    daily_cap_mb: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Priority {
    /// First of all
    Primary,
    /// When the primary ones have no room, and waiting for them would clearly take longer
    Secondary,
    /// When no other can be used
    Backup,
}

impl UplinkArgs {
    pub fn run(&self) -> Result<()> {
        let change = |name: &String| SetUplink { uplink: name.clone(), ..SetUplink::default() };
        let (change, done) = match &self.command {
            Command::Pause { name, force } => (
                SetUplink { paused: Some(true), force: *force, ..change(name) },
                format!("{name} is paused until `roadweave uplink resume {name}`"),
            ),
            Command::Resume { name } => {
                (SetUplink { paused: Some(false), ..change(name) }, format!("{name} is resumed"))
            }
            Command::Set(args) => {
                let name = &args.name;
                let done = format!("{name} is changed, until the client restarts");
                (SetUplink::deserialize(json!(args))?, done)
            }
        };
        print_change(&done, set_uplink(&self.socket, &change))
    }
}
