//! Requests and answers over the streams of a world: a browser, and a host behind the server.
//!
//! ```text
//! Browser ─ open, ask ───► stream: header, body ─► Host
//!         ◄─ BrowserEvent ─ stream: answer ◄──────┘
//! ```
//!
//! A stream stands for a connection of an application, which may carry several requests in
//! sequence. A request is a header with the lengths of its body and of its answer, and its body;
//! the content does not matter. Both ends act on the events of their streams alone, like the
//! product's proxies.

mod browser;
mod host;
mod loading;
mod visit;

use roadweave_proto::Instant;
use roadweave_proto::wire::StreamId;
use roadweave_stream::Streams;
use roadweave_tunnel::StreamsOwner;

pub use browser::{Browser, BrowserEvent};
pub use host::Host;
pub use loading::Loading;
pub(crate) use visit::{LEAD_IN, WARM_UP};
pub use visit::{REQUEST, Visit, Visitor};

/// A connection: the owner of its streams, and its stream.
pub type ConnectionId = (StreamsOwner, StreamId);

/// The lengths of a request's body and of its answer.
const HEADER: usize = 8;
const PIECE: usize = 16 << 10;

fn header(body: u32, answer: u32) -> [u8; HEADER] {
    (u64::from(body) << 32 | u64::from(answer)).to_be_bytes()
}

fn parse(header: [u8; HEADER]) -> (u32, u32) {
    let both = u64::from_be_bytes(header);
    ((both >> 32) as u32, both as u32)
}

fn read_all(now: Instant, streams: &mut Streams, id: StreamId, mut see: impl FnMut(&[u8])) {
    let take = |pieces: [&[u8]; 2]| {
        pieces.into_iter().for_each(&mut see);
        pieces.into_iter().map(<[u8]>::len).sum()
    };
    // A reset is reported as an event.
    let _ = streams.read_with(now, id, take);
}

#[cfg(test)]
mod tests;
