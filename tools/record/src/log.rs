//! The log of received packets, and its transfer from server to client.
//!
//! ```text
//!  server: Receiver ─> LogSender ─ entries in reports ─> LogReceiver ─> Arrivals of the client
//!                          <─ confirmed: number received ───
//! ```
//!
//! Reports may be lost, so entries are numbered: the client accepts them only in order and confirms
//! their number in every datagram. Unconfirmed ones are repeated after a round trip and a half.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Buf as _;
use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogEntry {
    /// Data of a cycle received within one millisecond.
    Delivery {
        cycle: u16,
        /// ms since the receiver's start, rounded down.
        at_ms: u32,
        bytes: u32,
    },
    Probe {
        cycle: u16,
        /// us since the sender's start.
        sent_us: u64,
        /// us since the receiver's start.
        received_us: u64,
        probes: u16,
    },
}

impl LogEntry {
    pub fn encode(&self, to: &mut Vec<u8>) {
        match *self {
            Self::Delivery { cycle, at_ms, bytes } => {
                to.push(DELIVERY);
                to.extend(cycle.to_be_bytes());
                to.extend(at_ms.to_be_bytes());
                to.extend(bytes.to_be_bytes());
            }
            Self::Probe { cycle, sent_us, received_us, probes } => {
                to.push(PROBE);
                to.extend(cycle.to_be_bytes());
                to.extend(sent_us.to_be_bytes());
                to.extend(received_us.to_be_bytes());
                to.extend(probes.to_be_bytes());
            }
        }
    }

    fn wire_bytes(&self) -> usize {
        match self {
            Self::Delivery { .. } => 11,
            Self::Probe { .. } => 21,
        }
    }

    fn decode(reader: &mut &[u8]) -> Option<Self> {
        Some(match reader.try_get_u8().ok()? {
            DELIVERY => Self::Delivery {
                cycle: reader.try_get_u16().ok()?,
                at_ms: reader.try_get_u32().ok()?,
                bytes: reader.try_get_u32().ok()?,
            },
            PROBE => Self::Probe {
                cycle: reader.try_get_u16().ok()?,
                sent_us: reader.try_get_u64().ok()?,
                received_us: reader.try_get_u64().ok()?,
                probes: reader.try_get_u16().ok()?,
            },
            _ => return None,
        })
    }
}

pub(crate) fn decode_entries(reader: &mut &[u8]) -> Option<Vec<LogEntry>> {
    let mut entries = Vec::new();
    while !reader.is_empty() {
        entries.push(LogEntry::decode(reader)?);
    }
    Some(entries)
}

/// Unconfirmed entries of the server's log.
#[derive(Debug, Default)]
pub(crate) struct LogSender {
    entries: VecDeque<LogEntry>,
    first: u32,
    /// The number of the first entry of the next report.
    next: u32,
    /// When the client last confirmed new entries, or a repetition began.
    progress: Instant,
    pub discarded: u32,
}

impl LogSender {
    /// Appends an entry, or discards it if too many are unconfirmed.
    pub fn push(&mut self, entry: LogEntry) {
        if self.entries.len() < ENTRIES_MAX {
            self.entries.push_back(entry);
        } else {
            self.discarded = self.discarded.saturating_add(1);
        }
    }

    pub fn on_confirmed(&mut self, now: Instant, count: u32) {
        // A number above the number sent is not a confirmation.
        if count > self.first && count <= self.next {
            let confirmed = usize::try_from(count - self.first).unwrap_or(usize::MAX);
            self.entries.drain(..confirmed.min(self.entries.len()));
            self.first = count;
            self.progress = now;
        }
    }

    /// The first entry's number, and entries for a report of at most [`REPORT_BYTES_MAX`] bytes.
    pub fn take(&mut self, now: Instant, round_trip: Duration) -> (u32, Vec<LogEntry>) {
        if self.next == self.first {
            self.progress = now;
        } else if now.since(self.progress) >= repeat_after(round_trip) {
            self.next = self.first;
            self.progress = now;
        }
        let first = self.next;
        let mut room = REPORT_BYTES_MAX - REPORT_HEADER_BYTES;
        let skip = usize::try_from(first - self.first).unwrap_or(usize::MAX);
        let fits = |entry: &&LogEntry| {
            let rest = room.checked_sub(entry.wire_bytes());
            room = rest.unwrap_or(room);
            rest.is_some()
        };
        let entries: Vec<LogEntry> =
            self.entries.iter().skip(skip).take_while(fits).copied().collect();
        self.next += u32::try_from(entries.len()).unwrap_or(0);
        (first, entries)
    }

