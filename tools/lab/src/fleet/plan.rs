//! External events of a fleet run, drawn before its start.

use std::time::Duration;

use roadweave_proto::{Instant, SplitMix64};

use super::FleetConfig;

/// An external event; `is_over` ends a fault. `Garage`: no coverage. `Roll`: the configuration cuts
/// off `cuts` percent of boxes, or no box can read it if `is_refused`. `Review`: the operator
/// aborts a halted rollout. `Restored`: the backup becomes the database, in a new epoch.
/// `Partition`: a proxy and the controller cannot reach each other; boxes reach both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedEvent {
    Join { who: usize },
    Garage { who: usize, is_in: bool },
    Revoke { who: usize },
    Roll { number: u32, cuts: u8, is_refused: bool },
    Review,
    Killed { replica: usize, is_over: bool },
    Hung { replica: usize, is_over: bool },
    Database { is_over: bool },
    Backup,
    Restored { is_over: bool },
    ProxyKilled { proxy: usize, is_over: bool },
    Frozen { proxy: usize, is_over: bool },
    Drained { proxy: usize, is_over: bool },
    Partition { proxy: usize, is_over: bool },
}

struct Planner<'a> {
    config: &'a FleetConfig,
    random: SplitMix64,
    events: Vec<(Instant, PlannedEvent)>,
}

pub(super) fn plan(config: &FleetConfig) -> Vec<(Instant, PlannedEvent)> {
    // Another seed than the world's.
    let random = SplitMix64::new(SplitMix64::word(config.seed, 77));
    let mut planner = Planner { config, random, events: Vec::new() };
    planner.daily_life();
    if config.faults {
        planner.faults();
    }
    planner.events
}

impl Planner<'_> {
    fn daily_life(&mut self) {
        let FleetConfig { boxes, hours, .. } = *self.config;
        for who in boxes..boxes + boxes.div_ceil(100) {
            let at = self.moment();
            self.events.push((at, PlannedEvent::Join { who }));
        }
        for who in 0..boxes {
            let mut at = self.span(0, 12 * 3_600);
            while at < Duration::from_secs(3_600) * hours {
                let long = self.span(600, 3_600);
                let now = Instant::ZERO + at;
                self.events.push((now, PlannedEvent::Garage { who, is_in: true }));
                self.events.push((now + long, PlannedEvent::Garage { who, is_in: false }));
                at += long + self.span(3 * 3_600, 21 * 3_600);
            }
        }
        for _ in 0..hours.max(2) {
            let (at, who) = (self.moment(), self.random.below(boxes));
            self.events.push((at, PlannedEvent::Revoke { who }));
        }
        // Good, cuts off all, good, cuts off some, unreadable, good.
        let kinds = [(0, false), (100, false), (0, false), (10, false), (0, true), (0, false)];
        let each = Duration::from_secs(3_600) * hours / kinds.len() as u32;
        for (number, (cuts, is_refused)) in (0..).zip(kinds) {
            let at = Instant::ZERO + each * number + Duration::from_secs(300);
            self.events.push((at, PlannedEvent::Roll { number, cuts, is_refused }));
        }
    }

    fn faults(&mut self) {
        let FleetConfig { proxies, replicas, hours, .. } = *self.config;
        let often = hours.div_ceil(4).max(1);
        for _ in 0..often {
            let replica = self.random.below(replicas);
            self.fault((10, 300), |is_over| PlannedEvent::Killed { replica, is_over });
            let replica = self.random.below(replicas);
            self.fault((20, 300), |is_over| PlannedEvent::Hung { replica, is_over });
            self.fault((10, 600), |is_over| PlannedEvent::Database { is_over });
        }
        // At most one fault per proxy, so that faults do not overlap.
        let mut order: Vec<usize> = (0..proxies).collect();
        for index in (1..proxies).rev() {
            order.swap(index, self.random.below(index + 1));
        }
        let faulty = (often as usize * 4).min(proxies / 2);
        for (nth, proxy) in order.into_iter().take(faulty).enumerate() {
            match nth % 4 {
                0 => {
                    self.fault((120, 1_800), |is_over| PlannedEvent::ProxyKilled { proxy, is_over })
                }
                1 => self.fault((20, 1_200), |is_over| PlannedEvent::Frozen { proxy, is_over }),
                2 => self.fault((600, 1_800), |is_over| PlannedEvent::Drained { proxy, is_over }),
                _ => self.fault((120, 1_800), |is_over| PlannedEvent::Partition { proxy, is_over }),
            }
        }
        let long = Duration::from_secs(3_600) * hours;
        let middle = Instant::ZERO + long / 2;
        self.events.push((middle - long / 8, PlannedEvent::Backup));
        self.events.push((middle, PlannedEvent::Restored { is_over: false }));
        self.events
            .push((middle + Duration::from_secs(120), PlannedEvent::Restored { is_over: true }));
    }

    fn fault(&mut self, seconds: (u64, u64), event: impl Fn(bool) -> PlannedEvent) {
        let at = self.moment();
        let long = self.span(seconds.0, seconds.1);
        self.events.push((at, event(false)));
        self.events.push((at + long, event(true)));
    }

    fn moment(&mut self) -> Instant {
        let seconds = u64::from(self.config.hours) * 3_600;
        Instant::ZERO + self.span(60, seconds - seconds / 20)
    }

    fn span(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least * 1_000 + self.random.next_u64() % ((most - least) * 1_000))
    }
}
