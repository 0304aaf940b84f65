//! A bulk transfer over ordinary QUIC, as a browser or a backup makes it: one path, one stream,
//! both ends.
//!
//! ```text
//!            ┌──────────────── Transfer ────────────────┐
//!  packet ◄──│ sender: a client, writes one stream      │◄── packet
//!            │ receiver: its server, reads and counts   │
//!            └──────────────────────────────────────────┘
//!     poll_transmit                                 handle_packet
//! ```
//!
//! It knows nothing of tunnels: it behaves like an application that reacts to loss and delay, to
//! show a tunnel's effect on it. Its packets are UDP payloads; the caller adds headers. The
//! settings are the library's defaults.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use noq_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Event, FourTuple, PathId, StreamEvent,
    StreamId, VarInt,
};
use ring::hmac;
use roadweave_proto::Instant;

use crate::config::{ConfigError, CongestionControl};
use crate::congestion;
use crate::epoch::Epoch;
use crate::secrets::{SeededIds, TokenKey};
use crate::tls::{self, Clock};
use roadweave_identity::tls::{HandshakeRefusal, Pinned, SERVER_NAME};
use roadweave_identity::{Identity, derive_secret};

/// The settings of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferConfig {
    /// Bytes of the stream; `None`: endless.
    pub bytes: Option<u64>,
    /// The congestion control of the sender.
    pub congestion: CongestionControl,
    /// The UDP payload, bytes, 1200..=65527; only the last packets are smaller.
    pub payload_max: u16,
    /// Of everything random but the secrets of TLS.
    pub seed: u64,
}

/// One of the two ends of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// Has the data.
    Sender,
    /// Receives the data.
    Receiver,
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferProgress {
    /// Bytes of the stream that the receiver has read in order.
    pub received_bytes: u64,
    /// When the receiver had everything.
    pub completed: Option<Instant>,
    /// The sender's smoothed round-trip time, once it is connected.
    pub smoothed_rtt: Option<Duration>,
    /// Packets that the sender took for lost.
    pub lost_packets: u64,
    /// How often its congestion control reacted to loss.
    pub congestion_events: u64,
    /// Whether the connection failed.
    pub is_broken: bool,
}

/// Both ends of a bulk transfer.
#[derive(Debug)]
pub struct Transfer {
    epoch: Epoch,
    clock: Arc<Clock>,
    client: noq_proto::ClientConfig,
    sender: Side,
    receiver: Side,
    stream: Option<StreamId>,
    unwritten: u64,
    progress: TransferProgress,
}

#[derive(Debug)]
struct Side {
    endpoint: noq_proto::Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    remote: SocketAddr,
    responses: VecDeque<Bytes>,
    due: Option<Instant>,
}

impl Transfer {
    /// A transfer that has not begun.
    ///
    /// # Errors
    /// [`ConfigError::OutOfBounds`] when `payload_max` is too small or too large.
    pub fn new(epoch: Epoch, config: &TransferConfig) -> Result<Self, ConfigError> {
        if !(PAYLOAD_MIN..=PAYLOAD_MAX).contains(&config.payload_max) {
            return Err(ConfigError::OutOfBounds { field: "payload_max" });
        }
        let seed = |end: &[u8]| {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&config.seed.to_le_bytes());
            derive_secret(&seed, end)
        };
        let clock = Arc::new(Clock::default());
        let refusal = Arc::new(HandshakeRefusal::default());
        let [near, far] = [b"sender", &b"receiver"[..]].map(|end| Identity::from_seed(seed(end)));
        let transport = Arc::new(transport_config(config));

