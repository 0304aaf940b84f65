//! The state of a client that outlives the program, and when it is written.

use std::path::Path;
use std::time::Duration;

use roadweave_proto::{Instant, earliest};
use roadweave_tunnel::{Client, Usage};

use crate::StateFile;
use crate::driver::STATE_INTERVAL;
use crate::time_of_day::ClockReading;

const TIME_OF_DAY: Duration = Duration::from_secs(60);

/// `counts_bytes`: an uplink has a cap, so the usage is kept.
pub(super) struct StateFiles {
    learned: StateFile,
    next: Instant,
    usage: StateFile<Usage>,
    pub(super) next_usage: Instant,
}

impl StateFiles {
    pub(super) fn restore(directory: &Path, name: &str, client: &mut Client) -> Self {
        let mut learned = StateFile::new(directory, name);
        client.restore(learned.read());
        let mut usage = StateFile::new(directory, name);
        client.restore_usage(usage.read());
        let next = Instant::ZERO + STATE_INTERVAL;
        Self { learned, next, usage, next_usage: Instant::ZERO }
    }

    pub(super) fn poll_timeout(&self, counts_bytes: bool) -> Option<Instant> {
        earliest([Some(self.next), counts_bytes.then_some(self.next_usage)])
    }

    pub(super) fn update_time_of_day(&mut self, client: &mut Client, now: Instant) {
        self.next_usage = now + TIME_OF_DAY;
        let ClockReading { unix_seconds, is_synchronised } = ClockReading::take();
        client.on_time_of_day(unix_seconds, is_synchronised);
    }

    pub(super) fn handle_timeout(&mut self, client: &mut Client, now: Instant, counts_bytes: bool) {
        if counts_bytes && self.next_usage <= now {
            self.update_time_of_day(client, now);
            self.usage.write(client.usage());
        }
        if self.next <= now {
            self.next = now + STATE_INTERVAL;
            self.learned.write(client.learned());
        }
    }

    pub(super) fn write_last(&mut self, client: &mut Client, counts_bytes: bool) {
        self.learned.write_last(client.learned());
        if counts_bytes {
            self.usage.write_last(client.usage());
        }
    }
}
