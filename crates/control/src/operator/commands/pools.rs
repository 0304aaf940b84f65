//! Pools: proxies that serve the same tenants at one site.

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};

use super::CommandContext;

/// What to do with pools.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// All pools
    List,
    /// Create a pool, or change one; settings that are left out stay
    Set(Set),
    /// Remove a pool that no proxy and no token uses
    Remove { name: String },
}

/// What is said of a pool.
#[derive(clap::Args)]
pub struct Set {
    name: String,
    /// Its title
    #[arg(long)]
    title: Option<String>,
    /// Its region of the world
    #[arg(long)]
    region: Option<String>,
    /// Its site, which fails as a whole: boxes get proxies of two sites if there are two
    #[arg(long)]
    site: Option<String>,
    /// Another tenant that it serves. Can be set only when the pool is created, by an owner of the
    /// tenant that runs the controller; may be repeated
    #[arg(long, value_name = "TENANT")]
    serves: Option<Vec<String>>,
}

pub fn pool(command: PoolCommand, context: &CommandContext) -> Result<()> {
    match command {
        PoolCommand::List => context.list("pools", COLUMNS),
        PoolCommand::Set(wanted) => {
            let place = format!("pools/{}", wanted.name);
            let (answer, done) = match context.client.find(&place)? {
                Some(_) => (context.client.settle(&place, |it| wanted.apply(it))?, "changed"),
                None => {
                    let mut settings = json!({});
                    wanted.apply(&mut settings);
                    let new = json!({ "id": wanted.name, "settings": settings });
                    (context.client.post("pools", &new)?, "made")
                }
            };
            context.answer(&answer, format_args!("pool {} is {done}", wanted.name))
        }
        PoolCommand::Remove { name } => context.remove(&format!("pools/{name}")),
    }
}

impl Set {
    fn apply(&self, settings: &mut Value) {
        let texts = [("title", &self.title), ("region", &self.region), ("site", &self.site)];
        for (field, text) in texts {
            if let Some(text) = text {
                settings[field] = json!(text);
            }
        }
        if let Some(tenants) = &self.serves {
            settings["tenants"] = json!(tenants);
        }
    }
}

const COLUMNS: &str = "NAME=id, SITE=settings.site, REGION=settings.region, \
                       SERVES=settings.tenants, TITLE=settings.title";
