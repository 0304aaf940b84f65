//! Byte streams of applications at both ends.

use roadweave_proto::Instant;
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::{EndsStreams as _, StreamsOwner};

use super::World;

impl World {
    /// Calls `act` with the client's streams, if its server has any; [`World::flush`] sends data.
    pub fn use_client_streams<T>(
        &mut self,
        act: impl FnOnce(Instant, StreamsOwner, &mut Streams) -> T,
    ) -> Option<T> {
        self.client.touched = true;
        let (owner, streams) = self.client.end.streams(self.now)?;
        Some(act(self.now, owner, streams))
    }

    /// Calls `act` with the streams of the server's client, unless they are closed.
    pub fn use_server_streams<T>(
        &mut self,
        owner: StreamsOwner,
        act: impl FnOnce(Instant, &mut Streams) -> T,
    ) -> Option<T> {
        self.server.touched = true;
        self.server.end.streams(owner).map(|streams| act(self.now, streams))
    }

    /// The next stream event of the server.
    pub fn poll_server_stream(&mut self) -> Option<(StreamsOwner, Event)> {
        self.server.touched = true;
        self.server.end.hand_over_symbols(self.now);
        self.server.end.poll_stream_event(self.now)
    }

    /// The next owner whose streams at the server are all closed.
    pub fn poll_server_streams_over(&mut self) -> Option<StreamsOwner> {
        self.server.end.poll_streams_over()
    }
}
