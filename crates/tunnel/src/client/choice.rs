//! Chooses the server that a client should use, from its own measurements.
//!
//! ```text
//! round: 3 probes to each candidate over each uplink ─► the least round trip of each uplink
//!   ─► median over the uplinks, by their capacity ─► + server to anchor = figure
//! figures ─► better by a third and by 10 ms, three rounds running, 10 minutes after the last move
//!   ─► move;  the best at another site ─► standby
//! ```
//!
//! Round trips of radio networks jump by tens of milliseconds. So a figure is a median of minima,
//! which one uplink or one forged answer cannot turn, and two margins must hold for several rounds.

mod round;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::{Instant, UplinkId};

use self::round::Round;
use super::Candidate;
use super::candidates::Candidates;
use super::race::PREFERRED_SERVER_DELAY;

#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) candidates: Candidates,
    pub(super) states: Vec<CandidateState>,
    pub(super) current: usize,
    round: Option<Round>,
    next_round: Instant,
    doubt_pause: Duration,
    doubted: Instant,
    pub(super) rounds: u64,
    last_move: Option<Instant>,
    /// Until then the last server is preferred to others.
    pub(super) home_first_until: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CandidateState {
    /// Of the last round; `None` if it did not answer over half of the capacity.
    pub(super) figure: Option<Duration>,
    pub(super) measured: Option<Instant>,
    /// Consecutive rounds in which it was better than the current one by both margins.
    better: u32,
    rests_until: Instant,
    rest: Duration,
    failed: Instant,
    /// Tries while no server was heard: the networks may be at fault.
    silent_tries: u32,
    pub(super) last: Option<String>,
}

impl CandidateState {
    pub(super) fn rests(&self, now: Instant) -> Option<Instant> {
        Some(self.rests_until).filter(|until| *until > now)
    }

    fn refuge_from(&self) -> Instant {
        self.rests_until.min(self.failed + REST_MIN)
    }
}

