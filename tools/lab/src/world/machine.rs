//! How late a machine wakes a sleeping program.
//!
//! ```text
//!  a packet arrives, or a timer is due        the program runs
//!         ├──────────── late by ─────────────────►┤  handles all that has arrived by now
//!         └── packets that arrive meanwhile wait ─┘  each with the time of its arrival
//! ```
//!
//! Virtual time has no scheduler. On a real machine, other programs delay the wake-up; a tunnel
//! mistakes that for network delay, which costs latency and redundancy.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{Instant, SplitMix64};
use roadweave_tunnel::RecvMeta;
use serde::{Deserialize, Serialize};

use super::Transit;

/// The machine of both sides of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// Wakes without delay.
    #[default]
    Punctual,
    /// Two idle cores.
    Idle,
    /// Two cores, each with another busy program.
    Busy,
    /// Two cores with four busy programs, as beside an encoder.
    Crowded,
}

/// Lateness by cause of the wake-up: ascending shares up to 1 with their upper bound, interpolated
/// linearly.
#[derive(Debug)]
struct Lateness {
    timer: [(f64, Duration); 9],
    packet: [(f64, Duration); 9],
}

/// An unknown name of a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine {0:?}; there are punctual, idle, busy and crowded")]
pub struct UnknownMachine(String);

impl Machine {
    /// Whether it wakes without delay.
    pub fn is_punctual(&self) -> bool {
        *self == Self::Punctual
    }

    fn lateness(self) -> Option<&'static Lateness> {
        match self {
            Self::Punctual => None,
            Self::Idle => Some(&IDLE),
            Self::Busy => Some(&BUSY),
            Self::Crowded => Some(&CROWDED),
        }
    }

    /// A sleeping program; equal seeds give equal delays.
    pub(super) fn sleeper(self, seed: u64) -> Option<Sleeper> {
        let lateness = self.lateness()?;
        let random = SplitMix64::new(seed);
        let (asleep_since, wakes, held) = (Instant::ZERO, None, VecDeque::new());
        Some(Sleeper { lateness, random, asleep_since, wakes, held })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Punctual => "punctual",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Crowded => "crowded",
        })
    }
}

impl FromStr for Machine {
    type Err = UnknownMachine;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let all = [Self::Punctual, Self::Idle, Self::Busy, Self::Crowded];
        let named = all.into_iter().find(|machine| machine.to_string() == name);
        named.ok_or_else(|| UnknownMachine(name.to_owned()))
    }
}

#[derive(Debug)]
pub(super) enum Waiting {
    Inner(Bytes),
    Packet { meta: RecvMeta, packet: Bytes, ride: Option<Transit> },
}

#[derive(Debug)]
pub(super) struct Sleeper {
    lateness: &'static Lateness,
    random: SplitMix64,
    asleep_since: Instant,
    wakes: Option<Instant>,
    held: VecDeque<Waiting>,
}

impl Sleeper {
    /// Its timer for `due` fires at `now`. A program with immediate work does not sleep.
    pub(super) fn on_due(&mut self, now: Instant, due: Instant) {
        match due > self.asleep_since {
            true => self.rouse(now, &self.lateness.timer),
            false => self.wakes = Some(now),
        }
    }

    pub(super) fn hold(&mut self, now: Instant, waiting: Waiting) {
        self.held.push_back(waiting);
        self.rouse(now, &self.lateness.packet);
    }

    pub(super) fn wakes(&self) -> Option<Instant> {
        self.wakes
    }

    /// Returns the waiting input in order if the program runs now.
    pub(super) fn wake(&mut self, now: Instant) -> Option<VecDeque<Waiting>> {
        self.wakes.take_if(|wakes| *wakes <= now)?;
        self.asleep_since = now;
        Some(std::mem::take(&mut self.held))
    }

    fn rouse(&mut self, now: Instant, lateness: &[(f64, Duration)]) {
        if self.wakes.is_none() {
            self.wakes = Some(now + draw(lateness, self.random.unit()));
        }
    }
}

