//! Keeps the TUN under the name that the configuration gives it.
//!
//! Packet filters know the TUN by its name, ours and the machine's own: under another, what comes
//! out of the tunnel would pass for a stranger's. udev's rules, network managers and people rename
//! interfaces.

use std::time::Duration;

use roadweave_proto::Instant;

use crate::Tun;

/// How often the name is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// At most one line in so long, however stubborn the other program is.
const SILENCE: Duration = Duration::from_secs(10);

/// When to look, and when to tell.
#[derive(Debug, Default)]
pub(super) struct TunName {
    next_look: Instant,
    next_line: Instant,
}

impl TunName {
    /// Looks if it is time, and gives the TUN its name back. Who keeps its addresses and routes
    /// sees what the kernel took from it meanwhile.
    pub(super) fn handle_timeout(&mut self, now: Instant, tun: &Tun) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        let name = tun.name();
        let text = match tun.mend_name() {
            Ok(None) => return,
            Ok(Some(found)) => format!(
                "another program renamed the tunnel's interface {name} to {found}; it has its name back, and \
                 tun.name in the file chooses another"
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
