//! A bulk transfer over ordinary QUIC: one path, one stream, both ends.
//!
//! ```text
//!            ┌──────────────── Transfer ────────────────┐
//!  packet ◄──│ sender: a client, writes one stream      │◄── packet
//!            │ receiver: its server, reads and counts   │
//!            └──────────────────────────────────────────┘
//!     poll_transmit                                 handle_packet
//! ```
//!
//! It reacts to loss and delay like a browser or a backup. Its packets are UDP payloads; the caller
//! adds headers. The settings are the QUIC library's defaults.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::rustls::pki_types::UnixTime;
use noq_proto::rustls::time_provider::TimeProvider;
use noq_proto::{
    Connection, ConnectionHandle, ConnectionId, ConnectionIdGenerator, DatagramEvent, Dir, Event,
    FourTuple, PathId, StreamEvent, StreamId, VarInt,
};
use roadweave_identity::tls::{self, HandshakeRefusal, Pinned, SERVER_NAME};
use roadweave_identity::{Identity, PeerPolicy, derive_secret};
use roadweave_proto::Instant;

use super::{Bulk, PAYLOAD_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Sender,
    Receiver,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transferred {
    /// Bytes of the stream that the receiver has read in order.
    pub received_bytes: u64,
    pub completed: Option<Instant>,
    pub smoothed_rtt: Option<Duration>,
    pub lost_packets: u64,
    pub congestion_events: u64,
    pub is_broken: bool,
}

#[derive(Debug)]
pub(super) struct Transfer {
    zero: std::time::Instant,
    client: noq_proto::ClientConfig,
    sender: TransferEnd,
    receiver: TransferEnd,
    stream: Option<StreamId>,
    unwritten: u64,
    progress: Transferred,
}

#[derive(Debug)]
struct TransferEnd {
    endpoint: noq_proto::Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    remote: SocketAddr,
    responses: VecDeque<Bytes>,
    due: Option<Instant>,
}

impl Transfer {
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub(super) fn new(bulk: Bulk, seed: u64) -> Self {
        let seed_of = |end: &[u8]| {
            let mut seed_bytes = [0; 32];
            seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
            derive_secret(&seed_bytes, end)
        };
        let [near, far] =
            [b"sender", &b"receiver"[..]].map(|end| Identity::from_seed(seed_of(end)));
        let transport = Arc::new(transport_config(bulk, seed));

        let crypto = tls::client(side_of(&near, &far)).expect("the key pair is usable");
        let crypto = QuicClientConfig::try_from(crypto).expect("TLS 1.3 has a suite for QUIC");
        let mut client = noq_proto::ClientConfig::new(Arc::new(crypto));
        client.transport_config(transport.clone());
        client.token_store(Arc::new(noq_proto::NoneTokenStore));
        let first_id = SeededIds::new(seed_of(b"first")).draw(FIRST_ID);
        client.initial_dst_cid_provider(Arc::new(move || first_id));

        let crypto = tls::server(side_of(&far, &near)).expect("the key pair is usable");
        let crypto = QuicServerConfig::try_from(crypto).expect("TLS 1.3 has a suite for QUIC");
        let mut server = noq_proto::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(transport);
        let mut no_tokens = noq_proto::ValidationTokenConfig::default();
        no_tokens.sent(0);
        server.validation_token_config(no_tokens);

        let side = |server, end, remote| TransferEnd {
            endpoint: noq_proto::Endpoint::new(endpoint_config(seed_of(end)), server, true),
            connection: None,
            remote,
            responses: VecDeque::new(),
            due: None,
        };
        Self {
            zero: std::time::Instant::now(),
            client,
            sender: side(None, b"sender's endpoint", RECEIVER),
            receiver: side(Some(Arc::new(server)), b"receiver's endpoint", SENDER),
            stream: None,
            unwritten: bulk.bytes.unwrap_or(u64::MAX),
            progress: Transferred::default(),
        }
    }

    fn to_std(&self, now: Instant) -> std::time::Instant {
        self.zero + Duration::from_nanos(now.as_nanos())
    }

    pub(super) fn begin(&mut self, now: Instant) {
        let std_now = self.to_std(now);
        let connected =
            self.sender.endpoint.connect(std_now, self.client.clone(), RECEIVER, SERVER_NAME);
        match connected {
            Ok(connection) => self.sender.connection = Some(connection),
            Err(_) => self.progress.is_broken = true,
        }
        self.transmit_due(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.sender.due, self.receiver.due].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let std_now = self.to_std(now);
        for side in [&mut self.sender, &mut self.receiver] {
            if let Some((_, connection)) = &mut side.connection
                && side.due.is_some_and(|due| due <= now)
            {
                connection.handle_timeout(std_now);
            }
        }
        self.transmit_due(now);
    }

    /// Call [`Transfer::poll_transmit`] afterwards.
    pub(super) fn handle_packet(&mut self, now: Instant, end: Half, packet: BytesMut) {
        let std_now = self.to_std(now);
        match end {
            Half::Sender => self.sender.handle_packet(std_now, packet),
            Half::Receiver => self.receiver.handle_packet(std_now, packet),
        }
        self.transmit_due(now);
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(Half, Bytes)> {
        let std_now = self.to_std(now);
        let packet = match self.sender.poll_transmit(std_now) {
            Some(packet) => Some((Half::Sender, packet)),
            None => Some((Half::Receiver, self.receiver.poll_transmit(std_now)?)),
        };
        self.note_deadlines();
        packet
    }

    pub(super) fn progress(&self) -> &Transferred {
        &self.progress
    }

    fn transmit_due(&mut self, now: Instant) {
        self.sender.exchange();
        self.receiver.exchange();
        while let Some(event) = self.sender.poll_event() {
            match event {
                Event::Connected => self.stream = self.sender.open(),
                Event::ConnectionLost { .. } => self.progress.is_broken = true,
                _ => {}
            }
        }
        while let Some(event) = self.receiver.poll_event() {
            match event {
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.receiver.accept(dir) {
                        self.read(now, id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read(now, id),
                Event::ConnectionLost { .. } => self.progress.is_broken = true,
                _ => {}
            }
        }
        self.write();
        self.note_path();
        self.note_deadlines();
    }

    fn note_path(&mut self) {
        let Some((_, connection)) = &mut self.sender.connection else { return };
        let Some(stats) = connection.path_stats(PathId::ZERO) else { return };
        self.progress.smoothed_rtt = self.stream.map(|_| stats.rtt);
        self.progress.lost_packets = stats.lost_packets;
        self.progress.congestion_events = stats.congestion_events;
    }

    fn write(&mut self) {
        let Some((id, (_, connection))) = self.stream.zip(self.sender.connection.as_mut()) else {
            return;
        };
        let mut stream = connection.send_stream(id);
        while self.unwritten > 0 {
            let length =
                usize::try_from(self.unwritten).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            match stream.write(&ZEROS[..length]) {
                Ok(written) => self.unwritten -= written as u64,
                Err(_) => return,
            }
        }
        let _ = stream.finish();
    }

    fn read(&mut self, now: Instant, id: StreamId) {
        let Some((_, connection)) = &mut self.receiver.connection else { return };
        let mut stream = connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.progress.received_bytes += chunk.bytes.len() as u64,
                Ok(None) => {
                    self.progress.completed.get_or_insert(now);
                    break;
                }
                Err(_) => break,
            }
        }
        // The peer is notified by the next packets anyway.
        let _ = chunks.finalize();
    }

    fn note_deadlines(&mut self) {
        for side in [&mut self.sender, &mut self.receiver] {
            let due =
                side.connection.as_ref().and_then(|(_, connection)| connection.poll_timeout());
            let elapsed = |due: std::time::Instant| due.saturating_duration_since(self.zero);
            side.due = due.map(|due| Instant::ZERO + elapsed(due));
        }
    }
}

impl TransferEnd {
    fn handle_packet(&mut self, now: std::time::Instant, packet: BytesMut) {
        let from = FourTuple::new(self.remote, None);
        let mut answer = Vec::new();
        match self.endpoint.handle(now, from, None, packet, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((known, connection)) = &mut self.connection
                    && *known == handle
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) if self.connection.is_none() => {
                answer.clear();
                match self.endpoint.accept(incoming, now, &mut answer, None) {
                    Ok(connection) => self.connection = Some(connection),
                    Err(error) => {
                        if let Some(response) = error.response {
                            self.respond(&answer[..response.size]);
                        }
                    }
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            Some(DatagramEvent::Response(response)) => self.respond(&answer[..response.size]),
            None => {}
        }
    }

    fn respond(&mut self, packet: &[u8]) {
        if self.responses.len() < RESPONSES_MAX {
            self.responses.push_back(Bytes::copy_from_slice(packet));
        }
    }

    fn exchange(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            let drained = event.is_drained();
            if let Some(reply) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(reply);
            }
            if drained {
                self.connection = None;
                return;
            }
        }
    }

    fn open(&mut self) -> Option<StreamId> {
        self.connection.as_mut()?.1.streams().open(Dir::Uni)
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.connection.as_mut()?.1.streams().accept(dir)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.connection.as_mut()?.1.poll()
    }

    fn poll_transmit(&mut self, now: std::time::Instant) -> Option<Bytes> {
        if let Some(response) = self.responses.pop_front() {
            return Some(response);
        }
        let (_, connection) = self.connection.as_mut()?;
        let mut packet = Vec::new();
        let transmit = connection.poll_transmit(now, NonZeroUsize::MIN, &mut packet)?;
        packet.truncate(transmit.size);
        Some(packet.into())
    }
}

fn side_of<'a>(own: &'a Identity, peer: &Identity) -> tls::TlsSide<'a> {
    tls::TlsSide {
        identity: own,
        policy: Arc::new(Pinned(peer.public_key())) as Arc<dyn PeerPolicy>,
        refusal: Arc::new(HandshakeRefusal::default()),
        alpn: ALPN,
        time: Arc::new(NoTime),
    }
}

