//! Measures the distance of a server without a connection.
//!
//! ```text
//! probe ─ a packet of a version that does not exist, 1,200 bytes ─► server: version negotiation,
//! answer ◄─ the probe's two connection IDs, exchanged ─────────────┘ without any state
//! ```
//!
//! Every QUIC server answers it (RFC 9000 section 6.1), at less cost than the receipt of the
//! packet, and with fewer bytes. The answer is not signed: anybody who sees the probe can send one,
//! too early or for a dead server. So an answer concerns one server over one uplink, and no
//! decision depends on it alone. Without the probe an attacker would have to guess 24 bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut};
use roadweave_proto::{Instant, TokenBucket, UplinkId};

use crate::outbox::{Outbox, Route, Transmit};
use crate::secrets::SeededIds;
use crate::source::{Local, Source};

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOutcome {
    /// The uplink that it left over.
    pub uplink: UplinkId,
    /// The server.
    pub server: SocketAddr,
    /// The time until the answer, or `None` if none came within [`Prober::TIMEOUT`].
    pub rtt: Option<Duration>,
}

/// Sends probes and recognises their answers.
pub struct Prober {
    ids: SeededIds,
    waiting: BTreeMap<[u8; OWN_ID], PendingProbe>,
    bucket: TokenBucket,
    outbox: Outbox,
}

#[derive(Debug)]
struct PendingProbe {
    sent: Instant,
    uplink: UplinkId,
    server: SocketAddr,
    version: u32,
    server_id: [u8; SERVER_ID],
}

impl Prober {
    /// Longest wait for an answer.
    pub const TIMEOUT: Duration = Duration::from_secs(2);
    /// Most probes that wait for answers.
    pub const WAITING_MAX: usize = 64;

    /// A prober without probes; `seed` decides the IDs and must be secret.
    pub fn new(seed: &[u8; 32]) -> Self {
        Self {
            ids: SeededIds::new(seed, b"probes"),
            waiting: BTreeMap::new(),
            bucket: TokenBucket::default(),
            outbox: Outbox::default(),
        }
    }

    /// Probes `server` over `uplink`; `false` if too many probes wait or left recently.
    pub fn probe(&mut self, now: Instant, uplink: UplinkId, server: SocketAddr) -> bool {
        let is_full = self.waiting.len() >= Self::WAITING_MAX;
        if is_full || !self.bucket.take(now, INTERVAL, INTERVAL * BURST) {
            return false;
        }
        let (server_id, own_id) = (self.draw::<SERVER_ID>(), self.draw::<OWN_ID>());
        let [a, b, c, d, low, ..] = self.draw::<OWN_ID>();
        // A reserved version, which no server speaks (section 15).
        let version = u32::from_be_bytes([a, b, c, d].map(|byte| byte & 0xf0 | 0x0a));
        let mut packet = Vec::with_capacity(PROBE_BYTES);
        packet.put_u8(LONG | FIXED | low & 0x3f);
        packet.put_u32(version);
        packet.put_u8(SERVER_ID as u8);
        packet.put_slice(&server_id);
        packet.put_u8(OWN_ID as u8);
        packet.put_slice(&own_id);
        packet.resize(PROBE_BYTES, 0);
        let route = Route { uplink: Some(uplink), destination: server, source: None, ecn: None };
        self.outbox.push(route, &packet);
        let waiting = PendingProbe { sent: now, uplink, server, version, server_id };
        self.waiting.insert(own_id, waiting);
        true
    }

