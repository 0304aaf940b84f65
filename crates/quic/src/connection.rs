//! One connection: datagrams on chosen paths, reliable messages, and paths that fail and heal.
//!
//! Methods named `handle_*` and [`flush`](Connection::flush) take in time; packets come through the
//! [`Endpoint`](crate::Endpoint). `send_*`, `open_path` and `close*` are requests of the user.
//! `poll_*` and [`outbox`](Connection::outbox) return what is to be done.
//!
//! After a request, or a call that takes in time: empty the outbox, poll the events, and look at
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
//! most 2 ms after the packet, and at most one packet of them in 1 ms;
//! [`Connection::send_feedback_on`] sends them in one packet with the user's feedback.

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
use roadweave_proto::{Delays, Instant, Pacing, PathId, PathSnapshot, Policy, UplinkId};

use self::paths::Paths;
use self::signs_of_life::SignsOfLife;
use crate::config::TransportConfig;
use crate::control;
use crate::epoch::Epoch;
use crate::event::{CloseReason, Event, MessageError, PathError};
use crate::gate::{Gate, GateState};
use crate::idle_probes::IdleProbes;
use crate::meter::sent::TrackedPayload;
use crate::outbox::Outbox;
use crate::path::Path;
use crate::payload::PAYLOAD_OVERHEAD;
use crate::stats::{ConnectionStats, EcnMarking, PathStats};
use roadweave_identity::tls::HandshakeRefusal;
use roadweave_identity::{PublicKey, Refusal};

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
    is_client: bool,
    refusal: Arc<HandshakeRefusal>,

    paths: Paths,
    max_datagram_size: usize,
    /// The library may allow another size since the last snapshots.
    size_is_stale: bool,
    closing: BTreeSet<noq_proto::PathId>,
    wishes: VecDeque<Wish>,
    acknowledges_on_all: bool,
    /// Closed here for its silence; its event says so.
    unresponsive: Option<PathId>,
    signs: SignsOfLife,

    phase: ConnectionPhase,
    pub(crate) peer: PeerIdentity,
    events: VecDeque<Event>,
    outgoing: Outgoing,
    messages: Messages,

    timing: Timing,
    stats: ConnectionStats,
}

#[derive(Default)]
pub(crate) struct PeerIdentity {
    key: Option<PublicKey>,
    /// A client's server has proved its key, and the keys that anybody can compute are discarded.
    is_proven: bool,
    pub(crate) refused: Option<(PublicKey, Refusal)>,
}

struct Outgoing {
    outbox: Outbox,
    scratch: Vec<u8>,
    /// Oldest first, with their paths. Empty between calls unless the library kept one back.
    unsent: VecDeque<(PathId, Option<TrackedPayload>)>,
    empty_queue_space: usize,
}

#[derive(Default)]
struct Messages {
    sender: control::ControlSender,
    receiver: control::Receiver,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    Handshake {
        until: Instant,
    },
    /// A client waits for an acknowledgement under its new keys. A further path would lose packets
    /// until then: the library compares packet numbers across paths to distinguish keys.
    Rekeying {
        since: Instant,
    },
    Open,
    Closed,
}

#[derive(Clone, Debug, Default)]
struct Timing {
    began: Instant,
    /// Of a silent client: on its best path, and on its others.
    keep_alive: [Duration; 2],
    flush: Option<Instant>,
    /// When acknowledgements of datagrams leave, unless something else took them along.
    acknowledge: Option<Instant>,
    feedback_owed: Option<Instant>,
    last_asked_back: Instant,
    feedback_count: u64,
    last_sent_data: Instant,
    measure: Option<Instant>,
    last_data: Instant,
    /// Mean time between datagrams; at most [`INTERVAL_MAX`].
    data_interval: Duration,
    woken: Instant,
    sent_under_key: u64,
}

pub(crate) struct NewConnection {
    pub(crate) epoch: Epoch,
    pub(crate) config: Arc<TransportConfig>,
    pub(crate) quic: noq_proto::Connection,
    pub(crate) idle_probes: Arc<IdleProbes>,
    pub(crate) refusal: Arc<HandshakeRefusal>,
    pub(crate) uplink: Option<UplinkId>,
    pub(crate) remote: SocketAddr,
}

