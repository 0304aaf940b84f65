//! A sniffer for plain HTTP: reports of players (CMCD), priorities, and the first picture of an
//! answer. It reads bytes after they were moved: nothing is delayed or changed.

use std::collections::BTreeMap;

use roadweave_proto::Instant;
use roadweave_proto::media::{Request, Requests, Responses, player_of};
use roadweave_proto::wire::StreamId;
use roadweave_stream::Streams;

use super::player::{PlayerTold, told_by};

pub(super) const TOLD_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) counts: BTreeMap<&'static str, u64>,
    told: Vec<PlayerTold>,
}

impl Heard {
    fn count(&mut self, what: &'static str, times: usize) {
        if times > 0 {
            *self.counts.entry(what).or_default() += times as u64;
        }
    }

    pub(super) fn tell(&mut self, told: PlayerTold) {
        if self.told.len() < TOLD_MAX {
            self.told.push(told);
        }
    }

    pub(super) fn take_told(&mut self) -> Vec<PlayerTold> {
        std::mem::take(&mut self.told)
    }
}

#[derive(Debug)]
pub(super) struct Hearing {
    requests: Requests,
    end: End,
    is_over: bool,
}

#[derive(Debug)]
enum End {
    /// `nameless`: the player's number if it does not give its name.
    Application { nameless: u64 },
    /// `moved`: bytes that went from the host into the stream.
    Host { responses: Box<Responses>, moved: u64 },
}

impl Hearing {
    pub(super) fn of_application(caller: impl std::hash::Hash) -> Self {
        Self::of(End::Application { nameless: player_of(caller) })
    }

    pub(super) fn of_host() -> Self {
        Self::of(End::Host { responses: Box::default(), moved: 0 })
    }

    fn of(end: End) -> Self {
        Self { requests: Requests::default(), end, is_over: false }
    }

    pub(super) fn on_sent(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        id: StreamId,
        bytes: &[u8],
        heard: &mut Heard,
    ) {
        match &mut self.end {
            End::Application { nameless } => {
                let nameless = *nameless;
                self.requests.feed(bytes, |request| {
                    heard.count("requests", 1);
                    let _ = streams.ask_priority(now, id, request.priority.unwrap_or_default());
                    let told = request.cmcd.and_then(|told| told_by(&told, nameless));
                    heard.count("players", usize::from(told.is_some()));
                    told.into_iter().for_each(|told| heard.tell(told));
                });
            }
            End::Host { responses, moved } => {
                let before = *moved;
                *moved += bytes.len() as u64;
                let seen = responses.feed(bytes);
                heard.count("answers", seen.heads);
                heard.count("first-frames", seen.frames);
                if seen.urgent > 0 {
                    let _ = streams.set_head(now, id, before + seen.urgent as u64);
                }
                if let (Some(own), Ok(asked)) = (seen.priority, streams.asked_priority(id)) {
                    // The host knows better than the client (RFC 9218 section 8).
                    let _ = streams.set_priority(now, id, own.unwrap_or(asked));
                }
            }
        }
        self.note(heard);
    }

    pub(super) fn on_received(&mut self, bytes: &[u8], heard: &mut Heard) {
        if let End::Host { responses, .. } = &mut self.end {
            self.requests.feed(bytes, |request: Request| {
                heard.count("requests", 1);
                responses.expect(request);
            });
            self.note(heard);
        }
    }

    fn note(&mut self, heard: &mut Heard) {
        let of_host = match &self.end {
            End::Application { .. } => None,
            End::Host { responses, .. } => responses.unread(),
        };
        if let Some(why) = self.requests.unread().or(of_host).filter(|_| !self.is_over) {
            self.is_over = true;
            heard.count(why.name(), 1);
        }
    }
}
