//! `roadweave uplink`: lets a running client use an uplink otherwise.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use roadweave_device::local::{RequestError, SetUplink, set_uplink};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

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

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Its interface
    name: String,
    /// When it is used
    #[arg(long, required_unless_present = "weight")]
    priority: Option<Priority>,
    /// Its share of the traffic among uplinks of equal priority
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    weight: Option<u8>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Priority {
    /// First of all
    Primary,
    /// When the primary ones have no room, and waiting for them would take clearly longer
    Secondary,
    /// When no other can be used
    Backup,
}

impl UplinkArgs {
    /// # Errors
    /// When nothing runs behind the socket, or it refuses.
    pub fn run(&self) -> Result<()> {
        let change = |name: &String| SetUplink {
            uplink: name.clone(),
            paused: None,
            priority: None,
            weight: None,
            force: false,
        };
        let (change, done) = match &self.command {
            Command::Pause { name, force } => (
                SetUplink { paused: Some(true), force: *force, ..change(name) },
                format!("nothing goes by {name} until `roadweave uplink resume {name}`"),
            ),
            Command::Resume { name } => {
                (SetUplink { paused: Some(false), ..change(name) }, format!("{name} is used again"))
            }
            Command::Set(SetArgs { name, priority, weight }) => {
                let (priority, weight) = (priority.map(Into::into), *weight);
                let done = format!("{name} is used otherwise, until the client is started anew");
                (SetUplink { priority, weight, ..change(name) }, done)
            }
        };
        match set_uplink(&self.socket, &change) {
            Ok(notice) => {
                out::line(&done)?;
                if let Some(notice) = notice {
                    out::line(format_args!("{notice}"))?;
                }
                Ok(())
            }
            Err(RequestError::Refused(error)) => Err(BadInput::new(error.message).into()),
            Err(other) => Err(other.into()),
        }
    }
}

impl From<Priority> for roadweave_types::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Primary => Self::Primary,
            Priority::Secondary => Self::Secondary,
            Priority::Backup => Self::Backup,
        }
    }
}
