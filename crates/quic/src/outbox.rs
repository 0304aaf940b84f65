//! Packets for the network, in the order in which they were made.
//!
//! ```text
//! buffer   | packet 0 | packet 1 | packet 2 |p3| packet 4 |      one allocation, reused
//! metas      route A    route A    route A   A   route B
//! runs     '-------------- run ---------------' '- run -'       last of a run may be shorter
//! ```
//!
//! A run suits one `sendmsg` with UDP segmentation offload: same route and length (last: shorter).

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use roadweave_proto::UplinkId;

/// Explicit congestion notification bits of an IP packet (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(0)
    Ect0,
    /// ECT(1)
    Ect1,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Reads the two low bits of the traffic class; other bits are ignored.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits & 0b11 {
            0b01 => Some(Self::Ect1),
            0b10 => Some(Self::Ect0),
            0b11 => Some(Self::Ce),
            _ => None,
        }
    }

    /// The two low bits of the traffic class.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ect1 => 0b01,
            Self::Ect0 => 0b10,
            Self::Ce => 0b11,
        }
    }
}

/// Where a packet leaves and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The uplink whose socket sends it; `None` on a server.
    pub uplink: Option<UplinkId>,
    /// The address it goes to.
    pub destination: SocketAddr,
    /// The address it must come from, on a server that knows where packets arrived.
    pub source: Option<IpAddr>,
    /// The bits for its traffic class.
    pub ecn: Option<Ecn>,
}

/// Packets for the network, each a UDP payload with its [`Route`].
///
/// The driver sends [`Outbox::runs`] and then calls [`Outbox::clear`], before it next sleeps.
#[derive(Debug, Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    metas: Vec<(Route, usize)>,
}

/// Adjacent packets of one [`Route`] and equal length; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// The route of all of them.
    pub route: Route,
    /// The length of all but the last, bytes.
    pub segment_size: usize,
    /// The packets in sequence; at most [`Run::BYTES_MAX`] bytes.
    pub data: &'a [u8],
}

impl<'a> Run<'a> {
    /// The most packets in a run: what Linux takes in one call (`UDP_MAX_SEGMENTS`).
    pub const SEGMENTS_MAX: usize = 64;
    /// The most bytes in a run of several packets: what fits an IP packet.
    pub const BYTES_MAX: usize = 65_000;

    /// The packets.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.data.chunks(self.segment_size)
    }
}

impl Outbox {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Drops all packets and keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.metas.clear();
    }

    /// The packets in order.
    pub fn packets(&self) -> impl Iterator<Item = (Route, &[u8])> {
        let mut rest = self.buffer.as_slice();
        self.metas.iter().map(move |&(route, len)| {
            let (packet, tail) = rest.split_at(len);
            rest = tail;
            (route, packet)
        })
    }

    /// The packets in order, in runs that one system call can send.
    pub fn runs(&self) -> Runs<'_> {
        Runs { buffer: &self.buffer, metas: &self.metas }
    }

    /// Appends a packet, not empty.
    pub fn push(&mut self, route: Route, packet: &[u8]) {
        self.push_parts(route, &[packet]);
    }

    /// Appends a packet given in parts; not all of them are empty.
    pub fn push_parts(&mut self, route: Route, parts: &[&[u8]]) {
        let begin = self.buffer.len();
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        let length = self.buffer.len() - begin;
        debug_assert!(length > 0, "an empty packet has no place in a run");
        self.metas.push((route, length));
    }
}

/// Packets of an [`Outbox`]; dropping this clears it.
#[derive(Debug)]
pub struct Transmit<'a>(&'a mut Outbox);

impl<'a> Transmit<'a> {
    /// All packets of `outbox`.
    pub fn new(outbox: &'a mut Outbox) -> Self {
        Self(outbox)
    }
}

impl Deref for Transmit<'_> {
    type Target = Outbox;

    fn deref(&self) -> &Outbox {
        self.0
    }
}

impl Drop for Transmit<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Iterator over the [`Run`]s of an [`Outbox`].
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    buffer: &'a [u8],
    metas: &'a [(Route, usize)],
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let &(route, segment_size) = self.metas.first()?;
        let (mut packets, mut bytes) = (1, segment_size);
        while let Some(&(next, len)) = self.metas.get(packets)
            && next == route
            && len <= segment_size
            && packets < Run::SEGMENTS_MAX
            && bytes + len <= Run::BYTES_MAX
        {
            packets += 1;
            bytes += len;
            if len < segment_size {
                break;
            }
        }
        let (data, rest) = self.buffer.split_at(bytes);
        self.buffer = rest;
        self.metas = &self.metas[packets..];
        Some(Run { route, segment_size, data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route(port: u16) -> Route {
        let destination = SocketAddr::from(([192, 0, 2, 1], port));
        Route { uplink: Some(UplinkId(0)), destination, source: None, ecn: None }
    }

    fn check(packets: &[(u16, usize)], expected: &[(u16, usize, usize)]) {
        let mut outbox = Outbox::default();
        for &(port, len) in packets {
            outbox.push(route(port), &vec![0; len]);
        }
        let runs: Vec<_> = outbox
            .runs()
            .map(|run| (run.route.destination.port(), run.segment_size, run.packets().len()))
            .collect();
        assert_eq!(runs, expected);
    }

    #[test]
    fn runs_end_where_route_or_length_changes() {
        check(&[(1, 1200), (1, 1200), (1, 30), (1, 1200)], &[(1, 1200, 3), (1, 1200, 1)]);
        check(&[(1, 30), (1, 1200)], &[(1, 30, 1), (1, 1200, 1)]);
        check(&[(1, 100), (2, 100), (2, 100)], &[(1, 100, 1), (2, 100, 2)]);
        check(&[(1, 10); 65], &[(1, 10, 64), (1, 10, 1)]);
        check(&[(1, 1452); 50], &[(1, 1452, 44), (1, 1452, 6)]);
    }

    #[test]
    fn ecn_bits_survive_the_round_trip() {
        for ecn in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            assert_eq!(Ecn::from_bits(ecn.bits()), Some(ecn));
        }
        assert_eq!(Ecn::from_bits(0b1111_1100), None);
    }

    proptest! {
        #[test]
        fn runs_carry_every_packet_unchanged(
            packets in prop::collection::vec((0u16..3, 1usize..200), 0..200)
        ) {
            let mut outbox = Outbox::default();
            for (i, &(port, len)) in packets.iter().enumerate() {
                outbox.push(route(port), &vec![i as u8; len]);
            }
            let singly: Vec<_> = outbox.packets().map(|(r, p)| (r, p.to_vec())).collect();
            let in_runs: Vec<_> = outbox
                .runs()
                .flat_map(|run| run.packets().map(move |p| (run.route, p.to_vec())))
                .collect();
            prop_assert_eq!(singly.len(), packets.len());
            prop_assert_eq!(singly, in_runs);
        }
    }
}
