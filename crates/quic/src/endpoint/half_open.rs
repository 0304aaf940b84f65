//! Handshakes under way on a server, by source: which may begin.
//!
//! ```text
//! Initial ─► its address is proved by a token? ─ yes ─► 256 of its source under way? ─► ignored
//!              │ no                                     room in all? ─► accepted
//!              ▼                                          └ no: the oldest unproved one ends, or else
//!            16 of its source, or half of the room, taken?    the oldest of the source that has most,
//!              ├ yes ─► Retry, which costs no memory          if it has more than twice as many; its
//!              └ no ──► accepted                              only one must be older than 3 s; if no
//!                                                             handshake may end, this one is ignored
//! ```
//!
//! Source addresses can be forged, so unproved handshakes have half of the room and give way to
//! proved ones. An attacker with a few addresses could fill the room with handshakes that are never
//! completed: so the source with most gives way to others, while they have less than half of its
//! number, so that no two drive each other out without end. Where each source has one, as when
//! thousands of clients return to a restarted server, each has some time first. Carriers put many
//! boxes behind one address, so a proved source may have many handshakes. A source is an IPv4
//! address or an IPv6 /64, one subscriber's network.
//!
//! Source: RFC 9000 section 8.1.2.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use roadweave_proto::Instant;

use crate::config::TransportConfig;
use crate::connection::Connection;
use crate::event::{ConnectionId, EndpointEvent};

#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    handshakes: BTreeMap<ConnectionId, Handshake>,
    unproved: BTreeSet<ConnectionId>,
    sources: BTreeMap<IpAddr, Count>,
}

#[derive(Debug)]
struct Handshake {
    unreported: Option<SocketAddr>,
    source: IpAddr,
    began: Instant,
}

#[derive(Debug, Default)]
struct Count {
    all: usize,
    proved: BTreeSet<ConnectionId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accept,
    Replace(ConnectionId),
    Retry,
    Ignore,
}

impl HalfOpen {
    /// Decides about a new client at `remote`; `proved`: it has a token sent to that address.
    pub(super) fn admit(
        &self,
        now: Instant,
        config: &TransportConfig,
        remote: SocketAddr,
        proved: bool,
    ) -> Admission {
        let count = self.sources.get(&source_of(remote));
        let (all, own) = count.map_or((0, 0), |count| (count.all, count.proved.len()));
        let is_full = self.handshakes.len() >= config.half_open_max;
        if !proved {
            let is_crowded =
                all >= config.retry_threshold || self.unproved.len() >= config.half_open_max / 2;
            return if is_crowded || is_full { Admission::Retry } else { Admission::Accept };
        }
        if own >= config.half_open_per_source_max {
            return Admission::Ignore;
        }
        if !is_full {
            return Admission::Accept;
        }
        let goes = self.unproved.first().copied().or_else(|| self.oldest_of_crowded(now, own));
        goes.map_or(Admission::Ignore, Admission::Replace)
    }

    /// The oldest handshake of the source with most, if it has over twice `own`; an only one must
    /// be old.
    fn oldest_of_crowded(&self, now: Instant, own: usize) -> Option<ConnectionId> {
        let proved = self.sources.values().map(|count| &count.proved);
        let most = proved.max_by_key(|proved| (proved.len(), Reverse(proved.first())))?;
        let oldest = most.first().copied().filter(|_| most.len() > 2 * own)?;
        let age = now.since(self.handshakes.get(&oldest)?.began);
        (most.len() > 1 || age >= LONE_TIME).then_some(oldest)
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        id: ConnectionId,
        remote: SocketAddr,
        proved: bool,
    ) {
        let source = source_of(remote);
        let handshake = Handshake { unreported: Some(remote), source, began: now };
        self.handshakes.insert(id, handshake);
        let count = self.sources.entry(source).or_default();
        count.all += 1;
        match proved {
            true => count.proved.insert(id),
            false => self.unproved.insert(id),
        };
    }