impl Choice {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let states = vec![CandidateState::default(); candidates.len()];
        let candidates = Candidates::new(candidates);
        let home_first_until = Instant::ZERO + PREFERRED_SERVER_DELAY;
        Self { candidates, states, doubt_pause: CONFIRM, home_first_until, ..Self::default() }
    }

    pub(super) fn has_several(&self) -> bool {
        self.states.len() > 1
    }

    pub(super) fn home(&self) -> &Candidate {
        &self.candidates.all[self.current]
    }

    pub(super) fn servers(&self, uplink: UplinkId) -> &[SocketAddr] {
        self.candidates.addresses(self.current, uplink)
    }

    /// Candidates that stay keep their state.
    pub(super) fn set_candidates(&mut self, now: Instant, candidates: Vec<Candidate>) {
        let before = self.candidates.before(&candidates);
        let are_same = before.iter().copied().eq((0..self.states.len()).map(Some));
        let state = |before: &Option<usize>| {
            let known = before.and_then(|at| self.states.get(at)).cloned().unwrap_or_default();
            CandidateState { better: if are_same { known.better } else { 0 }, ..known }
        };
        self.states = before.iter().map(state).collect();
        self.candidates.replace(candidates, &before);
        self.current = before.iter().position(|at| *at == Some(self.current)).unwrap_or_default();
        if !are_same && self.round.take().is_some() {
            // It starts again when late answers can no longer come.
            self.next_round = now + CONFIRM;
        } else if before.contains(&None) {
            self.next_round = self.next_round.min(now + CONFIRM);
        }
    }

    pub(super) fn on_moved(&mut self, now: Instant, candidate: usize) {
        self.current = candidate;
        self.last_move = Some(now);
        self.doubt_pause = CONFIRM;
        self.states.iter_mut().for_each(|state| state.better = 0);
        if let Some(state) = self.states.get_mut(candidate) {
            (state.rest, state.rests_until, state.silent_tries) = (Duration::ZERO, now, 0);
        }
    }

    pub(super) fn on_failure(&mut self, now: Instant, candidate: usize, why: &str) {
        let Some(state) = self.states.get_mut(candidate) else { return };
        state.last = Some(why.to_owned());
        (state.better, state.failed) = (0, now);
        if state.rests_until <= now {
            state.rest = (state.rest * 2).clamp(REST_MIN, REST_MAX);
            state.rests_until = now + state.rest;
        }
    }

    pub(super) fn on_home_refused(&mut self, now: Instant, why: &str) {
        if self.has_several() {
            self.on_failure(now, self.current, why);
            self.home_first_until = now;
        }
    }

    pub(super) fn on_silent_try(&mut self, candidate: usize) {
        if let Some(state) = self.states.get_mut(candidate) {
            state.silent_tries = state.silent_tries.saturating_add(1);
        }
    }

    pub(super) fn forget_rests(&mut self) {
        for state in &mut self.states {
            let none = (Duration::ZERO, Instant::ZERO, 0);
            (state.rest, state.rests_until, state.silent_tries) = none;
        }
    }

    pub(super) fn on_success(&mut self, candidate: usize) {
        if let Some(state) = self.states.get_mut(candidate) {
            (state.rest, state.rests_until) = (Duration::ZERO, Instant::ZERO);
            (state.silent_tries, state.last) = (0, None);
        }
    }

    /// Conditions may have changed. Rounds come sooner, with pauses that double while nothing is
    /// gained, until [`ROUND_INTERVAL`] passes without doubt.
    pub(super) fn on_doubt(&mut self, now: Instant) {
        if now >= self.doubted + ROUND_INTERVAL {
            self.doubt_pause = CONFIRM;
        }
        self.doubted = now;
        if self.round.is_none() && self.next_round > now + self.doubt_pause {
            self.next_round = now + self.doubt_pause;
            self.doubt_pause = (self.doubt_pause * 2).min(ROUND_INTERVAL);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, uplinks: &BTreeMap<UplinkId, u64>) {
        if self.round.as_ref().is_some_and(|round| now >= round.ends()) {
            self.end_round(now);
        }
        if !self.has_several() || self.round.is_some() || now < self.next_round {
            return;
        }
        if uplinks.is_empty() {
            self.next_round = now + CONFIRM;
            return;
        }
        self.round = Some(Round::new(now, self.states.len(), uplinks.clone()));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_several() {
            return None;
        }
        Some(match &self.round {
            None => self.next_round,
            Some(round) => round.probe_due().unwrap_or(round.ends()),
        })
    }

    pub(super) fn poll_probe(&mut self, now: Instant) -> Option<(usize, UplinkId)> {
        self.round.as_mut()?.poll_probe(now)
    }

    pub(super) fn on_outcome(
        &mut self,
        now: Instant,
        candidate: usize,
        uplink: UplinkId,
        rtt: Option<Duration>,
    ) {
        let Some(round) = &mut self.round else { return };
        round.on_outcome(candidate, uplink, rtt);
        if round.is_over() {
            self.end_round(now);
        }
    }

    pub(super) fn wish(&self, now: Instant) -> Option<usize> {
        if self.last_move.is_some_and(|moved| now < moved + MOVE_PAUSE) {
            return None;
        }
        let is_wished = |(at, state): &(usize, &CandidateState)| {
            let is_better = state.better >= ROUNDS_RUNNING && !self.candidates.all[*at].last_resort;
            is_better && state.rests_until <= now
        };
        let wished = self.states.iter().enumerate().filter(is_wished);
        wished.min_by_key(|(_, state)| state.figure).map(|(candidate, _)| candidate)
    }

    pub(super) fn standby(&self, now: Instant) -> Option<usize> {
        self.best_of_others(|state| state.rests_until <= now)
    }

    /// As [`Choice::standby`] while no server answers, or one that failed [`REST_MIN`] ago.
    pub(super) fn refuge(&self, now: Instant) -> Option<usize> {
        self.standby(now).or_else(|| self.best_of_others(|state| state.refuge_from() <= now))
    }

    fn best_of_others(&self, may_be_tried: impl Fn(&CandidateState) -> bool) -> Option<usize> {
        let others = self.others().filter(|(_, state)| may_be_tried(state));
        let rank = |(at, state): &(usize, &CandidateState)| {
            let Candidate { site, last_resort, .. } = &self.candidates.all[*at];
            let (is_beside, is_unknown) = (*site == self.home().site, state.figure.is_none());
            let is_in_vain = (state.silent_tries, *last_resort);
            (is_in_vain, is_beside, is_unknown, state.figure, *at)
        };
        others.min_by_key(rank).map(|(at, _)| at)
    }

    /// Whether `best` should replace `waiting` as standby: it has room, is at another site than the
    /// current one, or is nearer by both margins.
    pub(super) fn waits_better(&self, best: usize, waiting: usize) -> bool {
        let [to, from] = [best, waiting].map(|at| &self.candidates.all[at]);
        if to.last_resort != from.last_resort {
            return from.last_resort;
        }
        let is_beside = |candidate: &Candidate| candidate.site == self.home().site;
        let is_nearer = match (self.states[best].figure, self.states[waiting].figure) {
            (Some(best), Some(waiting)) => is_better(best, waiting),
            (best, waiting) => best.is_some() && waiting.is_none(),
        };
        let is_elsewhere = !is_beside(to) && is_beside(from);
        is_elsewhere || is_nearer && is_beside(to) == is_beside(from)
    }

    pub(super) fn standby_timeout(&self) -> Option<Instant> {
        self.others().map(|(_, state)| state.rests_until).min()
    }

    pub(super) fn refuge_timeout(&self) -> Option<Instant> {
        self.others().map(|(_, state)| state.refuge_from()).min()
    }

    fn others(&self) -> impl Iterator<Item = (usize, &CandidateState)> {
        self.states.iter().enumerate().filter(|(at, _)| *at != self.current)
    }

    fn end_round(&mut self, now: Instant) {
        let Some(round) = self.round.take() else { return };
        self.rounds += 1;
        for (candidate, state) in self.states.iter_mut().enumerate() {
            let median = round.median(candidate, candidate != self.current);
            if state.figure.is_none() && median.is_some() {
                // It answers again. A candidate that refuses clients answers probes all the time.
                state.rests_until = Instant::ZERO;
            }
            state.figure = median.map(|median| median + self.candidates.all[candidate].to_anchor);
            state.measured = Some(now);
        }
        let current = self.states.get(self.current).and_then(|state| state.figure);
        for (candidate, state) in self.states.iter_mut().enumerate() {
            let is_better = match (current, state.figure) {
                (Some(current), Some(figure)) => is_better(figure, current),
                // The current server may carry the session although it answers no probe.
                _ => false,
            };
            let counts = is_better && candidate != self.current;
            state.better = if counts { state.better.saturating_add(1) } else { 0 };
        }
        let in_question =
            self.states.iter().any(|state| (1..ROUNDS_RUNNING).contains(&state.better));
        self.next_round = now + if in_question { CONFIRM } else { ROUND_INTERVAL };
    }
}

fn is_better(figure: Duration, current: Duration) -> bool {
    figure + MARGIN <= current && figure * 3 <= current * 2
}

const ROUND_INTERVAL: Duration = Duration::from_secs(30 * 60);
const CONFIRM: Duration = Duration::from_secs(20);
const ROUNDS_RUNNING: u32 = 3;
/// By how much another must be better, beside a third.
const MARGIN: Duration = Duration::from_millis(10);
const MOVE_PAUSE: Duration = Duration::from_secs(10 * 60);
const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
mod tests;
