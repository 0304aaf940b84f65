//! Bounds for each source on shared tables of the kernel: connections per second and at a time, and
//! fragments per second. All sources together have three quarters of the connection table. A source
//! is an inner address, or a prefix behind a client, both verified by the tunnel; behind a box it
//! is a hardware address. Sources beyond the size of the sets share one bound.
//!
//! `ct count` walks an element's connections, so a source has several: a hash of ports and address.
//! The rules are in their own table, `inet roadweave_NAME_shares`. Its sets and objects survive
//! changes of prefixes or interfaces, so open connections stay counted.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use roadweave_proto::DropReason;

use self::text::text;
use super::chain::counter;
use super::options::{FilterOptions, Forwarding, Share};
use super::table::Table;
use crate::{DeviceError, Instance, Interface, sysctl};

pub(super) const COUNTED: [DropReason; 2] =
    [DropReason::ConnectionShare, DropReason::FragmentShare];

#[derive(Debug)]
pub(super) struct Shares {
    table: Table,
    wanted: Option<ShareLimits>,
    installed: Option<ShareLimits>,
    next_try: Option<Instant>,
    last_logged: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ShareLimits {
    from: From,
    prefixes: BTreeMap<(bool, u8), BTreeSet<IpNet>>,
    connections: u32,
    /// Fragments of a source per second, of IPv4 and IPv6.
    fragments: [u32; 2],
    table: u32,
    has_timeouts: bool,
    has_counts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    Tun(String),
    Inside(Vec<Interface>),
}

impl Shares {
    pub(super) fn open(instance: &Instance) -> Result<Self, DeviceError> {
        let table = Table::open(instance.shares_table())?;
        let (wanted, installed, next_try, last_logged) = (None, None, None, None);
        Ok(Self { table, wanted, installed, next_try, last_logged })
    }

    pub(super) fn replace(&mut self, options: &FilterOptions) {
        self.wanted = ShareLimits::of(options);
        self.next_try = None;
        self.keep();
    }

    pub(super) fn keep(&mut self) {
        let Some(wanted) = self.wanted.clone() else { return };
        let is_in_place = self.installed.is_some() && self.table.is_in_place();
        let is_due = self.next_try.is_none_or(|at| at <= Instant::now());
        if !is_due || (is_in_place && self.installed.as_ref() == Some(&wanted)) {
            return;
        }
        let result = self.install(&wanted, is_in_place);
        let is_whole = self.installed.as_ref() == Some(&wanted);
        let pause = if result.is_ok() && is_whole { SETTLED } else { RETRY };
        self.next_try = Some(Instant::now() + pause);
        if result.is_ok() && is_whole {
            return;
        }
        if self.last_logged.is_none_or(|at| at.elapsed() >= REMINDER) {
            self.last_logged = Some(Instant::now());
            self.log_result(result.err());
        }
    }

    fn log_result(&self, error: Option<DeviceError>) {
        match (error, &self.installed) {
            (Some(error), _) => tracing::warn!(
                "the limits for each source could not be installed, so one source can fill the \
                 kernel's connection table and fragment memory, trying again: {error}"
            ),
            (None, Some(ShareLimits { has_counts: false, .. })) => tracing::warn!(
                "one source can fill the kernel's connection table: the kernel does not count \
                 connections (NFT_CONNLIMIT)"
            ),
            (None, _) => tracing::warn!(
                "the kernel has no ct timeout objects (NF_CONNTRACK_TIMEOUT): idle TCP connections \
                 stay in its table for net.netfilter.nf_conntrack_tcp_timeout_established"
            ),
        }
    }