impl Connection {
    pub(crate) fn new(now: Instant, new: NewConnection) -> Self {
        let gate = Gate::of(&new.quic, noq_proto::PathId::ZERO)
            .expect("a new connection has path 0, and all controllers are gated");
        gate.set(GateState::Open);
        let first = Path::new(now, PathId(0), new.uplink, new.remote, gate);
        let mut quic = new.quic;
        let outgoing = Outgoing {
            outbox: Outbox::default(),
            scratch: Vec::new(),
            unsent: VecDeque::new(),
            empty_queue_space: quic.datagrams().send_buffer_space(),
        };
        let timing = Timing {
            began: now,
            keep_alive: [new.config.keep_alive, KEEP_ALIVE_OTHERS],
            data_interval: INTERVAL_MAX,
            ..Timing::default()
        };
        let mut connection = Self {
            epoch: new.epoch,
            is_client: quic.side().is_client(),
            quic,
            refusal: new.refusal,
            paths: Paths { all: vec![first], ..Paths::default() },
            max_datagram_size: 0,
            size_is_stale: true,
            closing: BTreeSet::new(),
            wishes: VecDeque::new(),
            acknowledges_on_all: false,
            unresponsive: None,
            signs: SignsOfLife::new(new.config.clone(), new.idle_probes),
            phase: ConnectionPhase::Handshake { until: now + new.config.handshake_timeout },
            config: new.config,
            peer: PeerIdentity::default(),
            events: VecDeque::new(),
            outgoing,
            messages: Messages::default(),
            timing,
            stats: ConnectionStats::default(),
        };
        connection.take_snapshots(now);
        connection
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Packets for the network. The driver clears it.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outgoing.outbox
    }

    /// Whether datagrams and messages can be sent.
    pub fn is_open(&self) -> bool {
        self.peer.key.is_some() && self.phase != ConnectionPhase::Closed
    }

    /// The peer's key, once the handshake is complete.
    pub fn peer(&self) -> Option<PublicKey> {
        self.peer.key
    }

    /// All paths, ascending, as of the last [`refresh`](Connection::refresh), `handle_*` or
    /// `send_*`.
    pub fn paths(&self) -> &[PathSnapshot] {
        &self.paths.snapshots
    }

    /// Brings [`paths`](Connection::paths) up to `now`: pacing budgets grow with time.
    pub fn refresh(&mut self, now: Instant) {
        if self.paths.taken != Some(now) {
            self.take_snapshots(now);
        }
    }

    /// Sets by what datagrams are paced, and what the budgets of snapshots are.
    pub fn set_pacing(&mut self, pacing: Pacing) {
        if self.paths.pacing != pacing {
            (self.paths.pacing, self.paths.taken) = (pacing, None);
        }
    }

    /// Asks to be woken when a pacer lets through a waiting packet, paced as
    /// [`set_pacing`](Connection::set_pacing) said last.
    pub fn on_backlog(&mut self, now: Instant) {
        self.refresh(now);
        self.signs.on_demand(now);
        for (path, snapshot) in self.paths.all.iter_mut().zip(&self.paths.snapshots) {
            path.on_backlog(snapshot, self.paths.pacing);
        }
    }

    fn take_snapshots(&mut self, now: Instant) {
        self.paths.take_snapshots(now);
        if !std::mem::take(&mut self.size_is_stale) {
            return;
        }
        let max = self.quic.datagrams().max_size().unwrap_or(0);
        self.max_datagram_size = max.saturating_sub(PAYLOAD_OVERHEAD);
    }

    /// The largest datagram that [`send_on`](Connection::send_on) takes on any path, bytes; 0
    /// before the handshake is complete. It follows the smallest MTU of all paths.
    pub fn max_datagram_size(&self) -> usize {
        self.max_datagram_size
    }

    /// Queues a message for the reliable control channel. The peer gets [`Event::Message`] for
    /// each, once and in order; messages survive the death of a path while another lives.
    ///
    /// # Errors
    /// The message is longer than [`MESSAGE_MAX`](crate::MESSAGE_MAX), too many wait, or the
    /// connection is over.
    pub fn send_message(&mut self, message: Bytes) -> Result<(), MessageError> {
        if self.phase == ConnectionPhase::Closed {
            return Err(MessageError::Closed);
        }
        self.messages.sender.push(&message)?;
        self.want_flush(Instant::ZERO);
        Ok(())
    }

    /// Whether the peer has acknowledged all messages so far.
    pub fn has_messages_through(&self) -> bool {
        self.messages.sender.is_empty()
    }

    /// Ends the connection at once. The peer receives `code` and `reason`, cut to 200 bytes.
    pub fn close(&mut self, now: Instant, code: u32, reason: &str) {
        if self.phase == ConnectionPhase::Closed {
            return;
        }
        let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
        let reason = Bytes::copy_from_slice(reason.as_bytes());
        self.quic.close(self.epoch.to_std(now), VarInt::from_u32(code), reason);
        self.on_closed(CloseReason::Local);
        self.flush_all(now);
    }

    /// Asks for a path over `uplink` to `server`, an address of the peer. It opens as soon as the
    /// peer allows; [`Event::PathUsable`](crate::Event::PathUsable) follows when it carries
    /// datagrams. It is closed where the peer does not answer. An uplink may get a new path, with
    /// another [`PathId`], later.
    ///
    /// # Errors
    /// Only clients open paths, one for each uplink, as many as the settings allow.
    pub fn open_path(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        server: SocketAddr,
    ) -> Result<(), PathError> {
        if !self.is_client {
            return Err(PathError::NotClient);
        }
        if self.phase == ConnectionPhase::Closed {
            return Err(PathError::Closed);
        }
        let taken = self.paths.all.iter().any(|path| path.uplink == Some(uplink));
        if taken || self.wished_since(uplink).is_some() {
            return Err(PathError::Exists);
        }
        if self.paths.all.len() + self.wishes.len() >= self.config.max_paths as usize {
            return Err(PathError::TooMany);
        }
        self.wishes.push_back(Wish { uplink, server, since: now });
        self.want_flush(now);
        Ok(())
    }

