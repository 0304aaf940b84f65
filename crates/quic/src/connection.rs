//! One connection: datagrams on the path of your choice, messages on a reliable channel, and paths
//! that come, go, fall silent and heal.
//!
//! There are four kinds of methods:
//! - `handle_*` and [`flush`](Connection::flush) take in time; packets come through the
//!   [`Endpoint`](crate::Endpoint),
//! - `send_*`, `open_path`, `close*`, `set_standby` are the user's wishes,
//! - `poll_*` and [`outbox`](Connection::outbox) hand out what is to be done,
//! - the rest are getters, which change nothing.
//!
//! After any of the first two kinds: empty the outbox, poll the events, and look at
//! [`poll_timeout`](Connection::poll_timeout) again.
//!
//! ```text
//!            send_on(path)                              Acknowledged, Lost, Received
//!                 |                                                 ^
//!   room by window and pacer?                                       |
//!                 | one gate open, all others sealed             meters behind the gates
//!                 v                                                 |
//!            the library -----> outbox -----> network -----> the library
//!                 ^
//!               flush: acknowledgements and control frames through the gate of the best path,
//!                      then probes and challenges through the closed gates of the others
//! ```
//!
//! Acknowledgements of all paths leave on the fastest path that answers (XLINK section 5.3), at
//! most 2 ms after the packet, and at most one packet of them in 1 ms; with
//! [`Connection::send_feedback_on`] they share a packet with the user's own feedback.

mod best_path;
mod paths;
mod receive;
mod send;
mod signs_of_life;
mod upkeep;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use noq_proto::VarInt;
use roadweave_proto::{Instant, Pacing, PathId, PathSnapshot, UplinkId};

use crate::config::TransportConfig;
use crate::control;
use crate::epoch::Epoch;
use crate::event::{CloseReason, Event, MessageError};
use crate::gate::{Gate, GateState};
use crate::idle_probes::IdleProbes;
use crate::meter::sent::TrackedPayload;
use crate::outbox::Outbox;
use crate::path::{NewPath, Path};
use crate::payload::PAYLOAD_OVERHEAD;
use crate::stats::ConnectionStats;
use crate::unread::Unread;
use crate::virtual_address;
use roadweave_identity::tls::HandshakeRefusal;
use roadweave_identity::{PublicKey, Refusal};

/// A path that is to be opened as soon as the peer allows.
#[derive(Clone, Copy, Debug)]
struct Wish {
    uplink: UplinkId,
    server: SocketAddr,
    since: Instant,
}

/// A connection to one peer over any number of paths.
pub struct Connection {
    epoch: Epoch,
    config: Arc<TransportConfig>,
    quic: noq_proto::Connection,
    /// Shared by all connections of the endpoint.
    idle_probes: Arc<IdleProbes>,
    is_client: bool,
    refusal: Arc<HandshakeRefusal>,

    /// Ascending.
    paths: Vec<Path>,
    /// One for each of `paths`.
    snapshots: Vec<PathSnapshot>,
    /// When the snapshots were taken, if nothing has changed since.
    refreshed: Option<Instant>,
    pacing: Pacing,
    max_datagram_size: usize,
    /// How often a silent client says something, on its best path and on its others.
    keep_alive: [Duration; 2],
    /// Paths that are closed for the user and not yet forgotten by the library.
    closing: BTreeSet<noq_proto::PathId>,
    /// Uplinks that are to get a path as soon as the peer allows, with the server's addresses on
    /// them.
    wishes: VecDeque<Wish>,
    /// Whether acknowledgements take all paths.
    acknowledges_on_all: bool,
    /// The path that is being closed because it answers nothing.
    unresponsive: Option<PathId>,
    gates: Gates,

    phase: Phase,
    peer: Option<PublicKey>,
    /// Whether all that comes from now on is the server's: it has proved its key to this client,
    /// and the keys that anybody knows are gone.
    is_proven: bool,
    /// The key and the reason of a client that was not let in.
    refused: Option<(PublicKey, Refusal)>,
    events: VecDeque<Event>,
    outbox: Outbox,
    scratch: Vec<u8>,
    /// The datagrams that the library holds, oldest first, with the path they are meant for: one
    /// while it is handed over, none otherwise unless the library would not send it.
    unsent: VecDeque<(PathId, Option<TrackedPayload>)>,
    /// What the library says of its queue of datagrams while that is empty, bytes.
    empty_queue_space: usize,

    messages_out: control::Sender,
    messages_in: control::Receiver,

    timing: Timing,
    stats: ConnectionStats,
}

/// How far the connection has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Handshake {
        until: Instant,
    },
    /// A client that has updated its keys and waits for the first packet under the new ones to be
    /// acknowledged. Until then a further path would lose packets: the library compares packet
    /// numbers across paths to tell old keys from new.
    Rekeying {
        since: Instant,
    },
    Open,
    Closed,
}

