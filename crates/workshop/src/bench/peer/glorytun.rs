//! glorytun: a tunnel over several paths, which orders, codes and repairs nothing.
//!
//! Both ends run in the foreground, each with a device; then the client is told its paths by the
//! same program, one for each link. Their rates are fixed above what a veth carries, so that they
//! hold nothing back.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use roadweave_device::netns::NetNs;

use super::super::tunnel::{CLIENT_OUTERS, SERVER_OUTER};
use super::{PATIENCE, POLL, Peer};
use crate::sandbox::clock;
use crate::sandbox::daemon::Daemon;
use crate::sandbox::tunnel::Site;

/// Where the server listens, and from where the client sends.
const PORTS: [&str; 2] = ["5000", "5001"];
const DEVICES: [&str; 2] = ["gt1", "gt0"];
const ADDRESSES: [&str; 2] = ["10.82.0.1/24", "10.82.0.2/24"];
const SERVER_INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 82, 0, 1));
const RATE: &str = "10gbit";

pub(super) fn start(program: &Path, site: Site<'_>) -> anyhow::Result<Peer> {
    // It keeps nothing secret.
    let key = site.directory.join("glorytun.key");
    fs::write(&key, "01".repeat(32)).with_context(|| format!("cannot write {}", key.display()))?;
    let bind = |namespace: &NetNs, end: usize| {
        let mut command = namespace.command(program);
        command.args(["bind", "dev", DEVICES[end], "keyfile"]).arg(&key);
        command.args(["from", "addr", "0.0.0.0", "port", PORTS[end]]);
        command
    };
    let mut command = bind(site.server, 0);
    let mut server = Daemon::start("glorytun-server", &mut command, site.directory)?;
    let to = SERVER_OUTER.to_string();
    let to = ["to", "addr", to.as_str(), "port", PORTS[0]];
    let mut command = bind(site.client, 1);
    let mut client = Daemon::start("glorytun-client", command.args(to), site.directory)?;
    let path = |further: &[&str]| {
        let mut command = site.client.command(program);
        command.args(["path", "dev", DEVICES[1]]).args(further);
        command
    };
    for outer in CLIENT_OUTERS {
        let outer = outer.to_string();
        let addresses = [&["addr", outer.as_str()], &to[..]].concat();
        let rate = ["set", "up", "rate", "fixed", "tx", RATE, "rx", RATE];
        until(&mut [&mut server, &mut client], path(&[&addresses[..], &rate].concat()), |_| true)?;
    }
    for (namespace, end) in [(site.server, 0), (site.client, 1)] {
        namespace.ip(&format!("address add {} dev {}", ADDRESSES[end], DEVICES[end]))?;
        namespace.ip(&format!("link set {} up", DEVICES[end]))?;
    }
    until(&mut [&mut server, &mut client], path(&[]), all_paths_run)?;
    Ok(Peer { name: "glorytun", client, server, address: SERVER_INNER })
}

/// Whether both paths carry something, by what the program prints of them.
fn all_paths_run(text: &str) -> bool {
    text.lines().filter(|line| line.contains("running")).count() == CLIENT_OUTERS.len()
}

/// Repeats `command` until it succeeds and prints what is `enough`.
fn until(
    ends: &mut [&mut Daemon],
    mut command: Command,
    enough: fn(&str) -> bool,
) -> anyhow::Result<()> {
    let deadline = clock::now() + PATIENCE;
    loop {
        ends.iter_mut().try_for_each(|end| end.check_running())?;
        let output = command.output().context("cannot start glorytun")?;
        if output.status.success() && enough(&String::from_utf8_lossy(&output.stdout)) {
            return Ok(());
        }
        if clock::now() >= deadline {
            let said = [output.stdout, output.stderr].concat();
            bail!("glorytun does not come up: {}", String::from_utf8_lossy(&said).trim());
        }
        clock::sleep_until(clock::now() + POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_have_to_run() {
        let line = "path  192.0.2.1  198.51.100.2.5000  running  192.0.2.1.5001\n";
        assert!(all_paths_run(&format!("#  LOCAL  REMOTE  STATUS\n{line}{line}")));
        assert!(!all_paths_run(&format!("{line}{}", line.replace("running", "probing"))));
    }
}
