//! Time: losses, timeouts, and new sessions.

use roadweave_proto::wire::{ResetCode, StreamId};
use roadweave_proto::{Instant, earliest};

use super::Streams;
use crate::config::Obligation;

impl Streams {
    /// When to call [`Streams::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.index.timers.first().map(|(at, _)| *at);
        earliest([timer, self.starved.map(|(at, _)| at), self.crowd.look_at])
    }

    /// Handles expired timers; may be called at any time.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.index.timers.first().filter(|(at, _)| *at <= now).map(|it| it.1) {
            self.handle_stream_timeout(now, id);
        }
        self.make_room(now);
        if let Some((at, attempts)) = self.starved
            && at <= now
        {
            self.starved = None;
            if self.send_credit.room() == 0
                && let Some(id) = self.index.fresh.first().map(|rank| rank.id)
            {
                let attempts = attempts + 1;
                self.starved = Some((now + self.timing.retransmit_timeout(attempts), attempts));
                if let Some(stream) = self.table.get_mut(&id) {
                    stream.probe = Obligation::Due;
                }
                self.settle(now, id);
            }
        }
    }

    /// The lanes belong to another session: all that is not acknowledged is sent again at once.
    pub fn on_new_session(&mut self, now: Instant) {
        let ids: Vec<StreamId> = self.table.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.table.get_mut(&id) {
                stream.on_new_session(now, self.peer_takes_priorities);
            }
            self.settle(now, id);
        }
        self.receive_credit.is_due = true;
        self.forgive_readers(now);
        if self.starved.is_some() {
            self.starved = Some((now, 0));
        }
    }

    fn handle_stream_timeout(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.table.get_mut(&id) else { return };
        if !stream.is_in_vain(now, self.config.give_up_after) {
            stream.handle_timeout(now, &self.timing);
            return self.settle(now, id);
        }
        self.stats.timed_out += 1;
        match &mut stream.reset {
            Some(reset) => {
                (reset.is_agreed, reset.frame) = (true, Obligation::Met);
                self.settle(now, id);
            }
            None => self.end(now, id, ResetCode::TimedOut),
        }
    }
}
