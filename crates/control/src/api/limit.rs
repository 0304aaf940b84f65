//! How often an address may fail, or try a password.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The limits of the interface.
#[derive(Debug)]
pub struct Limits {
    /// Tries of passwords from an address.
    pub logins: Limit<IpAddr>,
    /// Tries of passwords for a name, from anywhere: so many that whoever tries from a few places
    /// keeps nobody out, each of which has a bucket in `logins`.
    pub names: Limit<String>,
    /// Requests from an address with no key that counts.
    pub strangers: Limit<IpAddr>,
    /// Requests from whoever is known.
    pub callers: Limit<String>,
    /// Secrets that were right.
    pub secrets: Secrets,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            logins: Limit::new(10, Duration::from_secs(6)),
            names: Limit::new(600, Duration::from_millis(100)),
            strangers: Limit::new(60, Duration::from_secs(1)),
            callers: Limit::new(600, Duration::from_millis(20)),
            secrets: Secrets::default(),
        }
    }
}

/// A bucket of tokens for each key. Bounded: of keys that nobody can tell apart in number, the ones
/// that are full again are forgotten first, and beyond that all share one bucket.
#[derive(Debug)]
pub struct Limit<K> {
    burst: u32,
    each: Duration,
    buckets: Mutex<Buckets<K>>,
}

#[derive(Debug)]
struct Buckets<K> {
    of: HashMap<K, Bucket>,
    rest: Option<Bucket>,
    /// When the full ones were forgotten last.
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: u32,
    since: Instant,
}

impl<K: std::hash::Hash + Eq> Limit<K> {
    /// At once at most `burst`, and one more after `each`.
    pub fn new(burst: u32, each: Duration) -> Self {
        let buckets = Mutex::new(Buckets { of: HashMap::new(), rest: None, swept: None });
        Self { burst, each, buckets }
    }

    /// Takes one; false if there is none left.
    pub fn take(&self, key: K, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !buckets.of.contains_key(&key);
        // Not at every request: else many addresses would cost much time.
        let rested = buckets.swept.is_none_or(|at| now.saturating_duration_since(at) > SWEEP);
        if is_new && buckets.of.len() >= KEYS_MAX && rested {
            buckets.swept = Some(now);
            buckets.of.retain(|_, bucket| self.level(bucket, now).level < self.burst);
        }
        let fresh = Bucket { level: self.burst, since: now };
        let bucket = if buckets.of.len() < KEYS_MAX || !is_new {
            buckets.of.entry(key).or_insert(fresh)
        } else {
            buckets.rest.get_or_insert(fresh)
        };
        *bucket = self.level(bucket, now);
        let left = bucket.level > 0;
        bucket.level = bucket.level.saturating_sub(1);
        left
    }

    /// Whether there is none left.
    pub fn is_spent(&self, key: &K, now: Instant) -> bool {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = || buckets.rest.as_ref().filter(|_| buckets.of.len() >= KEYS_MAX);
        let bucket = buckets.of.get(key).or_else(rest);
        bucket.is_some_and(|bucket| self.level(bucket, now).level == 0)
    }

    fn level(&self, bucket: &Bucket, now: Instant) -> Bucket {
        let passed = now.saturating_duration_since(bucket.since);
        let each = self.each.as_nanos().max(1);
        let more = u32::try_from(passed.as_nanos() / each).unwrap_or(u32::MAX);
        if bucket.level.saturating_add(more) >= self.burst {
            return Bucket { level: self.burst, since: now };
        }
        Bucket { level: bucket.level + more, since: bucket.since + self.each * more }
    }
}

/// The hashes of secrets that were right lately: who shows one of them is no stranger, whoever
/// else guesses from the same address. Bounded: of those that are not seen for long, all are
/// forgotten together.
#[derive(Debug, Default)]
pub struct Secrets(Mutex<[HashSet<String>; 2]>);

impl Secrets {
    /// Whether the secret with this hash was right lately.
    pub fn has(&self, hash: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|some| some.contains(hash))
    }

    /// Notes the hash of a secret that has just proved right.
    pub fn add(&self, hash: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all[0].len() >= KEYS_MAX && !all[0].contains(&hash) {
            all[1] = std::mem::take(&mut all[0]);
        }
        all[0].insert(hash);
    }

    /// Forgets the hash of a secret that is right no more.
    pub fn remove(&self, hash: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for some in all.iter_mut() {
            some.remove(hash);
        }
    }
}

/// What stands for an address: of IPv6 the network, since a stranger has all of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

const KEYS_MAX: usize = 8192;
const SWEEP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let limit = Limit::new(3, Duration::from_secs(1));
        let start = Instant::now();
        let take = |ms| limit.take("a", start + Duration::from_millis(ms));
        assert_eq!(
            [take(0), take(0), take(0), take(0), take(999)],
            [true, true, true, false, false]
        );
        assert_eq!([take(1000), take(1001), take(2000)], [true, false, true]);
        assert!(limit.take("b", start));
        assert_eq!(
            [take(60_000), take(60_000), take(60_000), take(60_000)],
            [true, true, true, false]
        );
    }

    #[test]
    fn a_million_addresses_take_bounded_memory_and_do_not_lift_the_limit() {
        let limit = Limit::new(2, Duration::from_secs(1));
        let now = Instant::now();
        let admitted = (0..1_000_000).filter(|address| limit.take(*address, now)).count();
        assert_eq!(admitted, KEYS_MAX + 2);
        assert!(limit.buckets.lock().unwrap().of.len() <= KEYS_MAX);
        // And those who were there go on by their own bucket.
        assert!(limit.take(1, now));
        assert!(!limit.take(1, now));
    }

    #[test]
    fn a_spent_bucket_is_seen_without_taking() {
        let limit = Limit::new(2, Duration::from_secs(1));
        let now = Instant::now();
        let mut spent = Vec::new();
        for _ in 0..3 {
            spent.push(limit.is_spent(&"a", now));
            limit.take("a", now);
        }
        assert_eq!(spent, [false, false, true]);
        assert!(!limit.is_spent(&"a", now + Duration::from_secs(1)));
        assert!(!limit.is_spent(&"b", now));
    }

    #[test]
    fn a_million_secrets_take_bounded_memory_and_the_latest_are_known() {
        let secrets = Secrets::default();
        for at in 0..1_000_000 {
            secrets.add(at.to_string());
        }
        assert!(secrets.has("999999") && secrets.has("995000") && !secrets.has("7"));
        secrets.remove("999999");
        assert!(!secrets.has("999999"));
        let held: usize = secrets.0.lock().unwrap().iter().map(HashSet::len).sum();
        assert!(held <= 2 * KEYS_MAX, "{held}");
    }

    #[test]
    fn one_network_of_ipv6_is_one_stranger() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::1"), of("2001:db8:1:2:9::7"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
