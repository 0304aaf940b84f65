//! How often strangers are answered: packets of connections that nobody knows.
//!
//! After a restart of the server its former clients are such strangers, and a stateless reset tells
//! them to come again at once (RFC 9000 section 10.3). They all send in the same second, so the rate is
//! that of a thousand of them with four uplinks each. A busy one sends hundreds of packets before the
//! answer is there: each address is answered once in a while. An answer is shorter than what it
//! answers, so nobody's traffic grows by it.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_types::Instant;

/// Answers in a second, at most.
const RATE: u32 = 4_000;
/// An address is answered once in this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Says whether a stranger is answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// When the allowance will be whole again (the generic cell rate algorithm); a second's worth may
    /// be taken at once.
    whole_at: Instant,
    /// Addresses that were answered a moment ago: no more than [`RATE`] and those of the burst.
    recent: BTreeSet<SocketAddr>,
    order: VecDeque<(Instant, SocketAddr)>,
}

impl Answers {
    /// Whether somebody at `remote` is answered now.
    pub(super) fn allow(&mut self, now: Instant, remote: SocketAddr) -> bool {
        while let Some((at, oldest)) = self.order.front()
            && now.since(*at) >= PAUSE
        {
            self.recent.remove(oldest);
            self.order.pop_front();
        }
        let whole_at = self.whole_at.max(now) + Duration::from_secs(1) / RATE;
        if self.recent.contains(&remote) || whole_at.since(now) > Duration::from_secs(1) {
            return false;
        }
        self.whole_at = whole_at;
        self.recent.insert(remote);
        self.order.push_back((now, remote));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_bounded_in_all_and_by_address() {
        let mut answers = Answers::default();
        let from = |number: u32| SocketAddr::from((number.to_be_bytes(), 9));
        let now = Instant::from_millis(5_000);
        assert!(answers.allow(now, from(1)) && !answers.allow(now, from(1)));
        assert!(answers.allow(now + PAUSE, from(1)));
        let all = |answers: &mut Answers, at: Instant| {
            (0..100_000).filter(|number| answers.allow(at, from(*number))).count()
        };
        let first = all(&mut answers, now + Duration::from_secs(2));
        assert!((3_990..=4_000).contains(&first), "{first}");
        let then = all(&mut answers, now + Duration::from_millis(2_500));
        assert!((1_990..=2_010).contains(&then), "{then}");
        assert!(answers.recent.len() <= 2 * RATE as usize);
        assert_eq!(answers.recent.len(), answers.order.len());
    }
}
