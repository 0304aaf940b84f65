//! A visitor that loads parts of one size over one connection, one after the other.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::StreamPriority;

use super::{Browser, BrowserEvent, ConnectionId, REQUEST, Visitor};
use crate::world::World;

#[derive(Debug)]
pub struct Loading {
    bytes: u32,
    parts: usize,
    connection: Option<ConnectionId>,
    /// Of the part that is loaded.
    missing: u64,
    begun: Instant,
    pub took: Vec<Duration>,
    is_over: bool,
}

impl Loading {
    pub fn new(bytes: u32, parts: usize) -> Self {
        let begun = Instant::ZERO;
        Self { bytes, parts, connection: None, missing: 0, begun, took: vec![], is_over: false }
    }

    pub fn received(&self) -> u64 {
        let whole = self.took.len() as u64 * u64::from(self.bytes);
        let part = if self.missing > 0 { u64::from(self.bytes) - self.missing } else { 0 };
        whole + part
    }
}

impl Visitor for Loading {
    fn act(&mut self, world: &mut World, browser: &mut Browser, events: Vec<BrowserEvent>) {
        for event in events {
            match event {
                BrowserEvent::Came(id, bytes) if self.connection == Some(id) => {
                    self.missing = self.missing.saturating_sub(bytes);
                    if self.missing == 0 {
                        self.took.push(world.now().since(self.begun));
                    }
                }
                BrowserEvent::Over(id) => self.is_over |= self.connection == Some(id),
                BrowserEvent::Came(..) => {}
            }
        }
        if !self.goes_on() {
            self.connection.into_iter().for_each(|id| browser.finish(world, id));
        } else if self.missing == 0 {
            let open = || browser.open(world, StreamPriority::new(3, true));
            let Some(id) = self.connection.or_else(open) else { return };
            self.connection = Some(id);
            self.missing = self.bytes.into();
            self.begun = world.now();
            browser.ask(world, id, REQUEST, self.bytes);
        }
    }

    fn goes_on(&self) -> bool {
        !self.is_over && self.took.len() < self.parts
    }
}
