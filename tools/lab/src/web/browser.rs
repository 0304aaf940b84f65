//! The end that sends requests.

use std::collections::BTreeMap;

use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_stream::{Event, Streams};

use super::{ConnectionId, header, read_all};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowserEvent {
    /// Bytes of answers arrived.
    Came(ConnectionId, u64),
    /// The connection ended early.
    Over(ConnectionId),
}

#[derive(Debug, Default)]
pub struct Browser {
    open: BTreeMap<ConnectionId, Unwritten>,
}

#[derive(Debug, Default)]
struct Unwritten {
    bytes: Vec<u8>,
    finishes: bool,
}

impl Browser {
    pub fn open(&mut self, world: &mut World, priority: StreamPriority) -> Option<ConnectionId> {
        let id = world.use_client_streams(|now, owner, streams| {
            let id = streams.open(now, website(), priority).ok()?;
            Some((owner, id))
        })??;
        self.open.insert(id, Unwritten::default());
        Some(id)
    }

    /// Sends a request of `body` bytes for `answer` bytes, unless the connection has ended.
    pub fn ask(&mut self, world: &mut World, id: ConnectionId, body: u32, answer: u32) {
        if let Some(unwritten) = self.open.get_mut(&id) {
            unwritten.bytes.extend(header(body, answer));
            unwritten.bytes.resize(unwritten.bytes.len() + body as usize, 0);
            write(world, id, unwritten);
        }
    }

    pub fn finish(&mut self, world: &mut World, id: ConnectionId) {
        if let Some(unwritten) = self.open.get_mut(&id) {
            unwritten.finishes = true;
            write(world, id, unwritten);
        }
    }

    pub fn cancel(&mut self, world: &mut World, id: ConnectionId) {
        self.open.remove(&id);
        world.use_client_streams(|now, owner, streams| {
            if owner == id.0 {
                // The stream may have ended.
                let _ = streams.reset(now, id.1, ResetCode::Aborted);
            }
        });
    }

    /// Reads all arrived data; call [`World::flush`] afterwards.
    pub fn poll(&mut self, world: &mut World) -> Vec<BrowserEvent> {
        let mut events = Vec::new();
        let open = &mut self.open;
        let owner = world.use_client_streams(|now, owner, streams| {
            while let Some(event) = streams.poll_event(now) {
                let (Event::Readable(id)
                | Event::Writable(id)
                | Event::Finished(id)
                | Event::Reset { id, .. }) = event
                else {
                    continue;
                };
                events.extend(take(now, streams, &event, (owner, id), open));
            }
            owner
        });
        let Some(owner) = owner else { return events };
        // Connections of previous sessions have ended.
        let past: Vec<_> = open.keys().filter(|id| id.0 != owner).copied().collect();
        for id in past {
            open.remove(&id);
            events.push(BrowserEvent::Over(id));
        }
        events
    }
}

fn take(
    now: Instant,
    streams: &mut Streams,
    event: &Event,
    id: ConnectionId,
    open: &mut BTreeMap<ConnectionId, Unwritten>,
) -> Option<BrowserEvent> {
    match event {
        Event::Readable(_) => {
            let mut came = 0;
            read_all(now, streams, id.1, |bytes| came += bytes.len() as u64);
            return (came > 0 && open.contains_key(&id)).then_some(BrowserEvent::Came(id, came));
        }
        Event::Writable(_) => {
            if let Some(unwritten) = open.get_mut(&id) {
                unwritten.write(now, streams, id.1);
            }
        }
        Event::Finished(_) => _ = open.remove(&id),
        _ => return open.remove(&id).map(|_| BrowserEvent::Over(id)),
    }
    None
}

fn write(world: &mut World, id: ConnectionId, unwritten: &mut Unwritten) {
    world.use_client_streams(|now, owner, streams| {
        if owner == id.0 {
            unwritten.write(now, streams, id.1);
        }
    });
}

impl Unwritten {
    /// A stream that has ended accepts no data and is reported.
    fn write(&mut self, now: Instant, streams: &mut Streams, id: StreamId) {
        if !self.bytes.is_empty() {
            let taken = streams.write(now, id, &self.bytes).unwrap_or(0);
            self.bytes.drain(..taken);
        }
        if self.bytes.is_empty() && self.finishes {
            // The stream may have ended.
            let _ = streams.finish(now, id);
        }
    }
}

/// The destination of all requests (RFC 5737).
fn website() -> Destination {
    Destination::of_address([192, 0, 2, 80].into(), 80).expect("a port")
}
