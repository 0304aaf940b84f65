//! `roadweave init` and `roadweave keygen`: keys, and a pair of files that trust each other.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ring::rand::{SecureRandom as _, SystemRandom};
use roadweave_quic::Identity;

use crate::config::host_port;
use crate::exit::BadInput;
use crate::out;

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
             addresses = [\"10.77.0.1/24\", \"fd77::1/64\"]\n\n\
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

/// Random bytes of the system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
    Ok(bytes)
}

fn generate() -> Result<Identity> {
    Ok(Identity::from_seed(random()?))
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    write_secrets(&[(path, text)])
}

/// Writes files that only their owner may read, in the place of those that are there: all of them,
/// or none if one finds no room.
fn write_secrets(files: &[(&Path, &str)]) -> Result<()> {
    let new = |path: &Path| path.with_extension("toml.new");
    let written = files.iter().try_for_each(|(path, text)| {
        write_new(&new(path), text).with_context(|| format!("cannot write {}", path.display()))
    });
    if written.is_err() {
        // Some are not there.
        files.iter().for_each(|(path, _)| _ = fs::remove_file(new(path)));
        return written;
    }
    files.iter().try_for_each(|(path, _)| {
        fs::rename(new(path), path).with_context(|| format!("cannot write {}", path.display()))
    })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    // One that was left behind may have another mode, or be a link.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::{ClientFile, ServerFile, load};

    #[test]
    fn a_file_that_is_overwritten_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("client.toml");
        std::fs::write(&path, "old").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        write_secret(&path, "new").expect("written");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

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
        let key =
            |private: &crate::config::PrivateKey| private.identity().expect("a key").public_key();
        assert_eq!(client.server.public_key, key(&server.private_key));
        assert_eq!(server.peers[0].public_key, key(&client.private_key));
        assert_eq!((client.name.as_str(), server.listen.port()), ("bus \"12\"", 443));
        assert_eq!(client.uplinks.include, ["wwan*", "eth1"]);
        let refused = args.run().expect_err("the files are there").to_string();
        assert!(refused.contains("--force"), "{refused}");
    }
}
