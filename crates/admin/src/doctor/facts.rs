//! What is known of the machine, before anybody judges it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use roadweave_device::{Gateway, SendFailure};

use super::firewall::Dropping;
use super::marks::Overwriting;

/// All that checks look at.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) file: FileFacts,
    pub(super) machine: MachineFacts,
    /// What the file asks for; `None` where it cannot be used.
    pub(super) role: Option<RoleFacts>,
}

/// The configuration file.
#[derive(Clone, Debug)]
pub(super) struct FileFacts {
    pub(super) path: PathBuf,
    /// Why it cannot be used.
    pub(super) error: Option<String>,
    /// Its mode, if it is there, without what a group may read that is there for that.
    pub(super) mode: Option<u32>,
    /// The user as whom clients and servers of this machine run, once one has.
    pub(super) runs_as: Option<u32>,
    /// When it was last written, seconds since 1970.
    pub(super) written: Option<u64>,
    /// Whether a private key is in it.
    pub(super) has_key: bool,
    /// The folder for what is kept, with whose it is or why that is not known.
    pub(super) state: Option<(PathBuf, Result<Ownership, String>)>,
}

/// The owner of a file, and its mode.
pub(super) type Ownership = (u32, u32);

/// What does not depend on the file.
#[derive(Clone, Debug)]
pub(super) struct MachineFacts {
    pub(super) is_root: bool,
    /// Seconds since 1970.
    pub(super) now: u64,
    pub(super) is_synchronised: bool,
    /// Whether `/dev/net/tun` is there.
    pub(super) has_tun: bool,
    /// Whether `nft` is in PATH.
    pub(super) has_nft: bool,
    /// Bytes of the smaller buffer that a socket was granted.
    pub(super) buffer: Option<usize>,
    /// Bits a second that the faster cipher seals on one processor.
    pub(super) crypto_bps: Option<u64>,
    /// Whether the processor has instructions for AES; `None` on others than x86-64 and AArch64.
    pub(super) has_aes: Option<bool>,
    /// Chains of others that overwrite bits of marks which the file's role uses.
    pub(super) overwriting: Vec<Overwriting>,
}

/// What is particular to the role of the file.
#[derive(Clone, Debug)]
pub(super) enum RoleFacts {
    Client(ClientFacts),
    Server(ServerFacts),
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClientFacts {
    /// `host:port` as in the file, and its addresses or why there is none.
    pub(super) servers: Vec<(String, Result<Vec<IpAddr>, String>)>,
    /// Names in `uplinks.include` that no interface has.
    pub(super) missing: Vec<String>,
    pub(super) uplinks: Vec<UplinkFacts>,
    /// `deadline_ms` of each lane, by its name.
    pub(super) deadlines: Vec<(String, Duration)>,
    /// What follows from naming neither uplinks nor what is behind the box, if neither is named.
    pub(super) unnamed: Option<&'static str>,
    /// Why uplinks could not be read.
    pub(super) unread: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct UplinkFacts {
    pub(super) name: String,
    pub(super) carrier: bool,
    pub(super) mtu: u32,
    pub(super) has_ipv4: bool,
    pub(super) has_ipv6: bool,
    pub(super) gateway_v4: Option<Gateway>,
    pub(super) gateway_v6: Option<Gateway>,
    /// The reverse path filter that counts: 0 none, 1 strict, 2 loose.
    pub(super) reverse_path_filter: Option<u8>,
    /// Why a client does not use it, if an address of it belongs to somebody else.
    pub(super) conflict: Option<String>,
    /// Servers that were asked over it.
    pub(super) probes: Vec<Probe>,
}

/// A server that was asked over an uplink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) server: std::net::SocketAddr,
    pub(super) outcome: ProbeOutcome,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    /// It answered after so long; and the largest IP packet that it answered to, bytes.
    Answered {
        round_trip: Duration,
        mtu: u32,
    },
    NoAnswer,
    /// This machine did not send.
    NotSent(SendFailure),
    /// There is no socket on the uplink.
    NoSocket,
}

#[derive(Clone, Debug)]
pub(super) struct ServerFacts {
    pub(super) listen: std::net::SocketAddr,
    /// Whether an instance of this file runs.
    pub(super) runs: bool,
    /// Why its address cannot be bound; `None` where it can.
    pub(super) bind: Option<String>,
    pub(super) tun: String,
    /// Chains that drop what clients send, or why they are not known.
    pub(super) drops: Result<Vec<Dropping>, String>,
    /// Whether there are tables of `iptables-legacy`, which `nft` does not show.
    pub(super) has_legacy: bool,
}
