//! The proxy of a box for applications of its LAN: what joins it with the tunnel's streams.

use roadweave_stream::{Config, Side, Streams};
use roadweave_tunnel::{Client, StreamsConfig, StreamsOwner};
use roadweave_types::Instant;

use super::options::LanStreamsOptions;
use crate::DeviceError;
use crate::driver::event_loop::{Driver, STREAMS};
use crate::poll::Event;
use crate::status::StreamsStatus;
use crate::streams::{Entrance, PlayerTold};

/// The index of the loopback interface, in every network namespace.
const LOOPBACK: u32 = 1;

/// The proxy, and whose streams its connections go by.
pub(super) struct LanStreams {
    entrance: Entrance,
    owner: Option<StreamsOwner>,
    /// Where there is no server that takes streams: none can be opened here.
    nowhere: Streams,
}

impl LanStreams {
    /// Takes callers from now on.
    ///
    /// # Errors
    /// When the address is another's, or none of this machine.
    pub(super) fn open(
        options: &LanStreamsOptions,
        driver: &Driver<Client>,
    ) -> Result<Self, DeviceError> {
        let entrance = Entrance::open(options.entrance.clone(), STREAMS)?;
        entrance.register(&driver.poller)?;
        let nowhere = Streams::new(Config::for_streams(Side::Client, 0));
        tracing::info!(listen = %options.entrance.listen, "SOCKS5 and HTTP CONNECT are answered");
        Ok(Self { entrance, owner: None, nowhere })
    }

    /// The interfaces (by index) that lead to the LAN from now on; this machine itself is of it.
    pub(super) fn set_inside(&mut self, inside: impl Iterator<Item = u32>) {
        self.entrance.set_inside(inside.chain([LOOPBACK]).collect());
    }

    /// The poller has told something.
    pub(super) fn on_ready(&mut self, event: &Event) {
        if self.entrance.owns(event.token) {
            self.entrance.on_ready(event);
        }
    }

    /// When [`LanStreams::turn`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.entrance.poll_timeout()
    }

    /// Moves what can be moved between connections and streams.
    pub(super) fn turn(&mut self, driver: &mut Driver<Client>, now: Instant) {
        let found = driver.node.streams(now);
        let owner = found.as_ref().map(|(owner, _)| *owner);
        if self.owner != owner {
            self.owner = owner;
            self.entrance.on_streams_over(now);
        }
        let streams = found.map_or(&mut self.nowhere, |(_, streams)| streams);
        self.entrance.turn(now, &driver.poller, streams);
        for PlayerTold { player, qoe } in self.entrance.take_told() {
            // One that tells too often is not told on.
            let _ = driver.node.tell_player(now, StreamsConfig::LANE, player, qoe);
        }
    }

    /// The node was turned: the next turn follows at once if a stream has something to tell.
    pub(super) fn handle_events(&mut self, driver: &mut Driver<Client>, now: Instant) {
        if let Some((owner, streams)) = driver.node.streams(now)
            && self.owner == Some(owner)
        {
            self.entrance.handle_events(now, streams);
        }
    }

    pub(super) fn status(&self) -> StreamsStatus {
        let ends = self.entrance.ends().iter();
        StreamsStatus {
            connections: self.entrance.connections(),
            accepted: self.entrance.accepted(),
            ends: ends.map(|(end, count)| (end.name().to_owned(), count)).collect(),
            source: None,
        }
    }
}
