//! Other tunnels between the namespaces of a bench, to be measured beside ours.

mod glorytun;
mod wireguard;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::tunnel::Bench;
use crate::sandbox::daemon::Daemon;

/// How long a peer may take until it does what it is told.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked whether it does.
const POLL: Duration = Duration::from_millis(20);

/// A program whose tunnel a bench knows how to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProgram {
    path: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Boringtun,
    Glorytun,
}

/// The running tunnel of another program; dropping it kills both ends.
#[derive(Debug)]
pub struct Peer {
    /// Of the program.
    pub name: &'static str,
    /// The client's process.
    pub client: Daemon,
    /// The server's process.
    pub server: Daemon,
    /// The server's address inside.
    pub address: IpAddr,
}

impl FromStr for PeerProgram {
    type Err = String;

    /// By the name of its file.
    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let name = path.file_name().map_or_else(Default::default, |name| name.to_string_lossy());
        let kind = match &*name {
            name if name.starts_with("boringtun") => Kind::Boringtun,
            name if name.starts_with("glorytun") => Kind::Glorytun,
            _ => return Err("known are the tunnels of `boringtun-cli` and `glorytun`".to_owned()),
        };
        Ok(Self { path, kind })
    }
}

impl PeerProgram {
    /// Builds its tunnel in `bench`.
    ///
    /// # Errors
    /// When the program cannot be started or does not do as it is told, with what it said.
    pub fn start(&self, bench: &Bench) -> anyhow::Result<Peer> {
        match self.kind {
            Kind::Boringtun => wireguard::start(&self.path, bench.site()),
            Kind::Glorytun => glorytun::start(&self.path, bench.site()),
        }
    }

    /// Where the program is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Peer {
    /// # Errors
    /// When an end has ended, with what it said last.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.server.check_running()?;
        self.client.check_running()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_file() {
        let kind = |text: &str| text.parse::<PeerProgram>().map(|it| it.kind);
        assert_eq!(kind("/opt/bin/boringtun-cli"), Ok(Kind::Boringtun));
        assert_eq!(kind("glorytun"), Ok(Kind::Glorytun));
        let error = kind("/opt/glorytun/wg").unwrap_err();
        assert!(error.contains("`boringtun-cli` and `glorytun`"), "{error}");
        assert!(kind("").is_err());
    }
}