        let crypto = tls::client(&near, far.public_key(), refusal.clone(), clock.clone())?;
        let mut client = noq_proto::ClientConfig::new(Arc::new(crypto));
        client.transport_config(transport.clone());
        client.token_store(Arc::new(noq_proto::NoneTokenStore));
        let first_ids = std::sync::Mutex::new(SeededIds::new(&seed(b"first"), b"connection IDs"));
        client.initial_dst_cid_provider(Arc::new(move || {
            first_ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).draw(16)
        }));

        let crypto =
            tls::server(&far, Arc::new(Pinned(near.public_key())), refusal, clock.clone())?;
        let token_key = Arc::new(TokenKey::new(&seed(b"tokens")));
        let mut server = noq_proto::ServerConfig::new(Arc::new(crypto), token_key);
        server.transport_config(transport);
        server.time_source(clock.clone());
        let mut no_tokens = noq_proto::ValidationTokenConfig::default();
        no_tokens.sent(0);
        server.validation_token_config(no_tokens);

        let side = |server, end, remote| -> Result<Side, ConfigError> {
            let config = Arc::new(endpoint_config(config, seed(end))?);
            Ok(Side {
                endpoint: noq_proto::Endpoint::new(config, server, true),
                connection: None,
                remote,
                responses: VecDeque::new(),
                due: None,
            })
        };
        Ok(Self {
            epoch,
            clock,
            client,
            sender: side(None, b"sender's endpoint", RECEIVER)?,
            receiver: side(Some(Arc::new(server)), b"receiver's endpoint", SENDER)?,
            stream: None,
            unwritten: config.bytes.unwrap_or(u64::MAX),
            progress: TransferProgress::default(),
        })
    }

    /// Starts to connect.
    pub fn begin(&mut self, now: Instant) {
        self.clock.set(now);
        let connected = self.sender.endpoint.connect(
            self.epoch.to_std(now),
            self.client.clone(),
            RECEIVER,
            SERVER_NAME,
        );
        match connected {
            Ok(connection) => self.sender.connection = Some(connection),
            Err(_) => self.progress.is_broken = true,
        }
        self.transmit_due(now);
    }

    /// When [`Transfer::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.sender.due, self.receiver.due].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock.set(now);
        let std_now = self.epoch.to_std(now);
        for side in [&mut self.sender, &mut self.receiver] {
            if let Some((_, connection)) = &mut side.connection
                && side.due.is_some_and(|due| due <= now)
            {
                connection.handle_timeout(std_now);
            }
        }
        self.transmit_due(now);
    }

    /// Takes a packet that arrived at `end`. Call [`Transfer::poll_transmit`] afterwards.
    pub fn handle_packet(&mut self, now: Instant, end: TransferEnd, packet: BytesMut) {
        self.clock.set(now);
        let std_now = self.epoch.to_std(now);
        match end {
            TransferEnd::Sender => self.sender.handle_packet(std_now, packet),
            TransferEnd::Receiver => self.receiver.handle_packet(std_now, packet),
        }
        self.transmit_due(now);
    }

    /// The next packet to send, and its end.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(TransferEnd, Bytes)> {
        let std_now = self.epoch.to_std(now);
        let packet = match self.sender.poll_transmit(std_now) {
            Some(packet) => Some((TransferEnd::Sender, packet)),
            None => Some((TransferEnd::Receiver, self.receiver.poll_transmit(std_now)?)),
        };
        self.note_deadlines();
        packet
    }

    /// The progress so far.
    pub fn progress(&self) -> &TransferProgress {
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
            side.due = due.map(|due| self.epoch.of_std(due));
        }
    }
}

impl Side {
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

fn transport_config(config: &TransferConfig) -> noq_proto::TransportConfig {
    let mut transport = noq_proto::TransportConfig::default();
    transport
        .congestion_controller_factory(congestion::factory(config.congestion, config.seed))
        .initial_mtu(config.payload_max)
        .mtu_discovery_config(None)
        // A vehicle may be without any link for minutes.
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()))
        .enable_segmentation_offload(false)
        .allow_spin(false);
    transport
}

fn endpoint_config(
    config: &TransferConfig,
    seed: [u8; 32],
) -> Result<noq_proto::EndpointConfig, ConfigError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &derive_secret(&seed, b"reset"));
    let mut endpoint = noq_proto::EndpointConfig::new(Arc::new(key));
    endpoint
        .cid_generator(Arc::new(move || Box::new(SeededIds::new(&seed, b"connection IDs"))))
        .rng_seed(Some(derive_secret(&seed, b"library")))
        .max_udp_payload_size(config.payload_max)
        .map_err(|_| ConfigError::OutOfBounds { field: "payload_max" })?;
    Ok(endpoint)
}

/// Known only to the two ends (RFC 5737).
const SENDER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 1);
const RECEIVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), 1);
/// RFC 9000 section 14.
const PAYLOAD_MIN: u16 = 1_200;
const PAYLOAD_MAX: u16 = 65_527;
const IDLE_TIMEOUT_MS: u32 = 300_000;
const RESPONSES_MAX: usize = 16;
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

#[cfg(test)]
mod tests;
