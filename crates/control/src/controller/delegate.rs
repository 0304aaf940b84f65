//! `roadweave-controller delegate`, `keygen` and `approve`: signatures on a machine that holds a
//! key. Delegates let the root key stay away from the controller.
//!
//! ```text
//! root.key ──► tram.delegate ──► roadweave fleet delegate add       the chain alone
//!                          └───► roadweave fleet token create       its private key, in the token
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context as _, Result};
use roadweave_fleet::{
    Chain, Delegate, Grant, Name, Role, Scope, Signed, Statement, Trust, Waiting,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::{out, secret};

use crate::controller::folder::identity;
use crate::files::{bad, replace, write_new};
use crate::keys;
use crate::model::slug;

/// Who may sign, and for whom.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("kind").required(true)))]
pub struct Options {
    /// The root key, or the file of a signer, which passes on only rights that it has. Needs no
    /// controller on this machine
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// For a token: boxes join with it, or what --role says
    #[arg(long, group = "kind")]
    token: bool,
    /// For a pool: proxies join with its tokens, or what --role says
    #[arg(long, group = "kind")]
    pool: bool,
    /// For a person's machine, which makes its own delegates within this one, but no signers
    #[arg(long, group = "kind")]
    signer: bool,
    /// The tenant that it is for
    #[arg(long, value_name = "NAME", required_unless_present = "all_tenants")]
    tenant: Option<Name>,
    /// For proxies and anchors that serve all tenants; only for the tenant that runs the controller
    #[arg(long, conflicts_with = "tenant")]
    all_tenants: bool,
    /// Its name; default: a generated one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How many keys it may sign
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    uses: Option<u32>,
    /// A role that it may admit; may be repeated
    #[arg(long = "role", value_name = "ROLE", value_parser = ["box", "proxy", "anchor"])]
    roles: Vec<String>,
    /// A tag for boxes that it admits; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Name>,
    /// The file for its private key and the signed chain; default: NAME.delegate
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Where a new key is written.
#[derive(clap::Args)]
pub struct Keygen {
    /// The file to create; it must not exist yet
    file: PathBuf,
}

pub fn keygen(options: &Keygen) -> Result<()> {
    let made = new_identity();
    write(&options.file, &format!("{}\n", made.to_base64()))?;
    Ok(out::line(format_args!("{}", made.public_key()))?)
}

pub fn run(options: &Options) -> Result<()> {
    let signer = Signer::read(&options.key)?;
    if options.signer && signer.chain.is_some() {
        let message = "--signer: needs a root key; a chain below a signer's signer would not fit \
                       into a token";
        return Err(BadInput::new(message).into());
    }
    let made = new_identity();
    let statement = statement(options, made.public_key())?;
    let chain = signer.sign(&statement)?;
    let delegate = Delegate { private_key: made.to_base64(), chain };
    if !options.signer && !delegate.fits_a_token() {
        let message = "it would not fit into a token: give it fewer tags, or sign it with the root";
        return Err(BadInput::new(message).into());
    }
    let out = options.out.clone().unwrap_or_else(|| format!("{}.delegate", statement.name).into());
    write(&out, &format!("{}\n", serde_json::to_string(&delegate)?))?;
    let (name, key, file) = (&statement.name, statement.key, out.display());
    let use_it = match options.signer {
        true => format!("sign with it: roadweave-controller delegate --key {file} --token ..."),
        false => format!("use it in tokens: roadweave fleet token create --delegate {file}"),
    };
    out::line(format_args!(
        "{file} has the private key of the delegate {name}, {key}.\n\
         Register it (its private key stays here): roadweave fleet delegate add {file}\n\
         Then {use_it}"
    ))?;
    Ok(())
}

struct Signer {
    identity: Identity,
    chain: Option<Chain>,
    root: PublicKey,
}

impl Signer {
    fn read(path: &Path) -> Result<Self> {
        let text = secret::read(path)?;
        if !text.trim_start().starts_with('{') {
            let identity = identity(path)?;
            return Ok(Self { root: identity.public_key(), chain: None, identity });
        }
        let file: Delegate = serde_json::from_str(&text).map_err(|error| bad(path, error))?;
        let identity =
            Identity::from_base64(&file.private_key).map_err(|error| bad(path, error))?;
        let root = file.chain.claimed_root().ok_or_else(|| bad(path, "its chain is empty"))?;
        Ok(Self { identity, chain: Some(file.chain), root })
    }

    fn sign(self, statement: &Statement) -> Result<Chain> {
        let signed = Signed::sign(statement, &self.identity)?;
        let chain = match self.chain {
            Some(chain) => chain.then(signed),
            None => Chain::new(vec![signed]),
        };
        let trust = Trust::pinned(self.root, self.root);
        let holds = chain.verify(&trust);
        holds.map_err(|error| {
            BadInput::new(format!(
                "this delegate would be refused: {error}. A signer passes on its own tenant, roles \
                 and tags, and no more uses than it has"
            ))
        })?;
        Ok(chain)
    }
}

fn statement(options: &Options, key: PublicKey) -> Result<Statement> {
    let kind = match (options.token, options.pool) {
        (true, _) => "token",
        (_, true) => "pool",
        _ => "signer",
    };
    let uses = match options.uses {
        None if !options.token => {
            let message = format!("--uses: required for a {kind}: how many keys it may sign");
            return Err(BadInput::new(message).into());
        }
        uses => uses.unwrap_or(1),
    };
    let default = if options.pool { Role::Proxy } else { Role::Box };
    let mut roles: BTreeSet<Role> = options.roles.iter().map(|role| role_of(role)).collect();
    if roles.is_empty() {
        roles.insert(default);
    }
    if !options.tags.is_empty() && !roles.contains(&Role::Box) {
        return Err(BadInput::new("--tag: only boxes have tags").into());
    }
    if options.all_tenants && roles.contains(&Role::Box) {
        return Err(BadInput::new("--all-tenants: a box belongs to one tenant").into());
    }
    if options.signer {
        roles.insert(Role::Delegate);
    }
    let made_up = || format!("{kind}-{}", &keys::identifier()[..8]);
    let name = options.name.clone().unwrap_or_else(made_up);
    slug(&name).map_err(|why| BadInput::new(format!("--name: {why}")))?;
    for tag in &options.tags {
        slug(tag.as_str()).map_err(|why| BadInput::new(format!("--tag: {why}")))?;
    }
    Ok(Statement {
        key,
        name: name.parse()?,
        role: Role::Delegate,
        scope: options.tenant.clone().map_or(Scope::All, Scope::Tenant),
        tags: BTreeSet::new(),
        grant: Some(Grant {
            roles,
            tags: options.tags.iter().cloned().collect(),
            uses: Some(uses),
        }),
    })
}

fn role_of(text: &str) -> Role {
    match text {
        "proxy" => Role::Proxy,
        "anchor" => Role::Anchor,
        _ => Role::Box,
    }
}

pub fn new_identity() -> Identity {
    let mut seed = [0; 32];
    keys::fill(&mut seed);
    Identity::from_seed(seed)
}

fn write(path: &Path, text: &str) -> Result<()> {
    match write_new(path, text) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(bad(path, "the file exists already").into())
        }
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error).with_context(|| format!("cannot write {}", path.display()))
        }
        Ok(()) => Ok(()),
    }
}

/// What is to be approved.
#[derive(clap::Args)]
pub struct Approve {
    /// The waiting configuration, as printed by `roadweave fleet config approval`
    file: PathBuf,
    /// The approver's key, which signs; without it the configuration is only shown
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The file for the approval, for `roadweave fleet config approve --signed`
    #[arg(long, default_value = "approved.json", value_name = "FILE")]
    out: PathBuf,
}

pub fn approve(options: &Approve) -> Result<()> {
    let file = &options.file;
    let text = fs::read_to_string(file).map_err(|error| bad(file, error))?;
    let waiting: Waiting = serde_json::from_str(&text).map_err(|error| bad(file, error))?;
    // Unchanged, except for control characters, which could steer the terminal.
    out::line(waiting.shown())?;
    let Some(key) = &options.key else { return Ok(()) };
    let signed = waiting.sign(&identity(key)?).map_err(|error| bad(file, error))?;
    replace(&options.out, &format!("{}\n", serde_json::to_string(&signed)?))?;
    let out = options.out.display();
    Ok(out::line(format_args!(
        "approved: submit it with roadweave fleet config approve NAME --signed {out}"
    ))?)
}
