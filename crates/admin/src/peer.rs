//! `roadweave peer`: edits the clients in the file of a server and in the running server.

mod clients;

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use ipnet::IpNet;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use roadweave_config::{
    NewClient, PeerFields, ServerFile, add_client, host_port, load, next_peer, with_peer,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::{Instance, random_bytes};
use roadweave_node::fleet::Membership;
use roadweave_node::local::{self, RequestError, RpcError};
use roadweave_node::status::RoleStatus;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use toml::value::Datetime;
use zeroize::Zeroizing;

/// Adds, removes and shows the clients of a server, also while it runs
///
/// Changes the server's file; a running server applies the change at once. Sessions of other
/// clients continue.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    #[command(flatten)]
    server: ServerPlace,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct ServerPlace {
    /// The server's configuration file
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/roadweave/server.toml")]
    config: PathBuf,
    /// The socket of the running server; without it, that of tun.name in the file
    #[arg(long, global = true)]
    socket: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Adds a client: writes its file, or takes its existing public key
    Add(AddArgs),
    /// Removes a client, and ends its session
    Remove {
        /// The client's name
        name: String,
    },
    /// Lists all clients, and which are connected
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Shows one client
    Show {
        /// The client's name
        name: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// The client's name
    name: String,
    /// The server's address as the client will reach it, host:port, for the client's file
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "public_key")]
    server: Option<String>,
    /// The client's existing public key (`roadweave keygen`); without it, a key is generated
    #[arg(long, value_name = "KEY", conflicts_with_all = ["server", "out", "qr", "uplinks"])]
    public_key: Option<PublicKey>,
    /// The client's inner addresses; default: the next free one of each of the server's networks
    #[arg(long = "address", value_name = "PREFIX")]
    addresses: Vec<IpNet>,
    /// A network behind the client that keeps its own addresses (no masquerading)
    #[arg(long = "behind", value_name = "PREFIX")]
    behind: Vec<IpNet>,
    /// When the client's key expires, as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "MOMENT")]
    expires: Option<Datetime>,
    /// An interface of the client to use as uplink; default: every interface with a default route
    #[arg(long = "uplink", value_name = "INTERFACE")]
    uplinks: Vec<String>,
    /// Where to write the client's file; default: NAME.toml
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show the client's file as a QR code instead of writing it. The code contains the private key
    #[arg(long, conflicts_with = "out")]
    qr: bool,
}

impl PeerArgs {
    pub fn run(&self) -> Result<()> {
        match &self.command {
            Command::Add(args) => args.run(&self.server),
            Command::Remove { name } => remove(&self.server, name),
            Command::List { json } => clients::list(&self.server, *json),
            Command::Show { name, json } => clients::show(&self.server, name, *json),
        }
    }
}

impl AddArgs {
    fn run(&self, place: &ServerPlace) -> Result<()> {
        let address = self.server.as_ref().map(|server| {
            let wrong = |error| BadInput::new(format!("--server {server}: {error}"));
            host_port(server).map(|(address, _)| address).map_err(wrong)
        });
        let address = address.transpose()?;
        let entry = |server: &ServerFile, key| self.entry(server, key);
        let (peer, client, target) = match (&self.public_key, &address) {
            (None, Some(server)) => {
                let target = if self.qr { None } else { Some(self.target()?) };
                let identity = Identity::from_seed(random_bytes()?);
                let (name, uplinks) = (self.name.as_str(), self.uplinks.as_slice());
                let new = NewClient { name, identity: &identity, server, uplinks, inside: &[] };
                let key = identity.public_key();
                let added =
                    add_client(&place.config, &new, target.as_deref(), |file| entry(file, key));
                let (peer, text) =
                    added.map_err(|error| clients::change_error(&place.config, error))?;
                (peer, Some(text), target)
            }
            (Some(key), _) => {
                let mut added = None;
                clients::change(&place.config, |server, text| {
                    let peer = entry(server, *key)?;
                    let text = with_peer(text, &peer)?;
                    added = Some(peer);
                    Ok(text)
                })?;
                (added.expect("the change is saved"), None, None)
            }
            (None, None) => return Err(BadInput::new("write --server or --public-key").into()),
        };
        // The file has changed even if the output fails.
        let taken = take_up(place);
        let shown: Vec<String> = peer.addresses.iter().map(ToString::to_string).collect();
        out::line(format_args!("{}: {}", self.name, shown.join(", ")))?;
        match (&target, &client) {
            (Some(path), _) => out::line(format_args!(
                "{path}\n  for the vehicle: roadweave client --config {path}\n\
                 It holds a private key: move it, do not copy it.",
                path = path.display()
            ))?,
            (None, Some(client)) => print_qr(client)?,
            (None, None) => {}
        }
        Ok(out::line(taken?)?)
    }

