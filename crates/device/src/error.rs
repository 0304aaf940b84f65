//! What may go wrong at the edge to the system, each with its cure where there is one.

use std::io;
use std::net::SocketAddr;

/// An operation on the system failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel refused for want of a capability.
    #[error("no permission to {what}: run as root or grant CAP_NET_ADMIN")]
    NoPermission {
        /// What was tried, as in "no permission to ...".
        what: String,
    },
    /// There is no `/dev/net/tun`.
    #[error(
        "/dev/net/tun is not there: load the kernel module (modprobe tun) or pass the device into \
         the container (--device /dev/net/tun)"
    )]
    NoTunDevice,
    /// Another program holds the TUN, or another interface has its name.
    #[error(
        "the interface name {name} is in use: stop the program that holds it or choose another name"
    )]
    NameInUse {
        /// The wanted name.
        name: String,
    },
    /// Linux would not take the name.
    #[error("{name:?} is no interface name: 1 to 15 bytes without space, slash or colon")]
    BadName {
        /// The wanted name.
        name: String,
    },
    /// The name of an instance becomes part of file and table names.
    #[error("{name:?} is no instance name: 1 to 24 lower-case letters, digits and underscores")]
    BadInstance {
        /// The wanted name.
        name: String,
    },
    /// Another socket holds the address.
    #[error(
        "{address} is in use by another program: `ss -lunp` shows which; stop it or choose another port"
    )]
    AddressInUse {
        /// What was to be bound.
        address: SocketAddr,
    },
    /// The address belongs to no interface of this machine.
    #[error("{address} is no address of this machine: `ip address` shows those it has")]
    AddressNotHere {
        /// What was to be bound.
        address: SocketAddr,
    },
    /// There is no such interface.
    #[error("there is no interface {name}: `ip link` shows those there are")]
    NoInterface {
        /// The wanted name.
        name: String,
    },
    /// A living process runs the same instance.
    #[error("instance {instance} is already running{}: stop it or choose another instance name",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    AlreadyRunning {
        /// The name of the instance.
        instance: String,
        /// Its process, where known.
        pid: Option<u32>,
    },
    /// The machine lacks something that is needed.
    #[error("{why}")]
    Unavailable {
        /// What is missing, and how to get it.
        why: String,
    },
    /// A program that was called said no.
    #[error("{program} failed: {detail}")]
    Program {
        /// Its name.
        program: String,
        /// The last line that it wrote.
        detail: String,
    },
    /// Any other failure of the system.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried, as in "cannot ...".
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl DeviceError {
    /// Wraps what the kernel said to the attempt to `what`; a lack of rights gets its own variant.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { what },
            _ => Self::System { what, source },
        }
    }

    /// Whether a lack of rights or of software is to blame, so that a test may be skipped.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NoPermission { .. } | Self::NoTunDevice | Self::Unavailable { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_rights_is_told_with_its_cure() {
        let error = DeviceError::system("open the TUN roadweave0", rustix::io::Errno::PERM);
        assert_eq!(
            error.to_string(),
            "no permission to open the TUN roadweave0: run as root or grant CAP_NET_ADMIN"
        );
        assert!(error.is_unavailable());
    }

    #[test]
    fn other_failures_keep_the_words_of_the_kernel() {
        let error = DeviceError::system("set the MTU", rustix::io::Errno::INVAL);
        assert!(error.to_string().starts_with("cannot set the MTU: Invalid argument"), "{error}");
        assert!(!error.is_unavailable());
    }
}
