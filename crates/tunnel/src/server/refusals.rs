//! Refused clients: all are counted, few are logged.
//!
//! Strangers can connect often, so log lines are bounded by kind: a few, then one per [`INTERVAL`].

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::Refusal;
use roadweave_proto::Instant;
use roadweave_quic::CloseReason;

#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<&'static str, RefusalRecord>);

#[derive(Debug, Default)]
struct RefusalRecord {
    count: u64,
    logged: VecDeque<(Instant, String)>,
    suppressed: u64,
}

impl Refusals {
    /// Counts a refusal; returns its log line, if any: `what`, preceded by `remote`.
    pub(crate) fn count(
        &mut self,
        now: Instant,
        kind: &'static str,
        what: String,
        remote: SocketAddr,
    ) -> Option<String> {
        let kind = self.0.entry(kind).or_default();
        kind.count += 1;
        kind.forget(now);
        // Repeated requests are one line.
        let is_new = kind.logged.iter().all(|(_, text)| *text != what);
        if !is_new || kind.logged.len() >= LOGGED_MAX {
            kind.suppressed += 1;
            return None;
        }
        let line = format!("{remote}{what}");
        kind.logged.push_back((now, what));
        Some(line)
    }

    pub(crate) fn count_unnamed(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            let kind = self.0.entry(kind).or_default();
            kind.count += count;
            kind.suppressed += count;
        }
    }

    pub(crate) fn count_silently(&mut self, kind: &'static str) {
        self.0.entry(kind).or_default().count += 1;
    }

    pub(crate) fn poll_summary(&mut self, now: Instant) -> Option<String> {
        let (name, kind) = self.0.iter_mut().find(|(_, kind)| {
            kind.suppressed > 0 && kind.logged.back().is_none_or(|(at, _)| now >= *at + SUMMARY)
        })?;
        let more = if kind.count > kind.suppressed { " more" } else { "" };
        let line = format!("{}{more}, not logged individually: {name}", kind.suppressed);
        kind.suppressed = 0;
        kind.forget(now);
        kind.logged.push_back((now, String::new()));
        Some(line)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = |kind: &RefusalRecord| {
            kind.logged.back().map_or(Instant::ZERO, |(at, _)| *at + SUMMARY)
        };
        self.0.values().filter(|kind| kind.suppressed > 0).map(due).min()
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.iter().map(|(name, kind)| (*name, kind.count)).collect()
    }
}

impl RefusalRecord {
    fn forget(&mut self, now: Instant) {
        while self.logged.front().is_some_and(|(at, _)| now >= *at + INTERVAL * LOGGED_MAX as u32) {
            self.logged.pop_front();
        }
    }
}

pub(crate) fn kind_of_refusal(why: Refusal) -> &'static str {
    match why {
        Refusal::Unknown => "unknown-key",
        Refusal::Expired => "expired-key",
        Refusal::Revoked => "revoked-key",
        Refusal::Forbidden => "forbidden-key",
    }
}

pub(crate) fn kind_of_failure(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::HandshakeTimedOut | CloseReason::TimedOut => "handshake-timed-out",
        CloseReason::ByPeer { .. } | CloseReason::Reset => "given-up-by-client",
        CloseReason::UnexpectedServerKey => "expects-another-server",
        CloseReason::VersionMismatch => "unknown-version",
        CloseReason::Protocol(_) => "protocol-error",
        _ => "other",
    }
}

pub(crate) const UNUSED: &str = "unused-connection";

pub(crate) const CROWDED_OUT: &str = "crowded-out";

pub(crate) const TOO_MANY_SESSIONS: &str = "too-many-sessions";

/// The most lines of a kind within this many times [`INTERVAL`].
const LOGGED_MAX: usize = 4;
const INTERVAL: Duration = Duration::from_secs(10);
const SUMMARY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_second as at;

    fn address(number: u64) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number as u8], 1024 + number as u16))
    }

    #[test]
    fn refusals_of_varied_text_are_counted_and_not_logged_one_by_one() {
        let mut refusals = Refusals::default();
        let mut lines = Vec::new();
        for number in 0..100_000_u64 {
            let now = Instant::ZERO + Duration::from_millis(number);
            let what = format!(" with the key {number}: unknown");
            lines.extend(refusals.count(now, "unknown-key", what, address(number % 200)));
            lines.extend(refusals.poll_summary(now));
            if number == 50_000 {
                let expired = refusals.count(now, "expired-key", ": expired".into(), address(7));
                assert_eq!(expired.as_deref(), Some("192.0.2.7:1031: expired"));
            }
        }
        assert!((5..=16).contains(&lines.len()), "{lines:#?}");
        assert_eq!(refusals.counts()["unknown-key"], 100_000);
        let due = refusals.poll_timeout().expect("some were left out");
        assert_eq!(refusals.poll_summary(due - Duration::from_millis(1)), None);
        let last = refusals.poll_summary(due).expect("they are told in the end");
        assert!(last.ends_with("more, not logged individually: unknown-key"), "{last}");
        assert_eq!(refusals.poll_timeout(), None);
    }

    #[test]
    fn unnamed_refusals_are_summarized_periodically() {
        let mut refusals = Refusals::default();
        refusals.count_unnamed(CROWDED_OUT, 0);
        assert_eq!((refusals.poll_timeout(), refusals.counts().len()), (None, 0));
        refusals.count_unnamed(CROWDED_OUT, 500);
        let summary = refusals.poll_summary(at(100));
        assert_eq!(summary.as_deref(), Some("500, not logged individually: crowded-out"));
        refusals.count_unnamed(CROWDED_OUT, 9);
        assert_eq!(refusals.poll_summary(at(129)), None);
        let summary = refusals.poll_summary(at(130));
        assert_eq!(summary.as_deref(), Some("9 more, not logged individually: crowded-out"));
        assert_eq!(refusals.counts()[CROWDED_OUT], 509);
    }

    #[test]
    fn one_who_asks_again_is_one_line_for_a_while() {
        let mut refusals = Refusals::default();
        let mut line = |seconds| {
            refusals.count(at(seconds), "unknown-key", " with the key A".into(), address(1))
        };
        assert_eq!(line(0).as_deref(), Some("192.0.2.1:1025 with the key A"));
        assert_eq!((line(1), line(29)), (None, None));
        assert!(line(40).is_some());
    }
}