    /// Of the newest `most`, those begun within `time` before `now`: all, and those of `remote`.
    pub(super) fn begun_since(
        &self,
        now: Instant,
        time: Duration,
        remote: SocketAddr,
        most: usize,
    ) -> (usize, usize) {
        let source = source_of(remote);
        let newest = self.handshakes.values().rev().take(most);
        newest
            .take_while(|handshake| now < handshake.began + time)
            .fold((0, 0), |(all, own), it| (all + 1, own + usize::from(it.source == source)))
    }

    /// The outcome of a handshake, once.
    pub(super) fn settle(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection,
    ) -> Option<EndpointEvent> {
        let handshake = self.handshakes.get_mut(&id)?;
        let remote = handshake.unreported?;
        if connection.peer().is_some() {
            self.end(id);
            return Some(EndpointEvent::Incoming(id));
        }
        let reason = connection.take_failure()?;
        handshake.unreported = None;
        Some(match connection.peer.refused {
            Some((key, why)) => EndpointEvent::Refused { remote, key, why },
            None => EndpointEvent::HandshakeFailed { remote, reason },
        })
    }

    pub(super) fn end(&mut self, id: ConnectionId) {
        let Some(Handshake { source, .. }) = self.handshakes.remove(&id) else { return };
        self.unproved.remove(&id);
        let Some(count) = self.sources.get_mut(&source) else { return };
        count.all -= 1;
        count.proved.remove(&id);
        if count.all == 0 {
            self.sources.remove(&source);
        }
    }
}

/// How long the only handshake of a proved source keeps its place. A core completes some thousands
/// in this time, more than may be under way.
const LONE_TIME: Duration = Duration::from_secs(3);