/// How the gates stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gates {
    /// One is open and the others are sealed.
    Only(PathId),
    Other,
}

/// When what is due.
#[derive(Clone, Debug)]
struct Timing {
    began: Instant,
    /// When control frames leave, whoever asks for it.
    flush: Option<Instant>,
    /// When the acknowledgements of datagrams leave unless they have left with something else.
    acknowledge: Option<Instant>,
    /// When the oldest datagram came in that the user has not given feedback for.
    feedback_owed: Option<Instant>,
    /// When feedback or acknowledgements last asked for an answer.
    last_asked_back: Instant,
    /// How often feedback or acknowledgements were sent.
    feedback_count: u64,
    /// When a datagram was last sent.
    last_sent_data: Instant,
    /// When the round-trip times of quiet paths are measured next.
    measure: Option<Instant>,
    /// When the last datagram came in, on whichever path.
    last_data: Instant,
    /// The time from one datagram to the next, averaged over some; at most [`INTERVAL_MAX`].
    data_interval: Duration,
    /// The path on which a packet came in last.
    last_path: Option<PathId>,
    /// When [`Connection::handle_timeout`] was last called.
    woken: Instant,
    /// When the user last had datagrams to send, or got some.
    demand: Instant,
    /// How long packets lay here of late until they were handed over.
    unread: Unread,
    /// Packets sent under the present keys.
    sent_under_key: u64,
}

/// What a connection is made of.
pub(crate) struct NewConnection {
    pub(crate) epoch: Epoch,
    pub(crate) config: Arc<TransportConfig>,
    pub(crate) quic: noq_proto::Connection,
    pub(crate) idle_probes: Arc<IdleProbes>,
    pub(crate) refusal: Arc<HandshakeRefusal>,
    /// The uplink of its first path, on a client.
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) remote: SocketAddr,
}

