//! The session's output of inner packets, with a check of their source addresses.

use std::collections::VecDeque;
use std::net::IpAddr;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_proto::wire::{InnerPacket, STREAM_TAG};
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId};

use super::SymbolQueue;
use crate::lane::{Delivery, HELD_MAX, LANES_MAX, contains};
use crate::observe::{PacketLog, PacketStep};

/// Waiting inner packets, at most: all that the lanes may hold back, and some more.
const INBOX_MAX: usize = 4096 + LANES_MAX * HELD_MAX;

#[derive(Debug, Default)]
pub(super) struct InnerOutput {
    pub(super) inbox: VecDeque<(IpAddr, Bytes)>,
    pub(super) drops: DropCounters,
    pub(super) sources: Option<Vec<IpNet>>,
    pub(super) refused_sources: Vec<IpNet>,
    pub(super) log: PacketLog,
    pub(super) symbols: Option<SymbolQueue>,
}

impl InnerOutput {
    pub(super) fn deliver(&mut self, now: Instant, lane: LaneId, delivery: Delivery) {
        let Delivery { id, decoded, packet } = delivery;
        if let Some(symbols) = &mut self.symbols
            && packet.first() == Some(&STREAM_TAG)
        {
            match symbols.push(packet) {
                true => self.log.note(now, lane, id, PacketStep::Delivered { decoded }),
                false => self.drops.count(DropReason::ReceiveMemory),
            }
            return;
        }
        match check_inner(&packet, self.sources.as_deref(), &self.refused_sources) {
            Err(reason) => self.drops.count(reason),
            Ok(_) if self.inbox.len() >= INBOX_MAX => self.drops.count(DropReason::DeviceFull),
            Ok(destination) => {
                self.inbox.push_back((destination, packet));
                self.log.note(now, lane, id, PacketStep::Delivered { decoded });
            }
        }
    }
}

pub(crate) fn check_inner(
    packet: &[u8],
    sources: Option<&[IpNet]>,
    refused: &[IpNet],
) -> Result<IpAddr, DropReason> {
    let view = InnerPacket::parse(packet).map_err(|_| DropReason::MalformedInner)?;
    if view.is_of_link() {
        return Err(DropReason::LinkLocal);
    }
    let is_foreign = sources.is_some_and(|sources| !contains(sources, view.source));
    if is_foreign || contains(refused, view.source) {
        return Err(DropReason::SpoofedSource);
    }
    Ok(view.destination)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::inner;

    #[test]
    fn a_source_that_is_refused_is_refused_whatever_is_allowed() {
        let packet = inner(20);
        let networks = |text: &str| vec![text.parse::<IpNet>().expect("a network")];
        let check = |allowed: Option<&str>, refused: &str, expected| {
            let allowed = allowed.map(networks);
            let result = check_inner(&packet, allowed.as_deref(), &networks(refused));
            assert_eq!(result, expected, "{allowed:?} {refused}");
        };
        let destination = InnerPacket::parse(&packet).expect("well-formed").destination;
        check(None, "10.0.0.0/8", Ok(destination));
        check(Some("192.168.0.0/16"), "10.0.0.0/8", Ok(destination));
        check(Some("10.0.0.0/8"), "10.0.0.0/8", Err(DropReason::SpoofedSource));
        check(None, "192.168.50.0/24", Err(DropReason::SpoofedSource));
        check(Some("192.168.0.0/16"), "192.168.50.0/24", Err(DropReason::SpoofedSource));
    }

    #[test]
    fn nothing_out_of_a_tunnel_speaks_for_a_link() {
        // A router advertisement with a lifetime, from the server's own address.
        let mut packet = vec![0x60, 0, 0, 0, 0, 16, 58, 255];
        for address in ["fd77::1", "ff02::1"] {
            packet.extend(address.parse::<std::net::Ipv6Addr>().expect("an address").octets());
        }
        packet.extend([134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let all = ["::/0".parse::<IpNet>().expect("a network")];
        for sources in [None, Some(&all[..])] {
            assert_eq!(check_inner(&packet, sources, &[]), Err(DropReason::LinkLocal));
        }
    }
}
