//! `roadweave set`: changes a running client or server.

use std::path::PathBuf;

use anyhow::Result;
use roadweave_node::local::{RequestError, SetStrategy, set_strategy};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use roadweave_tunnel::{STRATEGIES, Strategy, StrategyEntry};

/// Changes a lane of a running client or server, until it restarts
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The socket of the running client or server
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// The lane, as `roadweave show` names it
    lane: String,
    #[command(subcommand)]
    setting: Setting,
}

#[derive(Debug, clap::Subcommand)]
enum Setting {
    /// Sets how the lane uses paths and repairs losses, for packets that it sends from now on
    #[command(after_help = strategies())]
    Strategy {
        /// The strategy's name, from the list below
        name: Strategy,
    },
}

fn strategies() -> String {
    let line = |text: String, entry: &StrategyEntry| {
        format!("{text}\n  {}\n    for {}", entry.name(), entry.when())
    };
    STRATEGIES.iter().fold("Strategies:".to_owned(), line)
}

impl SetArgs {
    pub fn run(&self) -> Result<()> {
        let Self { socket, lane, setting: Setting::Strategy { name } } = self;
        let change = SetStrategy { lane: lane.clone(), strategy: name.clone() };
        print_change(&format!("lane {lane} now uses {name}"), set_strategy(socket, &change))
    }
}

pub fn print_change(done: &str, changed: Result<Option<String>, RequestError>) -> Result<()> {
    let notice = changed.map_err(refused)?;
    out::line(done)?;
    notice.iter().try_for_each(|notice| Ok(out::line(notice)?))
}

pub fn refused(error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Refused(error) => BadInput::new(error.message).into(),
        other => other.into(),
    }
}
