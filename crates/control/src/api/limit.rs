//! Rate limits by address, name and caller, and limits of open event streams.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roadweave_proto::TokenBucket;

use super::{App, Caller, Problem, Result};

pub struct RateLimits {
    pub logins: Limit<IpAddr>,
    /// Password attempts for a name, from anywhere. High enough that a few addresses, each limited
    /// by `logins`, cannot lock a person out.
    pub names: Limit<String>,
    pub strangers: Limit<IpAddr>,
    pub callers: Limit<String>,
    pub secrets: Secrets,
}

impl Default for RateLimits {
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

/// A token bucket for each key. A full table first drops the buckets that are full again. Beyond
/// that, new keys share `SHARED` buckets at random, those of one larger network the same: an
/// attacker that fills the table spends one of them.
pub struct Limit<K> {
    burst: Duration,
    each: Duration,
    begun: Instant,
    buckets: Mutex<Buckets<K>>,
}

struct Buckets<K> {
    of: HashMap<K, TokenBucket>,
    shared: HashMap<u64, TokenBucket>,
    chance: RandomState,
    swept: Option<Instant>,
}

impl<K: Shares> Buckets<K> {
    fn place(&self, key: &K) -> u64 {
        self.chance.hash_one(key.shares()) % SHARED
    }
}

pub trait Shares {
    fn shares(&self) -> impl Hash;
}

impl Shares for IpAddr {
    fn shares(&self) -> impl Hash {
        match self {
            Self::V6(address) => u128::from(*address) >> 80,
            Self::V4(address) => u128::from(u32::from(*address) >> 8),
        }
    }
}

impl Shares for String {
    fn shares(&self) -> impl Hash {
        self
    }
}

impl<K: Hash + Eq + Shares> Limit<K> {
    /// Allows `burst` at once, and one more after each `each`.
    pub fn new(burst: u32, each: Duration) -> Self {
        let (of, shared, chance) = (HashMap::new(), HashMap::new(), RandomState::new());
        let buckets = Mutex::new(Buckets { of, shared, chance, swept: None });
        Self { burst: each * burst, each, begun: Instant::now(), buckets }
    }

    /// Takes one; false if the bucket is empty.
    pub fn take(&self, key: K, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !buckets.of.contains_key(&key);
        let rested = buckets.swept.is_none_or(|at| now.saturating_duration_since(at) > SWEEP);
        if is_new && buckets.of.len() >= KEYS_MAX && rested {
            buckets.swept = Some(now);
            let now = self.since_begin(now);
            buckets.of.retain(|_, bucket| bucket.full_at() > now);
        }
        let bucket = if buckets.of.len() < KEYS_MAX || !is_new {
            buckets.of.entry(key).or_default()
        } else {
            let place = buckets.place(&key);
            buckets.shared.entry(place).or_default()
        };
        bucket.take(self.since_begin(now), self.each, self.burst)
    }

    pub fn is_spent(&self, key: &K, now: Instant) -> bool {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = buckets.of.len() >= KEYS_MAX;
        let shared = || buckets.shared.get(&buckets.place(key)).filter(|_| is_full);
        let bucket = buckets.of.get(key).or_else(shared);
        let now = self.since_begin(now);
        bucket.copied().is_some_and(|mut bucket| !bucket.take(now, self.each, self.burst))
    }

    fn since_begin(&self, now: Instant) -> roadweave_proto::Instant {
        roadweave_proto::Instant::ZERO + now.saturating_duration_since(self.begun)
    }
}

/// The hashes of recently valid secrets: failed guesses from the same address do not block their
/// holders. There are two generations, and the older is dropped as a whole.
#[derive(Default)]
pub struct Secrets(Mutex<[HashSet<String>; 2]>);

impl Secrets {
    pub fn has(&self, hash: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|some| some.contains(hash))
    }

    pub fn add(&self, hash: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all[0].len() >= KEYS_MAX && !all[0].contains(&hash) {
            all[1] = std::mem::take(&mut all[0]);
        }
        all[0].insert(hash);
    }

    pub fn remove(&self, hash: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for some in all.iter_mut() {
            some.remove(hash);
        }
    }
}

const KEYS_MAX: usize = 8192;
const SHARED: u64 = 1024;
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Watchers(Mutex<HashMap<String, usize>>);

pub struct WatcherPermit {
    app: Arc<App>,
    caller: String,
    tenant: String,
}

