//! The controller and the account: from options, the environment, or the last login.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};

use crate::files::{read_if_there, replace};
use crate::operator::trust;

/// Where the controller is, and as whom to ask.
#[derive(Clone, Debug, clap::Args)]
pub struct Access {
    /// The controller, as https://fleet.example.org:4400
    #[arg(long, global = true, env = "ROADWEAVE_FLEET_URL", value_name = "URL")]
    pub url: Option<String>,
    /// An API key, in place of a login
    #[arg(long, global = true, env = "ROADWEAVE_FLEET_KEY", value_name = "KEY")]
    #[arg(hide_env_values = true)]
    pub key: Option<String>,
    /// The fingerprint (SHA-256) of the controller's certificate, if no certificate authority
    /// signed it
    #[arg(long, global = true, env = "ROADWEAVE_FLEET_FINGERPRINT", value_name = "SHA-256")]
    pub fingerprint: Option<String>,
    /// The tenant; default: yours
    #[arg(long, global = true, env = "ROADWEAVE_FLEET_TENANT", value_name = "NAME")]
    pub tenant: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    pub url: String,
    pub fingerprint: Option<String>,
    pub tenant: String,
    /// The cookie of the login; `None` with an API key.
    pub cookie: Option<String>,
    /// The API key; never stored.
    #[serde(skip)]
    pub key: Option<String>,
}

impl Access {
    /// The account by these options and the stored login. With a key and without `--tenant` its
    /// tenant may be empty. An error if the login is at another controller.
    pub fn account(&self) -> Result<Account> {
        let kept = read()?;
        let Some(key) = &self.key else {
            let kept = kept.ok_or_else(|| {
                BadInput::new(
                    "you are not logged in: roadweave fleet login URL, or --url and --key",
                )
            })?;
            self.is_of(&kept)?;
            let tenant = self.tenant.clone().unwrap_or_else(|| kept.tenant.clone());
            return Ok(Account { tenant, ..kept });
        };
        let url = self.url.clone().or_else(|| kept.as_ref().map(|it| it.url.clone()));
        let url =
            url.ok_or_else(|| BadInput::new("--key needs --url, the controller's address"))?;
        let place = host_and_port(&url)?;
        let kept = kept.filter(|it| host_and_port(&it.url).is_ok_and(|it| it == place));
        Ok(Account {
            fingerprint: self.fingerprint.clone().or(kept.and_then(|it| it.fingerprint)),
            tenant: self.tenant.clone().unwrap_or_default(),
            cookie: None,
            key: Some(key.clone()),
            url,
        })
    }

    fn is_of(&self, login: &Account) -> Result<()> {
        let at = &login.url;
        let hint = "log in there (roadweave fleet login), or give --key";
        if let Some(url) = &self.url
            && host_and_port(url)? != host_and_port(at)?
        {
            let message = format!("you are logged in at {at}, but --url is {url}: {hint}");
            return Err(BadInput::new(message).into());
        }
        if let Some(given) = &self.fingerprint
            && login.fingerprint.as_deref().map(trust::fingerprint).transpose()?
                != Some(trust::fingerprint(given)?)
        {
            let known = match &login.fingerprint {
                Some(known) => format!("with the fingerprint {known}"),
                None => "whose certificate a certificate authority signed".to_owned(),
            };
            let message =
                format!("you are logged in at {at}, {known}; --fingerprint is {given}: {hint}");
            return Err(BadInput::new(message).into());
        }
        Ok(())
    }
}

impl Account {
    pub fn save(&self) -> Result<()> {
        let path = path()?;
        let folder = path.parent().context("the file is in a folder")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        replace(&path, &serde_json::to_string(self)?)
    }
}

pub fn forget() -> Result<()> {
    match fs::remove_file(path()?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn read() -> Result<Option<Account>> {
    let path = path()?;
    let Some(text) = read_if_there(&path)? else { return Ok(None) };
    let account = serde_json::from_str(&text).map(Some);
    account.with_context(|| format!("{} is damaged; log in again", path.display()))
}

fn path() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let folder = from("XDG_CONFIG_HOME").or_else(|| Some(from("HOME")?.join(".config")));
    let folder = folder.ok_or_else(|| BadInput::new("neither HOME nor XDG_CONFIG_HOME is set"))?;
    Ok(folder.join("roadweave/fleet.json"))
}

pub fn new_password(question: &str) -> Result<String> {
    let said = password(question)?;
    if io::stdin().is_terminal() && password("repeat the password:")? != said {
        return Err(BadInput::new("the two passwords differ; nothing was changed").into());
    }
    Ok(said)
}

/// Asks for a password, unseen; without a terminal it is the first line of standard input.
pub fn password(question: &str) -> Result<String> {
    let input = io::stdin();
    let kept = if input.is_terminal() {
        out::note(question);
        out::flush();
        let kept = tcgetattr(&input)?;
        let mut silent = kept.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Now, &silent)?;
        Some(kept)
    } else {
        None
    };
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    if let Some(kept) = kept {
        tcsetattr(&input, OptionalActions::Now, &kept)?;
    }
    read?;
    let line = line.trim_end_matches(['\r', '\n']).to_owned();
    if line.is_empty() {
        return Err(BadInput::new("the password is empty").into());
    }
    Ok(line)
}

/// Host and port of `https://host:port`; equal for equal controllers.
pub fn host_and_port(url: &str) -> Result<(String, u16)> {
    let bad = || BadInput::new(format!("\"{url}\": write https://fleet.example.org:4400"));
    let rest = url.strip_prefix("https://").ok_or_else(bad)?.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['/', '@', '?', '#']) {
        return Err(bad().into());
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad())?),
        _ => (rest, 443),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_ascii_lowercase(), port))
}
