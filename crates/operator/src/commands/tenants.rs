//! Tenants, and where their packets leave.

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use super::Asker;
use crate::account;

/// What to do with tenants.
#[derive(Subcommand)]
pub enum TenantCommand {
    /// Those that you may see
    List,
    /// Make one; asks for its owner's password
    Create {
        name: String,
        /// The name of its owner
        #[arg(long)]
        owner: String,
        /// An inner network that its boxes get addresses from; may be given several times
        #[arg(long)]
        prefix: Vec<String>,
    },
    /// Say where its packets leave: at proxies (local), or at its anchor
    Egress {
        name: String,
        #[arg(value_parser = ["local", "anchor"])]
        at: String,
    },
}

/// Does what is to be done with tenants.
pub fn tenant(command: TenantCommand, asker: &Asker) -> Result<()> {
    match command {
        TenantCommand::List => asker.list(
            "/tenants",
            &[
                ("NAME", "id"),
                ("HOST", "host"),
                ("PREFIXES", "settings.prefixes"),
                ("EGRESS", "settings.egress"),
                ("TITLE", "settings.title"),
            ],
        ),
        TenantCommand::Create { name, owner, prefix } => {
            let password = account::password("password of the owner:")?;
            let settings = json!({ "prefixes": prefix });
            let body =
                json!({ "id": name, "owner": owner, "password": password, "settings": settings });
            let answer = asker.client.post("/tenants", &body)?;
            asker.answer(&answer, format_args!("tenant {name}, owned by {owner}"))
        }
        TenantCommand::Egress { name, at } => {
            let path = format!("/tenants/{name}");
            let mut settings = asker.client.get(&path)?["settings"].clone();
            settings["egress"] = json!(at);
            let answer = asker.client.change("PUT", &path, Some(&settings))?;
            asker.answer(&answer, format_args!("packets of {name} leave: {at}"))
        }
    }
}
