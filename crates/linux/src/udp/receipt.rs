//! The time of a packet's receipt, by the tunnel's clock. The kernel stamps with the time of day,
//! which may be set meanwhile. So a stamp is limited to the time since the socket was last empty.

use std::time::Duration;

use rustix::time::ClockId;

use crate::clock::{self, since_boot};

/// Times count from the machine's start, unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    emptied: Duration,
    now: Duration,
    time_of_day: Duration,
}

impl Answered {
    pub(super) fn now(emptied: Duration) -> Self {
        Self { emptied, now: since_boot(), time_of_day: clock::read(ClockId::Realtime) }
    }

    pub(super) fn of(&self, stamp: Duration) -> Duration {
        let age = self.time_of_day.saturating_sub(stamp);
        self.now.saturating_sub(age).max(self.emptied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Checks a stamp of this age, in ms, against the packet's; the socket was empty 10 ms ago.
    fn check(stamped_ago_ms: i32, expected_ago_ms: u32) {
        let (now, time_of_day) = (MS * 90_000, MS * 9_000_000);
        let times = Answered { emptied: now - MS * 10, now, time_of_day };
        let stamp = match u32::try_from(stamped_ago_ms) {
            Ok(ago) => time_of_day - MS * ago,
            Err(_) => time_of_day + MS * stamped_ago_ms.unsigned_abs(),
        };
        assert_eq!(times.of(stamp), now - MS * expected_ago_ms);
    }

    #[test]
    fn a_stamp_is_believed_since_the_socket_was_empty() {
        check(0, 0);
        check(4, 4);
        check(10, 10);
        // The time of day was set while the packet waited.
        check(3_600_000, 10);
        check(900_000, 10);
        check(-5, 0);
    }

    #[test]
    fn what_comes_after_an_empty_socket_is_no_older() {
        let emptied = since_boot();
        let times = Answered::now(emptied);
        assert_eq!(times.of(Duration::ZERO), emptied);
        assert!(times.of(times.time_of_day) >= emptied);
    }
}
