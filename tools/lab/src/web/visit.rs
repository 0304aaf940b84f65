//! The loop of a world with a browser and a host.

use std::time::Duration;

use roadweave_proto::wire::StreamPriority;
use roadweave_proto::{Instant, earliest};
use roadweave_stream::Stats;

use super::{Browser, Host, News};
use crate::world::{World, WorldConfig, WorldError};

/// A user of a browser.
pub trait Visitor {
    /// When something is due; `None`: only after an event of the browser.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Handles due timers, and `news`.
    fn act(&mut self, world: &mut World, browser: &mut Browser, news: Vec<News>);

    /// Whether the visit continues.
    fn goes_on(&self) -> bool {
        true
    }
}

/// A world with a browser at the client, and a host behind the server.
#[derive(Debug)]
pub struct Visit {
    /// The world.
    pub world: World,
    browser: Browser,
    host: Host,
}

impl Visit {
    /// The world of `config` with a session in use: its paths are open, and it has carried data.
    /// Fails like [`World::new`].
    pub fn new(config: WorldConfig) -> Result<Self, WorldError> {
        let mut world = World::new(config)?;
        world.flush();
        let limit = world.now() + JOIN_MAX;
        while !world.all_paths_usable() && world.now() < limit {
            world.run_until(world.now() + LOOK);
        }
        let mut visit = Self { world, browser: Browser::default(), host: Host::default() };
        let end = visit.world.now() + LEAD_IN;
        visit.run(&mut Nobody::default(), end);
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
        let news = self.browser.poll(&mut self.world);
        visitor.act(&mut self.world, &mut self.browser, news);
        self.host.act(&mut self.world);
        self.world.flush();
    }

    /// Statistics of the server's streams.
    pub fn server_stats(&mut self) -> Stats {
        let stats = |owner| self.world.use_server_streams(owner, |_, it| it.stats());
        self.host.owner.and_then(stats).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Nobody {
    has_asked: bool,
}

impl Visitor for Nobody {
    fn act(&mut self, world: &mut World, browser: &mut Browser, _: Vec<News>) {
        if !self.has_asked
            && let Some(id) = browser.open(world, StreamPriority::default())
        {
            browser.ask(world, id, REQUEST, WARM_UP);
            browser.finish(world, id);
            self.has_asked = true;
        }
    }
}

/// Bytes of an HTTP request.
pub const REQUEST: u32 = 400;
pub(crate) const WARM_UP: u32 = 500_000;
pub(crate) const LEAD_IN: Duration = Duration::from_millis(3_500);
const JOIN_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);
