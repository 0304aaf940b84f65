//! What players tell of their buffers, at the end that plays and at the end that sends.
//!
//! ```text
//! player ─► Tellers: not too often, not too many ─► control message ─► Players ─► lane's recovery
//!                                                                     the one with least left
//! ```
//!
//! A player that lies gains and harms little: of each lane the shortest buffer counts, and what
//! recoveries make of it is bounded by how often buffers are that short (XLINK section 7.1) and by
//! what the policies of paths leave for copies.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_recovery::Qoe;
use roadweave_types::Instant;
use roadweave_wire::PlayerReport;

/// The most players of one end that count at a time.
const PLAYERS_MAX: usize = 16;
/// How long one that tells nothing counts: longer than two chunks of video, for players that tell
/// with each request.
const LIFE: Duration = Duration::from_secs(10);
/// Reports of one player are at least so far apart.
const INTERVAL: Duration = Duration::from_millis(100);

/// The players of this end: whose reports go to the peer.
#[derive(Debug, Default)]
pub(crate) struct Tellers(BTreeMap<u64, Instant>);

impl Tellers {
    /// Whether a report of `player` is to be told.
    pub(crate) fn allows(&mut self, now: Instant, player: u64) -> bool {
        if self.0.get(&player).is_some_and(|last| now < *last + INTERVAL) {
            return false;
        }
        self.0.retain(|_, last| now < *last + LIFE);
        let has_room = self.0.len() < PLAYERS_MAX || self.0.contains_key(&player);
        if has_room {
            self.0.insert(player, now);
        }
        has_room
    }
}

/// What the players at the peer's side told last, for one lane.
#[derive(Debug, Default)]
pub(crate) struct Players(BTreeMap<u64, (Instant, Qoe)>);

impl Players {
    /// Takes a report: the one that counts now, and when it came.
    pub(crate) fn on_report(&mut self, now: Instant, player: u64, qoe: Qoe) -> (Instant, Qoe) {
        self.0.retain(|_, (at, _)| now < *at + LIFE);
        if self.0.len() >= PLAYERS_MAX && !self.0.contains_key(&player) {
            let oldest = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(player, _)| *player);
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(player, (now, qoe));
        // All buffers are played at the same speed: whose is over first stays the first.
        let over_at = |(at, qoe): &(Instant, Qoe)| *at + qoe.play_time_left().min(FOR_EVER);
        self.0.values().copied().min_by_key(over_at).unwrap_or((now, qoe))
    }
}

/// Beyond this nobody tells buffers apart.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// The message that tells `qoe` of `player` for the peer's lane `lane`.
pub(crate) fn report_of(lane: &str, player: u64, qoe: Qoe) -> PlayerReport {
    let Qoe { cached_bytes, cached_frames, bps, fps } = qoe;
    // A rate that is none is not known; one beyond all numbers is the largest.
    let milli_fps = (fps * 1000.0) as u64;
    PlayerReport { lane: lane.to_owned(), player, cached_bytes, cached_frames, bps, milli_fps }
}

/// What a message tells.
pub(crate) fn qoe_of(report: &PlayerReport) -> Qoe {
    let PlayerReport { cached_bytes, cached_frames, bps, milli_fps, .. } = *report;
    Qoe { cached_bytes, cached_frames, bps, fps: milli_fps as f64 / 1000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A buffer of so many milliseconds.
    fn left(ms: u64) -> Qoe {
        Qoe { cached_bytes: 0, cached_frames: ms, bps: 0, fps: 1000.0 }
    }

    #[test]
    fn a_player_tells_at_most_ten_times_a_second_and_a_crowd_not_at_all() {
        let mut tellers = Tellers::default();
        assert_eq!(
            [0, 50, 99, 100, 150].map(|ms| tellers.allows(at(ms), 1)),
            [true, false, false, true, false]
        );
        let told = (2..40).filter(|player| tellers.allows(at(200), *player)).count();
        assert_eq!(told, PLAYERS_MAX - 1);
        assert!(tellers.allows(at(200), 1), "who was there before stays");
        assert!(tellers.allows(at(10_201), 99), "and leaves when it is silent");
    }

    #[test]
    fn of_all_players_the_one_whose_buffer_is_over_first_counts() {
        let mut players = Players::default();
        assert_eq!(players.on_report(at(0), 1, left(3_000)), (at(0), left(3_000)));
        assert_eq!(players.on_report(at(1_000), 2, left(2_500)), (at(0), left(3_000)));
        assert_eq!(players.on_report(at(1_100), 1, left(9_000)), (at(1_000), left(2_500)));
        assert_eq!(players.on_report(at(12_000), 3, left(500)), (at(12_000), left(500)));
        for player in 0..1_000 {
            players.on_report(at(12_100), player, left(100 + player));
        }
        assert_eq!(players.0.len(), PLAYERS_MAX);
    }

    #[test]
    fn any_rate_crosses_the_wire_as_it_is_or_as_unknown() {
        let of = |fps| qoe_of(&report_of("streams", 7, Qoe { fps, ..left(0) })).fps;
        assert_eq!([29.97, 0.0, -3.0, f64::NAN].map(of), [29.97, 0.0, 0.0, 0.0]);
        assert!(of(f64::INFINITY) > 1e15);
    }
}
