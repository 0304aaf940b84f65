//! Keeps the TUN's configured name, by which packet filters tell its packets from foreign ones.

use std::time::Duration;

use roadweave_linux::Tun;
use roadweave_proto::Instant;

const LOOK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct TunName {
    next_look: Instant,
    next_line: Instant,
}

impl TunName {
    pub(super) fn handle_timeout(&mut self, now: Instant, tun: &Tun) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        let name = tun.name();
        let text = match tun.mend_name() {
            Ok(None) => return,
            Ok(Some(found)) => format!(
                "another program renamed the tunnel's interface {name} to {found}; its name is \
                 restored. To use another name, set tun.name in the file"
            ),
            Err(error) => {
                format!("the tunnel's interface {name} was renamed: {error}; trying again")
            }
        };
        if self.next_line <= now {
            self.next_line = now + SILENCE;
            tracing::warn!("{text}");
        }
    }
}