    /// Since when a path over `uplink` waits for the peer to allow it; `None` if none waits.
    pub fn wished_since(&self, uplink: UplinkId) -> Option<Instant> {
        let wish = self.wishes.iter().find(|wish| wish.uplink == uplink);
        wish.map(|wish| wish.since)
    }

    /// Closes a path for good. Datagrams in flight on it are reported lost, then
    /// [`Event::PathClosed`](crate::Event::PathClosed) follows.
    ///
    /// # Errors
    /// There must be such a path, and another besides it.
    pub fn close_path(&mut self, now: Instant, path: PathId) -> Result<(), PathError> {
        use noq_proto::ClosePathError;
        if self.phase == ConnectionPhase::Closed {
            return Err(PathError::Closed);
        }
        let known = self.paths.get(path).ok_or(PathError::Unknown)?.quic_id();
        let code = noq_proto::TransportErrorCode::APPLICATION_ABANDON_PATH;
        match self.quic.close_path(self.epoch.to_std(now), known, code.into()) {
            Ok(()) => {
                self.process(now);
                self.want_flush(now);
                Ok(())
            }
            Err(ClosePathError::ClosedPath) => Err(PathError::Unknown),
            Err(ClosePathError::LastOpenPath | ClosePathError::MultipathNotNegotiated) => {
                Err(PathError::Last)
            }
        }
    }

    /// Sets how a path may be used: its snapshots show it, and feedback keeps to it.
    pub fn set_policy(&mut self, path: PathId, policy: Policy) {
        let Some(index) = self.paths.index(path) else { return };
        self.paths.all[index].policy = policy;
        if let Some(snapshot) = self.paths.snapshots.get_mut(index) {
            snapshot.policy = policy;
        }
    }

    /// Counts a datagram sent on `path` as redundant, or as not.
    pub fn account(&mut self, path: PathId, bytes: u32, is_redundant: bool) {
        let Some(index) = self.paths.index(path) else { return };
        let stats = &mut self.paths.all[index].stats;
        let counter =
            if is_redundant { &mut stats.redundant_bytes } else { &mut stats.source_bytes };
        *counter += u64::from(bytes);
        let left = self.paths.all[index].redundancy_left();
        if let Some(snapshot) = self.paths.snapshots.get_mut(index) {
            snapshot.redundancy_left = left;
        }
    }

    /// The peer's address on a path.
    pub fn remote_address(&self, path: PathId) -> Option<SocketAddr> {
        Some(self.paths.get(path)?.remote)
    }

    /// The round trips of a path since its last change of address.
    pub fn round_trips(&self, path: PathId) -> Option<Delays> {
        Some(self.paths.get(path)?.gate.meter().round_trips)
    }

    /// Whether the packets of a path leave marked as ECN-capable.
    pub fn ecn_marking(&self, path: PathId) -> Option<EcnMarking> {
        Some(self.paths.get(path)?.ecn.marking)
    }

    /// Counters of a path.
    pub fn path_stats(&self, path: PathId) -> Option<PathStats> {
        Some(self.paths.get(path)?.stats)
    }

    /// Counters of the whole connection.
    pub fn stats(&self) -> ConnectionStats {
        self.stats
    }

    pub(crate) fn note_first_marks(&mut self, is_marked: bool) {
        self.paths.all.iter_mut().for_each(|path| path.ecn.on_heard(is_marked));
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        self.process(now);
        self.flush_all(now);
    }

    /// Why it ended before its handshake was complete. Drops its events: the user does not know it.
    pub(crate) fn take_failure(&mut self) -> Option<CloseReason> {
        if self.phase != ConnectionPhase::Closed {
            return None;
        }
        self.events.drain(..).find_map(|event| match event {
            Event::Closed(reason) => Some(reason),
            _ => None,
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == ConnectionPhase::Closed
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.events.is_empty() && self.outgoing.outbox.is_empty()
    }

    pub(crate) fn has_packets(&self) -> bool {
        !self.outgoing.outbox.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn library(&mut self) -> &mut noq_proto::Connection {
        &mut self.quic
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer.key)
            .field("phase", &self.phase)
            .field("paths", &self.paths.snapshots)
            .finish_non_exhaustive()
    }
}

/// How often a silent client sends on its other paths, to keep bindings of address translators.
const KEEP_ALIVE_OTHERS: Duration = Duration::from_secs(10);
/// Longer pauses between datagrams say nothing about their density.
const INTERVAL_MAX: Duration = Duration::from_millis(4);
/// Longest reason of a close, bytes: it must fit one packet.
const REASON_MAX: usize = 200;