    /// Returns the outcome if the packet answers a probe; other packets are not for the prober.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        source: &Source,
        packet: &[u8],
    ) -> Option<ProbeOutcome> {
        let (own_id, server_id, versions) = read_negotiation(packet)?;
        let waiting = self.waiting.get(&own_id)?;
        let PendingProbe { sent, uplink, server, version, server_id: expected } = *waiting;
        let received = source.received_by(now);
        // "A client MUST discard a Version Negotiation packet that lists the QUIC version selected
        // by the client" (RFC 9000 section 6.2): `what_is_no_answer_is_left_alone`.
        let lists_it = versions.chunks_exact(4).any(|listed| listed == version.to_be_bytes());
        let is_answer = server_id == expected
            && source.remote == server
            && source.local == Local::Uplink(uplink)
            && received <= sent + Self::TIMEOUT
            && !lists_it;
        if !is_answer {
            return None;
        }
        self.waiting.remove(&own_id);
        Some(ProbeOutcome { uplink, server, rtt: Some(received.since(sent)) })
    }

    /// The oldest probe without an answer in time.
    pub fn poll_unanswered(&mut self, now: Instant) -> Option<ProbeOutcome> {
        let (sent, own_id) = self.oldest()?;
        if now <= sent + Self::TIMEOUT {
            return None;
        }
        let PendingProbe { uplink, server, .. } = self.waiting.remove(&own_id)?;
        Some(ProbeOutcome { uplink, server, rtt: None })
    }

    /// When [`Prober::poll_unanswered`] returns the next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (sent, _) = self.oldest()?;
        Some(sent + Self::TIMEOUT + Duration::from_nanos(1))
    }

    fn oldest(&self) -> Option<(Instant, [u8; OWN_ID])> {
        self.waiting.iter().map(|(own_id, waiting)| (waiting.sent, *own_id)).min()
    }

    /// Whether probes wait to be sent.
    pub fn has_packets(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Probes to send; dropping them clears them.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.has_packets().then(|| Transmit::new(&mut self.outbox))
    }

    fn draw<const N: usize>(&mut self) -> [u8; N] {
        self.ids.draw(N)[..].try_into().expect("as many bytes were asked for")
    }
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// An answer might be longer than the packet: "Servers SHOULD discard smaller packets that specify
/// unsupported versions", below 1,200 bytes (RFC 9000 section 5.2.2).
pub(crate) fn is_too_short_to_answer(packet: &[u8]) -> bool {
    let Some((first, mut rest)) = packet.split_first() else { return false };
    if first & LONG == 0 || rest.len() < 4 || packet.len() >= PROBE_BYTES {
        return false;
    }
    !matches!(rest.get_u32(), 0 | QUIC_VERSION_1)
}

/// The IDs of a version negotiation packet, the receiver's and the sender's, and its versions, if
/// it may answer a probe (RFC 9000 section 17.2.1).
fn read_negotiation(packet: &[u8]) -> Option<([u8; OWN_ID], [u8; SERVER_ID], &[u8])> {
    let (first, rest) = packet.split_first()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (own_len, rest) = rest.split_first()?;
    let (own_id, rest) = rest.split_first_chunk::<OWN_ID>()?;
    let (server_len, rest) = rest.split_first()?;
    let (server_id, versions) = rest.split_first_chunk::<SERVER_ID>()?;
    let is_negotiation = first & LONG != 0 && *version == [0; 4];
    let is_whole = !versions.is_empty() && versions.len().is_multiple_of(4);
    let fits = usize::from(*own_len) == OWN_ID && usize::from(*server_len) == SERVER_ID;
    (is_negotiation && is_whole && fits).then_some((*own_id, *server_id, versions))
}

