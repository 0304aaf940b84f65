//! Events of links while a scenario runs: a script, and cross traffic.
//!
//! ```text
//! script ─┬─ down, up, rebind, unplug, plug ─► the world, at their time
//!         └─ delay, capacity ─► the links' traces, before the run (so that the bound knows them too)
//! cross traffic ─► a link's queue, packet by packet
//! ```

mod cross;
mod traces;

use std::time::Duration;

use crate::world::World;

pub(crate) use cross::CrossSource;
pub use cross::CrossTraffic;
pub(crate) use traces::apply_to_traces;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScriptEvent {
    /// When, after the start of the stream.
    pub at: Duration,
    pub link: usize,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The link dies: it loses its queue and all further packets.
    Down,
    /// The link lives again.
    Up,
    /// The NAT gives the link another public address; the vehicle does not notice.
    Rebind,
    /// The modem is pulled out: the link dies and its interface vanishes.
    Unplug,
    /// The modem is plugged in: the link lives, and its interface has another address.
    Plug,
    /// From now on the propagation delay is that of the trace plus this, both ways.
    Delay(Duration),
    /// From now on the capacity is that of the trace times this (0..=1,000), both ways.
    Capacity(f64),
}

impl Action {
    /// Applies the event, except for delay and capacity, which are in the traces already.
    pub fn act_on(self, world: &mut World, link: usize) {
        match self {
            Self::Down => world.set_dead(link, true),
            Self::Up => world.set_dead(link, false),
            Self::Rebind => world.rebind(link),
            Self::Unplug => {
                world.set_dead(link, true);
                world.remove_uplink(link);
            }
            Self::Plug => {
                world.set_dead(link, false);
                world.rebind(link);
                world.add_uplink(link);
            }
            Self::Delay(_) | Self::Capacity(_) => {}
        }
    }
}
