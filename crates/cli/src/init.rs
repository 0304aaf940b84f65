//! `roadweave init` and `roadweave keygen`: keys, and a pair of files that trust each other.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use roadweave_config::{host_port, write_secrets};
use roadweave_device::random_bytes;
use roadweave_identity::Identity;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Writes client.toml and server.toml that trust each other.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The server's address as the vehicle will reach it, host:port
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// The client's name
    #[arg(long, default_value = "vehicle-1")]
    name: String,
    /// Interfaces that are uplinks, `*` stands for anything; default: every one with a default
    /// route
    #[arg(long = "uplink", value_name = "INTERFACE")]
    uplinks: Vec<String>,
    /// The folder to write to
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Overwrite files that are there
    #[arg(long)]
    force: bool,
}

impl InitArgs {
    /// # Errors
    /// When the address has no port, or a file exists or cannot be written.
    pub fn run(&self) -> Result<()> {
        let (address, port) = host_port(&self.server)
            .map_err(|error| BadInput::new(format!("--server {}: {error}", self.server)))?;
        let client = generate()?;
        let server = generate()?;
        let client_path = self.folder.join("client.toml");
        let server_path = self.folder.join("server.toml");
        for path in [&client_path, &server_path] {
            if path.exists() && !self.force {
                bail!("{} exists; --force overwrites it", path.display());
            }
        }
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        write_secrets(&[
            (&client_path, &self.client_file(&address, &client, &server)),
            (&server_path, &self.server_file(port, &client, &server)),
        ])?;
        out::line(format_args!(
            "{}\n  for the vehicle: roadweave client --config client.toml\n\
             {}\n  for the server:  roadweave server --config server.toml\n\
             Each holds a private key: move them, do not copy them.",
            client_path.display(),
            server_path.display()
        ))?;
        Ok(())
    }

    fn client_file(&self, address: &str, client: &Identity, server: &Identity) -> String {
        let uplinks: Vec<String> = self.uplinks.iter().map(|name| format!("{name:?}")).collect();
        format!(
            "# Roadweave client, for the vehicle. Every field: docs/configuration.md\n\
             name = {name:?}\n\
             private_key = \"{private}\"\n\n\
             [server]\n\
             addresses = [{address:?}]\n\
             public_key = \"{public}\"\n\n\
             [uplinks]\n\
             # Names of interfaces, * stands for anything. Empty: every one with a default route.\n\
             include = [{uplinks}]\n\n\
             [routes]\n\
             # What goes into the tunnel: everything.\n\
             into_tunnel = [\"0.0.0.0/0\", \"::/0\"]\n",
            name = self.name,
            private = client.to_base64(),
            public = server.public_key(),
            uplinks = uplinks.join(", "),
        )
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

/// Makes a key pair.
#[derive(Debug, clap::Args)]
pub struct KeygenArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl KeygenArgs {
    /// # Errors
    /// When the system gives no random bytes.
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
        let refused = args.run().expect_err("the files are there").to_string();
        assert!(refused.contains("--force"), "{refused}");
    }
}
