//! `roadweave join`: this machine becomes a box, a proxy or an anchor of a fleet.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use roadweave_config::{default_state_directory, read_text};
use roadweave_fleet::{JoinToken, Kind, Name, Role};
use roadweave_linux::become_owner_of;
use roadweave_node::fleet::{JoinOptions, Joined, join};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Joins a fleet with a token from its operator.
///
/// The key is generated on this machine and never leaves it. Running the command again is safe and
/// does not use the token a second time.
#[derive(Debug, clap::Args)]
pub struct JoinArgs {
    /// The token, rw1_...; `-` reads it from standard input, which other users cannot see
    #[arg(value_name = "TOKEN", required_unless_present = "token_file")]
    token: Option<String>,
    /// A file with the token; other users must not be able to read it
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// The name to request in the fleet; default: this machine's host name
    #[arg(long)]
    name: Option<String>,
    /// The role of this machine
    #[arg(long, value_enum, default_value_t = RoleName::Box)]
    role: RoleName,
    /// The address of a proxy or an anchor, such as 192.0.2.1:4433; may be repeated. Default: port
    /// 4433, of an anchor 4434, at the address that the controller sees
    #[arg(long)]
    address: Vec<SocketAddr>,
    /// The folder for the key and the fleet's documents; default: the one that client and server
    /// use
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleName {
    /// The box of a vehicle
    Box,
    /// A proxy, where tunnels end
    Proxy,
    /// An anchor, which holds the inner addresses
    Anchor,
}

impl JoinArgs {
    pub fn run(&self) -> Result<()> {
        let token: JoinToken = self.text()?.parse().map_err(BadInput::new)?;
        let name = match &self.name {
            Some(name) => {
                name.parse().map_err(|error| BadInput::new(format!("--name: {error}")))?
            }
            None => host_name(),
        };
        let role = match self.role {
            RoleName::Box => Role::Box,
            RoleName::Proxy => Role::Proxy,
            RoleName::Anchor => Role::Anchor,
        };
        if role == Role::Box && !self.address.is_empty() {
            return Err(BadInput::new("--address is only for proxies and anchors").into());
        }
        let addresses = self.address.iter().map(ToString::to_string).collect();
        let usual = default_state_directory();
        let state_directory = self.state_directory.clone().unwrap_or_else(|| usual.clone());
        let is_usual = state_directory == usual;
        let option = match is_usual {
            true => String::new(),
            false => format!(" --state-directory {}", state_directory.display()),
        };
        become_owner_of(&state_directory)?;
        let joined = join(JoinOptions { token, name, role, addresses, state_directory })?;
        Ok(out::line(format_args!("{}", summary(&joined, &option)))?)
    }

    fn text(&self) -> Result<String> {
        if let Some(file) = &self.token_file {
            return Ok(read_text(file, true).map_err(BadInput::new)?.to_string());
        }
        let mut text = String::new();
        if let Some(token) = self.token.as_deref().filter(|it| *it != "-") {
            text.push_str(token);
            return Ok(text);
        }
        let mut input = std::io::Read::take(std::io::stdin(), TOKEN_MAX);
        std::io::Read::read_to_string(&mut input, &mut text)?;
        Ok(text)
    }
}

fn summary(joined: &Joined, option: &str) -> String {
    let Joined { before, moved_to, tenant, name, role, key, key_path, documents } = joined;
    let had = if *before { "had already joined" } else { "has joined" };
    let role = role.name();
    let mut text = format!(
        "This {role} {had}: {name} of {tenant}\nkey {key}, private half in {}\n",
        key_path.display()
    );
    if let Some(addresses) = moved_to {
        text += &format!("From now on it contacts its controller at {}.\n", addresses.join(", "));
    }
    let has = |kind: Kind| documents.iter().any(|(known, _)| *known == kind);
    text += match role {
        "box" if !has(Kind::Candidates) => {
            "The controller has not assigned a proxy yet; the client waits for one.\n"
        }
        "proxy" if !has(Kind::Table) => "The controller has sent no boxes yet.\n",
        _ => "",
    };
    text + &match role {
        "box" => format!("Next: roadweave client{option}"),
        "proxy" => format!("Next: roadweave server{option}, or roadweave proxy{option}"),
        _ => format!("Next: roadweave {role}{option}"),
    }
}

fn host_name() -> Name {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let letters = text.trim().chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
        _ => '-',
    });
    let name: String = letters.take(Name::MAX).collect();
    name.parse().unwrap_or_else(|_| "roadweave".parse().expect("it is one"))
}

const TOKEN_MAX: u64 = 8 * 1024;
