//! The loop of a world with a browser and a host.

use std::time::Duration;

use roadweave_proto::{Instant, earliest};
use roadweave_stream::Stats;

use super::{Browser, BrowserEvent, Host, Loading};
use crate::world::{World, WorldConfig, WorldError};

pub trait Visitor {
    /// When something is due; `None`: only after an event of the browser.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn act(&mut self, world: &mut World, browser: &mut Browser, events: Vec<BrowserEvent>);

    fn goes_on(&self) -> bool {
        true
    }
}

struct Idle;

impl Visitor for Idle {
    fn act(&mut self, _: &mut World, _: &mut Browser, _: Vec<BrowserEvent>) {}
}

/// A world with a browser at the client, and a host behind the server.
#[derive(Debug)]
pub struct Visit {
    pub world: World,
    browser: Browser,
    host: Host,
}

impl Visit {
    /// The world of `config` with a session that has opened its paths; fails like [`World::new`].
    pub fn new(config: WorldConfig) -> Result<Self, WorldError> {
        let world = World::joined(config)?;
        Ok(Self { world, browser: Browser::default(), host: Host::default() })
    }

    /// The same with a session in use, which has carried data.
    pub fn in_use(config: WorldConfig) -> Result<Self, WorldError> {
        let mut visit = Self::new(config)?;
        let end = visit.world.now() + LEAD_IN;
        visit.run(&mut Loading::new(WARM_UP, 1), end);
        visit.run(&mut Idle, end);
        Ok(visit)
    }

    /// Runs until `end`, or until the visitor stops.
    pub fn run(&mut self, visitor: &mut impl Visitor, end: Instant) {
        self.act(visitor);
        while visitor.goes_on() {
            let due = earliest([self.world.poll_timeout(), visitor.poll_timeout()]);
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.world.handle_timeout(due.max(self.world.now()));
            self.act(visitor);
        }
        if visitor.goes_on() {
            self.world.run_until(end);
            self.act(visitor);
        }
    }

    fn act(&mut self, visitor: &mut impl Visitor) {
        let events = self.browser.poll(&mut self.world);
        visitor.act(&mut self.world, &mut self.browser, events);
        self.host.act(&mut self.world);
        self.world.flush();
    }

    pub fn server_stats(&mut self) -> Stats {
        let stats = |owner| self.world.use_server_streams(owner, |_, it| it.stats());
        self.host.owner.and_then(stats).unwrap_or_default()
    }
}

/// Bytes of an HTTP request.
pub const REQUEST: u32 = 400;
pub(crate) const WARM_UP: u32 = 500_000;
pub(crate) const LEAD_IN: Duration = Duration::from_millis(3_500);