const PROBE_BYTES: usize = 1200;
const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
const QUIC_VERSION_1: u32 = 1;
const SERVER_ID: usize = 16;
const OWN_ID: usize = 8;
/// Between two probes in the long run: 1,200 bytes each.
const INTERVAL: Duration = Duration::from_millis(20);
/// Burst: five servers over four uplinks, three times.
const BURST: u32 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 4433))
    }

    fn source(uplink: u32) -> Source {
        let local = Local::Uplink(UplinkId(uplink));
        Source { remote: server(), local, ecn: None, received: None }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn ask(prober: &mut Prober, now: Instant) -> Vec<u8> {
        assert!(prober.probe(now, UplinkId(3), server()));
        let packets = prober.poll_transmit().expect("it leaves");
        let (route, packet) = packets.packets().next().expect("it leaves");
        assert_eq!((route.uplink, route.destination), (Some(UplinkId(3)), server()));
        packet.to_vec()
    }

    fn answer(probe: &[u8], versions: &[u32]) -> Vec<u8> {
        let (server_id, own_id) = (&probe[6..6 + SERVER_ID], &probe[7 + SERVER_ID..][..OWN_ID]);
        let mut packet = vec![LONG, 0, 0, 0, 0, OWN_ID as u8];
        packet.extend(own_id);
        packet.push(SERVER_ID as u8);
        packet.extend(server_id);
        versions.iter().for_each(|version| packet.put_u32(*version));
        packet
    }

    #[test]
    fn a_probe_has_the_minimum_length_and_its_answer_yields_the_rtt() {
        let mut prober = Prober::new(&[1; 32]);
        let probe = ask(&mut prober, at(1000));
        assert_eq!(probe.len(), 1200);
        assert!(!is_too_short_to_answer(&probe) && is_too_short_to_answer(&probe[..1199]));
        let outcome = prober.handle_packet(at(1060), &source(3), &answer(&probe, &[1]));
        let rtt = Some(Duration::from_millis(60));
        assert_eq!(outcome, Some(ProbeOutcome { uplink: UplinkId(3), server: server(), rtt }));
        let again = prober.handle_packet(at(1061), &source(3), &answer(&probe, &[1]));
        assert_eq!((again, prober.poll_timeout()), (None, None), "one answer counts");
        assert_ne!(probe, ask(&mut prober, at(1100)), "no probe is like another");
    }

    #[test]
    fn what_is_no_answer_is_left_alone() {
        let mut prober = Prober::new(&[1; 32]);
        let probe = ask(&mut prober, at(0));
        let good = answer(&probe, &[1]);
        let version = u32::from_be_bytes(probe[1..5].try_into().expect("four bytes"));
        let flipped = |index: usize| {
            let mut bytes = good.clone();
            bytes[index] ^= 1;
            bytes
        };
        let stranger = Source { remote: SocketAddr::from(([192, 0, 2, 9], 4433)), ..source(3) };
        let attempts = [
            ("another's address", stranger, good.clone()),
            ("another uplink", source(2), good.clone()),
            ("its own version", source(3), answer(&probe, &[version])),
            ("no version", source(3), answer(&probe, &[])),
            ("half a version", source(3), good[..good.len() - 1].to_vec()),
            ("another ID of ours", source(3), flipped(6)),
            ("another ID of the server's", source(3), flipped(7 + OWN_ID)),
            ("another kind", source(3), flipped(4)),
            ("nothing", source(3), Vec::new()),
            ("the probe itself", source(3), probe.clone()),
        ];
        for (what, source, packet) in attempts {
            assert_eq!(prober.handle_packet(at(10), &source, &packet), None, "{what}");
        }
        assert_eq!(prober.handle_packet(at(2001), &source(3), &good), None, "too late");
        let lost = prober.poll_unanswered(prober.poll_timeout().expect("it waits"));
        assert_eq!(lost.map(|outcome| outcome.rtt), Some(None));
    }

    #[test]
    fn probes_are_few_and_so_is_what_is_remembered() {
        let mut prober = Prober::new(&[1; 32]);
        let probe = |prober: &mut Prober, ms| prober.probe(at(ms), UplinkId(0), server());
        let left = (0..10_000).filter(|ms| probe(&mut prober, ms / 10)).count();
        assert_eq!(left, Prober::WAITING_MAX);
        while prober.poll_unanswered(at(10_000)).is_some() {}
        assert!(prober.waiting.is_empty());
        let burst = (0..1_000).filter(|_| probe(&mut prober, 10_000)).count();
        assert_eq!(burst, BURST as usize);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_not(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80),
        ) {
            let mut prober = Prober::new(&[1; 32]);
            ask(&mut prober, at(0));
            proptest::prop_assert_eq!(prober.handle_packet(at(1), &source(3), &bytes), None);
            is_too_short_to_answer(&bytes);
        }
    }
}
