//! Limits the log of clients that join and leave, as two boxes with one key do endlessly: for each
//! client and for all together. Suppressed lines are counted.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, TokenBucket};

#[derive(Debug, Default)]
pub(super) struct PresenceLog {
    clients: BTreeMap<PublicKey, LoggedClient>,
    all: TokenBucket,
}

#[derive(Debug)]
struct LoggedClient {
    name: String,
    lines: TokenBucket,
    suppressed: u64,
}

impl PresenceLog {
    pub(super) fn may_log(&mut self, now: Instant, key: PublicKey, name: &str) -> bool {
        let new =
            || LoggedClient { name: name.to_owned(), lines: TokenBucket::default(), suppressed: 0 };
        let client = self.clients.entry(key).or_insert_with(new);
        let may = client.suppressed == 0
            && OF_CLIENT.allows(now, &mut client.lines)
            && OF_ALL.allows(now, &mut self.all);
        client.suppressed += u64::from(!may);
        may
    }

    pub(super) fn poll_suppressed(&mut self, now: Instant) -> Option<(String, u64)> {
        self.clients.retain(|_, client| client.suppressed > 0 || client.lines.full_at() > now);
        let mut clients = self.clients.values_mut().filter(|client| client.suppressed > 0);
        let client = clients.find_map(|it| OF_CLIENT.allows(now, &mut it.lines).then_some(it))?;
        let may = OF_ALL.allows(now, &mut self.all);
        may.then(|| (client.name.clone(), std::mem::take(&mut client.suppressed)))
    }
}

struct LineLimit {
    burst: u32,
    interval: Duration,
}

impl LineLimit {
    fn allows(&self, now: Instant, lines: &mut TokenBucket) -> bool {
        lines.take(now, self.interval, self.interval * self.burst)
    }
}

/// Four visits.
const OF_CLIENT: LineLimit = LineLimit { burst: 8, interval: Duration::from_secs(60) };
/// When a server's network fails briefly, 4,000 clients leave and join at once.
const OF_ALL: LineLimit = LineLimit { burst: 10_000, interval: Duration::from_millis(500) };

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    fn key(seed: u8) -> PublicKey {
        Identity::from_seed([seed; 32]).public_key()
    }

    fn lines(clients: u8, seconds: u64) -> (u64, u64) {
        let keys: Vec<PublicKey> = (0..clients).map(key).collect();
        let (mut presence_log, mut lines, mut suppressed) = (PresenceLog::default(), 0, 0);
        for millis in 0..seconds * 1_000 {
            let now = Instant::from_millis(millis);
            let at = millis as usize % keys.len();
            lines += u64::from(presence_log.may_log(now, keys[at], "box"));
            if millis % 1_000 == 0 {
                while let Some((_, more)) = presence_log.poll_suppressed(now) {
                    lines += 1;
                    suppressed += more;
                }
            }
        }
        (lines, suppressed)
    }

    #[test]
    fn a_client_that_comes_and_goes_without_end_is_a_few_lines() {
        let (lines, suppressed) = lines(1, 600);
        assert!((9..=18).contains(&lines), "{lines}");
        assert!(suppressed > 500_000, "and all is counted: {suppressed}");
        let (lines, _) = super::tests::lines(100, 600);
        assert!(lines <= 100 * 18, "{lines}");
    }

    #[test]
    fn one_client_does_not_hide_another_and_suppressed_lines_are_counted() {
        let mut presence_log = PresenceLog::default();
        let now = Instant::from_millis(5);
        let logged = (0..100).filter(|_| presence_log.may_log(now, key(1), "noisy")).count();
        assert_eq!(logged, 8);
        assert!(presence_log.may_log(now, key(2), "quiet"));
        assert_eq!(presence_log.poll_suppressed(now), None, "not before its time");
        let later = now + Duration::from_secs(60);
        assert_eq!(presence_log.poll_suppressed(later), Some(("noisy".to_owned(), 92)));
        let much_later = now + Duration::from_secs(3_600);
        assert_eq!(presence_log.poll_suppressed(much_later), None);
        assert!(presence_log.clients.is_empty());
    }

    #[test]
    fn all_clients_together_have_a_bound() {
        let mut presence_log = PresenceLog::default();
        let now = Instant::ZERO;
        let logged =
            (0..2 * OF_ALL.burst).filter(|_| OF_ALL.allows(now, &mut presence_log.all)).count();
        assert_eq!(logged, OF_ALL.burst as usize);
        assert!(!presence_log.may_log(now, key(1), "box"));
        let later = now + OF_CLIENT.interval;
        assert_eq!(presence_log.poll_suppressed(later), Some(("box".to_owned(), 1)));
    }
}
