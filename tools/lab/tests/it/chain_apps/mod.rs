//! Applications at both ends of a chain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::requests::{Answer, Request};
use roadweave_lab::chain::Chain;
use roadweave_proto::wire::StreamId;
use roadweave_stream::Event;
use roadweave_tunnel::StreamsOwner;

const STEP: Duration = Duration::from_millis(2);

pub type RequestId = (usize, StreamsOwner, StreamId);

/// Applications of a chain whose boxes have one client each.
#[derive(Debug, Default)]
pub struct Apps {
    /// Index of the client that each box uses.
    pub proxy: usize,
    pub requests: BTreeMap<RequestId, Request>,
    answers: BTreeMap<(StreamsOwner, StreamId), Answer>,
    /// Clients whose streams are closed at the anchor.
    pub over: Vec<StreamsOwner>,
    /// Boxes read nothing.
    pub is_idle: bool,
}

impl Apps {
    pub fn new(proxy: usize) -> Self {
        Self { proxy, ..Self::default() }
    }

    /// Sends `up` bytes and requests `down`; `None` without a far end that accepts streams.
    pub fn request(
        &mut self,
        chain: &mut Chain,
        number: usize,
        up: u64,
        down: u64,
    ) -> Option<RequestId> {
        let now = chain.now();
        let (owner, streams) = chain.client(number, self.proxy)?.streams(now)?;
        let (id, request) = Request::open(now, streams, up, down);
        self.requests.insert((number, owner, id), request);
        self.act(chain);
        Some((number, owner, id))
    }

    pub fn run(&mut self, chain: &mut Chain, time: Duration) {
        let end = chain.now() + time;
        while chain.now() < end {
            chain.run_until((chain.now() + STEP).min(end));
            self.act(chain);
        }
    }

    /// Runs until all requests have ended, for at most `time`; returns how long it took.
    pub fn finish(&mut self, chain: &mut Chain, time: Duration) -> Duration {
        let begun = chain.now();
        while chain.now().since(begun) < time && !self.requests.values().all(Request::is_over) {
            self.run(chain, STEP);
        }
        chain.now().since(begun)
    }

    pub fn all_done(&self) -> bool {
        self.requests.values().all(|request| request.done.is_some())
    }

    pub fn on_anchor_restart(&mut self) {
        self.answers.clear();
    }

    fn act(&mut self, chain: &mut Chain) {
        self.act_at_boxes(chain);
        self.act_at_anchor(chain);
        chain.flush();
    }

    fn act_at_boxes(&mut self, chain: &mut Chain) {
        let now = chain.now();
        let numbers: BTreeSet<usize> = self.requests.keys().map(|(number, ..)| *number).collect();
        for number in numbers {
            let Some(client) = chain.client(number, self.proxy) else { continue };
            let mut streams = client.streams(now);
            if let Some((_, streams)) = &mut streams {
                while streams.poll_event(now).is_some() {}
            }
            for ((of, owner, id), request) in &mut self.requests {
                if *of != number || request.is_over() {
                    continue;
                }
                match &mut streams {
                    Some((present, streams)) if present == owner => {
                        request.act(now, *id, streams, !self.is_idle);
                    }
                    _ => request.reset = Some(now),
                }
            }
        }
    }

    fn act_at_anchor(&mut self, chain: &mut Chain) {
        let now = chain.now();
        let Some(anchor) = chain.anchor() else { return };
        while let Some(owner) = anchor.poll_streams_over() {
            self.over.push(owner);
            self.answers.retain(|(of, _), _| *of != owner);
        }
        while let Some((owner, event)) = anchor.poll_stream_event(now) {
            let Some(streams) = anchor.streams(owner) else { continue };
            match event {
                Event::Opened { id, .. } => {
                    streams.accept(now, id).unwrap();
                    assert!(self.answers.insert((owner, id), Answer::default()).is_none());
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
            let Some(streams) = anchor.streams(*owner) else { return false };
            answer.act(now, *id, streams)
        });
    }
}