/// Inverse of the distribution.
fn draw(lateness: &[(f64, Duration)], share: f64) -> Duration {
    let at = lateness.partition_point(|(until, _)| *until <= share).min(lateness.len() - 1);
    let (until, most) = lateness[at];
    let (from, least) = at.checked_sub(1).map_or((0.0, Duration::ZERO), |at| lateness[at]);
    least + (most - least).mul_f64((share - from) / (until - from))
}

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Measured on an idle virtual machine with two cores: the quietest of four runs.
const IDLE: Lateness = Lateness {
    timer: [
        (0.50, us(35)),
        (0.90, us(50)),
        (0.95, us(60)),
        (0.98, us(130)),
        (0.99, us(210)),
        (0.995, us(1_200)),
        (0.999, us(3_900)),
        (0.9999, us(4_800)),
        (1.0, us(4_800)),
    ],
    packet: [
        (0.50, us(20)),
        (0.90, us(35)),
        (0.95, us(48)),
        (0.98, us(75)),
        (0.99, us(170)),
        (0.995, us(600)),
        (0.999, us(2_500)),
        (0.9999, us(4_000)),
        (1.0, us(4_000)),
    ],
};
/// Beside two busy loops: the median of three runs.
const BUSY: Lateness = Lateness {
    timer: [
        (0.50, us(17)),
        (0.90, us(30)),
        (0.95, us(42)),
        (0.98, us(1_700)),
        (0.99, us(3_600)),
        (0.995, us(3_900)),
        (0.999, us(6_800)),
        (0.9999, us(16_000)),
        (1.0, us(16_000)),
    ],
    packet: [
        (0.50, us(15)),
        (0.90, us(25)),
        (0.95, us(29)),
        (0.98, us(43)),
        (0.99, us(57)),
        (0.995, us(73)),
        (0.999, us(3_500)),
        (0.9999, us(4_200)),
        (1.0, us(4_200)),
    ],
};
/// Beside four busy loops.
const CROWDED: Lateness = Lateness {
    timer: [
        (0.50, us(21)),
        (0.90, us(2_950)),
        (0.95, us(4_900)),
        (0.98, us(7_000)),
        (0.99, us(8_600)),
        (0.995, us(10_600)),
        (0.999, us(16_300)),
        (0.9999, us(22_600)),
        (1.0, us(22_600)),
    ],
    packet: [
        (0.50, us(20)),
        (0.90, us(53)),
        (0.95, us(62)),
        (0.98, us(73)),
        (0.99, us(1_500)),
        (0.995, us(4_300)),
        (0.999, us(12_300)),
        (0.9999, us(12_900)),
        (1.0, us(12_900)),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn wake_ups_are_as_late_as_was_measured() {
        for machine in [Machine::Idle, Machine::Busy, Machine::Crowded] {
            let Lateness { timer, packet } = machine.lateness().unwrap();
            for lateness in [timer, packet] {
                for (share, measured) in lateness {
                    let drawn = draw(lateness, share.next_down());
                    let off = drawn.abs_diff(*measured);
                    assert!(off < Duration::from_micros(1), "{machine} {share}: {drawn:?}");
                }
                assert!(draw(lateness, 0.25) < draw(lateness, 0.49), "even in between");
            }
        }
        assert!(Machine::Punctual.sleeper(7).is_none());
    }

    #[test]
    fn what_comes_to_a_sleeper_waits_and_is_handled_together() {
        let mut sleeper = Machine::Busy.sleeper(1).unwrap();
        assert_eq!(sleeper.wakes(), None);
        sleeper.hold(at(1_000), Waiting::Inner(Bytes::from_static(b"a")));
        let wakes = sleeper.wakes().unwrap();
        assert!(wakes > at(1_000));
        sleeper.hold(wakes - Duration::from_nanos(1), Waiting::Inner(Bytes::from_static(b"b")));
        sleeper.on_due(wakes, at(1_100));
        assert_eq!(sleeper.wakes(), Some(wakes), "it is woken once");
        assert!(sleeper.wake(wakes - Duration::from_nanos(1)).is_none());
        assert_eq!(sleeper.wake(wakes).map(|found| found.len()), Some(2));
        assert!(sleeper.wake(wakes).is_none());
        sleeper.on_due(wakes, wakes);
        assert_eq!(sleeper.wakes(), Some(wakes), "whoever is due at once does not fall asleep");
    }
}