impl Connection {
    pub(crate) fn new(now: Instant, new: NewConnection) -> Self {
        let gate = Gate::of(&new.quic, noq_proto::PathId::ZERO)
            .expect("a new connection has path 0, and all controllers are gated");
        gate.set(GateState::Open);
        let first = NewPath { id: PathId(0), uplink: new.uplink, remote: new.remote, gate };
        let mut quic = new.quic;
        let mut connection = Self {
            epoch: new.epoch,
            is_client: quic.side().is_client(),
            empty_queue_space: quic.datagrams().send_buffer_space(),
            quic,
            idle_probes: new.idle_probes,
            refusal: new.refusal,
            paths: vec![Path::new(now, first)],
            snapshots: Vec::new(),
            refreshed: None,
            pacing: Pacing::default(),
            max_datagram_size: 0,
            keep_alive: [new.config.keep_alive, new.config.keep_alive_others],
            closing: BTreeSet::new(),
            wishes: VecDeque::new(),
            acknowledges_on_all: false,
            unresponsive: None,
            gates: Gates::Other,
            phase: Phase::Handshake { until: now + new.config.handshake_timeout },
            config: new.config,
            peer: None,
            is_proven: false,
            refused: None,
            events: VecDeque::new(),
            outbox: Outbox::default(),
            scratch: Vec::new(),
            unsent: VecDeque::new(),
            messages_out: control::Sender::default(),
            messages_in: control::Receiver::default(),
            timing: Timing {
                began: now,
                flush: None,
                acknowledge: None,
                last_asked_back: Instant::ZERO,
                feedback_owed: None,
                feedback_count: 0,
                last_sent_data: Instant::ZERO,
                measure: None,
                last_data: Instant::ZERO,
                data_interval: INTERVAL_MAX,
                last_path: None,
                woken: Instant::ZERO,
                demand: Instant::ZERO,
                unread: Unread::default(),
                sent_under_key: 0,
            },
            stats: ConnectionStats::default(),
        };
        connection.take_snapshots(now);
        connection
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What is to be put on the network. The driver clears it.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether datagrams and messages can be sent.
    pub fn is_open(&self) -> bool {
        self.peer.is_some() && self.phase != Phase::Closed
    }

    /// The peer's key, once the handshake is complete.
    pub fn peer(&self) -> Option<PublicKey> {
        self.peer
    }

    /// All paths, ascending, as of the last [`refresh`](Connection::refresh), `handle_*` or
    /// `send_*`.
    pub fn paths(&self) -> &[PathSnapshot] {
        &self.snapshots
    }

    /// Brings [`paths`](Connection::paths) up to `now`: pacing budgets grow with time.
    pub fn refresh(&mut self, now: Instant) {
        if self.refreshed != Some(now) {
            self.take_snapshots(now);
        }
    }

    /// From now on datagrams are paced as `pacing` says, and snapshots tell of that pacer.
    pub fn set_pacing(&mut self, pacing: Pacing) {
        if self.pacing != pacing {
            self.pacing = pacing;
            self.refreshed = None;
        }
    }

    /// Wakes the user when a pacer lets through a packet of those that wait, paced as
    /// [`set_pacing`](Connection::set_pacing) said last.
    pub fn on_backlog(&mut self, now: Instant) {
        self.refresh(now);
        self.note_demand(now);
        for (path, snapshot) in self.paths.iter_mut().zip(&self.snapshots) {
            path.on_backlog(snapshot, self.pacing);
        }
    }

    fn take_snapshots(&mut self, now: Instant) {
        self.refreshed = Some(now);
        let (pacing, paths) = (self.pacing, &mut self.paths);
        self.snapshots.clear();
        self.snapshots.extend(paths.iter_mut().map(|path| path.snapshot(now, pacing)));
        let max = self.quic.datagrams().max_size().unwrap_or(0);
        self.max_datagram_size = max.saturating_sub(PAYLOAD_OVERHEAD);
    }

    /// The largest `datagram` that [`send_on`](Connection::send_on) takes on any path, bytes; 0
    /// before the handshake is complete. It grows and shrinks with the smallest MTU of all paths.
    pub fn max_datagram_size(&self) -> usize {
        self.max_datagram_size
    }

    /// Queues a message for the reliable control channel; the peer gets [`Event::Message`], each
    /// message once and in order. It survives the death of any path as long as another lives.
    ///
    /// # Errors
    ///
    /// The message is longer than [`MESSAGE_MAX`](crate::MESSAGE_MAX), too many wait, or the
    /// connection is over.
    pub fn send_message(&mut self, message: Bytes) -> Result<(), MessageError> {
        if self.phase == Phase::Closed {
            return Err(MessageError::Closed);
        }
        self.messages_out.push(&message)?;
        self.stats.messages_sent += 1;
        // Whatever the time is, it is due.
        self.want_flush(Instant::ZERO);
        Ok(())
    }

    /// Whether the peer has acknowledged all messages so far.
    pub fn has_messages_through(&self) -> bool {
        self.messages_out.is_empty()
    }

    /// Ends the connection at once. The peer learns `code` and `reason`, cut to 200 bytes.
    pub fn close(&mut self, now: Instant, code: u32, reason: &str) {
        if self.phase == Phase::Closed {
            return;
        }
        let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
        let reason = Bytes::copy_from_slice(reason.as_bytes());
        self.quic.close(self.epoch.to_std(now), VarInt::from_u32(code), reason);
        self.on_closed(CloseReason::Local);
        self.flush_all(now);
    }

    /// What the connection as a whole counts.
    pub fn stats(&self) -> ConnectionStats {
        self.stats
    }

    /// Whether the packet that began it came marked as capable of ECN.
    pub(crate) fn note_first_marks(&mut self, is_marked: bool) {
        self.paths.iter_mut().for_each(|path| path.ecn.on_heard(is_marked));
    }

    /// Sends the first packets of a connection that the endpoint has just made.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.process(now);
        self.flush_all(now);
    }

    /// Why it ended, if it did before its handshake was complete. Its events are dropped: nobody
    /// knows it.
    pub(crate) fn take_failure(&mut self) -> Option<CloseReason> {
        if self.phase != Phase::Closed {
            return None;
        }
        self.events.drain(..).find_map(|event| match event {
            Event::Closed(reason) => Some(reason),
            _ => None,
        })
    }

    /// Whether it is over, and no more than remembered.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether there is nothing left to be fetched from it.
    pub(crate) fn is_spent(&self) -> bool {
        self.events.is_empty() && self.outbox.is_empty()
    }

    /// Whether packets wait to be put on the network.
    pub(crate) fn has_packets(&self) -> bool {
        !self.outbox.is_empty()
    }

    fn index(&self, id: PathId) -> Option<usize> {
        self.paths.binary_search_by_key(&id, |path| path.id).ok()
    }

    fn path(&self, id: PathId) -> Option<&Path> {
        Some(&self.paths[self.index(id)?])
    }

    fn path_by_quic(&mut self, id: noq_proto::PathId) -> Option<&mut Path> {
        self.paths.iter_mut().find(|path| path.quic_id() == id)
    }

    /// The uplink that a virtual local address stands for.
    fn uplink_of(&self, local: Option<std::net::IpAddr>) -> Option<UplinkId> {
        local.and_then(virtual_address::uplink).or(self.paths.first()?.uplink)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("phase", &self.phase)
            .field("paths", &self.snapshots)
            .finish_non_exhaustive()
    }
}

/// Longer pauses between datagrams say nothing of how dense they are while they come.
const INTERVAL_MAX: Duration = Duration::from_millis(4);
/// The longest reason of a close, bytes: it must fit one packet.
const REASON_MAX: usize = 200;
