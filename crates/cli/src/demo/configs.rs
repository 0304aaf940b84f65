//! The configuration files of one run, as `roadweave client`, `server` and `emulate` read them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_device::Instance;
use roadweave_quic::Identity;
use roadweave_tunnel::Strategy;

use super::scenario::Scenario;
use super::world;
use crate::init;

/// The client's TUN device, which names its instance too.
const CLIENT_TUN: &str = "rw0";
/// The server's TUN device.
const SERVER_TUN: &str = "rw1";
/// The client's inner address.
const INNER_CLIENT: &str = "10.77.0.2/32";
/// The server's inner address and network.
const INNER_SERVER: &str = "10.77.0.1/24";

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Configs {
    /// For the emulator.
    pub emulator: PathBuf,
    /// For the server.
    pub server: PathBuf,
    /// For the client.
    pub client: PathBuf,
}

impl Configs {
    /// Writes the files for a run with `strategy`, with fresh keys.
    ///
    /// # Errors
    /// When `strategy` is unknown or a file cannot be written.
    pub fn write(directory: &Path, scenario: &Scenario, strategy: &str) -> anyhow::Result<Self> {
        let strategy: Strategy = strategy.parse()?;
        let client = Identity::from_seed(init::random()?);
        let server = Identity::from_seed(init::random()?);
        let emulator = toml::to_string(&scenario.file).context("cannot express the links")?;
        Ok(Self {
            emulator: write(directory, "emulator.toml", &emulator)?,
            server: write(directory, "server.toml", &server_file(&client, &server))?,
            client: write(
                directory,
                "client.toml",
                &client_file(&client, &server, scenario, &strategy),
            )?,
        })
    }
}

/// The socket at which the client of a run tells its state.
///
/// # Errors
/// None: the instance's name is good.
pub fn client_socket() -> anyhow::Result<PathBuf> {
    Ok(Instance::new(CLIENT_TUN)?.socket_path())
}

fn client_file(
    client: &Identity,
    server: &Identity,
    scenario: &Scenario,
    strategy: &Strategy,
) -> String {
    let uplinks: Vec<_> = scenario.uplinks().map(|name| format!("{name:?}")).collect();
    format!(
        "name = \"vehicle\"\n\
         private_key = \"{private}\"\n\
         [server]\n\
         addresses = [\"{address}\"]\n\
         public_key = \"{public}\"\n\
         [uplinks]\n\
         include = [{uplinks}]\n\
         [tun]\n\
         name = \"{CLIENT_TUN}\"\n\
         [routes]\n\
         into_tunnel = [\"{network}\"]\n\
         masquerade = false\n\
         [[lanes]]\n\
         name = \"video\"\n\
         strategy = \"{strategy}\"\n",
        private = client.to_base64(),
        address = world::SERVER,
        public = server.public_key(),
        uplinks = uplinks.join(", "),
        network = world::CLOUD_NETWORK,
    )
}

fn server_file(client: &Identity, server: &Identity) -> String {
    format!(
        "listen = \"0.0.0.0:{port}\"\n\
         private_key = \"{private}\"\n\
         addresses = [\"{INNER_SERVER}\"]\n\
         masquerade = false\n\
         [tun]\n\
         name = \"{SERVER_TUN}\"\n\
         [[peers]]\n\
         name = \"vehicle\"\n\
         public_key = \"{public}\"\n\
         addresses = [\"{INNER_CLIENT}\", \"{network}\"]\n",
        port = world::SERVER.port(),
        private = server.to_base64(),
        public = client.public_key(),
        network = world::VEHICLE_NETWORK,
    )
}

fn write(directory: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClientFile, ServerFile, load};

    #[test]
    fn the_files_are_read_back_by_those_who_need_them() {
        let directory = tempfile::tempdir().unwrap();
        let scenario = Scenario::synthetic(3).unwrap();
        let configs = Configs::write(directory.path(), &scenario, "single:lte").unwrap();
        let client: ClientFile = load(&configs.client).unwrap();
        let server: ServerFile = load(&configs.server).unwrap();
        assert_eq!(client.lanes[0].strategy.as_str(), "single:lte");
        assert_eq!(client.uplinks.include, ["att", "verizon", "tmobile", "lte"]);
        assert_eq!(client.server.public_key, server.private_key.identity().unwrap().public_key());
        assert_eq!(server.peers[0].public_key, client.private_key.identity().unwrap().public_key());
        let text = std::fs::read_to_string(&configs.emulator).unwrap();
        let emulator: roadweave_emulate::EmulateFile = toml::from_str(&text).unwrap();
        assert_eq!(emulator, scenario.file);
        let unknown = Configs::write(directory.path(), &scenario, "best").unwrap_err();
        assert!(unknown.to_string().contains("unknown strategy"), "{unknown}");
    }
}
