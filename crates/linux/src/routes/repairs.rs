//! Logs repairs, and limits them when another program undoes each.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use roadweave_proto::Instant;

/// At most one log line about each kind of change in this time.
const SILENCE: Duration = Duration::from_secs(60);
/// The delay of a repair, which gathers simultaneous removals.
const SOON: Duration = Duration::from_millis(100);
/// The delay of a repair in a fight.
const FIGHT: Duration = Duration::from_secs(2);
/// This many repairs within [`SILENCE`] are a fight.
const FIGHT_BEGINS: u32 = 5;

/// A change by another program that was undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It removed this many rules, routes and addresses.
    Removed(usize),
    /// It set the TUN down.
    LinkDown,
    /// It changed the TUN's MTU to this, bytes.
    Mtu(u32),
    /// It moved the rule of the local table behind those of the tunnel, or removed it.
    LocalRule,
    /// It made the reverse path filter of this uplink strict.
    ReversePathFilter(String),
}

impl Change {
    fn text(&self) -> String {
        match self {
            Self::Removed(lost) => format!(
                "another program removed rules, routes or addresses of the tunnel; they are \
                 restored ({lost} now)"
            ),
            Self::LinkDown => {
                "another program set the tunnel's interface down; it is up again".to_owned()
            }
            Self::Mtu(found) => format!(
                "another program set the MTU of the tunnel's interface to {found}; it is restored"
            ),
            Self::LocalRule => {
                "another program moved the rule of the local table behind the rules of the tunnel; \
                 it is first again"
                    .to_owned()
            }
            Self::ReversePathFilter(uplink) => format!(
                "another program set the reverse path filter of {uplink} to strict; it is loose \
                 again"
            ),
        }
    }
}

/// When to look for damage, and how it is logged.
#[derive(Clone, Debug, Default)]
pub struct Repairs {
    due: Option<Instant>,
    window: Option<Instant>,
    repairs: u32,
    logged: HashMap<Discriminant<Change>, (Instant, u32)>,
}

impl Repairs {
    /// Something changed; a look is due soon.
    pub fn on_notice(&mut self, now: Instant) {
        let is_fight = self.repairs >= FIGHT_BEGINS
            && self.window.is_some_and(|begin| now.since(begin) < SILENCE * 2);
        let wait = if is_fight { FIGHT } else { SOON };
        self.due.get_or_insert(now + wait);
    }

    /// When the next look is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Whether a look is due at `now`.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Logs what was repaired.
    pub fn on_repair(&mut self, now: Instant, changes: &[Change]) {
        for line in self.lines(now, changes) {
            tracing::warn!("{line}");
        }
    }

    fn lines(&mut self, now: Instant, changes: &[Change]) -> Vec<String> {
        if changes.is_empty() {
            return Vec::new();
        }
        if self.window.is_none_or(|begin| now.since(begin) >= SILENCE) {
            (self.window, self.repairs) = (Some(now), 0);
        }
        self.repairs += 1;
        changes.iter().filter_map(|change| self.line(now, change)).collect()
    }

    fn line(&mut self, now: Instant, change: &Change) -> Option<String> {
        let mut text = change.text();
        if let Some((logged, suppressed)) = self.logged.get_mut(&discriminant(change)) {
            *suppressed += 1;
            if now.since(*logged) < SILENCE {
                return None;
            }
            if *suppressed > 1 {
                text += &format!(", {suppressed} times since the last such line");
                if matches!(change, Change::Removed(_)) {
                    text += NETWORKD;
                }
            }
        }
        self.logged.insert(discriminant(change), (now, 0));
        Some(text)
    }
}

const NETWORKD: &str = ": if this is systemd-networkd, set ManageForeignRoutingPolicyRules=no and \
                        ManageForeignRoutes=no in networkd.conf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_logged_once_a_minute_and_slowed_down_but_never_given_up() {
        let mut repairs = Repairs::default();
        let (mut now, mut lines, mut looks) = (Instant::ZERO, Vec::new(), 0);
        let end = now + Duration::from_secs(300);
        while now < end {
            repairs.on_notice(now);
            let due = repairs.poll_timeout().expect("a look is due");
            assert!(due.since(now) <= Duration::from_secs(2), "within seconds");
            assert!(!repairs.take_due(now));
            now = due;
            assert!(repairs.take_due(now));
            looks += 1;
            lines.extend(repairs.lines(now, &[Change::Removed(3)]));
        }
        assert!((5..=6).contains(&lines.len()), "{lines:#?}");
        assert!(!lines[0].contains("systemd"), "{}", lines[0]);
        assert!(lines[1].contains("ManageForeignRoutingPolicyRules=no"), "{}", lines[1]);
        assert!((140..200).contains(&looks), "{looks}");
        assert!(repairs.lines(now, &[]).is_empty(), "nothing was gone");
        let others = [Change::LinkDown, Change::Removed(1), Change::Mtu(900)];
        let lines = repairs.lines(now, &others);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("down") && lines[1].contains("900"), "{lines:#?}");
        assert!(repairs.lines(now, &others).is_empty(), "and now there was");
    }
}