impl WatcherPermit {
    /// Takes a place: 429 if the caller or its tenant has its share, 503 if all are taken.
    pub fn take(app: &Arc<App>, caller: &Caller) -> Result<Self> {
        let tenant = caller.tenant.clone();
        let of_caller = format!("{tenant}/{}", caller.name);
        let refused = |reason, problem| {
            app.metrics.refuse(reason);
            Err(problem)
        };
        let mut all = app.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |whose: &str| all.get(whose).copied().unwrap_or_default();
        if has(&of_caller) >= OF_CALLER_MAX || has(&tenant) >= OF_TENANT_MAX {
            let detail = "you have too many event streams open: close one";
            return refused("watchers-of-caller", Problem::new(429, "too-many", detail));
        }
        if has(ALL) >= WATCHERS_MAX {
            return refused("watchers", Problem::new(503, "busy", "too many event streams"));
        }
        for whose in [ALL, &tenant, &of_caller] {
            *all.entry(whose.to_owned()).or_default() += 1;
        }
        drop(all);
        app.metrics.watchers.inc();
        Ok(Self { app: Arc::clone(app), caller: of_caller, tenant })
    }
}

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        self.app.metrics.watchers.dec();
        let mut all = self.app.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        for whose in [ALL, &self.tenant, &self.caller] {
            if let Some(count) = all.get_mut(whose) {
                *count -= 1;
                if *count == 0 {
                    all.remove(whose);
                }
            }
        }
    }
}

const ALL: &str = "";
const WATCHERS_MAX: usize = 512;
const OF_TENANT_MAX: usize = 256;
const OF_CALLER_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_limits::network;

    #[test]
    fn a_bucket_empties_and_fills() {
        let limit = Limit::new(3, Duration::from_secs(1));
        let start = Instant::now();
        let take = |ms| limit.take("a".to_owned(), start + Duration::from_millis(ms));
        assert_eq!(
            [take(0), take(0), take(0), take(0), take(999)],
            [true, true, true, false, false]
        );
        assert_eq!([take(1000), take(1001), take(2000)], [true, false, true]);
        assert!(limit.take("b".to_owned(), start));
        assert_eq!(
            [take(60_000), take(60_000), take(60_000), take(60_000)],
            [true, true, true, false]
        );
    }

    #[test]
    fn a_million_addresses_take_bounded_memory_and_do_not_lift_the_limit() {
        let limit = Limit::new(2, Duration::from_secs(1));
        let now = Instant::now();
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let admitted = (0..1_000_000).filter(|it| limit.take(address(*it), now)).count();
        assert!(admitted <= KEYS_MAX + 2 * SHARED as usize, "{admitted}");
        assert!(limit.buckets.lock().unwrap().of.len() <= KEYS_MAX);
        assert!(limit.buckets.lock().unwrap().shared.len() <= SHARED as usize);
        assert!(limit.take(address(1), now));
        assert!(!limit.take(address(1), now));
    }

    #[test]
    fn a_full_table_of_one_large_network_does_not_block_others() {
        let limit = Limit::new(10, Duration::from_secs(6));
        let now = Instant::now();
        let of = |network: u128, host: u128| {
            IpAddr::from(std::net::Ipv6Addr::from_bits(network << 80 | host << 64))
        };
        (0..65_536).for_each(|host| _ = limit.take(of(0x2001_0db8_0bad, host), now));
        let others = (1..=100).filter(|network| limit.take(of(0x2001_0db9_0000 + network, 1), now));
        assert!(others.count() >= 98, "each shares a bucket with the attacker once in {SHARED}");
        assert!(!limit.take(of(0x2001_0db8_0bad, 9_000), now));
    }

    #[test]
    fn made_up_names_do_not_keep_a_name_out_that_was_not_used_before() {
        let limit = Limit::new(600, Duration::from_millis(100));
        let now = Instant::now();
        (0..82_000).for_each(|number| _ = limit.take(format!("tram/{number}"), now));
        assert!(limit.take("tram/anna".to_owned(), now));
    }

    #[test]
    fn a_spent_bucket_is_seen_without_taking() {
        let limit = Limit::new(2, Duration::from_secs(1));
        let now = Instant::now();
        let mut spent = Vec::new();
        for _ in 0..3 {
            spent.push(limit.is_spent(&"a".to_owned(), now));
            limit.take("a".to_owned(), now);
        }
        assert_eq!(spent, [false, false, true]);
        assert!(!limit.is_spent(&"a".to_owned(), now + Duration::from_secs(1)));
        assert!(!limit.is_spent(&"b".to_owned(), now));
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
