//! Results and counters of sending and receiving.

use std::{fmt, io};

use rustix::io::Errno;

/// The result of sending an [`Outgoing`](crate::Outgoing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The kernel took all of it.
    Sent,
    /// The socket's buffer is full. Nothing was sent; wait until it is writable.
    Blocked,
    /// The kernel refused it, or a part; the transport detects the loss.
    Failed(SendFailure),
}

roadweave_proto::named! {
    /// Why the kernel refused to send.
    SendFailure {
        /// No route, or the uplink or the host cannot be reached (ENETUNREACH, EHOSTUNREACH,
        /// ENETDOWN).
        Unreachable = "unreachable",
        /// The peer's port is closed (ECONNREFUSED), as an earlier packet's answer says.
        Refused = "refused",
        /// The queue of the interface is full (ENOBUFS).
        QueueFull = "queue-full",
        /// Larger than the interface or the path takes (EMSGSIZE), as for probes of the MTU.
        TooLarge = "too-large",
        /// The interface is gone (ENODEV), or the source address (EADDRNOTAVAIL).
        NoInterface = "no-interface",
        /// Forbidden by a firewall on this machine (EPERM, EACCES).
        Forbidden = "forbidden",
        /// Anything else.
        Other = "other",
    }
}

impl SendFailure {
    pub(super) fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => {
                Self::Unreachable
            }
            Some(Errno::CONNREFUSED) => Self::Refused,
            Some(Errno::NOBUFS | Errno::NOMEM) => Self::QueueFull,
            Some(Errno::MSGSIZE) => Self::TooLarge,
            Some(Errno::NODEV | Errno::NXIO | Errno::ADDRNOTAVAIL) => Self::NoInterface,
            Some(Errno::PERM | Errno::ACCESS) => Self::Forbidden,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counters since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStatistics {
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Payload bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// System calls that sent datagrams.
    pub sends: u64,
    /// Datagrams refused, in the order of [`SendFailure`].
    pub failed: [u64; 7],
    /// System calls that received datagrams.
    pub receives: u64,
}
