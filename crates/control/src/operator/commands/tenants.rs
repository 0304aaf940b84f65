//! Tenants: their egress and limits.

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};

use super::CommandContext;
use crate::operator::account;

/// What to do with tenants.
#[derive(Subcommand)]
pub enum TenantCommand {
    /// The tenants that you may see
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
    /// Say what all its boxes together may send, and receive, through each proxy with its anchor
    Limit {
        name: String,
        /// Megabits per second, at most 1000000; any without it
        #[arg(long, value_name = "N")]
        rate_mbps: Option<u32>,
    },
}

pub fn tenant(command: TenantCommand, context: &CommandContext) -> Result<()> {
    match command {
        TenantCommand::List => context.list("/tenants", COLUMNS),
        TenantCommand::Create { name, owner, prefix } => {
            let password = account::new_password("password of the owner:")?;
            let settings = json!({ "prefixes": prefix });
            let body =
                json!({ "id": name, "owner": owner, "password": password, "settings": settings });
            let answer = context.client.post("/tenants", &body)?;
            context.answer(&answer, format_args!("tenant {name}, owned by {owner}"))
        }
        TenantCommand::Egress { name, at } => {
            let to = |settings: &mut Value| settings["egress"] = json!(at);
            let answer = context.client.settle(&format!("/tenants/{name}"), to)?;
            context.answer(&answer, format_args!("packets of {name} leave: {at}"))
        }
        TenantCommand::Limit { name, rate_mbps } => {
            let to = |settings: &mut Value| settings["limits"]["rate_mbps"] = json!(rate_mbps);
            let answer = context.client.settle(&format!("/tenants/{name}"), to)?;
            let rate = rate_mbps.map_or("any".to_owned(), |rate| format!("{rate} Mbit/s"));
            context.answer(&answer, format_args!("through each proxy {name} may send: {rate}"))
        }
    }
}

const COLUMNS: &str = "NAME=id, HOST=host, PREFIXES=settings.prefixes, EGRESS=settings.egress, \
                       MBIT/S=settings.limits.rate_mbps, TITLE=settings.title";
