//! `roadweave init` and `roadweave keygen`: keys, and a pair of files that trust each other.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use roadweave_config::{
    ChangeError, NewClient, PrivateKey, add_client, host_port, next_peer, parse, read_text,
    write_secrets,
};
use roadweave_identity::Identity;
use roadweave_linux::{Monitor, random_bytes};
use roadweave_proto::UplinkSelector;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use zeroize::Zeroizing;

/// Writes client.toml and server.toml that trust each other.
///
/// If server.toml exists, adds a vehicle to it and writes that vehicle's file.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The server's address as the vehicle will reach it, host:port
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// The client's name
    #[arg(long, default_value = "vehicle-1")]
    name: String,
    /// Interfaces to use as uplinks; `*` matches anything. Default: every interface with a default
    /// route
    #[arg(long = "uplink", value_name = "INTERFACE")]
    uplinks: Vec<String>,
    /// The folder to write to
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Overwrite existing files, including a server's with all its vehicles
    #[arg(long)]
    force: bool,
}

impl InitArgs {
    pub fn run(&self) -> Result<()> {
        let (address, port) = host_port(&self.server)
            .map_err(|error| BadInput::new(format!("--server {}: {error}", self.server)))?;
        let server_path = self.folder.join("server.toml");
        match server_path.exists() && !self.force {
            true => self.add_vehicle(&server_path, &address),
            false => self.write_both(&server_path, &address, port),
        }
    }

    fn write_both(&self, server_path: &Path, address: &str, port: u16) -> Result<()> {
        let client = generate()?;
        let server = generate()?;
        let client_path = self.folder.join("client.toml");
        if client_path.exists() && !self.force {
            bail!("{} exists; --force overwrites it", client_path.display());
        }
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        // With named uplinks, networks behind the box are not guessed.
        let inside = if self.uplinks.is_empty() { networks_seen() } else { Vec::new() };
        let new = NewClient { inside: &inside, ..self.client(address, &client) };
        write_secrets(&[
            (&client_path, &new.text(server.public_key())),
            (server_path, &self.server_file(port, &client, &server)),
        ])?;
        out::line(format_args!(
            "{}\n  for the vehicle: roadweave client --config client.toml\n\
             {}\n  for the server:  roadweave server --config server.toml\n\
             Each holds a private key: move them, do not copy them.",
            client_path.display(),
            server_path.display()
        ))?;
        if self.uplinks.is_empty() {
            out::note(format_args!(
                "uplinks.inside is [{}], as on this machine: replace it by the vehicle's own \
                 networks",
                inside.join(", ")
            ));
        }
        Ok(())
    }

    fn add_vehicle(&self, server_path: &Path, address: &str) -> Result<()> {
        let client = generate()?;
        let client_path = self.folder.join("client.toml");
        let client_path = match client_path.exists() {
            true => self.folder.join(format!("{}.toml", self.name)),
            false => client_path,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if !self.name.chars().all(plain) || client_path.exists() {
            let message = format!(
                "{} exists: cannot add the vehicle {:?}, since its file {} exists too or its name \
                 is not a file name. Choose another --name, or overwrite everything with --force",
                server_path.display(),
                self.name,
                client_path.display()
            );
            return Err(BadInput::new(message).into());
        }
        let new = self.client(address, &client);
        add_client(server_path, &new, Some(&client_path), |server| {
            next_peer(server, &self.name, client.public_key())
        })
        .map_err(|error| match error {
            ChangeError::Refused(_) | ChangeError::File(_) => {
                let path = server_path.display();
                anyhow::Error::from(BadInput::new(format!("{path}: {error}")))
            }
            error => error.into(),
        })?;
        out::line(format_args!(
            "{}\n  for the vehicle: roadweave client --config {}\n\
             {}\n  now lists the vehicle: run `roadweave reload` on the server\n\
             Each holds a private key: move them, do not copy them.",
            client_path.display(),
            client_path.file_name().unwrap_or_default().display(),
            server_path.display()
        ))?;
        Ok(())
    }

    fn client<'a>(&'a self, server: &'a str, identity: &'a Identity) -> NewClient<'a> {
        let (name, uplinks) = (self.name.as_str(), self.uplinks.as_slice());
        NewClient { name, identity, server, uplinks, inside: &[] }
    }

    fn server_file(&self, port: u16, client: &Identity, server: &Identity) -> String {
        format!(
            "# Roadweave server. Every field: docs/configuration.md\n\
             listen = \"[::]:{port}\"\n\
             private_key = \"{private}\"\n\
             addresses = [\"10.77.0.1/16\", \"fd77::1/64\"]\n\n\
             [[peers]]\n\
             name = {name:?}\n\
             public_key = \"{public}\"\n\
             addresses = [\"10.77.0.2/32\", \"fd77::2/128\"]\n",
            private = server.to_base64(),
            name = self.name,
            public = client.public_key(),
        )
    }
}