    fn target(&self) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let target = match &self.out {
            Some(path) => path.clone(),
            None if self.name.chars().all(plain) && !self.name.starts_with('.') => {
                PathBuf::from(format!("{}.toml", self.name))
            }
            None => {
                let message = format!("{:?} is not a file name; choose one with --out", self.name);
                return Err(BadInput::new(message).into());
            }
        };
        match target.exists() {
            true => {
                let message =
                    format!("{} exists; choose another file with --out", target.display());
                Err(BadInput::new(message).into())
            }
            false => Ok(target),
        }
    }

    fn entry(&self, server: &ServerFile, key: PublicKey) -> Result<PeerFields, String> {
        if self.addresses.is_empty() && Membership::is_there(&server.state_directory) {
            return Err(
                "this server is in a fleet, which also assigns addresses: choose an address that \
                        the fleet does not use, with --address"
                    .to_owned(),
            );
        }
        let mut peer = next_peer(server, &self.name, key)?;
        if !self.addresses.is_empty() {
            peer.addresses.clone_from(&self.addresses);
        }
        peer.addresses.extend(&self.behind);
        peer.expires = self.expires;
        Ok(peer)
    }
}

fn remove(place: &ServerPlace, name: &str) -> Result<()> {
    clients::change(&place.config, |server, text| Ok(clients::without_peer(server, text, name)?))?;
    let taken = take_up(place);
    out::line(format_args!("{name} is removed"))?;
    Ok(out::line(taken?)?)
}

fn take_up(place: &ServerPlace) -> Result<String> {
    let socket = place.socket()?;
    let runs_later =
        |why: String| Ok(format!("{why}: the change applies at the server's next start"));
    match local::summary(&socket) {
        Err(RequestError::NotRunning { path }) => {
            return runs_later(format!("nothing runs at {path}"));
        }
        Ok(status) if !matches!(status.role, RoleStatus::Server(_)) => {
            let (role, socket) = (status.role.name(), socket.display());
            return runs_later(format!("the instance at {socket} is a {role}, not a server"));
        }
        _ => {}
    }
    match local::reload(&socket) {
        Ok(_) => Ok("the running server has applied it".to_owned()),
        Err(RequestError::Refused(error)) if error.code == RpcError::NO_METHOD => Err(anyhow!(
            "the file is changed, but the running server is an older version: make it reload the \
             file with SIGHUP, as `systemctl reload` does"
        )),
        Err(error) => Err(anyhow::Error::new(error)
            .context("the file is changed, but the running instance has not applied it")),
    }
}

impl ServerPlace {
    fn socket(&self) -> Result<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let file: ServerFile = load(&self.config).map_err(BadInput::new)?;
        Ok(Instance::new(file.tun.name.as_str())?.socket_path())
    }
}

fn print_qr(text: &str) -> Result<()> {
    // Without comments the picture is smaller.
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let text = Zeroizing::new(lines.fold(String::new(), |text, line| text + line + "\n"));
    let code = QrCode::with_error_correction_level(text.as_bytes(), EcLevel::L)?;
    out::line(code.render::<Dense1x2>().quiet_zone(true).build())?;
    Ok(())
}
