//! TCP connections of applications, as streams of a session.
//!
//! ```text
//! application ─ SOCKS5, HTTP CONNECT ─► Entrance ─► Splice ─► Streams ─► the tunnel
//! ```
//!
//! An [`Entrance`] is a box's. It does not know the tunnel: its owner lends it the
//! [`Streams`](roadweave_stream::Streams) of the session, and calls it so:
//!
//! 1. `on_ready` for each event of a token that it owns: cheap, only a note;
//! 2. `handle_events` when the streams may have news, after the packets of a turn were handled;
//! 3. `turn`, once in each turn of the loop: all reading, writing, connecting and giving up;
//! 4. the loop sleeps until `poll_timeout`, at the latest.
//!
//! Sockets are polled by edges. Backpressure is a state that may last for minutes: with levels each
//! change of it would cost a call to the kernel to change the interest, or the loop would spin. By
//! edges a socket is added once, what it can do is remembered here, and those that have more to do
//! than a turn allows stand in a queue of their own, in the order in which they came.

mod entrance;
mod exit;
mod hearing;
mod splice;
mod table;

use std::collections::BTreeMap;

pub(crate) use entrance::LOOPBACK;
pub use entrance::{Entrance, EntranceEnd, EntranceSettings, EventStreams, Listening, PlayerTold};
pub(crate) use exit::check_rights;
pub use exit::{ClientStreams, Exit, ExitEnd, ExitRules, ExitSettings, Sources};

/// How many bytes all connections together move in a turn, before the loop looks for packets of the
/// tunnel again.
const TURN: usize = 512 << 10;
/// The most bytes that are read from a socket at a time: the size of the scratch buffer, which all
/// connections share.
const SCRATCH: usize = 64 << 10;
/// The tokens of an entrance; more sockets no machine opens in its life.
const TOKENS: u64 = 1 << 56;

/// How many sockets connections may have: what the system lets this program open is raised as far
/// as it goes, and two thirds of that are theirs, since the tunnel needs some.
fn sockets_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it is refused there are as many as before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let most =
        getrlimit(Resource::Nofile).current.map_or(SOCKETS_MAX, |most| most as usize / 3 * 2);
    most.clamp(1, SOCKETS_MAX)
}

/// More sockets than this need no box and no server.
const SOCKETS_MAX: usize = 16_384;

/// How many connections ended in each way.
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

    /// How many ended so.
    pub fn of(&self, end: E) -> u64 {
        self.0.get(&end).copied().unwrap_or_default()
    }

    /// How many ended at all.
    pub fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    /// Each way in which any ended, and how many.
    pub fn iter(&self) -> impl Iterator<Item = (E, u64)> {
        self.0.iter().map(|(end, count)| (*end, *count))
    }
}

#[cfg(test)]
mod tests;
