//! Network namespaces for the demo, the tests and the benches, which leave nothing behind. Named
//! ones are mounts below `/run/netns`, a private file system inside a [`Sandbox`].

mod sandbox;
mod testing;
mod watch;

pub use sandbox::Sandbox;
pub use testing::{
    WAIT_MAX, cable, echo, run_sandboxed, sandbox_is_there, wait_or_show, wait_until, wait_within,
};
pub use watch::Watch;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ipnet::IpNet;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{DeviceError, Netlink};

/// A network namespace. Clones are the same one.
#[derive(Clone, Debug)]
pub struct NetNs {
    name: String,
    path: PathBuf,
    file: Arc<File>,
}

impl NetNs {
    /// Creates a namespace with its loopback up. Fails with [`DeviceError::Unavailable`] outside a
    /// [`Sandbox`], which ends it, or without the program `ip`.
    pub fn create(name: &str) -> Result<Self, DeviceError> {
        if !sandbox::is_inside() {
            let why = "network namespaces can only be created inside a sandbox, which removes them \
                       at its end";
            return Err(DeviceError::Unavailable { why: why.to_owned() });
        }
        run("ip", &["netns", "add", name])?;
        let namespace = Self::open(name)?;
        namespace.enter(|| set_up("lo"))??;
        Ok(namespace)
    }

    /// Opens an existing namespace: one of `ip netns`, or by a path such as `/proc/1/ns/net`.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let path = Path::new(NAMED).join(name);
        let file = File::open(&path).map_err(|error| {
            DeviceError::system(format!("open the network namespace {name}"), error)
        })?;
        Ok(Self { name: name.to_owned(), path, file: Arc::new(file) })
    }

    /// The name or path, as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside, where sockets that it opens stay. Panics if `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, DeviceError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.file.as_fd(), network).map_err(|error| {
                    let name = &self.name;
                    DeviceError::system(format!("enter the network namespace {name}"), error)
                })?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A command that runs `program` inside. Killing its process kills the program, not a helper.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let mut net = std::ffi::OsString::from("--net=");
        net.push(&self.path);
        command.arg(net).arg("--").arg(program);
        command
    }

    /// Runs `ip` inside, as in `ns.ip("route add default via 10.0.0.1")`.
    pub fn ip(&self, arguments: &str) -> Result<(), DeviceError> {
        let mut words = vec!["-n", &self.name];
        words.extend(arguments.split_whitespace());
        run("ip", &words)
    }

    /// Runs a program inside and returns its output, as in `ns.run("ip route get 10.1.0.1")`.
    pub fn run(&self, words: &str) -> Result<String, DeviceError> {
        let mut words = words.split_whitespace();
        let program = words.next().unwrap_or_default();
        output(self.command(program).args(words))
    }

    /// Runs a script with `nft` inside.
    pub fn nft(&self, script: &str) -> Result<(), DeviceError> {
        output(self.command("nft").arg(script)).map(drop)
    }

    /// Sets a `net.*` sysctl inside, as in `ns.set_sysctl("net.ipv4.ip_forward", "1")`.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), DeviceError> {
        self.enter(|| crate::sysctl::write(key, value))?
    }

    /// Turns forwarding on, for IPv4 and IPv6.
    pub fn set_forwarding(&self) -> Result<(), DeviceError> {
        self.set_sysctl("net.ipv4.ip_forward", "1")?;
        self.set_sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    /// Connects two namespaces by a veth pair, with the interfaces up and addressed.
    pub fn connect(left: &CableEnd<'_>, right: &CableEnd<'_>) -> Result<(), DeviceError> {
        let arguments = format!(
            "link add {} netns {} type veth peer name {} netns {}",
            left.interface, left.namespace.name, right.interface, right.namespace.name
        );
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run("ip", &arguments)?;
        // Both up before the addresses: IPv6 waits for the carrier.
        for end in [left, right] {
            end.namespace.enter(|| set_up(end.interface))??;
        }
        for end in [left, right] {
            end.namespace.enter(|| end.add_addresses())??;
        }
        Ok(())
    }
}

/// One end of a cable between two namespaces.
#[derive(Clone, Debug)]
pub struct CableEnd<'a> {
    /// The network namespace that the interface is in.
    pub namespace: &'a NetNs,
    /// The name of the interface.
    pub interface: &'a str,
    /// The interface's addresses.
    pub addresses: &'a [IpNet],
}

impl CableEnd<'_> {
    fn add_addresses(&self) -> Result<(), DeviceError> {
        let mut netlink = Netlink::open()?;
        let index = netlink.link(self.interface)?.index;
        self.addresses.iter().try_for_each(|prefix| netlink.add_address(index, *prefix))
    }
}

fn set_up(interface: &str) -> Result<(), DeviceError> {
    let mut netlink = Netlink::open()?;
    let index = netlink.link(interface)?.index;
    netlink.set_link(index, true, None)
}

fn run(program: &str, arguments: &[&str]) -> Result<(), DeviceError> {
    output(Command::new(program).args(arguments)).map(drop)
}

fn output(command: &mut Command) -> Result<String, DeviceError> {
    let output = command.output().map_err(|error| {
        let program = command.get_program().to_string_lossy();
        DeviceError::Unavailable { why: format!("cannot run the program {program}: {error}") }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let detail = text.trim().lines().next_back().unwrap_or("it gave no reason").to_owned();
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    Err(DeviceError::Program { program: words.join(" "), detail })
}

const NAMED: &str = "/run/netns";
