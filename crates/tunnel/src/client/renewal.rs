//! Another session with the same server, in the place of one that cannot be as it should.
//!
//! ```text
//! other lanes ─► attempts, as in a race ─► welcomed ─► the former session is set aside: heard for a
//!     │                                                while, and what it had left is sent on
//!     └─ as those of the session after all ─► no more attempts
//! ```
//!
//! The peer knows lanes by their numbers, and how they keep their order from their first packet on.
//! Until the server welcomes, the session goes on as it is.

use roadweave_proto::Instant;

use super::Client;
use super::race::{AcceptedConnection, RACE_STAGGER};

impl Client {
    /// From now on the session is to have a successor, or none is needed any more.
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
        self.pairs.hurry(now);
        self.patience.on_sign_of_life();
        for (position, uplink) in (0_u32..).zip(self.uplinks.values_mut()) {
            uplink.next_attempt = now + RACE_STAGGER * position;
        }
    }

    /// The server has welcomed the successor of the session.
    pub(super) fn join_renewed(&mut self, now: Instant, welcomed: AcceptedConnection) {
        self.set_aside_session(now);
        for uplink in self.uplinks.values_mut() {
            uplink.next_path = now;
        }
        self.join(now, welcomed);
        self.send_on_set_aside();
    }
}
