//! What the streaming clients send, and what comes of it behind the server.
//!
//! ```text
//! Streams ─► a packet with its stream, number and moment ─► client ═► server ─► TUN ─► Sink
//!                                                                     delay = when the TUN's
//!                                                                     kernel had it, less that
//! ```
//!
//! All streams are paced by one clock, each a little after the one before, as those of vehicles
//! that know nothing of one another.

use std::time::Duration;

use roadweave_device::{Clock, UplinkSocket};
use roadweave_lab::video::quality::Percentiles;
use roadweave_types::Instant;

use super::site::{SERVER_INNER, inner_address};

/// Payload of each packet, bytes, as of the other benches' streams.
pub const PAYLOAD: usize = 1_300;
/// The port that streams come from and go to.
pub const PORT: u16 = 5_004;
/// A load that is later than this leaves out what it should have sent meanwhile.
const LATE_MAX: Duration = Duration::from_millis(100);
/// Assured forwarding, class 4 (RFC 4594): real-time video.
const DSCP_AF41: u8 = 34;
const IP_HEADER: usize = 20;
const HEADERS: usize = IP_HEADER + 8;

/// When which client of a group has to send the next packet of its stream.
#[derive(Debug)]
pub struct Streams {
    /// The group's number, of so many.
    place: (usize, usize),
    /// How many of its clients stream: the first ones.
    count: usize,
    /// Between two packets of these streams together.
    interval: Duration,
    next_at: Instant,
    next: u64,
}

impl Streams {
    /// Those of a group at `place`, where `count` clients of all groups together stream at `rate`
    /// bits per second each, from `from` on; `None` where none of the group does. Those of all
    /// groups together are paced evenly.
    pub fn new(from: Instant, place: (usize, usize), count: usize, rate: f64) -> Option<Self> {
        let (number, groups) = place;
        let own = count.saturating_sub(number).div_ceil(groups);
        let interval = |count: usize| {
            Duration::from_secs_f64((PAYLOAD * 8) as f64 / (rate * count as f64).max(1.0))
        };
        let next_at = from + interval(count) * number as u32;
        let streams = Self { place, count: own, interval: interval(own), next_at, next: 0 };
        (own > 0).then_some(streams)
    }

    /// When the next packet is due.
    pub fn due(&self) -> Instant {
        self.next_at
    }

    /// The next packet that is due, with the number of its client in the group.
    pub fn poll(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        if self.next_at > now {
            return None;
        }
        let (index, number) = (self.next as usize % self.count, self.next);
        let (first, groups) = self.place;
        self.next += 1;
        self.next_at = (self.next_at + self.interval).max(now - LATE_MAX);
        Some((index, packet(first + index * groups, number, now)))
    }
}

/// The socket behind the server to which all streams go.
pub struct Sink {
    socket: UplinkSocket,
    clock: Clock,
    /// What was sent before does not count.
    since: Instant,
    delays: Vec<Duration>,
    /// By stream: when its last packet came, and the longest that none came.
    streams: Vec<(Instant, Duration)>,
}

/// What has come of the streams.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    /// How many packets.
    pub packets: u64,
    /// How long they took, ms.
    pub delay_ms: Percentiles,
    /// How long the slowest one took, ms.
    pub delay_max_ms: f64,
    /// The longest time in which nothing came of a stream.
    pub gap_max: Duration,
}

impl Sink {
    /// Of `streams` streams, which come by `socket`.
    pub fn new(clock: Clock, socket: UplinkSocket, streams: usize) -> Self {
        let streams = vec![(Instant::ZERO, Duration::ZERO); streams];
        Self { socket, clock, since: Instant::ZERO, delays: Vec::new(), streams }
    }

    /// How many streams it expects.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Only what is sent from `from` on counts from now on.
    pub fn begin(&mut self, from: Instant) {
        self.since = from;
        self.delays.clear();
        self.streams.iter_mut().for_each(|stream| *stream = (from, Duration::ZERO));
    }

    /// Takes all that has come.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    pub fn read(&mut self) -> std::io::Result<()> {
        while self.read_some()? > 0 {}
        Ok(())
    }

    fn read_some(&mut self) -> std::io::Result<usize> {
        let Self { socket, clock, since, delays, streams } = self;
        let now = clock.now();
        socket.recv(|incoming| {
            let Some((stream, sent)) = stamp(incoming.payload) else { return };
            let Some((last, gap)) = streams.get_mut(stream) else { return };
            if sent < *since {
                return;
            }
            let came = incoming.received.map_or(now, |received| clock.at(received));
            delays.push(came.since(sent));
            *gap = (*gap).max(came.since(*last));
            *last = came;
        })
    }

    /// What has come since [`Sink::begin`]. A stream that has stopped by `now` has a gap as well.
    pub fn arrived(&mut self, now: Instant) -> Arrived {
        self.delays.sort_unstable();
        let gaps = self.streams.iter().map(|(last, gap)| (*gap).max(now.since(*last)));
        let max = self.delays.last().copied().unwrap_or_default();
        Arrived {
            packets: self.delays.len() as u64,
            delay_ms: Percentiles::of_sorted(&self.delays),
            delay_max_ms: max.as_secs_f64() * 1e3,
            gap_max: gaps.max().unwrap_or_default(),
        }
    }
}

