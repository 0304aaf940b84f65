//! Delegates, which sign for joining members where the root key is elsewhere.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use roadweave_fleet::Delegate;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use serde_json::json;

use super::{CommandContext, revoke};
use crate::operator::show;

/// What to do with delegates.
#[derive(Subcommand)]
pub enum DelegateCommand {
    /// Put one in that roadweave-controller delegate has made; its private key stays in the file
    Add { file: PathBuf },
    /// All delegates, and for how many keys each has signed
    List,
    /// Let it sign no more, and admit nobody whom it has signed for; says who has confirmed
    Revoke {
        name: String,
        /// Why, for the log
        #[arg(long)]
        reason: String,
    },
}

pub fn delegate(command: DelegateCommand, context: &CommandContext) -> Result<()> {
    let path = context.client.of_tenant("/delegates");
    match command {
        DelegateCommand::Add { file } => {
            let chain = serde_json::to_string(&read(&file)?.chain)?;
            let answer = context.client.post(&path, &json!({ "chain": chain }))?;
            let name = show::at(&answer, "id");
            context.answer(&answer, format_args!("{name} may sign; its key is still yours alone"))
        }
        DelegateCommand::List => context.list(&path, COLUMNS),
        DelegateCommand::Revoke { name, reason } => {
            revoke(context, &format!("{path}/{name}/revoke"), &name, &reason)
        }
    }
}

pub fn read(file: &Path) -> Result<Delegate> {
    let text = secret::read(file)?;
    Ok(serde_json::from_str(&text).map_err(|_| {
        let hint = "this is no delegate: roadweave-controller delegate writes such a file";
        BadInput::new(format!("{}: {hint}", file.display()))
    })?)
}

const COLUMNS: &str =
    "NAME=id, STATE=state, SIGNS FOR=roles, TAGS=tags, USED=used, OF=uses, MAKES OTHERS=signer";
