//! People with their roles and passwords, and tenants with their egress and limits.

use anyhow::Result;
use clap::Subcommand;
use roadweave_terminal::exit::BadInput;
use serde_json::{Value, json};

use super::CommandContext;
use crate::operator::{account, show};

/// What to do with people.
#[derive(Subcommand)]
pub enum UserCommand {
    /// List all users
    List,
    /// Add a user; asks for their password, of 12 to 256 characters
    Add {
        name: String,
        /// Their role
        #[arg(long, default_value = "viewer", value_parser = ROLES)]
        role: String,
        /// Their full name
        #[arg(long, default_value = "")]
        title: String,
    },
    /// Change the role of a user
    Role {
        name: String,
        #[arg(value_parser = ROLES)]
        role: String,
    },
    /// Set a password, which it asks for; ends all logins of that user
    Password {
        /// The user; default: you
        name: Option<String>,
    },
    /// Remove a user with all logins
    Remove { name: String },
}

const ROLES: [&str; 4] = ["viewer", "crew", "operator", "owner"];

pub fn user(command: UserCommand, context: &CommandContext) -> Result<()> {
    match command {
        UserCommand::List => context.list("users", COLUMNS),
        UserCommand::Add { name, role, title } => {
            let password = account::new_password(&format!("password of {name}:"))?;
            let settings = json!({ "role": role, "title": title });
            let body = json!({ "id": name, "password": password, "settings": settings });
            let answer = context.client.post("users", &body)?;
            context.answer(&answer, format_args!("{name} may log in, as {role}"))
        }
        UserCommand::Role { name, role } => {
            let to = |settings: &mut Value| settings["role"] = json!(role);
            let answer = context.client.settle(&format!("users/{name}"), to)?;
            context.answer(&answer, format_args!("{name} is {role}"))
        }
        UserCommand::Password { name } => {
            let name = name.map_or_else(|| own_name(context), Ok)?;
            let password = account::new_password(&format!("new password of {name}:"))?;
            let body = json!({ "password": password });
            let path = format!("users/{name}/password");
            let answer = context.client.ask("PUT", &path, Some(&body), None)?.body;
            let sentence =
                format_args!("the password of {name} is set; all their logins have ended");
            context.answer(&answer, sentence)
        }
        UserCommand::Remove { name } => context.remove(&format!("users/{name}")),
    }
}

fn own_name(context: &CommandContext) -> Result<String> {
    let name = show::at(&context.client.get("/sessions/current")?, "name");
    let person = name.strip_prefix("person:").map(str::to_owned);
    Ok(person.ok_or_else(|| BadInput::new("an API key has no password: name a user"))?)
}

const COLUMNS: &str =
    "NAME=id, ROLE=settings.role, TITLE=settings.title, SIGNS IN ELSEWHERE AS=subject";

/// What to do with tenants.
#[derive(Subcommand)]
pub enum TenantCommand {
    /// List the tenants that you may see
    List,
    /// Create a tenant; asks for its owner's password
    Create {
        name: String,
        /// The name of its owner
        #[arg(long)]
        owner: String,
        /// An inner network from which its boxes get addresses; may be repeated
        #[arg(long)]
        prefix: Vec<String>,
    },
    /// Set where its packets leave: at proxies (local), or at its anchor
    Egress {
        name: String,
        #[arg(value_parser = ["local", "anchor"])]
        at: String,
    },
    /// Limit the rate of all its boxes together, in each direction, through each proxy and its
    /// anchor
    Limit {
        name: String,
        /// Megabits per second, at most 1000000; default: no limit
        #[arg(long, value_name = "N")]
        rate_mbps: Option<u32>,
    },
}

pub fn tenant(command: TenantCommand, context: &CommandContext) -> Result<()> {
    match command {
        TenantCommand::List => context.list("/tenants", TENANTS),
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

const TENANTS: &str = "NAME=id, HOST=host, PREFIXES=settings.prefixes, EGRESS=settings.egress, \
                       MBIT/S=settings.limits.rate_mbps, TITLE=settings.title";
