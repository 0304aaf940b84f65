//! Reports of players' buffers, at the playing and at the sending end.
//!
//! A false report does little: each lane uses its shortest buffer, and policies bound recoveries.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::PlayerReport;
use roadweave_recovery::Qoe;

const PLAYERS_MAX: usize = 16;
/// How long a report counts: longer than two video chunks, for players that report per request.
const REPORT_LIFETIME: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct ReportLimiter {
    players: BTreeMap<u64, LastReport>,
    recent: usize,
    began: Instant,
}

#[derive(Clone, Copy, Debug)]
struct LastReport {
    at: Instant,
    left: Duration,
    /// Whether it was sent within an interval of another report.
    hurried: bool,
}

impl ReportLimiter {
    /// Whether to send a report: one an interval, and one more if the buffer has more than halved.
    pub(crate) fn allows(&mut self, now: Instant, player: u64, qoe: &Qoe) -> bool {
        if now >= self.began + INTERVAL {
            (self.began, self.recent) = (now, 0);
        }
        let left = qoe.play_time_left();
        let last = self.players.get(&player).filter(|last| now < last.at + INTERVAL);
        let hurried = last.is_some();
        let is_worth_sending = last.is_none_or(|last| !last.hurried && left * 2 < last.left);
        if !is_worth_sending || self.recent >= PLAYERS_MAX {
            return false;
        }
        self.recent += 1;
        self.players.retain(|_, last| now < last.at + REPORT_LIFETIME);
        if self.players.len() >= PLAYERS_MAX && !self.players.contains_key(&player) {
            let oldest = self.players.iter().min_by_key(|(_, last)| last.at);
            oldest.map(|(player, _)| *player).and_then(|oldest| self.players.remove(&oldest));
        }
        self.players.insert(player, LastReport { at: now, left, hurried });
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Players(BTreeMap<u64, (Instant, Qoe)>);

impl Players {
    pub(crate) fn on_report(&mut self, now: Instant, player: u64, qoe: Qoe) -> (Instant, Qoe) {
        self.0.retain(|_, (at, _)| now < *at + REPORT_LIFETIME);
        if self.0.len() >= PLAYERS_MAX && !self.0.contains_key(&player) {
            let oldest = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(player, _)| *player);
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(player, (now, qoe));
        // All buffers play at the same speed, so the first to end stays the first.
        let over_at = |(at, qoe): &(Instant, Qoe)| *at + qoe.play_time_left().min(FOR_EVER);
        self.0.values().copied().min_by_key(over_at).unwrap_or((now, qoe))
    }
}

/// Longer buffers count as equal.
const FOR_EVER: Duration = Duration::from_secs(3600);

pub(crate) fn report_of(lane: &str, player: u64, qoe: Qoe) -> PlayerReport {
    let Qoe { cached_bytes, cached_frames, bps, fps } = qoe;
    // The conversion saturates: NaN and negative rates become 0 (unknown).
    let milli_fps = (fps * 1000.0) as u64;
    PlayerReport { lane: lane.to_owned(), player, cached_bytes, cached_frames, bps, milli_fps }
}

pub(crate) fn qoe_of(report: &PlayerReport) -> Qoe {
    let PlayerReport { cached_bytes, cached_frames, bps, milli_fps, .. } = *report;
    Qoe { cached_bytes, cached_frames, bps, fps: milli_fps as f64 / 1000.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn left(ms: u64) -> Qoe {
        Qoe { cached_bytes: 0, cached_frames: ms, bps: 0, fps: 1000.0 }
    }

    #[test]
    fn a_player_reports_ten_times_a_second_and_at_once_when_its_buffer_runs_dry() {
        let mut limiter = ReportLimiter::default();
        let mut allows = |ms, buffer| limiter.allows(at(ms), 1, &left(buffer));
        assert_eq!(
            [0, 50, 99, 100, 150].map(|ms| allows(ms, 9_000)),
            [true, false, false, true, false]
        );
        assert_eq!([160, 170].map(|ms| allows(ms, 4_499)), [true, false]);
        assert!(!allows(180, 0), "no third time");
        assert!(allows(260, 9_000));
    }

    #[test]
    fn many_players_displace_silent_ones_and_report_no_more_than_sixteen_do() {
        let mut limiter = ReportLimiter::default();
        let mut allows = |ms, player| limiter.allows(at(ms), player, &left(0));
        assert_eq!((0..1_000).filter(|player| allows(0, *player)).count(), PLAYERS_MAX);
        assert!(allows(100, 5_000), "a newcomer takes the place of the oldest");
        assert_eq!((0..1_000).filter(|player| allows(150, *player)).count(), PLAYERS_MAX - 1);
        assert!(limiter.players.len() <= PLAYERS_MAX);
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
