//! `roadweave-controller init`.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use roadweave_config::read_text;
use roadweave_identity::PublicKey;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::api::password;
use crate::certificate::{self, SelfSigned};
use crate::clock::now_ms;
use crate::controller::FolderOption;
use crate::controller::delegate::new_identity;
use crate::controller::file::{ControllerFile, address, host, with};
use crate::controller::folder::Folder;
use crate::files::{read_if_there, replace, write_new};
use crate::keys;
use crate::model::{Person, PersonSettings, Role, Tenant, TenantSettings, slug};
use crate::store::{Actor, Database, Store, StoreError};

/// How the controller is made.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    at: FolderOption,
    /// An address at which boxes and users reach it; may be repeated
    #[arg(long, required = true, value_name = "HOST:PORT", value_parser = address)]
    address: Vec<String>,
    /// postgres://user:password@host/name, for several controllers; default: a file in the folder.
    /// Set an address with a password in the environment: other users can see the arguments of a
    /// command
    #[arg(long, env = "ROADWEAVE_CONTROLLER_DATABASE", value_name = "ADDRESS")]
    #[arg(hide_env_values = true)]
    database: Option<String>,
    /// The name of your own tenant
    #[arg(long, default_value = "home", value_name = "NAME")]
    tenant: String,
    /// An inner network from which boxes get addresses; may be repeated
    #[arg(long, default_values = ["10.77.0.0/16", "fd77::/64"], value_name = "PREFIX")]
    prefix: Vec<ipnet::IpNet>,
    /// The name of the first owner
    #[arg(long, default_value = "admin", value_name = "NAME")]
    owner: String,
    /// The TCP address to listen on
    #[arg(long, default_value = "[::]:4400", value_name = "ADDRESS")]
    listen: std::net::SocketAddr,
    /// The public key of a root key that is kept elsewhere; the controller then has no root key
    #[arg(long, value_name = "PUBLIC-KEY")]
    root: Option<PublicKey>,
    /// Keep an existing controller, and change only its addresses and --database
    #[arg(long)]
    keep: bool,
}

pub fn run(options: &Options) -> Result<()> {
    slug(&options.tenant).map_err(|why| BadInput::new(format!("--tenant: {why}")))?;
    slug(&options.owner).map_err(|why| BadInput::new(format!("--owner: {why}")))?;
    let settings = TenantSettings { prefixes: options.prefix.clone(), ..TenantSettings::default() };
    crate::model::Settings::validate(&settings)
        .map_err(|why| BadInput::new(format!("--prefix: {why}")))?;
    let database = options.database.clone().unwrap_or_else(|| "roadweave.db".to_owned());
    Database::parse(&database).map_err(|why| BadInput::new(format!("--database: {why}")))?;
    let folder = &options.at.folder;
    let is_made = folder.join("controller.toml").exists();
    if !(is_made && options.root.is_none()) {
        check_root(folder, options.root)?;
    }
    if is_made {
        let folder = folder.display();
        if options.keep {
            return keep(options);
        }
        return Err(BadInput::new(format!("{folder} already has a controller")).into());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let file = ControllerFile {
        listen: options.listen,
        addresses: options.address.clone(),
        database,
        certificate: None,
        certificate_key: None,
        oidc: None,
    };
    let fingerprint = write_files(folder, &file, options.root)?;
    let opened = Folder::open(folder)?;
    let _lock = opened.lock()?;
    let made = crate::controller::block_on(async {
        let store = opened.store().await?;
        first_rows(&store, options, settings).await
    });
    let password = made.inspect_err(|_| {
        let _ = fs::remove_file(folder.join("controller.toml"));
    })?;
    say(options, &password, &fingerprint)
}

fn check_root(folder: &Path, root: Option<PublicKey>) -> Result<()> {
    let (held, public) = (folder.join("root.key"), folder.join("root.pub"));
    let before = read_if_there(&public)?.map(|text| text.trim().to_owned());
    let (lies, says) = match (root, before) {
        (Some(_), _) if held.exists() => (held, "--root says that its key is elsewhere".to_owned()),
        (Some(root), Some(before)) if before != root.to_string() => {
            (public, format!("it contains {before}, and --root another key"))
        }
        (None, Some(before)) => (public, format!("it says that the root key is {before}")),
        _ => return Ok(()),
    };
    let message = format!("{} exists: {says}; remove it, or give the same --root", lies.display());
    Err(BadInput::new(message).into())
}

fn keep(options: &Options) -> Result<()> {
    let opened = Folder::open(&options.at.folder)?;
    let (folder, file) = (options.at.folder.display(), &opened.file);
    let database = options.database.as_ref().unwrap_or(&file.database);
    let mut changed = Vec::new();
    if file.addresses != options.address {
        changed.push(format!("its addresses are now {}", options.address.join(" ")));
    }
    if file.database != *database {
        let shown = Database::parse(database).map_err(BadInput::new)?.shown();
        changed.push(format!("its database is now {shown}"));
    }
    if !changed.is_empty() {
        let path = opened.at("controller.toml");
        let text = read_text(&path, true).map_err(BadInput::new)?;
        replace(&path, &with(&path, &text, &options.address, database)?)?;
    }
    let changed: String = changed.iter().map(|it| format!("; {it}")).collect();
    Ok(out::line(format_args!("there is a controller in {folder}; keeping it{changed}"))?)
}

/// The configuration comes last and completes the folder. Keys of an interrupted `init` stay.
fn write_files(folder: &Path, file: &ControllerFile, root: Option<PublicKey>) -> Result<String> {
    let hosts: Vec<String> = file.addresses.iter().map(|one| host(one)).collect();
    let SelfSigned { certificate, key } = certificate::self_signed(&hosts);
    let fingerprint = certificate::fingerprint_of_pem(&certificate);
    let text = text_of(file);
    let _ = fs::remove_file(folder.join("certificate.pem"));
    let _ = fs::remove_file(folder.join("certificate.key"));
    let root = match root {
        Some(elsewhere) => ("root.pub", format!("{elsewhere}\n")),
        None => ("root.key", new_key()),
    };
    for (name, text) in [
        ("controller.key", &new_key()),
        (root.0, &root.1),
        ("certificate.pem", &certificate),
        ("certificate.key", &key),
        ("epoch", &FIRST_EPOCH.to_owned()),
        ("controller.toml", &text),
    ] {
        let path = folder.join(name);
        match write_new(&path, text) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.with_context(|| format!("cannot write {}", path.display()))?,
        }
    }
    Ok(fingerprint)
}

