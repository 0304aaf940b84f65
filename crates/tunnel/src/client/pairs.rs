//! Pairs of an uplink and an address of the server, and which of them rest.
//!
//! ```text
//! refused with proof ─► 10 s, doubling to 60 s ─┐
//! anything that may be forged ─► 1 s to 30 s ───┼─► this pair rests, and no other
//! connected and not welcomed ─► 1 s to 30 s ────┘
//! no answer ─► the next attempt 1 s later, then 1.5 s .. 8 s, beside those under way
//! ```
//!
//! A captive portal or a host in the same WiFi may forge an answer. So it counts for its pair only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use roadweave_proto::{Instant, UplinkId};

pub(super) type Pair = (UplinkId, SocketAddr);

/// The pause after the first attempt on a silent pair: it may have been lost.
const RACE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause on a silent pair: thousands of clients may wait for the same server.
const RACE_INTERVAL_MAX: Duration = Duration::from_secs(8);
/// A rest is longer by a random part of up to one in this many, so that many rests end apart.
const JITTER: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The server proved its identity and refused: it would again soon.
    Refused,
    /// Anything else; it may not be the server's.
    Doubtful,
}

impl Rejection {
    fn rests(self) -> (Duration, Duration) {
        let secs = |(min, max)| (Duration::from_secs(min), Duration::from_secs(max));
        match self {
            Self::Refused => secs((10, 60)),
            Self::Doubtful => secs((1, 30)),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct PairState {
    pub(super) attempts: u64,
    pub(super) last: Option<String>,
    next_attempt: Instant,
    pause: Duration,
    pub(super) resting_until: Instant,
    /// The last rest without jitter; the next one doubles it.
    rest: Duration,
}

impl PairState {
    pub(super) fn due(&self) -> Instant {
        self.next_attempt.max(self.resting_until)
    }
}

#[derive(Debug)]
pub(super) struct Pairs {
    pairs: BTreeMap<Pair, PairState>,
    untried: PairState,
    random: Pcg64Mcg,
}

impl Pairs {
    pub(super) fn new(seed: u64) -> Self {
        let random = Pcg64Mcg::new(u128::from(seed) << 1 | 1);
        Self { pairs: BTreeMap::new(), untried: PairState::default(), random }
    }

    pub(super) fn resting_until(&self, now: Instant, pair: Pair) -> Option<Instant> {
        Some(self.get(pair).resting_until).filter(|until| *until > now)
    }

    pub(super) fn get(&self, pair: Pair) -> &PairState {
        self.pairs.get(&pair).unwrap_or(&self.untried)
    }

    pub(super) fn on_attempt(&mut self, now: Instant, pair: Pair) {
        let state = self.pairs.entry(pair).or_default();
        state.attempts += 1;
        state.pause = (state.pause * 3 / 2).clamp(RACE_INTERVAL, RACE_INTERVAL_MAX);
        let pause = state.pause;
        let pause = pause + self.jitter(pause / JITTER);
        self.pairs.entry(pair).or_default().next_attempt = now + pause;
    }

    pub(super) fn on_answered(&mut self, pair: Pair) {
        if let Some(state) = self.pairs.get_mut(&pair) {
            state.pause = Duration::ZERO;
        }
    }

    pub(super) fn reset_backoff(&mut self, now: Instant, uplink: Option<UplinkId>) {
        self.hurry(now + RACE_INTERVAL, uplink);
    }

    pub(super) fn hurry(&mut self, at: Instant, uplink: Option<UplinkId>) {
        let of_uplink = |pair: &Pair| uplink.is_none_or(|uplink| pair.0 == uplink);
        for (_, state) in self.pairs.iter_mut().filter(|(pair, _)| of_uplink(pair)) {
            (state.pause, state.next_attempt) = (Duration::ZERO, state.next_attempt.min(at));
        }
    }

    pub(super) fn note(&mut self, pair: Pair, reason: String) {
        self.pairs.entry(pair).or_default().last = Some(reason);
    }

    /// Lets a pair rest, longer each time. Returns how long; `None` if it rests already.
    pub(super) fn rest(
        &mut self,
        now: Instant,
        pair: Pair,
        rejection: Rejection,
        reason: String,
    ) -> Option<Duration> {
        let (min, max) = rejection.rests();
        let state = self.pairs.entry(pair).or_default();
        (state.last, state.pause) = (Some(reason), Duration::ZERO);
        // Several attempts on one pair may get the same answer.
        if state.resting_until > now {
            return None;
        }
        state.rest = (state.rest * 2).clamp(min, max);
        let rest = state.rest;
        let rest = rest + self.jitter(rest / JITTER);
        self.pairs.entry(pair).or_default().resting_until = now + rest;
        Some(rest)
    }

    pub(super) fn rest_for(&mut self, now: Instant, pair: Pair, rest: Duration) {
        let until = now + rest + self.jitter(rest / JITTER);
        let state = self.pairs.entry(pair).or_default();
        state.resting_until = state.resting_until.max(until);
    }

    pub(super) fn on_success(&mut self, pair: Pair) {
        if let Some(state) = self.pairs.get_mut(&pair) {
            (state.rest, state.last) = (Duration::ZERO, None);
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Pair) -> bool) {
        self.pairs.retain(|pair, _| keep(*pair));
    }

    pub(super) fn jitter(&mut self, max: Duration) -> Duration {
        let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        let random = self.random.next_u64();
        Duration::from_nanos(random.checked_rem(nanos).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(uplink: u32) -> Pair {
        (UplinkId(uplink), SocketAddr::from(([192, 0, 2, 1], 4433)))
    }

    fn rests(pairs: &mut Pairs, rejection: Rejection) -> Vec<u64> {
        let mut now = Instant::ZERO;
        let mut rest = || {
            let rest = pairs.rest(now, pair(0), rejection, "no".into()).expect("it is awake");
            now += rest;
            rest.as_secs()
        };
        (0..6).map(|_| rest()).collect()
    }

    #[test]
    fn rests_grow_to_a_bound_and_end_apart() {
        for (rejection, base) in [
            (Rejection::Refused, [10, 20, 40, 60, 60, 60]),
            (Rejection::Doubtful, [1, 2, 4, 8, 16, 30]),
        ] {
            let grown = [1, 2].map(|seed| rests(&mut Pairs::new(seed), rejection));
            for rests in &grown {
                for (rest, base) in rests.iter().zip(base) {
                    assert!((base..=base + base / 4).contains(rest), "{rests:?}");
                }
            }
            assert_eq!(grown[0], rests(&mut Pairs::new(1), rejection), "equal seeds, equal rests");
            assert_ne!(grown[0], grown[1]);
        }
    }

    fn pauses(pairs: &mut Pairs, count: usize) -> Vec<u64> {
        let mut now = Instant::from_millis(1_000);
        let mut pause = || {
            pairs.on_attempt(now, pair(0));
            let pause = pairs.get(pair(0)).due().since(now);
            now += pause;
            pause.as_millis() as u64
        };
        (0..count).map(|_| pause()).collect()
    }

    #[test]
    fn unanswered_attempts_back_off_with_jitter() {
        let base = [1_000, 1_500, 2_250, 3_375, 5_062, 7_593, 8_000, 8_000];
        let grown = [1, 2].map(|seed| pauses(&mut Pairs::new(seed), base.len()));
        for pauses in &grown {
            for (pause, base) in pauses.iter().zip(base) {
                assert!((base..=base + base / 4 + 1).contains(pause), "{pauses:?}");
            }
        }
        assert_ne!(grown[0], grown[1]);
        let mut pairs = Pairs::new(1);
        let soon = |pairs: &mut Pairs| (1_000..=1_250).contains(&pauses(pairs, 8)[0]);
        assert!(soon(&mut pairs) && !soon(&mut pairs));
        pairs.on_answered(pair(0));
        assert!(soon(&mut pairs));
        pairs.reset_backoff(Instant::ZERO, Some(UplinkId(1)));
        assert!(!soon(&mut pairs), "that was another uplink");
        pairs.reset_backoff(Instant::from_millis(500), None);
        assert_eq!(pairs.get(pair(0)).due(), Instant::from_millis(1_500));
        assert!(soon(&mut pairs));
    }

    #[test]
    fn a_pair_rests_alone_and_one_answer_counts_once() {
        let mut pairs = Pairs::new(1);
        assert!(pairs.rest(Instant::ZERO, pair(0), Rejection::Refused, "no".into()).is_some());
        assert_eq!(pairs.rest(Instant::ZERO, pair(0), Rejection::Refused, "no".into()), None);
        assert!(pairs.get(pair(0)).due() >= Instant::from_millis(10_000));
        assert_eq!(pairs.get(pair(1)).due(), Instant::ZERO);
        pairs.retain(|pair| pair.0 != UplinkId(0));
        assert_eq!(pairs.get(pair(0)).due(), Instant::ZERO, "forgotten with its uplink");
    }
}
