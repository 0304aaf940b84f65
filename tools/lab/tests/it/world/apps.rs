//! Applications that use the streams of a world: requests of the client, and answers of the server.

use std::collections::BTreeMap;

use roadweave_lab::world::World;
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_proto::{Instant, SplitMix64};
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::StreamsOwner;

/// A request: of which streams, and which.
pub type FetchId = (StreamsOwner, StreamId);

/// One request of the client, and what came of it.
#[derive(Debug)]
pub struct Fetch {
    pub begun: Instant,
    length: u64,
    read: u64,
    pub done: Option<Instant>,
    pub reset: Option<(Instant, ResetCode)>,
}

/// One answer of the server.
#[derive(Debug)]
struct Answer {
    /// Of the request, as far as it was read: the length that is asked for.
    request: Vec<u8>,
    written: u64,
}

/// Applications at both ends: a request is the length of what is wanted.
#[derive(Debug, Default)]
pub struct Apps {
    pub fetches: BTreeMap<FetchId, Fetch>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    /// Whose streams are over at the server.
    pub over: Vec<StreamsOwner>,
    /// Whether the client reads what comes.
    pub is_reading: bool,
}

impl Apps {
    pub fn new() -> Self {
        Self { is_reading: true, ..Self::default() }
    }

    /// Asks for so many bytes, if there is a server that takes streams.
    pub fn fetch(&mut self, world: &mut World, length: u64) -> Option<FetchId> {
        self.act(world);
        let in_turns = StreamPriority::new(3, true);
        let (now, id) = world.use_client_streams(|now, owner, streams| {
            let id = streams.open(now, website(), in_turns).expect("room");
            assert_eq!(streams.write(now, id, &length.to_be_bytes()), Ok(8));
            streams.finish(now, id).expect("it is open");
            (now, (owner, id))
        })?;
        let fetch = Fetch { begun: now, length, read: 0, done: None, reset: None };
        self.fetches.insert(id, fetch);
        Some(id)
    }

    /// The server process is another.
    pub fn on_server_restart(&mut self) {
        self.answers.clear();
    }

    /// Whether each request was answered, or has failed.
    pub fn all_over(&self) -> bool {
        self.fetches.values().all(|fetch| fetch.done.is_some() || fetch.reset.is_some())
    }

    /// Lets both do what they can.
    pub fn act(&mut self, world: &mut World) {
        let (fetches, is_reading) = (&mut self.fetches, self.is_reading);
        let owner = world.use_client_streams(|now, owner, streams| {
            while let Some(event) = streams.poll_event(now) {
                if let Event::Reset { id, code, .. } = event {
                    let fetch = fetches.get_mut(&(owner, id)).expect("it was opened here");
                    fetch.reset = Some((now, code));
                }
            }
            let present = fetches.iter_mut().filter(|((of, _), _)| *of == owner && is_reading);
            present.for_each(|((_, id), fetch)| read(now, streams, *id, fetch));
            owner
        });
        // Those of other owners are over.
        let now = world.now();
        let past = self.fetches.iter_mut().filter(|((of, _), _)| owner.is_some_and(|it| it != *of));
        for (_, fetch) in past.filter(|(_, fetch)| fetch.done.is_none()) {
            fetch.reset.get_or_insert((now, ResetCode::Aborted));
        }
        while let Some(owner) = world.poll_server_streams_over() {
            self.answers.retain(|(of, _), _| *of != owner);
            self.over.push(owner);
        }
        while let Some((owner, event)) = world.poll_server_stream() {
            match event {
                Event::Opened { id, destination, .. } => {
                    assert_eq!(destination, website());
                    let accepted = world.use_server_streams(owner, |now, s| s.accept(now, id));
                    accepted.expect("they are there").expect("it was opened");
                    self.answers.insert((owner, id), Answer { request: vec![], written: 0 });
                }
                Event::Reset { id, .. } => _ = self.answers.remove(&(owner, id)),
                _ => {}
            }
        }
        for ((owner, id), answer) in &mut self.answers {
            world.use_server_streams(*owner, |now, streams| write(now, streams, *id, answer));
        }
        self.answers.retain(|_, answer| answer.written != u64::MAX);
        world.flush();
    }
}

fn website() -> Destination {
    Destination::of_address([192, 0, 2, 80].into(), 80).expect("a port")
}

/// The byte of the answer at this place.
fn content(id: StreamId, offset: u64) -> u8 {
    SplitMix64::word(id.0, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

fn read(now: Instant, streams: &mut Streams, id: StreamId, fetch: &mut Fetch) {
    let mut buffer = [0; 4096];
    while fetch.done.is_none()
        && let Ok(length @ 1..) = streams.read(now, id, &mut buffer)
    {
        for (at, byte) in (fetch.read..).zip(&buffer[..length]) {
            assert_eq!(*byte, content(id, at), "at {at} of {id:?}");
        }
        fetch.read += length as u64;
        if fetch.read == fetch.length {
            fetch.done = Some(now);
        }
    }
}

fn write(now: Instant, streams: &mut Streams, id: StreamId, answer: &mut Answer) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = streams.read(now, id, &mut buffer) {
        answer.request.extend(&buffer[..length]);
    }
    let Ok(length) = <[u8; 8]>::try_from(&answer.request[..]).map(u64::from_be_bytes) else {
        return;
    };
    while answer.written < length {
        let bytes: Vec<u8> =
            (answer.written..length.min(answer.written + 4096)).map(|at| content(id, at)).collect();
        match streams.write(now, id, &bytes) {
            Ok(taken @ 1..) => answer.written += taken as u64,
            _ => return,
        }
    }
    streams.finish(now, id).expect("all was written");
    answer.written = u64::MAX;
}
