//! One person who speaks, looks for songs or asks for places.

use std::time::Duration;

use roadweave_emulate::Random;
use roadweave_types::Instant;
use roadweave_wire::StreamPriority;

use super::super::REQUEST_TIMEOUT;
use super::soonest;
use crate::traffic::{App, AppPattern};
use crate::web::{Browser, ConnectionId, News, Visitor};
use crate::world::World;

/// One person's requests, one after the other, each over a connection of its own.
#[derive(Debug)]
pub(super) struct Person {
    app: App,
    random: Random,
    /// No request begins after it.
    end: Instant,
    next_request: Instant,
    current: Option<Request>,
    responses: Vec<Duration>,
    asked: u64,
}

/// A request under way.
#[derive(Debug)]
struct Request {
    id: ConnectionId,
    began: Instant,
    /// When the person began to wait.
    asked: Instant,
    /// Pieces of speech that are not spoken yet, and when the next is, or the request itself.
    to_say: u32,
    next_piece: Option<Instant>,
    turn: u8,
    /// Bytes of this turn's answer that are missing.
    missing: u64,
}

impl Person {
    pub(super) fn new(app: App, start: Instant, end: Instant, seed: u64) -> Self {
        Self {
            app,
            random: Random::new(seed),
            end,
            next_request: start,
            current: None,
            responses: Vec::new(),
            asked: 0,
        }
    }

    /// Requests whose time to be answered is over.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// How long each answer took that came in time.
    pub(super) fn responses(&self) -> &[Duration] {
        &self.responses
    }

    fn begin(&mut self, world: &mut World, browser: &mut Browser) {
        let now = world.now();
        let Some(id) = browser.open(world, StreamPriority::default()) else {
            self.next_request = now + AGAIN;
            return;
        };
        let pieces = self.app.pieces(&mut self.random);
        let asked = now + AppPattern::PIECE * pieces;
        let mut request = Request {
            id,
            began: now,
            asked,
            to_say: pieces.saturating_sub(1),
            next_piece: (pieces > 0).then(|| now + AppPattern::PIECE),
            turn: 0,
            missing: 0,
        };
        if pieces == 0 {
            request.ask(self.app, world, browser);
        }
        self.current = Some(request);
    }

    /// Says what is due of the request under way.
    fn speak(&mut self, world: &mut World, browser: &mut Browser) {
        let now = world.now();
        let Some(request) = &mut self.current else { return };
        while let Some(at) = request.next_piece.filter(|at| *at <= now) {
            if request.to_say > 0 {
                browser.ask(world, request.id, AppPattern::PIECE_BYTES, 0);
                request.to_say -= 1;
                request.next_piece = Some(at + AppPattern::PIECE);
            } else {
                request.next_piece = None;
                request.ask(self.app, world, browser);
            }
        }
    }

    /// More of the answer has come.
    fn on_came(&mut self, world: &mut World, browser: &mut Browser, bytes: u64) {
        let Some(request) = &mut self.current else { return };
        request.missing = request.missing.saturating_sub(bytes);
        if request.missing > 0 || request.next_piece.is_some() {
            return;
        }
        if request.turn + 1 < self.app.turns() {
            request.turn += 1;
            request.ask(self.app, world, browser);
        } else {
            browser.finish(world, request.id);
            self.end_request(world.now(), true);
        }
    }

    fn end_request(&mut self, now: Instant, answered: bool) {
        let Some(request) = self.current.take() else { return };
        self.asked += 1;
        if answered {
            self.responses.push(now.since(request.asked));
        }
        self.next_request = self.app.next_after(now, request.began, &mut self.random);
    }
}

impl Request {
    /// Asks for the answer of this turn.
    fn ask(&mut self, app: App, world: &mut World, browser: &mut Browser) {
        let (body, answer) = app.stream_turn(self.turn);
        self.missing = u64::from(answer);
        browser.ask(world, self.id, body, answer);
    }
}

impl Visitor for Person {
    fn poll_timeout(&self) -> Option<Instant> {
        match &self.current {
            Some(request) => soonest([request.next_piece, Some(request.asked + REQUEST_TIMEOUT)]),
            None => (self.next_request < self.end).then_some(self.next_request),
        }
    }

    fn act(&mut self, world: &mut World, browser: &mut Browser, news: Vec<News>) {
        for news in news {
            let current = self.current.as_ref().map(|request| request.id);
            match news {
                News::Came(id, bytes) if current == Some(id) => {
                    self.on_came(world, browser, bytes);
                }
                // Nobody answers it any more; the person waits.
                News::Came(..) | News::Over(_) => {}
            }
        }
        let now = world.now();
        if let Some(request) = &self.current
            && now >= request.asked + REQUEST_TIMEOUT
        {
            browser.cancel(world, request.id);
            self.end_request(now, false);
        }
        if self.current.is_none() && now >= self.next_request && now < self.end {
            self.begin(world, browser);
        }
        self.speak(world, browser);
    }

    fn goes_on(&self) -> bool {
        true
    }
}

/// Without a session it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);
