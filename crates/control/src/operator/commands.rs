//! The commands and their requests.

mod configs;
mod people;
mod pools;
mod tokens;

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Subcommand;
use roadweave_terminal::out;
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::operator::account::{self, Access, Account};
use crate::operator::client::ApiClient;
use crate::operator::{show, sign_in};

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Log in, with a password or through a browser
    Login {
        /// The controller, as https://fleet.example.org:4400
        #[arg(value_name = "URL")]
        at: String,
        /// Your name
        #[arg(long, required_unless_present = "oidc")]
        user: Option<String>,
        /// Sign in with OpenID Connect, through a browser on this machine
        #[arg(long, conflicts_with = "user")]
        oidc: bool,
    },
    /// Log out
    Logout,
    /// Show who you are, and the proxies
    Status,
    /// Boxes
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Tokens with which boxes join
    #[command(subcommand)]
    Token(tokens::TokenCommand),
    /// Delegates, which sign for new members when the root key is kept elsewhere
    #[command(subcommand)]
    Delegate(tokens::DelegateCommand),
    /// Proxies and anchors
    #[command(subcommand)]
    Proxy(ProxyCommand),
    /// Pools of proxies
    #[command(subcommand)]
    Pool(pools::PoolCommand),
    /// Configurations of boxes
    #[command(subcommand)]
    Config(configs::ConfigCommand),
    /// Roll-outs of configurations
    #[command(subcommand)]
    Rollout(configs::RolloutCommand),
    /// Tenants
    #[command(subcommand)]
    Tenant(people::TenantCommand),
    /// Users, and their passwords
    #[command(subcommand)]
    User(people::UserCommand),
    /// API keys for programs, and links that expire
    #[command(subcommand)]
    Key(KeyCommand),
    /// The audit log, newest first
    Audit {
        /// Verify the chain from its beginning
        #[arg(long)]
        check: bool,
        /// The number of lines
        #[arg(long, default_value_t = 50)]
        lines: u32,
    },
}

/// What to do with boxes.
#[derive(Subcommand)]
pub enum DeviceCommand {
    /// All boxes
    List {
        /// Only those with this tag
        #[arg(long)]
        tag: Option<String>,
        /// Only those that are pending, active or revoked
        #[arg(long)]
        state: Option<String>,
    },
    /// Show a box: its proxy, its documents, and its last report
    Show { name: String },
    /// Approve a box that waits for approval
    Approve { name: String },
    /// Add or remove tags of a box; configurations apply by tag
    #[command(group(clap::ArgGroup::new("tags").required(true).multiple(true)))]
    Tag {
        name: String,
        /// A tag to add; may be repeated
        #[arg(long, value_name = "TAG", group = "tags")]
        add: Vec<String>,
        /// A tag to remove; may be repeated
        #[arg(long, value_name = "TAG", group = "tags")]
        remove: Vec<String>,
    },
    /// Revoke a box; prints which proxies have confirmed
    Revoke(Revoke),
}

/// What to do with proxies and anchors.
#[derive(Subcommand)]
pub enum ProxyCommand {
    /// All proxies and anchors
    List,
    /// Add a proxy or an anchor by its public key
    Add {
        name: String,
        /// Its public key
        #[arg(long = "public-key")]
        public_key: String,
        /// An address at which boxes reach it, such as 192.0.2.1:4433; may be repeated
        #[arg(long, required = true)]
        address: Vec<String>,
        /// The pool that it is in
        #[arg(long)]
        pool: Option<String>,
        /// It is an anchor
        #[arg(long)]
        anchor: bool,
    },
    /// Change its addresses or its pool; other settings stay
    #[command(group(clap::ArgGroup::new("change").required(true).multiple(true)))]
    Set {
        name: String,
        /// An address at which it is reached, such as 192.0.2.1:4433; may be repeated. Replaces the
        /// previous addresses
        #[arg(long, group = "change")]
        address: Vec<String>,
        /// The pool that it is in
        #[arg(long, group = "change")]
        pool: Option<String>,
        /// It is in no pool
        #[arg(long, conflicts_with = "pool", group = "change")]
        no_pool: bool,
    },
    /// Assign no more boxes to it, and move its boxes to other proxies
    Drain {
        name: String,
        /// Let it take boxes again
        #[arg(long)]
        undo: bool,
    },
    /// Limit its sessions: beyond that it gets no new boxes
    Limit {
        name: String,
        /// The most sessions; default: as many as the machine can carry
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        sessions: Option<u32>,
    },
    /// Revoke it
    Revoke(Revoke),
}

/// What is revoked, and why.
#[derive(clap::Args)]
pub struct Revoke {
    name: String,
    /// The reason, for the audit log
    #[arg(long)]
    reason: String,
}

