//! One run of a scenario: from the first handshake to the figures.
//!
//! ```text
//!        connect             lead-in        settle │ stream                        │ drain
//! ├──────────────────────────┼──────────────┼──────┼───────────────────────────────┼──────┤
//! 0   all paths usable, or 5 s   2 s          0.5 s  scenario.seconds                2 s
//!     traces from their beginning                    traces from their beginning again
//! ```
//!
//! As in `roadweave demo`, a tunnel in use is measured, and each strategy has the same links at the
//! same moment of the stream (docs/lab.md).

mod causes;
mod outcome;
mod traffic_world;

use std::time::Duration;

use crate::event::CrossSource;
use crate::figures::Timeline;
use crate::scenario::{DRAIN, Scenario};
use crate::traffic::{TrafficKind, TrafficSpec};
use crate::world::WorldError;

pub(crate) use causes::Causes;
use outcome::Recorder;
pub use outcome::{LinkReport, RunOutcome};
pub(crate) use traffic_world::TrafficWorld;

const ALL_PATHS: Duration = Duration::from_secs(5);
const FIRST_PATH: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(100);
const LEAD_IN: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_millis(500);
const LEAD_IN_PORT: u16 = 40_000;

/// Runs `scenario`; fails if the world cannot be created. A session that never comes up is an
/// outcome without arrivals.
pub fn run(scenario: &Scenario) -> Result<RunOutcome, WorldError> {
    let mut traffic_world = TrafficWorld::new(scenario.world()?);
    traffic_world.world.observe_packets();
    warm_up(&mut traffic_world, scenario);

    let start = traffic_world.world.now();
    traffic_world.world.restart_links(scenario.links_with_events());
    for (index, spec) in (0..).zip(&scenario.traffic) {
        traffic_world.traffic.push(spec.build(start, scenario.seed.wrapping_add(index)));
    }
    traffic_world.cross.extend(scenario.cross.iter().map(|cross| CrossSource::new(*cross, start)));
    traffic_world.add_script(&scenario.events, start);
    traffic_world.watched = scenario.judged().map(|index| scenario.traffic[index].port);

    let mut recorder = Recorder::new(scenario, &mut traffic_world.world);
    let end = start + scenario.duration();
    let mut step = start;
    while step < end {
        step = end.min(step + Timeline::STEP);
        traffic_world.run_until(step);
        recorder.sample(&mut traffic_world);
    }
    traffic_world.run_until(end + DRAIN);
    Ok(recorder.finish(scenario, &mut traffic_world))
}

pub(crate) fn warm_up(traffic_world: &mut TrafficWorld, scenario: &Scenario) {
    let begin = traffic_world.world.now();
    loop {
        let waited = traffic_world.world.now().since(begin);
        let timeout = if traffic_world.world.is_joined() { ALL_PATHS } else { FIRST_PATH };
        if traffic_world.world.all_paths_usable() || waited >= timeout {
            break;
        }
        traffic_world.run_until(traffic_world.world.now() + LOOK);
    }
    let start = traffic_world.world.now();
    for (index, spec) in (0_u16..).zip(&scenario.traffic) {
        let seed = scenario.seed.wrapping_add(index.into());
        traffic_world.traffic.push(lead_in(spec, index).build(start, seed));
    }
    traffic_world.run_until(start + LEAD_IN + SETTLE);
    traffic_world.traffic.clear();
}

fn lead_in(spec: &TrafficSpec, index: u16) -> TrafficSpec {
    let is_stream = matches!(spec.kind, TrafficKind::Video { .. } | TrafficKind::Constant { .. });
    TrafficSpec {
        port: LEAD_IN_PORT + index,
        begin: Duration::ZERO,
        lasting: if is_stream { LEAD_IN } else { Duration::ZERO },
        ..spec.clone()
    }
}

#[cfg(test)]
mod tests;