/// Generates a key pair.
#[derive(Debug, clap::Args)]
pub struct KeygenArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl KeygenArgs {
    pub fn run(&self) -> Result<()> {
        let identity = generate()?;
        let (private, public) = (identity.to_base64(), identity.public_key().to_string());
        if self.json {
            out::json_line(&serde_json::json!({ "private_key": private, "public_key": public }))?;
        } else {
            out::line(format_args!("private_key = \"{private}\"\npublic_key  = \"{public}\""))?;
        }
        Ok(())
    }
}

/// Prints the public key of a private key.
#[derive(Debug, clap::Args)]
pub struct PubkeyArgs {
    /// A client.toml or server.toml; without it the private key is read from standard input
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl PubkeyArgs {
    pub fn run(&self) -> Result<()> {
        #[derive(serde::Deserialize)]
        struct Keyed {
            private_key: PrivateKey,
        }
        let key: PrivateKey = match &self.config {
            Some(path) => {
                let text = read_text(path, true).map_err(BadInput::new)?;
                let Keyed { private_key } = parse(path, &text).map_err(BadInput::new)?;
                private_key
            }
            None => {
                let mut text = Zeroizing::new(String::new());
                std::io::stdin().take(KEY_MAX).read_to_string(&mut text)?;
                PrivateKey::new(text)
            }
        };
        let identity = key.identity().map_err(BadInput::new)?;
        out::line(format_args!("{}", identity.public_key()))?;
        Ok(())
    }
}

const KEY_MAX: u64 = 1024;

/// Those with an address, without a default route, and neither wireless nor leased.
fn networks_seen() -> Vec<String> {
    let seen = Monitor::open(UplinkSelector::default()).and_then(|mut monitor| {
        monitor.poll()?;
        Ok(monitor.inside())
    });
    seen.unwrap_or_default().into_iter().map(|interface| interface.name).collect()
}

fn generate() -> Result<Identity> {
    Ok(Identity::from_seed(random_bytes()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadweave_config::{ClientFile, ServerFile, load};

    #[test]
    fn the_files_can_be_read_and_trust_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = InitArgs {
            server: "[2001:db8::1]:443".into(),
            name: "bus \"12\"".into(),
            uplinks: vec!["wwan*".into(), "eth1".into()],
            folder: folder.path().to_owned(),
            force: false,
        };
        args.run().expect("written");
        let client: ClientFile = load(&folder.path().join("client.toml")).expect("readable");
        let server: ServerFile = load(&folder.path().join("server.toml")).expect("readable");
        let key = |private: &roadweave_config::PrivateKey| {
            private.identity().expect("a key").public_key()
        };
        let named = client.server.expect("a server").public_key;
        assert_eq!(named, key(&server.private_key));
        assert_eq!(server.peers[0].public_key, key(&client.private_key));
        assert_eq!((client.name.as_str(), server.listen.port()), ("bus \"12\"", 443));
        assert_eq!(client.uplinks.include, ["wwan*", "eth1"]);
        let refused = args.run().expect_err("its name is no file's").to_string();
        assert!(refused.contains("--name"), "{refused}");

        let second = InitArgs { name: "bus-13".into(), ..args };
        second.run().expect("added");
        let added: ClientFile = load(&folder.path().join("bus-13.toml")).expect("readable");
        let now: ServerFile = load(&folder.path().join("server.toml")).expect("readable");
        assert_eq!(now.peers[0], server.peers[0]);
        assert_eq!(now.peers[1].public_key, key(&added.private_key));
        assert_eq!(now.peers[1].addresses[0].to_string(), "10.77.0.3/32");
        assert_eq!(added.server.expect("a server").public_key, key(&server.private_key));
        let text = std::fs::read_to_string(folder.path().join("server.toml")).expect("readable");
        let refused = second.run().expect_err("the name is taken").to_string();
        assert!(refused.contains("--name"), "{refused}");
        let after = std::fs::read_to_string(folder.path().join("server.toml")).expect("readable");
        assert_eq!(after, text);
    }
}
