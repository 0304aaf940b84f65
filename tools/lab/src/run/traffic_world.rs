//! A world with applications, a script and cross traffic, and the loop that drives them all.

use std::collections::VecDeque;

use roadweave_proto::Instant;

use super::causes::{Causes, is_repaired};
use crate::event::{Action, CrossSource, ScriptEvent};
use crate::inner;
use crate::traffic::Traffic;
use crate::world::World;

#[derive(Debug)]
pub struct TrafficWorld {
    pub world: World,
    pub(crate) traffic: Vec<Box<dyn Traffic>>,
    pub(super) cross: Vec<CrossSource>,
    script: VecDeque<(Instant, usize, Action)>,
    pub(super) watched: Option<u16>,
    pub(super) causes: Causes,
    pub(super) repaired: u64,
}

impl TrafficWorld {
    pub fn new(world: World) -> Self {
        Self {
            world,
            traffic: Vec::new(),
            cross: Vec::new(),
            script: VecDeque::new(),
            watched: None,
            causes: Causes::default(),
            repaired: 0,
        }
    }

    pub fn add_script(&mut self, events: &[ScriptEvent], start: Instant) {
        self.script.extend(events.iter().map(|event| (start + event.at, event.link, event.action)));
        self.script.make_contiguous().sort_by_key(|(at, ..)| *at);
    }

    /// Runs until `end` in the order of time. Panics like [`World::handle_timeout`].
    pub fn run_until(&mut self, end: Instant) {
        loop {
            let due = [self.world.poll_timeout(), self.poll_timeout()].into_iter().flatten().min();
            let now = match due {
                Some(due) if due <= end => due.max(self.world.now()),
                _ => break,
            };
            self.world.handle_timeout(now);
            self.play_script(now);
            self.push_cross(now);
            self.hand_over();
            self.transmit(now);
            self.world.flush();
        }
        if end > self.world.now() {
            self.world.handle_timeout(end);
        }
        self.hand_over();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let traffic = self.traffic.iter().filter_map(|traffic| traffic.poll_timeout());
        let cross = self.cross.iter().filter_map(CrossSource::poll_timeout);
        let script = self.script.front().map(|(at, ..)| *at);
        traffic.chain(cross).chain(script).min()
    }

    fn play_script(&mut self, now: Instant) {
        while let Some((_, link, action)) =
            self.script.front().filter(|(at, ..)| *at <= now).copied()
        {
            self.script.pop_front();
            action.act_on(&mut self.world, link);
        }
    }

    fn push_cross(&mut self, now: Instant) {
        for source in &mut self.cross {
            let (link, direction) = (source.traffic.link, source.traffic.direction);
            while let Some(bytes) = source.poll(now) {
                self.world.push_cross(link, direction, bytes);
            }
        }
    }

    fn hand_over(&mut self) {
        while let Some(arrival) = self.world.poll_arrival() {
            let port = inner::port(&arrival.packet);
            if port.is_some() && port == self.watched {
                self.causes.note(&arrival);
                let repaired = arrival.trail.is_some_and(|trail| is_repaired(&arrival, &trail));
                self.repaired += u64::from(repaired);
            }
            let traffic = self.traffic.iter_mut().find(|traffic| Some(traffic.port()) == port);
            if let Some(traffic) = traffic {
                traffic.handle_arrival(arrival.at, arrival.direction, &arrival.packet);
            }
        }
    }

    fn transmit(&mut self, now: Instant) {
        for traffic in &mut self.traffic {
            if let Some(direction) = traffic.wants_target(now) {
                let target = self.world.encoder_target(direction);
                if let Some(superseded) = traffic.set_target(target) {
                    self.world.supersede(direction, superseded);
                }
            }
            while let Some((direction, packet)) = traffic.poll_transmit(now) {
                self.world.handle_inner(direction, &packet);
            }
        }
    }
}
