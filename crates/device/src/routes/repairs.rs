//! Tells of repairs, and bounds them when another program undoes each.

use std::time::Duration;

use roadweave_types::Instant;

/// At most one line of the log in so long.
const SILENCE: Duration = Duration::from_secs(60);
/// What was removed is set again after so long, which gathers what is removed together.
const SOON: Duration = Duration::from_millis(100);
/// What somebody removes again and again is set again after so long.
const FIGHT: Duration = Duration::from_secs(2);
/// So many repairs within [`SILENCE`] are a fight.
const FIGHT_BEGINS: u32 = 5;

/// When to look, and what to say of what was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repairs {
    /// A look is due.
    due: Option<Instant>,
    /// The minute in which repairs are counted.
    window: Option<Instant>,
    repairs: u32,
    /// When the user was told last.
    told: Option<Instant>,
    /// Repairs since then.
    suppressed: u32,
}

impl Repairs {
    /// Something changed: a look is due soon.
    pub(crate) fn on_notice(&mut self, now: Instant) {
        let wait = if self.is_fight(now) { FIGHT } else { SOON };
        self.due.get_or_insert(now + wait);
    }

    /// When a look is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Whether to look now.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// `lost` rules, routes or addresses were gone and have been set again. Returns what to tell.
    pub(crate) fn on_repair(&mut self, now: Instant, lost: usize) -> Option<String> {
        if lost == 0 {
            return None;
        }
        if self.window.is_none_or(|begin| now.since(begin) >= SILENCE) {
            (self.window, self.repairs) = (Some(now), 0);
        }
        self.repairs += 1;
        self.suppressed += 1;
        if self.told.is_some_and(|told| now.since(told) < SILENCE) {
            return None;
        }
        self.told = Some(now);
        let times = std::mem::take(&mut self.suppressed);
        let mut text = format!(
            "another program removed rules, routes or addresses of the tunnel; they are set again \
             ({lost} now)"
        );
        if times > 1 {
            text += &format!(
                ", for the {times}th time since the last such line: if systemd-networkd does it, \
                 set ManageForeignRoutingPolicyRules=no and ManageForeignRoutes=no in networkd.conf"
            );
        }
        Some(text)
    }

    fn is_fight(&self, now: Instant) -> bool {
        self.repairs >= FIGHT_BEGINS
            && self.window.is_some_and(|begin| now.since(begin) < SILENCE * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_told_once_a_minute_and_slowed_down_but_never_given_up() {
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
            lines.extend(repairs.on_repair(now, 3));
        }
        assert!((5..=6).contains(&lines.len()), "{lines:#?}");
        assert!(!lines[0].contains("systemd"), "{}", lines[0]);
        assert!(lines[1].contains("ManageForeignRoutingPolicyRules=no"), "{}", lines[1]);
        assert!((140..200).contains(&looks), "{looks}");
        assert_eq!(repairs.on_repair(now, 0), None, "nothing was gone");
    }
}