/// What to do with API keys.
#[derive(Subcommand)]
pub enum KeyCommand {
    /// Create a key; it is shown once
    Create {
        name: String,
        /// viewer, crew, operator or owner
        #[arg(long, default_value = "viewer")]
        role: String,
        /// The only box that it gives access to
        #[arg(long)]
        device: Option<String>,
        /// Days until it expires; default: never
        #[arg(long)]
        days: Option<i64>,
    },
    /// All keys, without their secrets
    List,
    /// Remove a key
    Remove { name: String },
}

pub fn run(command: Command, access: &Access, json: bool) -> Result<()> {
    if let Command::Login { at, user, .. } = command {
        return log_in(at, user.as_deref(), access, json);
    }
    let client = ApiClient::new(access.account()?)?;
    let context = CommandContext { client, json };
    match command {
        Command::Login { .. } => Ok(()),
        Command::Logout => {
            let ended = context.client.ask("DELETE", "/sessions/current", None, None);
            account::forget()?;
            context.answer(&ended?.body, "logged out")
        }
        Command::Status => status(&context),
        Command::Device(command) => device(command, &context),
        Command::Token(command) => tokens::token(command, &context),
        Command::Delegate(command) => tokens::delegate(command, &context),
        Command::Proxy(command) => proxy(command, &context),
        Command::Pool(command) => pools::pool(command, &context),
        Command::Config(command) => configs::config(command, &context),
        Command::Rollout(command) => configs::rollout(command, &context),
        Command::Tenant(command) => people::tenant(command, &context),
        Command::User(command) => people::user(command, &context),
        Command::Key(command) => key(command, &context),
        Command::Audit { check, lines } => audit(check, lines, &context),
    }
}

pub struct CommandContext {
    pub client: ApiClient,
    pub json: bool,
}

impl CommandContext {
    pub fn list(&self, path: &str, columns: &str) -> Result<()> {
        let items = self.client.list(path)?;
        if self.json { out::json(&items) } else { show::table(&items, columns) }
    }

    pub fn answer(&self, answer: &Value, sentence: impl std::fmt::Display) -> Result<()> {
        if self.json { out::json(answer) } else { Ok(out::line(sentence)?) }
    }

    pub fn remove(&self, path: &str) -> Result<()> {
        let answer = self.client.remove(path)?;
        self.answer(&answer, "removed")
    }
}

fn log_in(url: String, user: Option<&str>, access: &Access, json: bool) -> Result<()> {
    let tenant = access.tenant.clone().unwrap_or_else(|| "home".to_owned());
    let fingerprint = access.fingerprint.clone();
    let mut account = Account { url, fingerprint, tenant, cookie: None, key: None };
    let mut client = ApiClient::of_stranger(account.clone())?;
    let answer = match user {
        Some(user) => {
            let password = account::password("password:")?;
            let body = json!({ "tenant": account.tenant, "user": user, "password": password });
            client.ask("POST", "/sessions", Some(&body), None)?
        }
        None => sign_in::sign_in(&mut client)?,
    };
    account.cookie = sign_in::cookie(&answer, "__Host-roadweave");
    account.tenant = show::at(&answer.body, "tenant");
    account.save()?;
    if json {
        return out::json(&answer.body);
    }
    let [name, tenant, role] = ["name", "tenant", "role"].map(|path| show::at(&answer.body, path));
    Ok(out::line(format_args!("{name} of {tenant}, {role}, for 12 h"))?)
}

fn status(context: &CommandContext) -> Result<()> {
    let session = context.client.get("/sessions/current")?;
    let proxies = context.client.list("proxy-status")?;
    if context.json {
        return out::json(&json!({ "session": session, "proxies": proxies }));
    }
    let at = |path| show::at(&session, path);
    out::line(format_args!("{} of {}, {}\n", at("name"), at("tenant"), at("role")))?;
    show::table(&proxies, PROXY_STATUS)
}

fn device(command: DeviceCommand, context: &CommandContext) -> Result<()> {
    let of = |name: &str| format!("devices/{name}");
    match command {
        DeviceCommand::List { tag, state } => {
            let mut query: Vec<String> = Vec::new();
            query.extend(tag.map(|tag| format!("tag={tag}")));
            query.extend(state.map(|state| format!("state={state}")));
            let query =
                if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
            context.list(&format!("devices{query}"), DEVICES)
        }
        DeviceCommand::Show { name } => {
            let device = context.client.get(&of(&name))?;
            let report = context.client.find(&format!("{}/report", of(&name)))?.unwrap_or_default();
            let sessions = context.client.list(&format!("{}/sessions", of(&name)))?;
            let lines = show::device(&device, &report, &sessions).join("\n");
            let all = json!({ "device": device, "report": report, "sessions": sessions });
            context.answer(&all, lines)
        }
        DeviceCommand::Approve { name } => {
            let answer = context.client.post(&format!("{}/approve", of(&name)), &json!({}))?;
            context.answer(&answer, format_args!("{name} is approved"))
        }
        DeviceCommand::Tag { name, add, remove } => {
            let answer = context.client.settle(&of(&name), |it| tag(it, &add, &remove))?;
            let tags = show::at(&answer, "settings.tags");
            context.answer(&answer, format_args!("tags of {name}: {tags}"))
        }
        DeviceCommand::Revoke(it) => revoke(context, "devices", &it),
    }
}

