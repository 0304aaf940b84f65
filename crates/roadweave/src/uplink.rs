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

/// Pauses an uplink of a running client, or uses it otherwise, until it is started anew
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
    /// Lets nothing go by an uplink any more
    Pause {
        /// Its interface
        name: String,
        /// Also the last one that is left
        #[arg(long)]
        force: bool,
    },
    /// Uses an uplink again that was paused
    Resume {
        /// Its interface
        name: String,
    },
    /// Uses an uplink otherwise than the configuration says
    Set(SetArgs),
}

#[derive(Debug, clap::Args, Serialize)]
struct SetArgs {
    /// Its interface
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
    /// Kilobits per second that it carries each way at most; 0 for as many as it can
    #[arg(long, value_name = "KBPS")]
    rate_limit_kbps: Option<u64>,
    /// Megabytes of a month, both ways, beyond which it is a backup; 0 for no such cap
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(..=Caps::MB_MAX))]
    monthly_cap_mb: Option<u64>,
    /// Megabytes of a day in UTC, both ways, beyond which it is a backup; 0 for no such cap
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(..=Caps::MB_MAX))]
    daily_cap_mb: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Priority {
    /// First of all
    Primary,
    /// When the primary ones have no room, and waiting for them would take clearly longer
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
                format!("nothing goes by {name} until `roadweave uplink resume {name}`"),
            ),
            Command::Resume { name } => {
                (SetUplink { paused: Some(false), ..change(name) }, format!("{name} is used again"))
            }
            Command::Set(args) => {
                let name = &args.name;
                let done = format!("{name} is used otherwise, until the client is started anew");
                (SetUplink::deserialize(json!(args))?, done)
            }
        };
        print_change(&done, set_uplink(&self.socket, &change))
    }
}
