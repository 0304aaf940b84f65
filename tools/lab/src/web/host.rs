//! The end that answers.

use std::collections::BTreeMap;

use roadweave_proto::Instant;
use roadweave_proto::wire::StreamId;
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::StreamsOwner;

use super::{ConnectionId, HEADER, PIECE, parse, read_all};
use crate::world::World;

/// A host behind the server, which answers each request once it is complete.
#[derive(Debug, Default)]
pub struct Host {
    open: BTreeMap<ConnectionId, Answering>,
    pub(super) owner: Option<StreamsOwner>,
}

#[derive(Debug, Default)]
struct Answering {
    header: Vec<u8>,
    /// Of the request whose header has arrived: missing bytes, and bytes of its answer.
    request: Option<(u64, u64)>,
    owed: u64,
    is_last: bool,
}

impl Host {
    /// Handles all arrived data; call [`World::flush`] afterwards.
    pub fn act(&mut self, world: &mut World) {
        while let Some(owner) = world.poll_server_streams_over() {
            self.open.retain(|(of, _), _| *of != owner);
        }
        while let Some((owner, event)) = world.poll_server_stream() {
            self.owner = Some(owner);
            let (id, is_new) = match event {
                Event::Opened { id, .. } => (id, true),
                Event::Readable(id) | Event::Writable(id) | Event::Finished(id) => (id, false),
                Event::Reset { id, .. } | Event::Stopped { id, .. } | Event::Acknowledged(id) => {
                    self.open.remove(&(owner, id));
                    continue;
                }
                _ => continue,
            };
            if is_new {
                self.open.insert((owner, id), Answering::default());
            }
            let Some(answering) = self.open.get_mut(&(owner, id)) else { continue };
            world.use_server_streams(owner, |now, streams| {
                if is_new {
                    // A reset is reported as an event.
                    let _ = streams.accept(now, id);
                }
                read_all(now, streams, id, |bytes| answering.take(bytes));
                answering.is_last |= matches!(event, Event::Finished(_));
                answering.write(now, streams, id);
            });
        }
    }
}

impl Answering {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() || self.request.is_some_and(|(missing, _)| missing == 0) {
            let Some((missing, answer)) = &mut self.request else {
                let (header, rest) = bytes.split_at(bytes.len().min(HEADER - self.header.len()));
                self.header.extend(header);
                bytes = rest;
                if let Ok(header) = <[u8; HEADER]>::try_from(&self.header[..]) {
                    let (body, answer) = parse(header);
                    self.request = Some((body.into(), answer.into()));
                    self.header.clear();
                }
                continue;
            };
            let (body, rest) = bytes.split_at(bytes.len().min(*missing as usize));
            *missing -= body.len() as u64;
            bytes = rest;
            if *missing == 0 {
                self.owed += *answer;
                self.request = None;
            }
        }
    }

    fn write(&mut self, now: Instant, streams: &mut Streams, id: StreamId) {
        let filler = [0; PIECE];
        while self.owed > 0 {
            let length = (filler.len() as u64).min(self.owed) as usize;
            match streams.write(now, id, &filler[..length]) {
                Ok(taken @ 1..) => self.owed -= taken as u64,
                _ => return,
            }
        }
        if self.is_last {
            // The stream may have been reset.
            let _ = streams.finish(now, id);
        }
    }
}
