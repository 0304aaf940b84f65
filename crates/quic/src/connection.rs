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
use roadweave_proto::{
    Instant, Pacing, PathId, PathSnapshot, PathStatus, Priority, SplitMix64, UplinkId,
};

use crate::config::TransportConfig;
use crate::control;
use crate::epoch::Epoch;
use crate::event::{CloseReason, Event, MessageError};
use crate::gate::{Gate, GateState};
use crate::idle_probes::IdleProbes;
use crate::meter::sent::TrackedPayload;
use crate::outbox::Outbox;
use crate::path::Path;
use crate::payload::PAYLOAD_OVERHEAD;
use crate::read_delay::ReadDelay;
use crate::stats::ConnectionStats;
use crate::virtual_address;
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
    idle_probes: Arc<IdleProbes>,
    is_client: bool,
    refusal: Arc<HandshakeRefusal>,

    paths: Vec<Path>,
    snapshots: Snapshots,
    max_datagram_size: usize,
    closing: BTreeSet<noq_proto::PathId>,
    wishes: VecDeque<Wish>,
    feedback: FeedbackPaths,
    only_open: Option<PathId>,

    phase: ConnectionPhase,
    pub(crate) peer: PeerIdentity,
    events: VecDeque<Event>,
    outgoing: Outgoing,
    messages: Messages,

    timing: Timing,
    stats: ConnectionStats,
}

/// The paths as schedulers see them.
#[derive(Default)]
struct Snapshots {
    all: Vec<PathSnapshot>,
    /// Cleared by what makes them stale.
    taken: Option<Instant>,
    pacing: Pacing,
}

#[derive(Default)]
struct FeedbackPaths {
    is_on_all: bool,
    unresponsive: Option<PathId>,
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
    last_path: Option<PathId>,
    woken: Instant,
    demand: Instant,
    read_delay: ReadDelay,
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
            idle_probes: new.idle_probes,
            refusal: new.refusal,
            paths: vec![first],
            snapshots: Snapshots::default(),
            max_datagram_size: 0,
            closing: BTreeSet::new(),
            wishes: VecDeque::new(),
            feedback: FeedbackPaths::default(),
            only_open: None,
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
        &self.snapshots.all
    }

    /// Brings [`paths`](Connection::paths) up to `now`: pacing budgets grow with time.
    pub fn refresh(&mut self, now: Instant) {
        if self.snapshots.taken != Some(now) {
            self.take_snapshots(now);
        }
    }

    /// Sets by what datagrams are paced, and what the budgets of snapshots are.
    pub fn set_pacing(&mut self, pacing: Pacing) {
        if self.snapshots.pacing != pacing {
            self.snapshots.pacing = pacing;
            self.snapshots.taken = None;
        }
    }

    /// Asks to be woken when a pacer lets through a waiting packet, paced as
    /// [`set_pacing`](Connection::set_pacing) said last.
    pub fn on_backlog(&mut self, now: Instant) {
        self.refresh(now);
        self.note_demand(now);
        for (path, snapshot) in self.paths.iter_mut().zip(&self.snapshots.all) {
            path.on_backlog(snapshot, self.snapshots.pacing);
        }
    }

    fn take_snapshots(&mut self, now: Instant) {
        self.snapshots.taken = Some(now);
        let (pacing, paths) = (self.snapshots.pacing, &mut self.paths);
        self.snapshots.all.clear();
        self.snapshots.all.extend(paths.iter_mut().map(|path| path.snapshot(now, pacing)));
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

    /// Counters of the whole connection.
    pub fn stats(&self) -> ConnectionStats {
        self.stats
    }

    pub(crate) fn note_first_marks(&mut self, is_marked: bool) {
        self.paths.iter_mut().for_each(|path| path.ecn.on_heard(is_marked));
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

    fn index(&self, id: PathId) -> Option<usize> {
        self.paths.binary_search_by_key(&id, |path| path.id).ok()
    }

    fn path(&self, id: PathId) -> Option<&Path> {
        Some(&self.paths[self.index(id)?])
    }

    fn path_by_quic(&mut self, id: noq_proto::PathId) -> Option<&mut Path> {
        self.paths.iter_mut().find(|path| path.quic_id() == id)
    }

    fn uplink_of(&self, local: Option<std::net::IpAddr>) -> Option<UplinkId> {
        local.and_then(virtual_address::uplink).or(self.paths.first()?.uplink)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer.key)
            .field("phase", &self.phase)
            .field("paths", &self.snapshots.all)
            .finish_non_exhaustive()
    }
}

