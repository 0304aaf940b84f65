//! `roadweave peer`: the clients of a server, in its file and in what runs.

mod file;
mod listing;

use std::path::PathBuf;

use anyhow::Result;
use ipnet::IpNet;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use roadweave_config::{NewClient, PeerFields, host_port, next_addresses, with_peer};
use roadweave_device::local::{RequestError, reload};
use roadweave_device::random_bytes;
use roadweave_identity::{Identity, PublicKey};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use toml::value::Datetime;
use zeroize::Zeroizing;

/// Adds, removes and shows the clients of a server
///
/// The server's file is changed, and a server that runs takes it up at once: sessions of other
/// clients go on.
#[derive(Debug, clap::Args)]
pub struct PeerArgs {
    #[command(flatten)]
    server: ServerPlace,
    #[command(subcommand)]
    command: Command,
}

/// Which server it is.
#[derive(Debug, clap::Args)]
struct ServerPlace {
    /// The server's configuration file
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/roadweave/server.toml")]
    config: PathBuf,
    /// The socket of the running server
    #[arg(long, global = true, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lets a client in: makes its file, or takes the key that it has made itself
    Add(AddArgs),
    /// Lets a client in no more, and ends its session
    Remove {
        /// The client's name
        name: String,
    },
    /// All clients, and which are connected
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// One client
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
    /// The key of a client that has one (`roadweave keygen`); without it one is made
    #[arg(long, value_name = "KEY", conflicts_with_all = ["server", "out", "qr", "uplinks"])]
    public_key: Option<PublicKey>,
    /// Its inner addresses; without any the next free one of each of the server's networks
    #[arg(long = "address", value_name = "PREFIX")]
    addresses: Vec<IpNet>,
    /// A network behind it, which it does not hide behind its own address
    #[arg(long = "behind", value_name = "PREFIX")]
    behind: Vec<IpNet>,
    /// When its key expires, as 2027-01-31T00:00:00Z
    #[arg(long, value_name = "MOMENT")]
    expires: Option<Datetime>,
    /// An interface of it that is an uplink; without any every one with a default route
    #[arg(long = "uplink", value_name = "INTERFACE")]
    uplinks: Vec<String>,
    /// Where the client's file is written to; without it NAME.toml
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show the client's file as a QR code instead of writing it. Whoever sees it has its key
    #[arg(long, conflicts_with = "out")]
    qr: bool,
}

impl PeerArgs {
    /// # Errors
    /// When the server's file is wrong or cannot be changed, and when nobody has the name.
    pub fn run(&self) -> Result<()> {
        match &self.command {
            Command::Add(args) => args.run(&self.server),
            Command::Remove { name } => remove(&self.server, name),
            Command::List { json } => listing::list(&self.server, *json),
            Command::Show { name, json } => listing::show(&self.server, name, *json),
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
        let made = match self.public_key {
            Some(_) => None,
            None => Some(Identity::from_seed(random_bytes()?)),
        };
        let key = self.public_key.or(made.as_ref().map(Identity::public_key));
        let key = key.expect("one of both is there");
        let target = match &made {
            Some(_) if !self.qr => Some(self.target()?),
            _ => None,
        };
        let mut client: Option<Zeroizing<String>> = None;
        let mut addresses = Vec::new();
        file::change(&place.config, |server, text| {
            file::refuse_name(server, &self.name)?;
            let peer = self.entry(key, server)?;
            addresses.clone_from(&peer.addresses);
            let text = with_peer(text, &peer)?;
            if let (Some(identity), Some(address)) = (&made, &address) {
                let server_key = server.private_key.identity()?.public_key();
                let (name, uplinks) = (self.name.as_str(), self.uplinks.as_slice());
                let new = NewClient { name, identity, server: address, server_key, uplinks };
                client = Some(new.text());
            }
            // Before the server's, so that no client is let in whose key is nowhere.
            if let (Some(target), Some(client)) = (&target, &client) {
                file::write_new(target, client)?;
            }
            Ok(text)
        })
        .inspect_err(|_| {
            // The key in it opens nothing.
            if let (Some(target), true) = (&target, client.is_some()) {
                let _ = std::fs::remove_file(target);
            }
        })?;
        let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
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
        take_up(place)
    }

    /// Where the client's file goes, which is not there yet.
    fn target(&self) -> Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let target = match &self.out {
            Some(path) => path.clone(),
            None if self.name.chars().all(plain) && !self.name.starts_with('.') => {
                PathBuf::from(format!("{}.toml", self.name))
            }
            None => {
                let message = format!("{:?} is no name for a file; name one by --out", self.name);
                return Err(BadInput::new(message).into());
            }
        };
        match target.exists() {
            true => {
                let message = format!("{} exists; name another by --out", target.display());
                Err(BadInput::new(message).into())
            }
            false => Ok(target),
        }
    }

    fn entry(
        &self,
        public_key: PublicKey,
        server: &roadweave_config::ServerFile,
    ) -> Result<PeerFields, String> {
        let mut addresses = match self.addresses.is_empty() {
            true => next_addresses(server)?,
            false => self.addresses.clone(),
        };
        addresses.extend(&self.behind);
        Ok(PeerFields {
            name: self.name.clone(),
            tenant: None,
            public_key,
            addresses,
            expires: self.expires,
            rate_limit_mbps: None,
        })
    }
}

fn remove(place: &ServerPlace, name: &str) -> Result<()> {
    file::change(&place.config, |server, text| file::without_peer(server, text, name))?;
    out::line(format_args!("{name} is removed"))?;
    take_up(place)
}

/// Lets the server take up its file, if it runs.
fn take_up(place: &ServerPlace) -> Result<()> {
    match reload(&place.socket) {
        Ok(_) => Ok(out::line(format_args!("the running server has taken it up"))?),
        Err(RequestError::NotRunning { path }) => Ok(out::line(format_args!(
            "nothing runs at {path}: it counts from the server's next start"
        ))?),
        Err(error) => Err(anyhow::Error::new(error)
            .context("the file is changed, but what runs has not taken it up")),
    }
}

/// Shows a text as a QR code.
fn print_qr(text: &str) -> Result<()> {
    // Without its comments: a smaller picture.
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let text = Zeroizing::new(lines.fold(String::new(), |text, line| text + line + "\n"));
    let code = QrCode::with_error_correction_level(text.as_bytes(), EcLevel::L)?;
    out::line(code.render::<Dense1x2>().quiet_zone(true).build())?;
    Ok(())
}