    fn install(&mut self, wanted: &ShareLimits, is_in_place: bool) -> Result<(), DeviceError> {
        let counts = self.table.counters().unwrap_or_default();
        let count = |reason| counts.get(&counter(reason)).copied().unwrap_or(0);
        let mut result = Ok(());
        for (has_timeouts, has_counts) in [(true, true), (false, true), (false, false)] {
            let limits = ShareLimits { has_timeouts, has_counts, ..wanted.clone() };
            let before = self.installed.as_ref().filter(|_| is_in_place);
            if before == Some(&limits) {
                return Ok(());
            }
            let before = before.filter(|before| before.has_sets_of(&limits));
            let (text, rules) = text(&self.table.name, &limits, before, count);
            result = self.table.replace(&text, rules);
            match &result {
                Ok(()) => self.installed = Some(limits),
                Err(error) if is_unknown(error) => continue,
                Err(_) => {}
            }
            return result;
        }
        result
    }
}

impl ShareLimits {
    fn of(options: &FilterOptions) -> Option<Self> {
        let Share { connections, prefixes } = options.share.as_ref()?;
        let from = match &options.forwarding {
            Forwarding::Open => return None,
            Forwarding::Box { inside, .. } => From::Inside(inside.clone()),
            Forwarding::Server { .. } => From::Tun(options.tun.clone()),
        };
        let mut by_length: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for prefix in prefixes {
            let key = (prefix.addr().is_ipv4(), prefix.prefix_len());
            by_length.entry(key).or_default().insert(prefix.trunc());
        }
        let table = read(CONNECTIONS_MAX).map_or(TABLE, |all| all.min(u32::MAX.into()) as u32);
        Some(Self {
            from,
            prefixes: by_length,
            connections: (*connections).min(table / 4),
            fragments: ROOMS.map(|(room, wait)| fragments_a_second(room, wait, options.mtu)),
            table,
            has_timeouts: true,
            has_counts: true,
        })
    }

    fn has_sets_of(&self, other: &Self) -> bool {
        let sets = |of: &Self| (of.connections, of.table, of.has_timeouts, of.has_counts);
        sets(self) == sets(other)
    }
}

/// Settings that give fragments more room than Linux does, and a shorter timeout: enough for video
/// in large datagrams. Includes those already at the value: another instance may restore them.
pub(super) fn room(options: &FilterOptions) -> impl Iterator<Item = (&'static str, String)> {
    let room = match &options.forwarding {
        Forwarding::Server { .. } => ROOM_OF_SERVER,
        // A box has less memory; packets larger than its TUN's MTU arrive whole.
        _ => ROOM_OF_BOX,
    };
    ROOMS.into_iter().flat_map(move |(key, wait)| {
        let small = read(key).is_some_and(|now| now <= room).then(|| (key, room.to_string()));
        let long = read(wait).is_some_and(|now| now >= WAIT).then(|| (wait, WAIT.to_string()));
        small.into_iter().chain(long)
    })
}

fn fragments_a_second(room: &str, wait: &str, mtu: u16) -> u32 {
    let room = read(room).unwrap_or(ROOM_OF_BOX);
    let wait = read(wait).unwrap_or(WAIT).max(1);
    (room / 4 / wait / (u64::from(mtu) + OVERHEAD)).clamp(1, 10_000) as u32
}

fn is_unknown(error: &DeviceError) -> bool {
    let DeviceError::Program { detail, .. } = error else { return false };
    ["No such file or directory", "not supported"].iter().any(|said| detail.contains(said))
}

fn read(key: &str) -> Option<u64> {
    sysctl::read(key).ok()?.parse().ok()
}

const CONNECTIONS_MAX: &str = "net.netfilter.nf_conntrack_max";
const TABLE: u32 = 65_536;
const ROOMS: [(&str, &str); 2] = [
    ("net.ipv4.ipfrag_high_thresh", "net.ipv4.ipfrag_time"),
    ("net.netfilter.nf_conntrack_frag6_high_thresh", "net.netfilter.nf_conntrack_frag6_timeout"),
];
const ROOM_OF_SERVER: u64 = 128 * 1024 * 1024;
const ROOM_OF_BOX: u64 = 32 * 1024 * 1024;
/// Seconds. Fragments of a packet follow each other; repair by a tunnel takes less.
const WAIT: u64 = 2;
const OVERHEAD: u64 = 1024;
const SETTLED: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(30);
const REMINDER: Duration = Duration::from_secs(600);
