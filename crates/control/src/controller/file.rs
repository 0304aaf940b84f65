//! `controller.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use roadweave_config::{Fault, Validate, parse};
use roadweave_terminal::exit::BadInput;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::oidc::Settings;
use crate::store::Database;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerFile {
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Where boxes reach the controller, `host:port` each; part of every token.
    pub addresses: Vec<String>,
    /// A SQLite file in the folder, or `postgres://user:password@host/name`.
    #[serde(default = "default_database")]
    pub database: String,
    /// A certificate for browsers (PEM), in place of the self-signed one.
    pub certificate: Option<PathBuf>,
    pub certificate_key: Option<PathBuf>,
    pub oidc: Option<Settings>,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], 4400))
}

fn default_database() -> String {
    "roadweave.db".to_owned()
}

impl ControllerFile {
    /// The database; a relative path is in `folder`.
    pub fn database(&self, folder: &Path) -> Result<Database, String> {
        Ok(match Database::parse(&self.database)? {
            Database::Sqlite(path) => Database::Sqlite(folder.join(path)),
            database @ Database::Postgres(_) => database,
        })
    }
}

/// An error if the text is invalid, before or after.
pub fn with(path: &Path, text: &str, addresses: &[String], database: &str) -> Result<String> {
    let Spans { addresses: at, database: named } = parse(path, text).map_err(BadInput::new)?;
    // JSON strings and lists of strings are valid TOML.
    let (addresses, database) =
        (serde_json::to_string(addresses)?, serde_json::to_string(database)?);
    let mut changed = text.to_owned();
    let mut changes = vec![(at.span(), addresses)];
    match named {
        Some(named) => changes.push((named.span(), database)),
        None => changes.push((0..0, format!("database = {database}\n"))),
    }
    // From the end, so that the earlier spans stay valid.
    changes.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    for (span, value) in changes {
        changed.replace_range(span, &value);
    }
    let file: ControllerFile = parse(path, &changed).map_err(BadInput::new)?;
    file.validate().map_err(|fault| BadInput::new(fault.in_file(path, &changed)))?;
    Ok(changed)
}

#[derive(Deserialize)]
struct Spans {
    addresses: Spanned<Vec<String>>,
    database: Option<Spanned<String>>,
}

pub fn address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(port)) if port > 0 => Ok(text.to_owned()),
        _ => Err(format!("\"{text}\" has no port; write host:port, as fleet.example.org:4400")),
    }
}

pub fn host(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

impl Validate for ControllerFile {
    fn validate(&self) -> Result<(), Fault> {
        if !(1..=8).contains(&self.addresses.len()) {
            let message = "addresses: 1 to 8, as addresses = [\"fleet.example.org:4400\"]";
            return Err(Fault::new("addresses", message));
        }
        for (at, one) in self.addresses.iter().enumerate() {
            address(one).map_err(|why| Fault::new(format!("addresses.{at}"), why))?;
        }
        Database::parse(&self.database)
            .map_err(|why| Fault::new("database", format!("database: {why}")))?;
        if self.certificate.is_some() != self.certificate_key.is_some() {
            let message = "certificate and certificate_key: set both or neither";
            return Err(Fault::new("certificate", message));
        }
        self.oidc.as_ref().map_or(Ok(()), Settings::validate)
    }
}