impl Connection {
    fn best_path(&self) -> Option<PathId> {
        let with_status = |status| {
            let paths = self.paths.iter().filter(move |path| path.status() == status);
            paths.min_by_key(|path| path.smoothed_rtt()).map(|path| path.id)
        };
        let heard_last = || {
            let id = self.timing.last_path?;
            self.path(id)?.validated.then_some(id)
        };
        self.answering_paths()
            .min_by_key(|path| (is_backup(path), path.smoothed_rtt()))
            .map(|path| path.id)
            .or_else(heard_last)
            .or_else(|| with_status(PathStatus::Usable))
            .or_else(|| with_status(PathStatus::Suspect))
            .or_else(|| with_status(PathStatus::Standby))
    }

    /// The path for the next feedback: the best, and now and then another.
    ///
    /// A silent path becomes suspect only after its probe timeout; until then every fourth feedback
    /// takes the second best path, and each acknowledges all that came.
    ///
    /// Where the peer wants acknowledgements on all paths, one of two takes one of the others, by
    /// lot: a packet of the library holds only acknowledgements of paths that received something
    /// since the one before, and with even intervals a path might always have the same turn.
    fn feedback_path(&self) -> Option<PathId> {
        let best = self.best_path()?;
        let count = self.timing.feedback_count;
        let may_rest = self.answering_paths().any(|path| path.id == best && !is_backup(path));
        let others = || {
            let others = self.answering_paths().filter(move |path| path.id != best);
            others.filter(move |path| !(may_rest && is_backup(path)))
        };
        let other = match self.feedback.is_on_all {
            true => drawn(count, others),
            false if count % FEEDBACK_TURNS != FEEDBACK_TURNS - 1 => None,
            false => others().min_by_key(|path| path.smoothed_rtt()),
        };
        Some(other.map_or(best, |path| path.id))
    }

    /// Usable paths that are not quiet while others are heard. A side that sends little suspects
    /// nothing soon, so a path that died in an outage would still look good to it.
    fn answering_paths(&self) -> impl Iterator<Item = &Path> {
        let newest = self.paths.iter().map(|path| path.arrivals.last).max().unwrap_or_default();
        self.paths
            .iter()
            .filter(move |path| path.status() == PathStatus::Usable && !path.is_quiet(newest))
    }
}

fn drawn<'a, I: Iterator<Item = &'a Path>>(turn: u64, others: impl Fn() -> I) -> Option<&'a Path> {
    let pair = turn / 2;
    let is_others_turn = turn % 2 == SplitMix64::word(0, pair) % 2;
    let count = others().count() as u64;
    if count > 0 && is_others_turn { others().nth((pair % count) as usize) } else { None }
}

fn is_backup(path: &Path) -> bool {
    path.policy.priority == Priority::Backup
}

/// One in this many feedbacks takes the second fastest path.
const FEEDBACK_TURNS: u64 = 4;

/// How often a silent client sends on its other paths, to keep bindings of address translators.
const KEEP_ALIVE_OTHERS: Duration = Duration::from_secs(10);
/// Longer pauses between datagrams say nothing about their density.
const INTERVAL_MAX: Duration = Duration::from_millis(4);
/// Longest reason of a close, bytes: it must fit one packet.
const REASON_MAX: usize = 200;
