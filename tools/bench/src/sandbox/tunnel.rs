//! A tunnel between two namespaces: server and client as processes of `roadweave`, with new keys.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_config::write_secrets;
use roadweave_identity::Identity;
use roadweave_linux::netns::NetNs;
use roadweave_linux::{Instance, random_bytes};
use roadweave_tunnel::Strategy;
use serde_json::Value;

use super::clock;
use super::daemon::Daemon;
use crate::emulate::EmulateFile;

pub const SERVER_INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const INNER_NETWORK: &str = "10.77.0.1/24";
const CLIENT_INNER: &str = "10.77.0.2/32";
const CLIENT_TUN: &str = "rw0";
const SERVER_TUN: &str = "rw1";
/// From then on some of the paths suffice.
const ALL_PATHS: Duration = Duration::from_secs(5);
/// Without a path by then the tunnel has failed.
const FIRST_PATH: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct TunnelSpec<'a> {
    pub uplinks: Vec<&'a str>,
    pub server: SocketAddr,
    pub lane: &'a str,
    pub strategy: Strategy,
    /// The network routed into the tunnel by the client.
    pub into_tunnel: &'a str,
    pub behind_client: Option<&'a str>,
}

#[derive(Clone, Debug)]
pub struct TunnelFiles {
    pub server: PathBuf,
    pub client: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub struct Testbed<'a> {
    pub program: &'a Path,
    pub directory: &'a Path,
    pub server: &'a NetNs,
    pub client: &'a NetNs,
}

#[derive(Debug)]
pub struct Tunnel {
    pub server: Daemon,
    pub client: Daemon,
    pub socket: PathBuf,
}

impl TunnelSpec<'_> {
    pub fn write(&self, directory: &Path) -> anyhow::Result<TunnelFiles> {
        let client = Identity::from_seed(random_bytes()?);
        let server = Identity::from_seed(random_bytes()?);
        Ok(TunnelFiles {
            server: write(directory, "server.toml", &self.server_file(&client, &server))?,
            client: write(directory, "client.toml", &self.client_file(&client, &server))?,
        })
    }

    fn client_file(&self, client: &Identity, server: &Identity) -> String {
        let uplinks: Vec<_> = self.uplinks.iter().map(|name| format!("{name:?}")).collect();
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
             name = \"{lane}\"\n\
             strategy = \"{strategy}\"\n",
            private = client.to_base64(),
            address = self.server,
            public = server.public_key(),
            uplinks = uplinks.join(", "),
            network = self.into_tunnel,
            lane = self.lane,
            strategy = self.strategy,
        )
    }

    fn server_file(&self, client: &Identity, server: &Identity) -> String {
        let addresses: Vec<_> = [Some(CLIENT_INNER), self.behind_client]
            .into_iter()
            .flatten()
            .map(|address| format!("{address:?}"))
            .collect();
        format!(
            "listen = \"0.0.0.0:{port}\"\n\
             private_key = \"{private}\"\n\
             addresses = [\"{INNER_NETWORK}\"]\n\
             allow_destinations = [\"{SERVER_INNER}\"]\n\
             masquerade = false\n\
             [tun]\n\
             name = \"{SERVER_TUN}\"\n\
             [[lanes]]\n\
             name = \"{lane}\"\n\
             [[peers]]\n\
             name = \"vehicle\"\n\
             public_key = \"{public}\"\n\
             addresses = [{addresses}]\n",
            port = self.server.port(),
            private = server.to_base64(),
            public = client.public_key(),
            lane = self.lane,
            addresses = addresses.join(", "),
        )
    }
}

impl Tunnel {
    pub fn start(testbed: Testbed<'_>, files: &TunnelFiles) -> anyhow::Result<Self> {
        Self::start_as(testbed, files, ["server", "client"])
    }

    pub fn start_routers(testbed: Testbed<'_>, files: &TunnelFiles) -> anyhow::Result<Self> {
        Self::start_as(testbed, files, ["router"; 2])
    }

