//! Errors of system calls and programs, each with its remedy where there is one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;

/// An operation on the system failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel refused for lack of a capability.
    #[error("no permission to {what}: run as root or grant CAP_NET_ADMIN")]
    NoPermission {
        /// The attempted action, as in "no permission to ...".
        what: String,
    },
    /// The folder for locks and sockets belongs to another user.
    #[error(
        "no permission to write in {}: run as root or grant CAP_NET_ADMIN, and create the folder \
         for this user",
        .directory.display()
    )]
    NoRunDirectory {
        /// The folder.
        directory: PathBuf,
    },
    /// A folder that must belong to this program only does not.
    #[error(
        "{} cannot be used: {why}; remove it, or change its owner to the user that runs this \
         program",
        .directory.display()
    )]
    UnsafeDirectory {
        /// The folder.
        directory: PathBuf,
        /// The problem.
        why: String,
    },
    /// IPv6 is not in the kernel, or disabled.
    #[error(
        "cannot {what}: IPv6 is disabled on this machine (sysctl net.ipv6.conf.all.disable_ipv6)"
    )]
    NoIpv6 {
        /// The attempted action, as in "cannot ...".
        what: String,
    },
    /// There is no `/dev/net/tun`.
    #[error(
        "/dev/net/tun does not exist: load the kernel module (modprobe tun) or pass the device \
         into the container (--device /dev/net/tun)"
    )]
    NoTunDevice,
    /// Another program holds the TUN, or another interface has its name.
    #[error(
        "the interface name {name} is in use: stop the program that holds it or choose another name"
    )]
    NameInUse {
        /// The name.
        name: String,
    },
    /// Linux does not accept the name.
    #[error("{name:?} is not an interface name: 1 to 15 bytes without space, slash or colon")]
    BadName {
        /// The name.
        name: String,
    },
    /// An instance's name becomes part of file and table names.
    #[error("{name:?} is not an instance name: 1 to 24 lower-case letters, digits and underscores")]
    BadInstance {
        /// The name.
        name: String,
    },
    /// Another socket holds the address.
    #[error(
        "{address} is in use by another program: `ss -lunp` shows which; stop it or choose another port"
    )]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address is not one of this machine.
    #[error("{address} is not an address of this machine: `ip address` lists them")]
    AddressNotHere {
        /// The address.
        address: SocketAddr,
    },
    /// There is no such interface.
    #[error("there is no interface {name}: `ip link` lists the interfaces")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// A running process has the same instance.
    #[error("instance {instance} is already running{}: stop it or choose another instance name",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    AlreadyRunning {
        /// The name of the instance.
        instance: String,
        /// Its process, where known.
        pid: Option<u32>,
    },
    /// The machine lacks something necessary.
    #[error("{why}")]
    Unavailable {
        /// What is missing, and how to get it.
        why: String,
    },
    /// A program failed.
    #[error("{program} failed: {detail}")]
    Program {
        /// The program.
        program: String,
        /// The last line that it wrote.
        detail: String,
    },
    /// Any other failure of the system.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted action, as in "cannot ...".
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DeviceError {
    /// The error of an attempt to `what`; a lack of permission gets its own variant.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { what },
            _ => Self::System { what, source },
        }
    }

    /// As [`Self::system`], with a variant of its own for a lack of IPv6.
    pub(crate) fn of_family(
        ipv4: bool,
        what: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        let (what, source) = (what.into(), source.into());
        // With IPv6 disabled by sysctl the kernel returns EACCES; a lack of permission is EPERM.
        match Errno::from_io_error(&source) {
            Some(Errno::ACCESS | Errno::AFNOSUPPORT | Errno::OPNOTSUPP) if !ipv4 => {
                Self::NoIpv6 { what }
            }
            _ => Self::system(what, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_ipv6_is_off_is_no_lack_of_rights() {
        let off = |ipv4, errno| {
            let error = DeviceError::of_family(ipv4, "add the address", errno);
            matches!(error, DeviceError::NoIpv6 { .. })
        };
        assert!(off(false, Errno::ACCESS));
        assert!(off(false, Errno::AFNOSUPPORT));
        assert!(!off(false, Errno::PERM));
        assert!(!off(true, Errno::ACCESS));
    }
}
