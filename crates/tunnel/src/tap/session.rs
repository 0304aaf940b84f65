//! What a session shows of its lanes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use roadweave_types::{Instant, LaneId, PacketId, PathId};
use roadweave_wire::{
    Datagram, FragmentPosition, InnerPacket, STREAM_TAG, SYMBOL_HEADER, Symbol, split_predecessor,
    split_stamp,
};

use super::{InnerRole, SeenKind, Tap};
use crate::lane::Arrival;

/// Paths whose uplinks are known, at most.
const UPLINKS_MAX: usize = 64;

/// The tap of one session; its lanes have clones.
#[derive(Clone, Debug)]
pub(crate) struct SessionTap {
    tap: Tap,
    peer: Arc<str>,
    /// The names of uplinks by path; touched while somebody watches, and when a path is named.
    uplinks: Arc<Mutex<BTreeMap<PathId, String>>>,
}

/// How a datagram of a lane went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage<'a> {
    pub(crate) at: Instant,
    pub(crate) is_out: bool,
    pub(crate) path: PathId,
    pub(crate) lane: LaneId,
    /// At the end that sends.
    pub(crate) lane_name: Option<&'a str>,
}

impl Default for SessionTap {
    /// Nobody can watch by it.
    fn default() -> Self {
        Self::new(Tap::default(), "")
    }
}

impl SessionTap {
    /// For a session with `peer`.
    pub(crate) fn new(tap: Tap, peer: &str) -> Self {
        Self { tap, peer: peer.into(), uplinks: Arc::default() }
    }

    /// Whether anything is to be shown.
    pub(crate) fn is_watched(&self) -> bool {
        self.tap.shows_inner()
    }

    /// The name of the network that `path` runs over.
    pub(crate) fn name_path(&self, path: PathId, name: &str) {
        let mut uplinks = self.uplinks.lock().unwrap_or_else(PoisonError::into_inner);
        if uplinks.len() >= UPLINKS_MAX && !uplinks.contains_key(&path) {
            uplinks.pop_first();
        }
        uplinks.insert(path, name.to_owned());
    }

    /// `path` is closed.
    pub(crate) fn forget_path(&self, path: PathId) {
        self.uplinks.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
    }

    /// Shows a symbol that left, or what became of one that came.
    pub(crate) fn show_source(&self, passage: Passage<'_>, symbol: &Bytes, role: InnerRole) {
        let Ok(Symbol { position, .. }) = Symbol::parse(symbol) else { return };
        let role = match (position, role) {
            (FragmentPosition::Whole, role) => role,
            (
                FragmentPosition::First,
                InnerRole::Source(id) | InnerRole::Copy(id) | InnerRole::Late(id),
            ) => InnerRole::Fragment(id),
            _ => return,
        };
        let (_, packet) = split_predecessor(symbol.slice(SYMBOL_HEADER..));
        let (_, packet) = split_stamp(packet);
        self.show_inner(passage, &packet, role);
    }

    /// Shows an inner packet, or as much of it as a fragment holds.
    pub(crate) fn show_inner(&self, passage: Passage<'_>, packet: &[u8], role: InnerRole) {
        if packet.first() == Some(&STREAM_TAG) {
            return;
        }
        let length = match role {
            InnerRole::Fragment(_) => ip_length(packet).unwrap_or(packet.len()),
            _ if InnerPacket::parse(packet).is_err() => return,
            _ => packet.len(),
        };
        self.show(passage, length, packet, role);
    }

    /// Shows a repair: a copy of a source packet, or a coded one.
    pub(crate) fn show_repair(&self, passage: Passage<'_>, datagram: Bytes) {
        let (bytes, length) = (datagram.clone(), datagram.len());
        match Datagram::parse(datagram) {
            Ok(Datagram::Source { id, symbol, .. }) => {
                self.show_source(passage, &symbol, InnerRole::Copy(id));
            }
            Ok(Datagram::Coded(coded)) if self.tap.shows_coded() => {
                let role = InnerRole::Coded { start: coded.start, count: coded.count };
                self.show(passage, length, &bytes, role);
            }
            Ok(Datagram::Sum(sum)) if self.tap.shows_coded() => {
                let count = sum.mask.count_ones() as u16;
                self.show(passage, length, &bytes, InnerRole::Coded { start: sum.start, count });
            }
            _ => {}
        }
    }

    /// The lane of a datagram, if it is coded and coded ones are watched.
    pub(crate) fn coded_lane(&self, datagram: &Bytes) -> Option<LaneId> {
        if !self.tap.shows_coded() {
            return None;
        }
        match Datagram::parse(datagram.clone()) {
            Ok(Datagram::Coded(coded)) => Some(coded.lane),
            Ok(Datagram::Sum(sum)) => Some(sum.lane),
            _ => None,
        }
    }

    fn show(&self, passage: Passage<'_>, length: usize, bytes: &[u8], role: InnerRole) {
        let Passage { at, is_out, path, lane, lane_name } = passage;
        let uplinks = self.uplinks.lock().unwrap_or_else(PoisonError::into_inner);
        let uplink = uplinks.get(&path).cloned();
        drop(uplinks);
        let (peer, lane_name) = (self.peer.to_string(), lane_name.map(str::to_owned));
        let what = SeenKind::Inner { peer, path, uplink, lane, lane_name, role };
        self.tap.show(at, is_out, length, bytes, what);
    }
}

/// What a source packet that came was; `None` for what is none of the lane's.
pub(crate) fn role_of(arrival: Arrival, id: PacketId) -> Option<InnerRole> {
    match arrival {
        Arrival::First => Some(InnerRole::Source(id)),
        Arrival::Duplicate => Some(InnerRole::Copy(id)),
        Arrival::Late | Arrival::Old => Some(InnerRole::Late(id)),
        Arrival::Refused => None,
    }
}

/// The length of the inner packet that begins with `head`, as its header says.
fn ip_length(head: &[u8]) -> Option<usize> {
    let field =
        |at: usize| Some(usize::from(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?])));
    match head.first()? >> 4 {
        4 => field(2),
        6 => field(4).map(|payload| payload + IPV6_HEADER),
        _ => None,
    }
}

const IPV6_HEADER: usize = 40;
