//! No strategy beats the clairvoyant bound in any figure, in random worlds.
//!
//! A failure prints the seed; `ROADWEAVE_SEED=<seed> cargo test -p roadweave-lab --test lab bound`
//! runs it alone, `ROADWEAVE_SEEDS=<count>` runs more of them.

use std::time::Duration;

use crate::dice::{self, Dice};
use roadweave_emulate::{
    AtEnd, Capacity, Direction, DriveLink, DuplexLink, GilbertElliott, Opportunities, Timeline,
    Trace,
};
use roadweave_lab::bound::{Bound, delays_of_all};
use roadweave_lab::event::{Action, CrossTraffic, ScriptEvent};
use roadweave_lab::run;
use roadweave_lab::scenario::Scenario;
use roadweave_lab::strategies;
use roadweave_lab::traffic::{Detail, TrafficKind, TrafficSpec};
use roadweave_lab::video::quality::{Percentiles, Player};
use roadweave_proto::Rate;

const SECONDS: u32 = 3;
const SEEDS: u64 = 24;
/// Bounds with a lower p95, ms, are clearly below the 700 ms of late packets.
const CONCLUSIVE_MS: f64 = 350.0;

impl Dice {
    /// Steps of 50 to 250 ms: any rate, jumping delays, total loss; rarely bad if `easy`.
    fn trace(&mut self, easy: bool) -> Trace {
        let rare = if easy { 60 } else { 6 };
        let step = self.ms(50..250);
        let steps = self.within(4..30) as u32;
        let rates = self.timeline(step, steps, |dice| match dice.within(0..rare) {
            0 => Rate::ZERO,
            1 => Rate::from_kbps(dice.within(10..300)),
            _ if easy => Rate::from_kbps(dice.within(4_000..20_000)),
            _ => Rate::from_kbps(dice.within(300..4_000)),
        });
        let capacity = if self.once_in(5) {
            let times = (0..self.within(50..900)).map(|_| self.ms(1..SECONDS as u64 * 1_000));
            Capacity::Opportunities(Opportunities::new(times.collect::<Vec<_>>()).unwrap())
        } else {
            Capacity::Rates(rates)
        };
        let delays = self.timeline(step, steps, |dice| match dice.once_in(rare) {
            true => dice.ms(100..400),
            false => dice.ms(5..50),
        });
        let losses = self.timeline(step, steps, |dice| match dice.within(0..rare) {
            0 => 1.0,
            1 => 0.02,
            _ => 0.0,
        });
        Trace::new(capacity, delays, losses)
    }

    fn timeline<V: Copy>(
        &mut self,
        step: Duration,
        steps: u32,
        value: impl Fn(&mut Self) -> V,
    ) -> Timeline<V> {
        let values: Vec<_> = (0..steps).map(|index| (step * index, value(self))).collect();
        Timeline::new(values, step * steps, AtEnd::Repeat).unwrap()
    }

    fn duplex_link(
        &mut self,
        index: u64,
        seed: u64,
        direction: Direction,
        easy: bool,
    ) -> DuplexLink {
        let trace = if self.once_in(4) {
            Trace::constant(Rate::from_kbps(self.within(500..5_000)), self.ms(5..80))
        } else {
            self.trace(easy)
        };
        let mut link = DriveLink::from_uplink(format!("link{index}"), trace);
        if direction == Direction::Down {
            std::mem::swap(&mut link.up, &mut link.down);
        }
        let mut link = DuplexLink::new(&link, index, seed);
        let way = if direction == Direction::Up { &mut link.up } else { &mut link.down };
        if self.once_in(3) {
            way.queue_bytes = self.within(3_000..60_000) as usize;
        }
        if self.once_in(4) {
            way.burst_loss = Some(GilbertElliott::bursts(0.03, 4.0));
        }
        link
    }

    fn traffic(&mut self, direction: Direction, easy: bool) -> TrafficSpec {
        let bitrate = Rate::from_kbps(self.within(if easy { 200..1_500 } else { 200..2_500 }));
        let video = TrafficSpec::video(bitrate, Duration::from_secs(SECONDS.into()));
        let kind = if self.once_in(3) {
            TrafficKind::Constant { rate: bitrate, packet_bytes: self.within(100..1_400) as usize }
        } else {
            video.kind.clone()
        };
        TrafficSpec { direction, kind, ..video }
    }