/// A packet of a client's stream, of a real-time class, stamped with `now`.
fn packet(client: usize, number: u64, now: Instant) -> Vec<u8> {
    let mut packet = vec![0; HEADERS + PAYLOAD];
    let (ip, rest) = packet.split_at_mut(IP_HEADER);
    ip[..2].copy_from_slice(&[0x45, DSCP_AF41 << 2]);
    ip[2..4].copy_from_slice(&((HEADERS + PAYLOAD) as u16).to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&inner_address(client).octets());
    ip[16..20].copy_from_slice(&SERVER_INNER.octets());
    let checksum = checksum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    rest[..2].copy_from_slice(&PORT.to_be_bytes());
    rest[2..4].copy_from_slice(&PORT.to_be_bytes());
    rest[4..6].copy_from_slice(&((8 + PAYLOAD) as u16).to_be_bytes());
    // Without a checksum, which IPv4 allows: nobody damages it here.
    rest[8..16].copy_from_slice(&(client as u64).to_be_bytes());
    rest[16..24].copy_from_slice(&number.to_be_bytes());
    rest[24..32].copy_from_slice(&now.as_nanos().to_be_bytes());
    packet
}

/// The stream of a payload, and when it was sent.
fn stamp(payload: &[u8]) -> Option<(usize, Instant)> {
    let (stream, rest) = payload.split_first_chunk()?;
    let sent = rest.get(8..)?.first_chunk()?;
    Some((
        usize::try_from(u64::from_be_bytes(*stream)).ok()?,
        Instant::from_nanos(u64::from_be_bytes(*sent)),
    ))
}

/// The checksum of an IPv4 header whose own is zero (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use roadweave_wire::InnerPacket;

    use super::*;

    #[test]
    fn packets_are_what_the_tunnel_and_the_kernel_take() {
        let packet = packet(7, 3, Instant::from_millis(5));
        let view = InnerPacket::parse(&packet).unwrap();
        assert_eq!((view.ports(), view.dscp), (Some((PORT, PORT)), DSCP_AF41));
        assert_eq!(stamp(&packet[HEADERS..]), Some((7, Instant::from_millis(5))));
        assert_eq!(checksum(&packet[..IP_HEADER]), 0, "the whole header adds up to nothing");
        assert_eq!(stamp(&packet[..10]), None);
    }

    #[test]
    fn streams_keep_their_rate_and_leave_out_what_is_too_late() {
        let mut streams = Streams::new(Instant::ZERO, (0, 1), 2, 8e6).unwrap();
        let mut at = |millis| {
            let now = Instant::from_millis(millis);
            std::iter::from_fn(|| streams.poll(now)).map(|(client, _)| client).collect::<Vec<_>>()
        };
        let first = at(99);
        let even = first.iter().filter(|client| **client == 0).count();
        assert_eq!((first.len(), even), (153, 77), "1,300 bytes at 16 Mbit/s are 0.65 ms");
        assert!((150..=156).contains(&at(10_000).len()), "the last 100 ms");
        assert!(Streams::new(Instant::ZERO, (0, 1), 0, 8e6).is_none());
    }

    #[test]
    fn streams_of_several_groups_are_those_of_one_that_is_shared_out() {
        let all = |groups: usize, count: usize| {
            let mut packets = Vec::new();
            for number in 0..groups {
                let streams = Streams::new(Instant::ZERO, (number, groups), count, 1.04e6);
                let Some(mut streams) = streams else { continue };
                while streams.due() < Instant::from_millis(99) {
                    let at = streams.due();
                    let (index, packet) = streams.poll(at).unwrap();
                    let (client, sent) = stamp(&packet[HEADERS..]).unwrap();
                    assert_eq!((client, sent), (number + index * groups, at));
                    packets.push((at.as_nanos() / 1_000, client));
                }
            }
            packets.sort_unstable();
            packets
        };
        for count in [1, 2, 3, 4] {
            let one = all(1, count);
            assert_eq!(one.len(), 10 * count, "1,300 bytes at 1.04 Mbit/s are 10 ms");
            let three: Vec<_> = all(3, count).into_iter().map(|(_, client)| client).collect();
            let mut clients: Vec<_> = one.into_iter().map(|(_, client)| client).collect();
            clients.sort_unstable();
            let mut shared_out = three.clone();
            shared_out.sort_unstable();
            assert_eq!(shared_out, clients, "each client sends as much");
            if count == 3 {
                assert_eq!(three[..6], [0, 1, 2, 0, 1, 2], "one after the other");
            }
        }
    }
}