pub(super) fn source_of(remote: SocketAddr) -> IpAddr {
    match remote.ip().to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn config() -> TransportConfig {
        TransportConfig {
            half_open_max: 100,
            retry_threshold: 16,
            half_open_per_source_max: 30,
            ..TransportConfig::new([0; 32])
        }
    }

    /// Lets clients begin, the n-th from `address(n)` n ms after the start; returns the decisions.
    fn begin_all(
        half_open: &mut HalfOpen,
        numbers: Range<u64>,
        proved: bool,
        address: impl Fn(u64) -> String,
    ) -> Vec<Admission> {
        let decide = |number: u64| {
            let remote: SocketAddr = address(number).parse().unwrap();
            let now = Instant::from_millis(number);
            let admission = half_open.admit(now, &config(), remote, proved);
            if let Admission::Replace(id) = admission {
                half_open.end(id);
            }
            if matches!(admission, Admission::Accept | Admission::Replace(_)) {
                half_open.begin(now, ConnectionId(number), remote, proved);
            }
            admission
        };
        numbers.map(decide).collect()
    }

    fn accepted(decisions: &[Admission]) -> usize {
        decisions.iter().filter(|decision| **decision == Admission::Accept).count()
    }

    fn replaced(oldest: Range<u64>) -> Vec<Admission> {
        oldest.map(|number| Admission::Replace(ConnectionId(number))).collect()
    }

    fn anywhere(number: u64) -> String {
        format!("10.{}.{}.1:9", number / 256, number % 256)
    }

    #[test]
    fn a_crowded_source_proves_itself_and_others_need_not() {
        for (crowded, other) in [
            ("203.0.113.9:PORT", "203.0.113.8:1"),
            ("[2001:db8:0:1::PORT]:1", "[2001:db8:0:2::1]:1"),
            // IPv4 as a socket for both families reports it.
            ("[::ffff:203.0.113.9]:PORT", "[::ffff:203.0.113.8]:1"),
        ] {
            let mut half_open = HalfOpen::default();
            let address = |number: u64| crowded.replace("PORT", &(number + 1).to_string());
            let decisions = begin_all(&mut half_open, 0..20, false, address);
            assert_eq!(accepted(&decisions), 16);
            assert_eq!(decisions[16..], [Admission::Retry; 4]);
            assert_eq!(accepted(&begin_all(&mut half_open, 20..21, false, |_| other.into())), 1);
            let proved = begin_all(&mut half_open, 30..70, true, address);
            assert_eq!(accepted(&proved), 30);
            assert_eq!(proved[30..], [Admission::Ignore; 10], "but not any number of them");
        }
    }

    #[test]
    fn those_who_proved_nothing_give_way_and_the_oldest_first() {
        let mut half_open = HalfOpen::default();
        let decisions = begin_all(&mut half_open, 0..10_000, false, anywhere);
        assert_eq!(accepted(&decisions), 50, "half of the room");
        let proved = begin_all(&mut half_open, 20_000..20_100, true, anywhere);
        assert_eq!(accepted(&proved), 50);
        assert_eq!(proved[50..], replaced(0..50));
        let oldest = replaced(20_000..20_001);
        assert_eq!(begin_all(&mut half_open, 30_000..30_001, true, anywhere), oldest);
        let unproved = begin_all(&mut half_open, 40_000..40_001, false, anywhere);
        assert_eq!(unproved, [Admission::Retry]);
    }

    #[test]
    fn a_few_sources_that_fill_the_table_do_not_block_others() {
        let mut half_open = HalfOpen::default();
        let hostile = |number: u64| format!("203.0.113.{}:9", number % 4);
        assert_eq!(accepted(&begin_all(&mut half_open, 0..200, true, hostile)), 100);
        let carrier = |_| "192.0.2.1:9".to_owned();
        let behind_carrier = begin_all(&mut half_open, 1_000..1_009, true, carrier);
        assert_eq!(behind_carrier, replaced(0..9), "the oldest of a crowded source each");
        assert_eq!(half_open.handshakes.len(), 100);
        let hostile = begin_all(&mut half_open, 2_000..2_400, true, hostile);
        assert_eq!(hostile, [Admission::Ignore; 400]);
        let mut churned = begin_all(&mut half_open, 3_000..3_100, true, carrier);
        churned.retain(|admission| *admission != Admission::Ignore);
        assert!(churned.len() <= 3, "{churned:?}");
        let other = |number: u64| format!("198.51.100.{}:9", number - 100_000);
        let others = begin_all(&mut half_open, 100_000..100_020, true, other);
        assert!(others.iter().all(|admission| matches!(admission, Admission::Replace(_))));
    }

    #[test]
    fn thousands_who_come_back_at_once_do_not_drive_each_other_out() {
        let mut half_open = HalfOpen::default();
        assert_eq!(accepted(&begin_all(&mut half_open, 0..100, true, anywhere)), 100);
        // Each has its own source: all whose time is not over stay, and then go one by one.
        let newcomers = begin_all(&mut half_open, 100..3_000, true, anywhere);
        assert_eq!(newcomers, vec![Admission::Ignore; 2_900]);
        assert_eq!(begin_all(&mut half_open, 3_000..3_100, true, anywhere), replaced(0..100));
        assert_eq!(half_open.handshakes.len(), 100);
    }

    #[test]
    fn those_that_began_of_late_are_counted_by_source_up_to_a_bound() {
        let mut half_open = HalfOpen::default();
        begin_all(&mut half_open, 0..20, true, |number| format!("10.0.0.{}:9", number % 2));
        let count = |now, most| {
            let [now, time] = [now, 10].map(Duration::from_millis);
            let remote = "10.0.0.1:7".parse().unwrap();
            half_open.begun_since(Instant::ZERO + now, time, remote, most)
        };
        // Later ones are among the newest.
        let counts =
            [(0, 16), (19, 16), (24, 16), (29, 16), (19, 3)].map(|(now, most)| count(now, most));
        assert_eq!(counts, [(16, 8), (10, 5), (5, 3), (0, 0), (3, 2)]);
    }

    #[test]
    fn what_has_ended_leaves_nothing_behind() {
        let mut half_open = HalfOpen::default();
        for (numbers, proved) in [(0..40, false), (40..80, true)] {
            begin_all(&mut half_open, numbers, proved, |number| format!("10.0.0.{}:9", number % 4));
        }
        (0..80).for_each(|number| half_open.end(ConnectionId(number)));
        half_open.end(ConnectionId(0));
        assert!(half_open.handshakes.is_empty() && half_open.unproved.is_empty());
        assert!(half_open.sources.is_empty());
    }
}
