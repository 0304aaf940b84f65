//! The streams of a world: what applications at both ends do with them.

use roadweave_proto::Instant;
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::StreamsOwner;

use super::World;

impl World {
    /// Lets the client's streams be used, if its server takes any. [`World::flush`] sends what was
    /// written.
    pub fn use_client_streams<T>(
        &mut self,
        act: impl FnOnce(Instant, StreamsOwner, &mut Streams) -> T,
    ) -> Option<T> {
        self.client.touched = true;
        let (owner, streams) = self.client.end.streams(self.now)?;
        Some(act(self.now, owner, streams))
    }

    /// Lets the streams of the server's client be used, unless they are over.
    pub fn use_server_streams<T>(
        &mut self,
        owner: StreamsOwner,
        act: impl FnOnce(Instant, &mut Streams) -> T,
    ) -> Option<T> {
        self.server.touched = true;
        self.server.end.streams(owner).map(|streams| act(self.now, streams))
    }

    /// What happened to a stream at the server.
    pub fn poll_server_stream(&mut self) -> Option<(StreamsOwner, Event)> {
        self.server.touched = true;
        self.server.end.hand_over_symbols(self.now);
        self.server.end.poll_stream_event(self.now)
    }

    /// Streams that are over at the server, all of their owner.
    pub fn poll_server_streams_over(&mut self) -> Option<StreamsOwner> {
        self.server.end.poll_streams_over()
    }
}
