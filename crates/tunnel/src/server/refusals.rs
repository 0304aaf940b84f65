//! Those who are not let in: all are counted, few are told.
//!
//! A stranger chooses how often it connects, from which address and with which key. So what is told
//! is bounded by kind, whatever the words: a few lines at once, then one in [`INTERVAL`], and what
//! was left out is told as a number. One kind does not silence another.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::Refusal;
use roadweave_proto::Instant;
use roadweave_quic::CloseReason;

/// The kinds of refusals with how many there were.
#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<&'static str, Kind>);

#[derive(Debug, Default)]
struct Kind {
    count: u64,
    /// What was told lately, and when.
    told: VecDeque<(Instant, String)>,
    /// How many were left out since the last that was told.
    suppressed: u64,
}

impl Refusals {
    /// Counts one; returns what to tell of it, if anything: `what` is said of `remote`.
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
        // One who asks again and again is one line.
        let is_new = kind.told.iter().all(|(_, told)| *told != what);
        if !is_new || kind.told.len() >= TOLD_MAX {
            kind.suppressed += 1;
            return None;
        }
        let line = format!("{remote}{what}");
        kind.told.push_back((now, what));
        Some(line)
    }

    /// Counts some of whom no more is known; they are told as a number.
    pub(crate) fn count_unnamed(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            let kind = self.0.entry(kind).or_default();
            kind.count += count;
            kind.suppressed += count;
        }
    }

    /// Counts one that is not told at all.
    pub(crate) fn count_silently(&mut self, kind: &'static str) {
        self.0.entry(kind).or_default().count += 1;
    }

    /// What to tell of those that were left out, once the last that was told is old.
    pub(crate) fn poll_summary(&mut self, now: Instant) -> Option<String> {
        let (name, kind) = self.0.iter_mut().find(|(_, kind)| {
            kind.suppressed > 0 && kind.told.back().is_none_or(|(at, _)| now >= *at + SUMMARY)
        })?;
        let more = if kind.count > kind.suppressed { " more" } else { "" };
        let line = format!("{}{more}, who are not told one by one: {name}", kind.suppressed);
        kind.suppressed = 0;
        kind.forget(now);
        kind.told.push_back((now, String::new()));
        Some(line)
    }

    /// When [`Refusals::poll_summary`] has something to tell.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = |kind: &Kind| kind.told.back().map_or(Instant::ZERO, |(at, _)| *at + SUMMARY);
        self.0.values().filter(|kind| kind.suppressed > 0).map(due).min()
    }

    /// How many there were, by kind.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.iter().map(|(name, kind)| (*name, kind.count)).collect()
    }
}

impl Kind {
    /// What is old may be told again.
    fn forget(&mut self, now: Instant) {
        while self.told.front().is_some_and(|(at, _)| now >= *at + INTERVAL * TOLD_MAX as u32) {
            self.told.pop_front();
        }
    }
}

/// The kind of a client whose key is not let in.
pub(crate) fn kind_of_refusal(why: Refusal) -> &'static str {
    match why {
        Refusal::Unknown => "unknown-key",
        Refusal::Expired => "expired-key",
        Refusal::Revoked => "revoked-key",
        Refusal::Forbidden => "forbidden-key",
        _ => "key",
    }
}

/// The kind of a handshake that came to nothing.
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

/// The kind of a connection that never became a session that is used.
pub(crate) const UNUSED: &str = "unused-connection";

/// The kind of those that came when all places were taken, or all that one source may have.
pub(crate) const CROWDED_OUT: &str = "crowded-out";

/// The kind of a client that begins one session after the other.
pub(crate) const TOO_MANY_SESSIONS: &str = "too-many-sessions";

/// Lines of one kind in [`INTERVAL`] times as much.
const TOLD_MAX: usize = 4;
/// In the long run, a line of a kind comes as often.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long after a line it is told how many were left out.
const SUMMARY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn address(number: u64) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number as u8], 1024 + number as u16))
    }

    #[test]
    fn strangers_who_vary_their_words_are_counted_and_not_told_one_by_one() {
        let mut refusals = Refusals::default();
        let mut lines = Vec::new();
        for number in 0..100_000_u64 {
            let now = Instant::ZERO + Duration::from_millis(number);
            let what = format!(" with the key {number}: unknown");
            lines.extend(refusals.count(now, "unknown-key", what, address(number % 200)));
            lines.extend(refusals.poll_summary(now));
            if number == 50_000 {
                // The flood does not hide what else there is to tell.
                let expired = refusals.count(now, "expired-key", ": expired".into(), address(7));
                assert_eq!(expired.as_deref(), Some("192.0.2.7:1031: expired"));
            }
        }
        assert!((5..=16).contains(&lines.len()), "{lines:#?}");
        assert_eq!(refusals.counts()["unknown-key"], 100_000);
        let due = refusals.poll_timeout().expect("some were left out");
        assert_eq!(refusals.poll_summary(due - Duration::from_millis(1)), None);
        let last = refusals.poll_summary(due).expect("they are told in the end");
        assert!(last.ends_with("more, who are not told one by one: unknown-key"), "{last}");
        assert_eq!(refusals.poll_timeout(), None);
    }

    #[test]
    fn those_without_a_name_are_told_as_a_number_now_and_then() {
        let mut refusals = Refusals::default();
        refusals.count_unnamed(CROWDED_OUT, 0);
        assert_eq!((refusals.poll_timeout(), refusals.counts().len()), (None, 0));
        refusals.count_unnamed(CROWDED_OUT, 500);
        let told = refusals.poll_summary(at(100));
        assert_eq!(told.as_deref(), Some("500, who are not told one by one: crowded-out"));
        refusals.count_unnamed(CROWDED_OUT, 9);
        assert_eq!(refusals.poll_summary(at(129)), None);
        let told = refusals.poll_summary(at(130));
        assert_eq!(told.as_deref(), Some("9 more, who are not told one by one: crowded-out"));
        assert_eq!(refusals.counts()[CROWDED_OUT], 509);
    }

    #[test]
    fn one_who_asks_again_is_one_line_for_a_while() {
        let mut refusals = Refusals::default();
        let mut told = |seconds| {
            refusals.count(at(seconds), "unknown-key", " with the key A".into(), address(1))
        };
        assert_eq!(told(0).as_deref(), Some("192.0.2.1:1025 with the key A"));
        assert_eq!((told(1), told(29)), (None, None));
        assert!(told(40).is_some());
    }
}