const FIRST_EPOCH: &str = "1\n";

fn new_key() -> String {
    format!("{}\n", new_identity().to_base64())
}

fn text_of(file: &ControllerFile) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    format!(
        "# The TCP port for boxes, proxies and people alike.\n\
         listen = {}\n\
         # Where they reach it; tokens carry these.\n\
         addresses = {}\n\
         # A file in this folder, or postgres://user:password@host/name.\n\
         database = {}\n\
         # A certificate for browsers, in place of the one that was made here.\n\
         # certificate = \"fleet.pem\"\n\
         # certificate_key = \"fleet.key\"\n",
        quoted(&file.listen.to_string()),
        serde_json::to_string(&file.addresses).unwrap_or_default(),
        quoted(&file.database),
    )
}

async fn first_rows(store: &Store, options: &Options, settings: TenantSettings) -> Result<String> {
    let password = keys::secret()[..24].to_owned();
    let mut change = store.change(Actor::new("controller"), now_ms()).await?;
    let tenant = Tenant { id: options.tenant.clone(), host: true, settings };
    let inserted = change.insert(&options.tenant, tenant).await;
    inserted.map_err(|error| match error {
        StoreError::Taken(_) => anyhow::Error::new(BadInput::new(format!(
            "the database {} belongs to another controller: for a second replica, copy that \
             controller's folder instead",
            store.database.shown()
        ))),
        error => error.into(),
    })?;
    let settings = PersonSettings { title: String::new(), role: Role::Owner };
    let hash = password::hash(&password);
    let owner = Person { id: options.owner.clone(), settings, password: hash, subject: None };
    change.insert(&options.tenant, owner).await?;
    change.commit().await?;
    Ok(password)
}

fn say(options: &Options, password: &str, fingerprint: &str) -> Result<()> {
    let folder = options.at.folder.display();
    let (address, tenant, owner) = (&options.address[0], &options.tenant, &options.owner);
    let (first, secrets) = match &options.root {
        None => (String::new(), format!("{folder}/root.key and controller.key")),
        Some(_) => {
            let key = Folder::open(&options.at.folder)?.authority()?.controller().public_key();
            let sign = format!(
                " Let its root sign whom to trust, where that key is, and copy trust.json into \
                 {folder}:\n\n    \
                 roadweave-controller trust --key root.key --controller {key}\n\n"
            );
            (sign, format!("{folder}/controller.key"))
        }
    };
    out::line(format_args!(
        "A controller is in {folder}.{first} Start it:\n\n    \
         roadweave-controller run --folder {folder}\n\n\
         Log in, with a password that is shown this once:\n\n    \
         roadweave fleet login https://{address} --tenant {tenant} --user {owner} \\\n        \
         --fingerprint {fingerprint}\n    \
         password: {password}\n\n\
         Keep {secrets} safe, apart from the database: these keys control the fleet."
    ))?;
    Ok(())
}
