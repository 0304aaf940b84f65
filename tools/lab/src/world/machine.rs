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

use super::Transit;

roadweave_proto::named! {
    /// The machine of both sides of a world.
    #[derive(Default)]
    Machine {
        /// Wakes without delay.
        #[default]
        Punctual = "punctual",
        /// Two idle cores.
        Idle = "idle",
        /// Two cores, each with another busy program.
        Busy = "busy",
        /// Two cores with four busy programs, as beside an encoder.
        Crowded = "crowded",
    }
}

/// Lateness by cause of the wake-up: upper bounds of [`SHARES`] in us, interpolated linearly.
#[derive(Debug)]
struct Lateness {
    timer: [u64; SHARES.len()],
    packet: [u64; SHARES.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine {0:?}; there are punctual, idle, busy and crowded")]
pub struct UnknownMachine(String);

impl Machine {
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
        f.write_str(self.name())
    }
}

impl FromStr for Machine {
    type Err = UnknownMachine;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|machine| machine.name() == name);
        named.ok_or_else(|| UnknownMachine(name.to_owned()))
    }
}

#[derive(Debug)]
pub(super) enum HeldInput {
    Inner(Bytes),
    Packet { meta: RecvMeta, packet: Bytes, ride: Option<Transit> },
}

#[derive(Debug)]
pub(super) struct Sleeper {
    lateness: &'static Lateness,
    random: SplitMix64,
    asleep_since: Instant,
    pub(super) wakes: Option<Instant>,
    held: VecDeque<HeldInput>,
}

impl Sleeper {
    /// Its timer for `due` fires at `now`. A program with immediate work does not sleep.
    pub(super) fn on_due(&mut self, now: Instant, due: Instant) {
        match due > self.asleep_since {
            true => self.rouse(now, &self.lateness.timer),
            false => self.wakes = Some(now),
        }
    }

    pub(super) fn hold(&mut self, now: Instant, waiting: HeldInput) {
        self.held.push_back(waiting);
        self.rouse(now, &self.lateness.packet);
    }

    pub(super) fn wake(&mut self, now: Instant) -> Option<VecDeque<HeldInput>> {
        self.wakes.take_if(|wakes| *wakes <= now)?;
        self.asleep_since = now;
        Some(std::mem::take(&mut self.held))
    }

    fn rouse(&mut self, now: Instant, lateness: &[u64; SHARES.len()]) {
        if self.wakes.is_none() {
            self.wakes = Some(now + draw(lateness, self.random.unit()));
        }
    }
}

fn draw(lateness: &[u64; SHARES.len()], share: f64) -> Duration {
    let at = SHARES.partition_point(|until| *until <= share).min(SHARES.len() - 1);
    let bound = |at: usize| (SHARES[at], Duration::from_micros(lateness[at]));
    let (until, most) = bound(at);
    let (from, least) = at.checked_sub(1).map_or((0.0, Duration::ZERO), bound);
    least + (most - least).mul_f64((share - from) / (until - from))
}

const SHARES: [f64; 9] = [0.50, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0];

/// Measured on an idle virtual machine with two cores: the quietest of four runs.
const IDLE: Lateness = Lateness {
    timer: [35, 50, 60, 130, 210, 1_200, 3_900, 4_800, 4_800],
    packet: [20, 35, 48, 75, 170, 600, 2_500, 4_000, 4_000],
};
/// Beside two busy loops: the median of three runs.
const BUSY: Lateness = Lateness {
    timer: [17, 30, 42, 1_700, 3_600, 3_900, 6_800, 16_000, 16_000],
    packet: [15, 25, 29, 43, 57, 73, 3_500, 4_200, 4_200],
};
const CROWDED: Lateness = Lateness {
    timer: [21, 2_950, 4_900, 7_000, 8_600, 10_600, 16_300, 22_600, 22_600],
    packet: [20, 53, 62, 73, 1_500, 4_300, 12_300, 12_900, 12_900],
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
                for (share, measured) in SHARES.iter().zip(lateness) {
                    let drawn = draw(lateness, share.next_down());
                    let off = drawn.abs_diff(Duration::from_micros(*measured));
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
        assert_eq!(sleeper.wakes, None);
        sleeper.hold(at(1_000), HeldInput::Inner(Bytes::from_static(b"a")));
        let wakes = sleeper.wakes.unwrap();
        assert!(wakes > at(1_000));
        sleeper.hold(wakes - Duration::from_nanos(1), HeldInput::Inner(Bytes::from_static(b"b")));
        sleeper.on_due(wakes, at(1_100));
        assert_eq!(sleeper.wakes, Some(wakes), "it is woken once");
        assert!(sleeper.wake(wakes - Duration::from_nanos(1)).is_none());
        assert_eq!(sleeper.wake(wakes).map(|found| found.len()), Some(2));
        assert!(sleeper.wake(wakes).is_none());
        sleeper.on_due(wakes, wakes);
        assert_eq!(sleeper.wakes, Some(wakes), "whoever is due at once does not fall asleep");
    }
}
