//! What an instance tells of a packet, as a packet of a file: interface, bytes and comment.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use roadweave_device::local::Captured;
use roadweave_tunnel::{InnerRole, SeenKind};
use roadweave_types::peer_text;

use super::headers::UdpPacket;
use super::pcapng::LinkType;
use super::places::{Place, Places};

/// A packet for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The name of its interface: the uplink's, behind the client's at a server.
    pub(super) interface: String,
    pub(super) link: LinkType,
    /// The uplink alone, for whoever asks for one.
    pub(super) uplink: Option<String>,
    /// The other end of its session, if it belongs to one.
    pub(super) peer: Option<String>,
    pub(super) unix_nanos: u64,
    pub(super) is_out: bool,
    pub(super) length: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) comment: String,
}

/// What frames are made with.
#[derive(Debug)]
pub(super) struct Framing {
    /// The instance's device: what no single path brought is told of there.
    pub(super) device: String,
    /// Whether interfaces bear the names of peers: a server has many.
    pub(super) names_peers: bool,
    pub(super) places: Places,
    /// This end's addresses, by uplink, as packets that came told them.
    pub(super) locals: BTreeMap<Option<String>, IpAddr>,
}

impl Framing {
    pub(super) fn frame(&mut self, packet: Captured) -> Frame {
        let Captured { unix_nanos, is_out, length, what, bytes, .. } = packet;
        let direction = if is_out { "out" } else { "in" };
        match what {
            SeenKind::Inner { peer, path, uplink, lane, lane_name, role } => {
                let (path, lane) = (path.0, lane.0);
                let place = Place { peer, path, uplink };
                let (link, by_path) = match role {
                    InnerRole::Coded { .. } => (LinkType::User0, true),
                    InnerRole::Restored(_) => (LinkType::Raw, false),
                    _ => (LinkType::Raw, true),
                };
                let mut interface = if by_path { self.name(&place) } else { self.device.clone() };
                if link == LinkType::User0 {
                    interface.push_str(" coded");
                }
                let lane = match lane_name {
                    Some(name) => format!("lane {lane} {}", peer_text(name.as_bytes())),
                    None => format!("lane {lane}"),
                };
                let comment = format!("{direction}, {}, {lane}, {}", said(&place), told(role));
                let (uplink, peer) = (place.uplink.filter(|_| by_path), Some(place.peer));
                Frame { interface, link, uplink, peer, unix_nanos, is_out, length, bytes, comment }
            }
            SeenKind::Outer { uplink, remote, local, ecn } => {
                let place = self.places.find(uplink.as_deref(), remote).cloned();
                let local = self.known(&uplink, local);
                let (source, destination) = if is_out { (local, remote) } else { (remote, local) };
                let packet = UdpPacket { source, destination, ecn, length, payload: &bytes };
                let (bytes, length) = packet.build();
                let comment = match &place {
                    Some(place) => format!("{direction}, {}", said(place)),
                    None => format!("{direction}, of no path that is known"),
                };
                let interface = match (&place, &uplink) {
                    (Some(place), _) => self.name(place),
                    (None, Some(uplink)) => uplink.clone(),
                    (None, None) => OTHERS.to_owned(),
                };
                let uplink = place.as_ref().and_then(|it| it.uplink.clone()).or(uplink);
                let (link, peer) = (LinkType::Raw, place.map(|place| place.peer));
                Frame { interface, link, uplink, peer, unix_nanos, is_out, length, bytes, comment }
            }
        }
    }

    /// This end of a packet over `uplink`, of which the instance has said `local`: it knows the
    /// address of what comes, and leaves that of what goes to the kernel.
    fn known(&mut self, uplink: &Option<String>, local: SocketAddr) -> SocketAddr {
        if !local.ip().is_unspecified() {
            self.locals.insert(uplink.clone(), local.ip());
            return local;
        }
        let known = self.locals.get(uplink).copied().unwrap_or(local.ip());
        SocketAddr::new(known, local.port())
    }

    /// The name of a path's interface.
    fn name(&self, place: &Place) -> String {
        let path = match &place.uplink {
            Some(uplink) => peer_text(uplink.as_bytes()),
            None => format!("path {}", place.path),
        };
        match self.names_peers {
            true => format!("{} {path}", peer_text(place.peer.as_bytes())),
            false => path,
        }
    }
}

/// A path in words.
fn said(place: &Place) -> String {
    let Place { peer, path, uplink } = place;
    let over = uplink.as_ref().map(|name| format!(" over {}", peer_text(name.as_bytes())));
    format!("path {path}{} with {}", over.unwrap_or_default(), peer_text(peer.as_bytes()))
}

/// What a packet was to its lane, in words.
fn told(role: InnerRole) -> String {
    match role {
        InnerRole::Source(id) => format!("source packet {}", id.0),
        InnerRole::Copy(id) => format!("copy of source packet {}", id.0),
        InnerRole::Fragment(id) => {
            format!("first fragment of an inner packet, source packet {}", id.0)
        }
        InnerRole::Late(id) => format!("source packet {}, too late", id.0),
        InnerRole::Restored(id) => {
            format!(
                "packet {}, restored from coded packets, of which this path brought the last",
                id.0
            )
        }
        InnerRole::Coded { start, count } => {
            format!("coded packet over {count} packets from {} on", start.0)
        }
    }
}

/// The interface of packets that belong to no path of a server.
const OTHERS: &str = "no path";
