//! Shows packets as they pass to somebody who watches, beside everything else.
//!
//! ```text
//! lanes ─► inner packets, coded packets ─┐  one branch while nobody watches
//! edge  ─► the carrier's UDP payloads ───┴► bounded queue ─► Watch: a thread of its own
//!                                             └ full: counted, and nobody waits
//! ```
//!
//! A tap does no I/O and has no clock. What it shows is copied, cut to as many bytes as the watcher
//! wants, so that the queue holds no more than it counts.

mod session;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use bytes::Bytes;
use roadweave_types::{Instant, LaneId, PacketId, PathId};
use serde::{Deserialize, Serialize};

pub(crate) use self::session::{Passage, SessionTap, role_of};

/// Packets that wait for the watcher, at most.
pub const SEEN_MAX: usize = 4096;

/// Where packets can be watched; clones are the same tap.
#[derive(Clone, Debug, Default)]
pub struct Tap(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// What is watched: bits of [`View`]; none while nobody does.
    views: AtomicU8,
    bytes_max: AtomicUsize,
    missed: AtomicU64,
    /// Made for the first watcher.
    queue: OnceLock<(SyncSender<Seen>, Mutex<Receiver<Seen>>)>,
}

/// What somebody wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum View {
    /// Inner packets, as lanes send and get them.
    Inner = 1,
    /// Inner packets, and coded packets beside them.
    InnerAndCoded = 1 | 2,
    /// UDP payloads of the carrier.
    Outer = 4,
}

/// A packet that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it passed.
    pub at: Instant,
    /// Whether it left here; else it came.
    pub is_out: bool,
    /// Its length, bytes.
    pub length: usize,
    /// Its first bytes.
    pub bytes: Bytes,
    /// What it was.
    pub what: SeenKind,
}

/// What a packet that passed was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenKind {
    /// What a lane sent or got.
    Inner {
        /// The other end of the session: the client's name, or the server's address.
        peer: String,
        /// The path that it took.
        path: PathId,
        /// The uplink that the path runs over, if that is known.
        uplink: Option<String>,
        /// The lane.
        lane: LaneId,
        /// The lane's name, at the end that sends.
        lane_name: Option<String>,
        /// What it was to the lane.
        role: InnerRole,
    },
    /// A UDP payload.
    Outer {
        /// The interface whose socket had it; none at a server.
        uplink: Option<String>,
        /// The address at the other end.
        remote: SocketAddr,
        /// The address at this end; unspecified as far as it is not known.
        local: SocketAddr,
        /// The bits for congestion (RFC 3168).
        ecn: u8,
    },
}

/// What a packet was to its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InnerRole {
    /// The source packet itself: it left for the first time, or was the first that came.
    Source(PacketId),
    /// A copy of a source packet that left, or came, before.
    Copy(PacketId),
    /// The first fragment of an inner packet that was too large for a datagram.
    Fragment(PacketId),
    /// A source packet that came when its turn was over.
    Late(PacketId),
    /// An inner packet that was computed from coded ones; the path brought the last of these.
    Restored(PacketId),
    /// A coded packet: no inner packet, but what brings some back.
    Coded {
        /// The first packet that it covers.
        start: PacketId,
        /// How many it covers.
        count: u16,
    },
}

/// The one who watches. Dropping it ends that.
#[derive(Debug)]
pub struct Watch<'a> {
    shared: &'a Shared,
    queue: MutexGuard<'a, Receiver<Seen>>,
}

impl Tap {
    /// Begins to watch, with as many bytes of each packet as `bytes_max`; `None` while somebody
    /// else does.
    pub fn watch(&self, view: View, bytes_max: usize) -> Option<Watch<'_>> {
        let shared = &*self.0;
        let (_, queue) = shared.queue.get_or_init(|| {
            let (sender, receiver) = sync_channel(SEEN_MAX);
            (sender, Mutex::new(receiver))
        });
        let queue = match queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // What was left for the one before, who is gone.
        while queue.try_recv().is_ok() {}
        shared.missed.store(0, Ordering::Relaxed);
        shared.bytes_max.store(bytes_max, Ordering::Relaxed);
        shared.views.store(view as u8, Ordering::Release);
        Some(Watch { shared, queue })
    }

    /// Whether inner packets are watched.
    pub fn shows_inner(&self) -> bool {
        self.shows(View::Inner as u8)
    }

    /// Whether coded packets are watched.
    pub fn shows_coded(&self) -> bool {
        self.shows(View::InnerAndCoded as u8 & !(View::Inner as u8))
    }

    /// Whether UDP payloads are watched.
    pub fn shows_outer(&self) -> bool {
        self.shows(View::Outer as u8)
    }

    fn shows(&self, bit: u8) -> bool {
        self.0.views.load(Ordering::Relaxed) & bit != 0
    }

    /// Shows a packet of `length` bytes, of which `bytes` are there. Nobody waits for the watcher:
    /// what it has no room for is counted.
    pub fn show(&self, at: Instant, is_out: bool, length: usize, bytes: &[u8], what: SeenKind) {
        let Some((queue, _)) = self.0.queue.get() else { return };
        let most = bytes.len().min(self.0.bytes_max.load(Ordering::Relaxed));
        let bytes = Bytes::copy_from_slice(&bytes[..most]);
        match queue.try_send(Seen { at, is_out, length, bytes, what }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.0.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Watch<'_> {
    /// The next packet, if one comes within `patience`.
    pub fn next(&self, patience: Duration) -> Option<Seen> {
        self.queue.recv_timeout(patience).ok()
    }

    /// Shows nothing more; what waits can still be taken.
    pub fn stop(&self) {
        self.shared.views.store(0, Ordering::Release);
    }

    /// Packets for which there was no room.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.stop();
        while self.queue.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(tap: &Tap, payload: &[u8]) {
        let remote = SocketAddr::from(([192, 0, 2, 1], 4433));
        let what = SeenKind::Outer { uplink: None, remote, local: remote, ecn: 0 };
        tap.show(Instant::ZERO, true, payload.len(), payload, what);
    }

    #[test]
    fn one_watches_at_a_time_and_finds_nothing_of_the_one_before() {
        let tap = Tap::default();
        show(&tap, b"nobody watches");
        let watch = tap.clone();
        let first = watch.watch(View::Outer, 100).expect("nobody else does");
        assert!(tap.shows_outer() && !tap.shows_inner() && !tap.shows_coded());
        assert!(tap.watch(View::Inner, 100).is_none(), "somebody else does");
        show(&tap, b"for the first");
        drop(first);
        assert!(!tap.shows_outer());
        show(&tap, b"too late");
        let second = tap.watch(View::InnerAndCoded, 4).expect("nobody else does");
        assert!(tap.shows_inner() && tap.shows_coded() && !tap.shows_outer());
        assert_eq!(second.next(Duration::ZERO), None);
        show(&tap, b"for the second");
        let seen = second.next(Duration::ZERO).expect("a packet");
        assert_eq!((&seen.bytes[..], seen.length), (&b"for "[..], 14));
    }

    #[test]
    fn a_watcher_who_is_slow_misses_packets_and_holds_nobody_up() {
        let tap = Tap::default();
        let watch = tap.watch(View::Outer, 100).expect("nobody else does");
        (0..SEEN_MAX + 3).for_each(|_| show(&tap, b"packet"));
        assert_eq!(watch.missed(), 3);
        watch.stop();
        let taken = std::iter::from_fn(|| watch.next(Duration::ZERO)).count();
        assert_eq!((taken, watch.missed()), (SEEN_MAX, 3));
    }
}
