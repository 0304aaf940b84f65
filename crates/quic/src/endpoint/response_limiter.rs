//! How often packets without a connection are answered.
//!
//! After a restart of the server a stateless reset makes its former clients return at once (RFC
//! 9000 section 10.3), all in one second: the rate suits a thousand of them with four uplinks each.
//! Each address is answered once in a while. A host has many addresses, so a source has a share of
//! the rate. An answer is shorter than the packet, so it amplifies no traffic.
//!
//! A late client gives up attempts that a late server would answer: answering all keeps both late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roadweave_proto::{Instant, TokenBucket};

use super::half_open::source_of;

const RATE: u32 = 4_000;
const SOURCE_RATE: u32 = RATE / 8;
const CLIENT_RATE: u32 = 1;
const PAUSE: Duration = Duration::from_millis(100);
const BURST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct ResponseLimiter {
    rates: (u32, u32),
    all: TokenBucket,
    recent: BTreeSet<SocketAddr>,
    order: VecDeque<(Instant, SocketAddr)>,
    sources: BTreeMap<IpAddr, TokenBucket>,
    by_time: BTreeSet<(Instant, IpAddr)>,
}

impl ResponseLimiter {
    pub(super) fn of_server() -> Self {
        Self { rates: (RATE, SOURCE_RATE), ..Self::default() }
    }

    pub(super) fn of_client() -> Self {
        Self { rates: (CLIENT_RATE, CLIENT_RATE), ..Self::default() }
    }

    pub(super) fn allow(&mut self, now: Instant, remote: SocketAddr) -> bool {
        while let Some((at, oldest)) = self.order.front()
            && now.since(*at) >= PAUSE
        {
            self.recent.remove(oldest);
            self.order.pop_front();
        }
        while let Some((full_at, source)) = self.by_time.first().copied()
            && full_at <= now
        {
            self.by_time.pop_first();
            self.sources.remove(&source);
        }
        let source = source_of(remote);
        let before = self.sources.get(&source).copied();
        let (rate, source_rate) = self.rates;
        let (mut all, mut own) = (self.all, before.unwrap_or_default());
        let take = |bucket: &mut TokenBucket, rate| bucket.take(now, BURST / rate, BURST);
        if !take(&mut all, rate) || !take(&mut own, source_rate) || self.recent.contains(&remote) {
            return false;
        }
        self.all = all;
        self.sources.insert(source, own);
        before.map(|before| self.by_time.remove(&(before.full_at(), source)));
        self.by_time.insert((own.full_at(), source));
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
        let mut limiter = ResponseLimiter::of_server();
        let from = |number: u32| SocketAddr::from((number.to_be_bytes(), 9));
        let now = Instant::from_millis(5_000);
        assert!(limiter.allow(now, from(1)) && !limiter.allow(now, from(1)));
        assert!(limiter.allow(now + PAUSE, from(1)));
        let all = |limiter: &mut ResponseLimiter, at: Instant| {
            (0..100_000).filter(|number| limiter.allow(at, from(*number))).count()
        };
        let first = all(&mut limiter, now + Duration::from_secs(2));
        assert!((3_990..=4_000).contains(&first), "{first}");
        let then = all(&mut limiter, now + Duration::from_millis(2_500));
        assert!((1_990..=2_010).contains(&then), "{then}");
        assert!(limiter.recent.len() <= 2 * RATE as usize);
        assert_eq!(limiter.recent.len(), limiter.order.len());
        assert_eq!(limiter.sources.len(), limiter.by_time.len());
        assert!(limiter.sources.len() <= 2 * RATE as usize);
        limiter.allow(now + Duration::from_secs(9), from(1));
        assert_eq!(
            (limiter.sources.len(), limiter.by_time.len()),
            (1, 1),
            "whole ones are removed"
        );
    }

    #[test]
    fn one_host_takes_its_share_and_leaves_the_rest() {
        let mut limiter = ResponseLimiter::of_server();
        let now = Instant::from_millis(5_000);
        let mut hosts = |host: u8| {
            let port = |port: u16| SocketAddr::from(([203, 0, 113, host], port));
            (1..10_000).filter(|number| limiter.allow(now, port(*number))).count()
        };
        assert_eq!((hosts(1), hosts(1)), (500, 0));
        assert_eq!(hosts(2), 500, "another has as many");
        let subscriber = |port| SocketAddr::new("2001:db8::1".parse().expect("an address"), port);
        assert!(limiter.allow(now, subscriber(7)));
    }

    #[test]
    fn a_client_responds_at_a_bounded_rate_to_any_source() {
        let mut limiter = ResponseLimiter::of_client();
        let port = |port: u16| SocketAddr::from(([203, 0, 113, 1], port));
        let at = |millis: u64| Instant::from_millis(5_000 + millis);
        let answers = (0..10_000).filter(|it| limiter.allow(at(*it), port(*it as u16 % 7)));
        assert!((10..=11).contains(&answers.count()));
    }
}
