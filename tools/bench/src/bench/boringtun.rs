//! boringtun: WireGuard in its own process. It is configured over its socket
//! (<https://www.wireguard.com/xplatform/>), so that WireGuard's tools are not needed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_linux::netns::NetNs;

use super::tunnel::SERVER_OUTER;
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::Testbed;

pub(super) const SERVER_INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
const INNER_NETWORK: &str = "10.78.0.0/24";
const PORT: u16 = 51_820;
const MTU: u16 = 1420;
const SOCKETS: &str = "/run/wireguard";
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// One end. Keys are not secret: the private ones are 32 times 1 and 32 times 2.
struct End {
    role: &'static str,
    device: &'static str,
    address: &'static str,
    private_byte: &'static str,
    public_key: &'static str,
}

const SERVER: End = End {
    role: "peer-server",
    device: "bt1",
    address: "10.78.0.1/24",
    private_byte: "01",
    public_key: "a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209",
};
const CLIENT: End = End {
    role: "peer-client",
    device: "bt0",
    address: "10.78.0.2/24",
    private_byte: "02",
    public_key: "ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59",
};

pub(super) fn start(program: &Path, testbed: Testbed<'_>) -> anyhow::Result<[Daemon; 2]> {
    let endpoint = SocketAddr::new(SERVER_OUTER, PORT);
    let listen = format!("listen_port={PORT}\n");
    let towards = format!("endpoint={endpoint}\npersistent_keepalive_interval=5\n");
    let server =
        SERVER.start(program, testbed.server, testbed.directory, &listen, (&CLIENT, ""))?;
    let client =
        CLIENT.start(program, testbed.client, testbed.directory, "", (&SERVER, &towards))?;
    Ok([client, server])
}

impl End {
    /// `own` has further lines for this end, `other` the other end and further lines for it.
    fn start(
        &self,
        program: &Path,
        namespace: &NetNs,
        directory: &Path,
        own: &str,
        other: (&Self, &str),
    ) -> anyhow::Result<Daemon> {
        let mut command = namespace.command(program);
        command.args(["--foreground", "--disable-drop-privileges", self.device]);
        let mut daemon = Daemon::start(self.role, &mut command, directory)?;
        let settings = self.settings(own, other);
        configure(&PathBuf::from(SOCKETS).join(format!("{}.sock", self.device)), &settings)
            .with_context(|| {
                format!("the {} did not come up in time{}", self.role, daemon.last_words())
            })?;
        daemon.check_running()?;
        namespace.ip(&format!("address add {} dev {}", self.address, self.device))?;
        namespace.ip(&format!("link set {} mtu {MTU} up", self.device))?;
        Ok(daemon)
    }

    fn settings(&self, own: &str, (other, of_other): (&Self, &str)) -> String {
        let (private, public) = (self.private_byte.repeat(32), other.public_key);
        format!(
            "set=1\nprivate_key={private}\n{own}public_key={public}\n{of_other}\
             allowed_ip={INNER_NETWORK}\n\n"
        )
    }
}

fn configure(socket: &Path, settings: &str) -> anyhow::Result<()> {
    let deadline = clock::now() + TIMEOUT;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if clock::now() >= deadline => {
                return Err(error).with_context(|| format!("no socket {}", socket.display()));
            }
            Err(_) => clock::sleep_until(clock::now() + POLL),
        }
    };
    stream.set_read_timeout(Some(TIMEOUT)).context("cannot set a timeout")?;
    stream.write_all(settings.as_bytes()).context("cannot write to the socket")?;
    stream.shutdown(Shutdown::Write).context("cannot write to the socket")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("cannot read from the socket")?;
    if answer.trim() != "errno=0" {
        bail!("it answers {:?}", answer.trim());
    }
    Ok(())
}
