//! TCP connections of applications, carried as streams of a session.
//!
//! A [`StreamListener`] belongs to a box. Its owner lends it the [`Streams`](roadweave_stream::Streams)
//! of the session and calls `on_ready` for events of its tokens, `handle_events` after the packets
//! of a turn, `turn` once in each turn of the loop, and `poll_timeout` for the time of the next.
//!
//! Sockets are polled edge-triggered: backpressure may last for minutes, in which level-triggered
//! polling would spin. Connections with more to do than a turn allows wait in a FIFO queue.

mod connector;
mod http_sniffer;
mod listener;
mod player;
mod splice;
mod table;

use std::collections::BTreeMap;

pub(crate) use connector::check_rights;
pub use connector::{ConnectorEnd, ConnectorRules, ConnectorSettings, Sources, StreamConnector};
pub(crate) use listener::LOOPBACK;
pub use listener::{EventStreams, ListenerEnd, ListenerSettings, Listening, StreamListener};
pub use player::PlayerReport;

/// Bytes that all connections together move in a turn.
const TURN: usize = 512 << 10;
const SCRATCH: usize = 64 << 10;
/// The token range of a listener; a machine never opens more sockets.
const TOKENS: u64 = 1 << 56;

/// Raises the limit of open files to its maximum and returns two thirds of it, for connections.
fn sockets_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let most =
        getrlimit(Resource::Nofile).current.map_or(SOCKETS_MAX, |most| most as usize / 3 * 2);
    most.clamp(1, SOCKETS_MAX)
}

const SOCKETS_MAX: usize = 16_384;

/// Counters of connections by how they ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends<E>(BTreeMap<E, u64>);

impl<E> Default for Ends<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E: Copy + Ord> Ends<E> {
    fn count(&mut self, end: E) {
        *self.0.entry(end).or_default() += 1;
    }

    /// Each kind of end that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (E, u64)> {
        self.0.iter().map(|(end, count)| (*end, *count))
    }
}

#[cfg(test)]
mod tests;
