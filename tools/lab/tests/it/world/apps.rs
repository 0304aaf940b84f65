//! Applications on the streams of a world: requests of the client, answers of the server.

use std::collections::BTreeMap;

use crate::requests::{Answer, Request};
use roadweave_lab::world::World;
use roadweave_proto::wire::StreamId;
use roadweave_stream::Event;
use roadweave_tunnel::StreamsOwner;

pub type FetchId = (StreamsOwner, StreamId);

#[derive(Debug, Default)]
pub struct Apps {
    pub fetches: BTreeMap<FetchId, Request>,
    answers: BTreeMap<FetchId, Answer>,
    /// Clients whose streams are closed at the server.
    pub over: Vec<StreamsOwner>,
}

impl Apps {
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests `length` bytes; `None` without a server that accepts streams.
    pub fn fetch(&mut self, world: &mut World, length: u64) -> Option<FetchId> {
        self.act(world);
        let (id, request) = world.use_client_streams(|now, owner, streams| {
            let (id, request) = Request::open(now, streams, 0, length);
            ((owner, id), request)
        })?;
        self.fetches.insert(id, request);
        Some(id)
    }

    pub fn on_server_restart(&mut self) {
        self.answers.clear();
    }

    pub fn all_over(&self) -> bool {
        self.fetches.values().all(Request::is_over)
    }

    pub fn act(&mut self, world: &mut World) {
        let fetches = &mut self.fetches;
        let owner = world.use_client_streams(|now, owner, streams| {
            while streams.poll_event(now).is_some() {}
            let present = fetches.iter_mut().filter(|((of, _), it)| *of == owner && !it.is_over());
            present.for_each(|((_, id), fetch)| fetch.act(now, *id, streams, true));
            owner
        });
        // Requests of former sessions have ended.
        let now = world.now();
        let past = self.fetches.iter_mut().filter(|((of, _), _)| owner.is_some_and(|it| it != *of));
        for (_, fetch) in past.filter(|(_, fetch)| fetch.done.is_none()) {
            fetch.reset.get_or_insert(now);
        }
        while let Some(owner) = world.poll_server_streams_over() {
            self.answers.retain(|(of, _), _| *of != owner);
            self.over.push(owner);
        }
        while let Some((owner, event)) = world.poll_server_stream() {
            match event {
                Event::Opened { id, .. } => {
                    let accepted = world.use_server_streams(owner, |now, s| s.accept(now, id));
                    accepted.expect("they are there").expect("it was opened");
                    self.answers.insert((owner, id), Answer::default());
                }
                Event::Reset { id, .. } => _ = self.answers.remove(&(owner, id)),
                Event::Finished(id) => {
                    let answer = self.answers.get_mut(&(owner, id));
                    answer.into_iter().for_each(|answer| answer.ended = true);
                }
                _ => {}
            }
        }
        self.answers.retain(|(owner, id), answer| {
            let goes_on = world.use_server_streams(*owner, |now, s| answer.act(now, *id, s));
            goes_on.unwrap_or(true)
        });
        world.flush();
    }
}
