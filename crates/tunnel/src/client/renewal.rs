//! Replaces the session by another one with the same server, if it cannot take up a change.
//!
//! ```text
//! other lanes ─► attempts, as in a race ─► welcomed ─► the former session is set aside: heard for a
//!     │                                                while, and what it had left is sent on
//!     └─ as those of the session after all ─► no more attempts
//! ```
//!
//! The peer identifies lanes by their numbers, and fixes their ordering at the first packet. Until
//! the server welcomes the new session, the present one goes on.

use roadweave_proto::Instant;

use super::Client;
use super::race::{AcceptedConnection, RACE_STAGGER};

impl Client {
    pub(super) fn renew(&mut self, now: Instant, renews: bool) {
        let renewed = std::mem::replace(&mut self.renews, renews);
        if renewed && !renews {
            self.drop_attempts(now, "the session may stay", |_| true);
        }
        let Some(current) = self.current.as_mut().filter(|_| renews) else { return };
        current.session.keep_unfinished();
        if let Some(replacement) = self.replacement.take() {
            return self.join_renewed(now, replacement);
        }
        self.pairs.hurry(now, None);
        self.patience.on_sign_of_life();
        for (position, uplink) in (0_u32..).zip(self.uplinks.values_mut()) {
            uplink.next_attempt = now + RACE_STAGGER * position;
        }
    }

    pub(super) fn join_renewed(&mut self, now: Instant, welcomed: AcceptedConnection) {
        self.set_aside_session(now);
        for uplink in self.uplinks.values_mut() {
            uplink.next_path = now;
        }
        self.join(now, welcomed, None);
        self.send_on_set_aside();
    }
}
