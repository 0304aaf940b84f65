//! Log messages of a client: that a session is up or over, and why there is no session.

use roadweave_proto::Instant;
use roadweave_tunnel::{Client, ClientEvent, Notice};

use super::{ClientRole, SILENCE_MAX};
use crate::driver::event_loop::Driver;

const REMINDER: std::time::Duration = std::time::Duration::from_secs(60);

impl ClientRole {
    pub(super) fn take_events(&mut self, driver: &mut Driver<Client>) {
        while let Some(event) = driver.node.poll_event() {
            match event {
                ClientEvent::Joined { ref welcome, .. }
                | ClientEvent::Moved { ref welcome, .. } => {
                    self.join.is_done = true;
                    self.looks.debounce.ask(driver.edge.clock.now());
                    self.report_session(&driver.node);
                    let (steering, filters) = (&self.steering, &mut self.filters);
                    let welcome = welcome.clone();
                    self.granted.begin(steering, filters, &self.options.file, &welcome, event);
                    self.use_granted(driver);
                }
                ClientEvent::Left { reason, rest } => {
                    self.join.is_done = false;
                    self.granted.due = None;
                    self.report_session(&driver.node);
                    self.steering.dns.unset();
                    let now = driver.edge.clock.now();
                    self.join.next_reminder = now + rest + SILENCE_MAX;
                    if rest.is_zero() {
                        tracing::warn!(event = "left", "left: {reason}; reconnecting");
                    } else {
                        tracing::error!(
                            event = "left",
                            "{reason}; next attempt in {:.1} s",
                            rest.as_secs_f64()
                        );
                    }
                }
                ClientEvent::Notice(notice) => self.log_notice(driver.edge.clock.now(), &notice),
            }
        }
    }

    pub(super) fn use_granted(&mut self, driver: &Driver<Client>) {
        let Some(due) = self.granted.take_due(&self.filters) else { return };
        if let Some(tun) = driver.edge.tun() {
            self.granted.set(&mut self.steering, tun, &due);
            self.filters.on_addresses_set(&due.grant.addresses);
        }
        // Scripts wait for this line: from here on the tunnel is usable.
        match due.event {
            ClientEvent::Joined { welcome, server } => {
                tracing::info!(%server, addresses = ?welcome.addresses, event = "joined", "joined");
            }
            ClientEvent::Moved { server, name, reason, .. } => {
                tracing::warn!(%server, name, event = "moved", "moved to another server: {reason}");
            }
            _ => {}
        }
    }

    fn log_notice(&mut self, now: Instant, notice: &Notice) {
        let text = printable(&notice.to_string());
        let event = notice.name();
        let uplink = notice.uplink().map(printable);
        let (uplink, seconds) = (uplink.as_deref(), notice.lasted().map(|it| it.as_secs_f64()));
        match notice {
            Notice::Answer { is_proven, .. } => {
                self.join.next_reminder = now + REMINDER;
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

    pub(super) fn remind(&mut self, driver: &Driver<Client>, now: Instant) {
        if self.join.is_done || now < self.join.next_reminder {
            return;
        }
        self.join.next_reminder = now + REMINDER;
        if let Some(why) = self.obstacle() {
            return tracing::warn!("{why}");
        }
        if !driver.edge.sockets.is_empty() && !self.resolver.has_found() {
            return;
        }
        let servers: Vec<String> = self
            .resolver
            .servers()
            .iter()
            .flat_map(|server| server.addresses.iter().map(ToString::to_string))
            .collect();
        let servers = servers.join(", ");
        if driver.edge.sockets.is_empty() {
            tracing::warn!("no uplink is usable: {}", printable(&self.why_no_uplink()));
        } else if !driver.node.uplinks(now).iter().any(|uplink| uplink.heard) {
            tracing::warn!(
                "no answer from {servers}; check that the server is running, that the address is \
                 right, and that firewalls allow UDP"
            );
        } else if let Some(why) = driver.node.why_no_session(now) {
            tracing::warn!("no session with {servers}: {why}");
        }
    }
}

/// Escapes control characters: interface names must not inject terminal sequences.
fn printable(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_debug().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}
