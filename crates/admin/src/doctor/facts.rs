//! The facts about the machine that the checks look at.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use roadweave_linux::{Gateway, SendFailure};

use super::firewall::Dropping;
use super::marks::Overwriting;

#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) file: FileFacts,
    pub(super) machine: MachineFacts,
    pub(super) role: Option<RoleFacts>,
}

#[derive(Clone, Debug)]
pub(super) struct FileFacts {
    pub(super) path: PathBuf,
    pub(super) error: Option<String>,
    /// Without the bits of the group that is meant to read it; `None` if there is not a file.
    pub(super) mode: Option<u32>,
    pub(super) runs_as: Option<u32>,
    pub(super) written: Option<u64>,
    pub(super) has_key: bool,
    pub(super) state: Option<(PathBuf, Result<Ownership, String>)>,
}

pub(super) type Ownership = (u32, u32);

#[derive(Clone, Debug)]
pub(super) struct MachineFacts {
    pub(super) is_root: bool,
    pub(super) now: u64,
    pub(super) is_synchronised: bool,
    pub(super) has_tun: bool,
    pub(super) has_nft: bool,
    /// The smaller granted socket buffer, bytes.
    pub(super) buffer: Option<usize>,
    pub(super) crypto_bps: Option<u64>,
    /// `None` on processors other than x86-64 and AArch64.
    pub(super) has_aes: Option<bool>,
    pub(super) overwriting: Vec<Overwriting>,
}

#[derive(Clone, Debug)]
pub(super) enum RoleFacts {
    Client(ClientFacts),
    Server(ServerFacts),
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClientFacts {
    /// `host:port` as in the file, and its addresses or the reason why they are unknown.
    pub(super) servers: Vec<(String, Result<Vec<IpAddr>, String>)>,
    pub(super) missing: Vec<String>,
    pub(super) uplinks: Vec<UplinkFacts>,
    pub(super) deadlines: Vec<(String, Duration)>,
    pub(super) unnamed: Option<&'static str>,
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
    /// The effective filter: 0 none, 1 strict, 2 loose.
    pub(super) reverse_path_filter: Option<u8>,
    pub(super) conflict: Option<String>,
    pub(super) probes: Vec<Probe>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) server: std::net::SocketAddr,
    pub(super) outcome: ProbeOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    /// `mtu`: the largest IP packet that was answered, bytes.
    Answered {
        round_trip: Duration,
        mtu: u32,
    },
    NoAnswer,
    NotSent(SendFailure),
    NoSocket,
}

#[derive(Clone, Debug)]
pub(super) struct ServerFacts {
    pub(super) listen: std::net::SocketAddr,
    pub(super) runs: bool,
    pub(super) bind: Option<String>,
    pub(super) tun: String,
    pub(super) drops: Result<Vec<Dropping>, String>,
    /// Tables of `iptables-legacy`, which `nft` does not show.
    pub(super) has_legacy: bool,
}