    fn start_as(
        testbed: Testbed<'_>,
        files: &TunnelFiles,
        roles: [&str; 2],
    ) -> anyhow::Result<Self> {
        let start = |name: &'static str, role: &str, namespace: &NetNs, config: &Path| {
            let mut command = namespace.command(testbed.program);
            command.arg(role).arg("--config").arg(config);
            Daemon::start(name, &mut command, testbed.directory)
        };
        Ok(Self {
            server: start("server", roles[0], testbed.server, &files.server)?,
            client: start("client", roles[1], testbed.client, &files.client)?,
            socket: Instance::new(CLIENT_TUN)?.socket_path(),
        })
    }

    /// Waits until `paths` paths are usable, or until [`ALL_PATHS`] if some are. Fails if `alive`
    /// does, an end has ended, or no path becomes usable.
    pub fn wait_for_paths(
        &mut self,
        paths: usize,
        mut alive: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begin = clock::now();
        loop {
            alive()?;
            self.check_running()?;
            let usable = self.status().map_or(0, |status| usable_paths(&status));
            let waited = clock::now() - begin;
            if usable >= paths || usable > 0 && waited > ALL_PATHS {
                return Ok(());
            }
            if waited > FIRST_PATH {
                bail!(
                    "the tunnel did not come up within {} s{}{}",
                    waited.as_secs(),
                    self.client.last_words(),
                    self.server.last_words()
                );
            }
            clock::sleep_until(clock::now() + POLL);
        }
    }

    pub fn status(&self) -> Option<Value> {
        roadweave_node::local::request(&self.socket, "status", &Value::Null).ok()
    }

    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()?;
        self.client.check_running()
    }

    pub fn stop(self) -> anyhow::Result<()> {
        self.client.stop()?;
        self.server.stop()
    }
}

/// Starts the emulator of `links`, which enters both namespaces itself.
pub fn start_emulator(
    name: &'static str,
    program: &Path,
    links: &EmulateFile,
    directory: &Path,
) -> anyhow::Result<Daemon> {
    let text = toml::to_string(links).context("cannot express the links")?;
    let file = write(directory, &format!("{name}.toml"), &text)?;
    let mut command = Command::new(program);
    Daemon::start(name, command.arg("emulate").arg("--config").arg(file), directory)
}

pub fn write(directory: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    write_secrets(&[(&path, text)])?;
    Ok(path)
}

fn usable_paths(status: &Value) -> usize {
    let session = status["sessions"].as_array().and_then(|sessions| sessions.first());
    let paths = session.and_then(|session| session["paths"].as_array());
    let usable = |path: &&Value| path["status"].as_str() == Some("usable");
    paths.map_or(0, |paths| paths.iter().filter(usable).count())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use roadweave_config::{ClientFile, ServerFile, load};

    #[test]
    fn the_files_are_read_back_by_those_who_need_them() {
        let directory = tempfile::tempdir().unwrap();
        let spec = TunnelSpec {
            uplinks: vec!["att", "lte"],
            server: "198.51.100.2:4433".parse().unwrap(),
            lane: "video",
            strategy: "single:lte".parse().unwrap(),
            into_tunnel: "203.0.113.0/24",
            behind_client: Some("192.168.70.0/24"),
        };
        let files = spec.write(directory.path()).unwrap();
        let client: ClientFile = load(&files.client).unwrap();
        let server: ServerFile = load(&files.server).unwrap();
        assert_eq!(client.lanes[0].strategy.get().as_str(), "single:lte");
        assert_eq!(client.uplinks.include, ["att", "lte"]);
        let known = client.server.unwrap().public_key;
        assert_eq!(known, server.private_key.identity().unwrap().public_key());
        assert_eq!(server.peers[0].public_key, client.private_key.identity().unwrap().public_key());
        assert_eq!(server.peers[0].addresses.len(), 2);
        assert!(server.addresses.iter().any(|network| network.addr() == SERVER_INNER));
    }

    #[test]
    fn only_usable_paths_are_counted() {
        let path = |status: &str| json!({"status": status});
        let paths = [path("usable"), path("validating"), path("usable")];
        assert_eq!(usable_paths(&json!({"sessions": [{"paths": paths}]})), 2);
        for status in [json!({}), json!({"sessions": []}), json!({"sessions": [{}]})] {
            assert_eq!(usable_paths(&status), 0);
        }
    }
}