fn transport_config(bulk: Bulk, seed: u64) -> noq_proto::TransportConfig {
    let mut transport = noq_proto::TransportConfig::default();
    transport
        .congestion_controller_factory(bulk.congestion.factory(seed))
        .initial_mtu(PAYLOAD_MAX)
        .mtu_discovery_config(None)
        // A vehicle may be without any link for minutes.
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()))
        .enable_segmentation_offload(false)
        .allow_spin(false);
    transport
}

#[derive(Debug)]
struct SeededIds {
    seed: [u8; 32],
    drawn: u64,
}

impl SeededIds {
    fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: 0 }
    }

    fn draw(&mut self, bytes: usize) -> ConnectionId {
        self.drawn += 1;
        ConnectionId::new(&derive_secret(&self.seed, &self.drawn.to_le_bytes())[..bytes])
    }
}

impl ConnectionIdGenerator for SeededIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.draw(ID)
    }

    fn cid_len(&self) -> usize {
        ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Raw keys do not expire, so TLS needs no clock.
#[derive(Debug)]
struct NoTime;

impl TimeProvider for NoTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

fn endpoint_config(seed: [u8; 32]) -> Arc<noq_proto::EndpointConfig> {
    let mut endpoint = noq_proto::EndpointConfig::default();
    endpoint
        .cid_generator(Arc::new(move || Box::new(SeededIds::new(seed))))
        .rng_seed(Some(derive_secret(&seed, b"library")))
        .max_udp_payload_size(PAYLOAD_MAX)
        .expect("the payload is as large as QUIC wants it");
    Arc::new(endpoint)
}

/// Known only to the two ends (RFC 5737).
const SENDER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 1);
const RECEIVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), 1);
const ALPN: &[u8] = b"roadweave/1";
/// Bytes of connection IDs.
const ID: usize = 8;
const FIRST_ID: usize = 16;
const IDLE_TIMEOUT_MS: u32 = 300_000;
const RESPONSES_MAX: usize = 16;
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