    pub fn poll_timeout(&self, round_trip: Duration) -> Option<Instant> {
        (!self.entries.is_empty()).then(|| self.progress + repeat_after(round_trip))
    }

    pub fn has_unsent(&self) -> bool {
        self.next < self.end()
    }

    pub fn end(&self) -> u32 {
        self.first + u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }
}

/// The client's side: tracks the entries that have arrived.
#[derive(Debug, Default)]
pub(crate) struct LogReceiver {
    pub count: u32,
    end: u32,
}

impl LogReceiver {
    pub fn accept<'a>(&mut self, first: u32, end: u32, entries: &'a [LogEntry]) -> &'a [LogEntry] {
        self.end = self.end.max(end);
        let Some(known) = self.count.checked_sub(first) else {
            return &[]; // A report before this one was lost.
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(entries.len());
        let new = &entries[known..];
        self.count = self.count.saturating_add(u32::try_from(new.len()).unwrap_or(0));
        new
    }

    pub fn missing(&self) -> u64 {
        self.end.saturating_sub(self.count).into()
    }

    pub fn is_complete(&self) -> bool {
        self.count >= self.end
    }
}

pub(crate) const REPORT_BYTES_MAX: usize = 1_150;
pub(crate) const REPORT_HEADER_BYTES: usize = 58;
const DELIVERY: u8 = 0;
const PROBE: u8 = 1;
/// A minute of deliveries in every millisecond: 2.4 MB.
const ENTRIES_MAX: usize = 60_000;

/// Reports and confirmations wait for each other, up to 100 ms in idle times.
fn repeat_after(round_trip: Duration) -> Duration {
    (round_trip * 3 / 2 + Duration::from_millis(120)).min(Duration::from_secs(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(40);

    fn delivery(at_ms: u32) -> LogEntry {
        LogEntry::Delivery { cycle: 1, at_ms, bytes: 1_400 }
    }

    #[test]
    fn entries_survive_the_loss_of_any_report() {
        let mut sender = LogSender::default();
        let mut receiver = LogReceiver::default();
        let mut got = Vec::new();
        let mut now = Instant::ZERO;
        for round in 0..400_u32 {
            now += Duration::from_millis(20);
            if round < 200 {
                (0..20).for_each(|index| sender.push(delivery(round * 20 + index)));
            }
            let (first, entries) = sender.take(now, ROUND_TRIP);
            if round % 7 == 3 {
                continue; // lost
            }
            got.extend_from_slice(receiver.accept(first, sender.end(), &entries));
            if round % 5 != 1 {
                sender.on_confirmed(now, receiver.count);
            }
        }
        assert_eq!(got, (0..4_000).map(delivery).collect::<Vec<_>>());
        assert!(receiver.is_complete() && sender.poll_timeout(ROUND_TRIP).is_none());
    }

    #[test]
    fn the_log_is_bounded_and_counts_what_it_discards() {
        let mut sender = LogSender::default();
        (0..ENTRIES_MAX as u32 + 5).for_each(|at| sender.push(delivery(at)));
        assert_eq!((sender.discarded, sender.end()), (5, ENTRIES_MAX as u32));
    }

    #[test]
    fn confirmations_of_what_was_never_sent_count_for_nothing() {
        let mut sender = LogSender::default();
        (0..10).for_each(|at| sender.push(delivery(at)));
        sender.on_confirmed(Instant::ZERO, 7);
        assert_eq!(sender.take(Instant::ZERO, ROUND_TRIP).1.len(), 10);
        sender.on_confirmed(Instant::ZERO, u32::MAX);
        assert_eq!(sender.poll_timeout(ROUND_TRIP), Some(Instant::ZERO + repeat_after(ROUND_TRIP)));
        sender.on_confirmed(Instant::ZERO, 10);
        assert_eq!(sender.poll_timeout(ROUND_TRIP), None);
    }
}