fn tag(settings: &mut Value, add: &[String], remove: &[String]) {
    let mut tags: BTreeSet<String> =
        settings["tags"].as_array().into_iter().flatten().map(|it| show::at(it, "")).collect();
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add.iter().cloned());
    settings["tags"] = json!(tags);
}

fn revoke(context: &CommandContext, of: &str, Revoke { name, reason }: &Revoke) -> Result<()> {
    let reason = json!({ "reason": reason });
    let answer = context.client.post(&format!("{of}/{name}/revoke"), &reason)?;
    let summary = show::at(&answer, "summary");
    context.answer(&answer, format_args!("{name} is revoked; confirmed by {summary}"))
}

fn proxy(command: ProxyCommand, context: &CommandContext) -> Result<()> {
    let of = |name: &str| format!("proxies/{name}");
    match command {
        ProxyCommand::List => context.list("proxies", PROXIES),
        ProxyCommand::Add { name, public_key, address, pool, anchor } => {
            let settings = json!({
                "role": if anchor { "anchor" } else { "proxy" },
                "public_key": public_key,
                "addresses": address,
                "pool": pool,
            });
            let body = json!({ "id": name, "settings": settings });
            let answer = context.client.post("proxies", &body)?;
            context.answer(&answer, format_args!("{name} is admitted"))
        }
        ProxyCommand::Set { name, address, pool, no_pool } => {
            let answer = context.client.settle(&of(&name), |settings| {
                if !address.is_empty() {
                    settings["addresses"] = json!(address);
                }
                if no_pool || pool.is_some() {
                    settings["pool"] = json!(pool);
                }
            })?;
            let addresses = show::at(&answer, "settings.addresses");
            let pool = show::at(&answer, "settings.pool");
            context.answer(&answer, format_args!("{name} is at {addresses}, in the pool {pool}"))
        }
        ProxyCommand::Drain { name, undo } => {
            let drain = json!({ "drain": !undo });
            let answer = context.client.post(&format!("{}/drain", of(&name)), &drain)?;
            context.answer(&answer, format_args!("{name} is {}", show::at(&answer, "state")))
        }
        ProxyCommand::Limit { name, sessions } => {
            let to = |settings: &mut Value| settings["devices_max"] = json!(sessions);
            let answer = context.client.settle(&of(&name), to)?;
            let most = sessions.map_or("any".to_owned(), |most| most.to_string());
            context.answer(&answer, format_args!("session limit of {name}: {most}"))
        }
        ProxyCommand::Revoke(it) => revoke(context, "proxies", &it),
    }
}

fn key(command: KeyCommand, context: &CommandContext) -> Result<()> {
    match command {
        KeyCommand::Create { name, role, device, days } => {
            let now = now_ms();
            let expires = days.map(|days| now.saturating_add(days.saturating_mul(86_400_000)));
            let settings = json!({ "role": role, "device": device, "expires_ms": expires });
            let body = json!({ "id": name, "settings": settings });
            let answer = context.client.post("api-keys", &body)?;
            context.answer(&answer, show::at(&answer, "secret"))
        }
        KeyCommand::List => context.list("api-keys", KEYS),
        KeyCommand::Remove { name } => context.remove(&format!("api-keys/{name}")),
    }
}

fn audit(check: bool, lines: u32, context: &CommandContext) -> Result<()> {
    if check {
        let answer = context.client.get("audit-check")?;
        if answer["good"] == true {
            let lines = show::at(&answer, "lines");
            return context.answer(&answer, format_args!("valid: {lines} lines"));
        }
        if context.json {
            out::json(&answer)?;
        }
        anyhow::bail!("{}", show::at(&answer, "fault"));
    }
    let page = context.client.get(&format!("audit?limit={}", lines.clamp(1, 500)))?;
    let items = page["items"].as_array().cloned().unwrap_or_default();
    if context.json {
        return out::json(&items);
    }
    show::table(&items, AUDIT)
}

/// The columns of lists: the head of each, and the path of its value.
const PROXY_STATUS: &str = "PROXY=proxy, UP=connected, HEARD=seen_ms, SESSIONS=sessions, \
                            LOAD=load, REVOCATIONS=serial, SOFTWARE=software";
const DEVICES: &str =
    "NAME=id, STATE=state, TAGS=settings.tags, ADDRESSES=addresses, TITLE=settings.title";
const PROXIES: &str =
    "NAME=id, ROLE=settings.role, STATE=state, POOL=settings.pool, ADDRESSES=settings.addresses";
const KEYS: &str =
    "NAME=id, ROLE=settings.role, DEVICE=settings.device, EXPIRES=settings.expires_ms";
const AUDIT: &str = "LINE=serial, WHEN=at_ms, WHO=actor, DID=action, TO=kind, NAME=subject";
