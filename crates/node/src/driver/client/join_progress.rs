//! Whether a client has a session, and what is logged of its beginning and end.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_tunnel::{ClientEvent, Notice};

const SILENCE_MAX: Duration = Duration::from_secs(5);
const REMINDER: Duration = Duration::from_secs(60);

pub(super) struct JoinProgress {
    pub(super) is_done: bool,
    next_reminder: Instant,
}

impl JoinProgress {
    pub(super) fn new() -> Self {
        Self { is_done: false, next_reminder: Instant::ZERO + SILENCE_MAX }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_done).then_some(self.next_reminder)
    }

    pub(super) fn take_reminder(&mut self, now: Instant) -> bool {
        let is_due = !self.is_done && self.next_reminder <= now;
        if is_due {
            self.next_reminder = now + REMINDER;
        }
        is_due
    }

    pub(super) fn on_left(&mut self, now: Instant, reason: &str, rest: Duration) {
        self.is_done = false;
        self.next_reminder = now + rest + SILENCE_MAX;
        if rest.is_zero() {
            tracing::warn!(event = "left", "left: {reason}; reconnecting");
        } else {
            let seconds = rest.as_secs_f64();
            tracing::error!(event = "left", "{reason}; next attempt in {seconds:.1} s");
        }
    }

    pub(super) fn on_notice(&mut self, now: Instant, notice: &Notice) {
        let text = printable(&notice.to_string());
        let event = notice.name();
        let uplink = notice.uplink().map(printable);
        let (uplink, seconds) = (uplink.as_deref(), notice.lasted().map(|it| it.as_secs_f64()));
        match notice {
            Notice::Answer { is_proven, .. } => {
                self.next_reminder = now + REMINDER;
                if *is_proven {
                    tracing::error!(event, uplink, "{text}");
                } else {
                    tracing::warn!(event, uplink, "{text}");
                }
            }
            notice if notice.is_bad() => tracing::warn!(event, uplink, "{text}"),
            _ => tracing::info!(event, uplink, seconds, "{text}"),
        }
    }
}

pub(super) fn log_welcome(event: ClientEvent) {
    // Scripts wait for this line: from here on the tunnel is usable.
    match event {
        ClientEvent::Joined { welcome, server } => {
            tracing::info!(%server, addresses = ?welcome.addresses, event = "joined", "joined");
        }
        ClientEvent::Moved { server, name, reason, .. } => {
            tracing::warn!(%server, name, event = "moved", "moved to another server: {reason}");
        }
        _ => {}
    }
}

/// Escapes control characters: interface names must not inject terminal sequences.
pub(super) fn printable(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_debug().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}