    fn event(&mut self, links: u64) -> ScriptEvent {
        let action = match self.within(0..6) {
            0 => Action::Down,
            1 => Action::Up,
            2 => Action::Rebind,
            3 => Action::Unplug,
            4 => Action::Delay(self.ms(0..200)),
            _ => Action::Capacity(self.within(0..30) as f64 / 10.0),
        };
        ScriptEvent { at: self.ms(0..3_000), link: self.within(0..links) as usize, action }
    }

    fn cross(&mut self, links: u64, direction: Direction) -> CrossTraffic {
        CrossTraffic {
            link: self.within(0..links) as usize,
            direction,
            rate: Rate::from_kbps(self.within(100..2_000)),
            packet_bytes: self.within(100..1_500) as usize,
            begin: self.ms(0..1_000),
            end: Duration::from_secs(SECONDS.into()),
            on: Duration::from_millis(300),
            off: self.ms(0..400),
        }
    }
}

fn scenario(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed);
    let count = dice.within(1..5);
    let easy = dice.once_in(2);
    let direction = if dice.once_in(3) { Direction::Down } else { Direction::Up };
    let links = (0..count).map(|index| dice.duplex_link(index, seed, direction, easy)).collect();
    let traffic = vec![dice.traffic(direction, easy)];
    let events = (0..dice.within(0..4)).map(|_| dice.event(count)).collect();
    let cross = (0..dice.within(0..2)).map(|_| dice.cross(count, direction)).collect();
    Scenario {
        traffic,
        events,
        cross,
        seed,
        seconds: SECONDS,
        ..Scenario::new("random", links, "xnc".parse().unwrap())
    }
}

/// Compares a strategy with the bound; returns its p95 delay, ms.
fn check(scenario: &Scenario, strategy: &str, bound: &Bound) -> f64 {
    let mut scenario = scenario.clone();
    scenario.lanes[0].strategy = strategies::strategy(strategy).unwrap();
    let outcome = run::run(&scenario).unwrap();
    let stream = outcome.traffic[0].stream().expect("it sends by its own clock");
    let deadline = Player::default().deadline;
    let found = &Percentiles::of_sorted(&delays_of_all(&stream.log, &stream.arrivals, deadline));
    let sent = stream.log.packets.iter();
    let in_time = sent
        .zip(&stream.arrivals)
        .filter(|(sent, arrival)| arrival.is_some_and(|arrival| arrival.since(**sent) <= deadline));
    let residual_loss = 1.0 - in_time.count() as f64 / stream.log.packets.len() as f64;
    let best = &bound.delay_ms;
    // What was found, and what is no worse than the bound.
    let mut figures = vec![
        (found.p50, best.p50),
        (found.p95, best.p95),
        (found.p99, best.p99),
        (found.p999, best.p999),
        (residual_loss + 1e-12, bound.residual_loss),
    ];
    if let Detail::Video(video) = &outcome.traffic[0].detail {
        figures.push((video.quality.residual_loss() + 1e-12, bound.residual_loss));
        figures.push((video.quality.stall_ratio + 1e-12, bound.stall_ratio));
        figures.push((bound.fps + 1e-9, video.quality.fps));
    }
    assert!(
        figures.iter().all(|(found, best)| found >= best),
        "{strategy} beats the bound; ROADWEAVE_SEED={} cargo test -p roadweave-lab --test lab bound\n\
         {figures:?}\n{bound:?}\n{scenario:?}",
        scenario.seed
    );
    found.p95
}

#[test]
fn no_strategy_beats_the_bound_in_any_figure() {
    let seeds = dice::seeds(SEEDS);
    // Worlds in which a strategy could be far from the bound, and worlds in which one is near it.
    let (mut conclusive, mut near) = (0, 0);
    for seed in seeds.clone() {
        let scenario = scenario(seed);
        let (bound, _) = Bound::of_scenario(&scenario).expect("no jitter");
        let strategies = ["xnc", "xnc-sigcomm23", "minrtt", "single:link0"];
        let found = strategies.map(|strategy| check(&scenario, strategy, &bound));
        let best = found.into_iter().fold(f64::INFINITY, f64::min);
        if bound.delay_ms.p95 < CONCLUSIVE_MS {
            conclusive += 1;
            near += u64::from(best < 2.0 * bound.delay_ms.p95);
        }
    }
    // A bound far from all strategies proves nothing.
    let worlds = seeds.end - seeds.start;
    assert!(
        worlds < SEEDS || (conclusive * 2 >= worlds && near * 4 >= conclusive),
        "near the bound in {near} of {conclusive} conclusive worlds of {worlds}"
    );
}
