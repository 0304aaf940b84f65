//! A node's edge to this machine: clock, TUN and sockets.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use roadweave_linux::{
    Clock, Ecn, Incoming, Outgoing, SendFailure, SendOutcome, Tun, UplinkSocket,
};
use roadweave_proto::{DropCounters, DropReason, Instant, UplinkId};
use roadweave_quic::Outbox;
use roadweave_tunnel::{Io, Node, RecvMeta};

use super::DriverError;
use crate::status::DeviceCounters;

const DISCARDS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Edge {
    pub(super) clock: Clock,
    /// `None` for a proxy, which delivers nothing to its machine.
    tun: Option<Tun>,
    /// By uplink; `None` is the key of a server's only socket.
    pub(super) sockets: BTreeMap<Option<UplinkId>, UplinkSocket>,
    /// Former sockets of uplinks whose port was changed: late answers may still arrive.
    pub(super) former_sockets: BTreeMap<UplinkId, UplinkSocket>,
    pub(super) gone: BTreeSet<UplinkId>,
    pub(super) drops: DropCounters,
}

impl Edge {
    pub(super) fn new(clock: Clock, tun: Option<Tun>) -> Self {
        Self {
            clock,
            tun,
            sockets: BTreeMap::new(),
            former_sockets: BTreeMap::new(),
            gone: BTreeSet::new(),
            drops: DropCounters::default(),
        }
    }

    pub(super) fn tun(&self) -> Option<&Tun> {
        self.tun.as_ref()
    }

    pub(super) fn tun_name(&self) -> &str {
        self.tun.as_ref().map_or("", Tun::name)
    }

    pub(super) fn device_counters(&self) -> DeviceCounters {
        let device = self.tun.as_ref().map(Tun::statistics).unwrap_or_default();
        DeviceCounters {
            packets_read: device.packets_read,
            bytes_read: device.bytes_read,
            packets_written: device.packets_written,
            bytes_written: device.bytes_written,
        }
    }

    pub(super) fn read_tun(
        &mut self,
        reads: usize,
        handle: impl FnMut(&[u8]),
    ) -> Result<(), DriverError> {
        let Some(tun) = &mut self.tun else { return Ok(()) };
        let taken = tun.read_batch(reads, handle).map(drop);
        taken.map_err(|source| DriverError::TunGone { name: tun.name().to_owned(), source })
    }

    pub(super) fn discard_inner(&mut self) -> Result<u64, DriverError> {
        let mut packets = 0;
        for _ in 0..DISCARDS_MAX {
            let before = packets;
            self.read_tun(Tun::READS_MAX, |_| packets += 1)?;
            if packets == before {
                break;
            }
        }
        self.drops.add(DropReason::QueueExpired, packets);
        Ok(packets)
    }

    pub(super) fn read_socket(
        &mut self,
        now: Instant,
        uplink: Option<UplinkId>,
        node: &mut impl Node,
    ) -> std::io::Result<()> {
        let Self { clock, sockets, former_sockets, .. } = self;
        // An error of the former socket also affects the current one, which reports it.
        if let Some(former) = uplink.and_then(|id| former_sockets.get_mut(&id)) {
            let _ = read(former, now, uplink, clock, node);
        }
        match sockets.get_mut(&uplink) {
            Some(socket) => read(socket, now, uplink, clock, node),
            None => Ok(()),
        }
    }
}

fn read(
    socket: &mut UplinkSocket,
    now: Instant,
    uplink: Option<UplinkId>,
    clock: &Clock,
    node: &mut impl Node,
) -> std::io::Result<()> {
    let received = socket.recv(|incoming| {
        let Incoming { remote, local, ecn, received, payload, .. } = incoming;
        let socket = uplink.unwrap_or(UplinkId(0));
        let ecn = ecn.and_then(|ecn| roadweave_quic::Ecn::from_bits(ecn as u8));
        let received = received.map(|at| clock.at(at));
        let meta = RecvMeta { socket, remote, local, ecn, received };
        node.handle_packet(now, &meta, payload);
    });
    received.map(drop)
}

impl Io for Edge {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let Some(tun) = &mut self.tun else {
            return self.drops.add(DropReason::NoRoute, packets.count() as u64);
        };
        let counts = tun.write_batch(packets);
        self.drops.add(DropReason::DeviceFull, (counts.full + counts.refused) as u64);
    }

    /// A refused packet is counted as lost: recovery or a router's other links make up for it.
    fn transmit(&mut self, packets: &Outbox) {
        for run in packets.runs() {
            let outgoing = Outgoing {
                destination: run.route.destination,
                source: run.route.source,
                ecn: run.route.ecn.and_then(|ecn| Ecn::from_bits(ecn.bits())),
                contents: run.data,
                segment_size: run.segment_size,
            };
            let Some(socket) = self.sockets.get_mut(&run.route.uplink) else {
                self.drops.add(DropReason::SendFailed, run.packets().len() as u64);
                continue;
            };
            if socket.send(&outgoing) == SendOutcome::Failed(SendFailure::NoInterface) {
                self.gone.extend(run.route.uplink);
            }
        }
    }
}
