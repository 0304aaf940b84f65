//! Notices about the networks for the operator: one line each, at a bounded rate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_proto::Instant;

use super::ClientEvent;
use crate::uplink::CapPeriod;

/// A notice about an uplink, a lane, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An attempt to connect was answered, but not with a welcome.
    Answer {
        /// The uplink's name.
        uplink: String,
        /// The address that was tried.
        server: SocketAddr,
        /// The text of the answer.
        reason: String,
        /// How long this address is not tried over this uplink.
        rest: Duration,
        /// Whether the server had proved its identity.
        is_proven: bool,
    },
    /// A path was validated and may carry packets.
    Validated {
        /// The uplink's name.
        uplink: String,
    },
    /// A path no longer answers.
    Silent {
        /// The uplink's name.
        uplink: String,
        /// How many other paths carry on.
        others: usize,
    },
    /// A silent path answers again.
    Back {
        /// The uplink's name.
        uplink: String,
        /// How long it was silent.
        after: Duration,
    },
    /// No path answers.
    AllSilent,
    /// After all were silent, a path answers.
    Answers {
        /// How long nothing answered.
        after: Duration,
    },
    /// The server asks the client to leave, which knows no other server.
    Stays {
        /// Whether the server drains; otherwise it cannot forward what clients send.
        drains: bool,
    },
    /// A server that could not forward what its client sends forwards packets again.
    Passes {
        /// How long after it asked its client to leave.
        after: Duration,
    },
    /// An uplink has new addresses: most likely it is in another network.
    Moved {
        /// The uplink's name.
        uplink: String,
        /// The uplink's addresses now, as text.
        addresses: String,
    },
    /// An uplink has carried what it may in a day or a month.
    CapReached {
        /// The uplink's name.
        uplink: String,
        /// The day or the month.
        span: CapPeriod,
        /// The cap, bytes.
        cap_bytes: u64,
    },
    /// The day or month is over in which an uplink reached its cap.
    CapOver {
        /// The uplink's name.
        uplink: String,
    },
    /// The network under an uplink answers HTTP with a login page.
    Portal {
        /// The uplink's name.
        uplink: String,
    },
    /// The network under an uplink lets packets through, or says so.
    PortalOver {
        /// The uplink's name.
        uplink: String,
        /// How long it was held back.
        after: Duration,
    },
    /// Nothing comes in over an uplink, while others are answered.
    Blocked {
        /// The uplink's name.
        uplink: String,
        /// How long it is up.
        since: Duration,
    },
    /// An uplink has no path, since the session has as many as it may.
    NoPath {
        /// The uplink's name.
        uplink: String,
        /// How many paths the session has.
        paths: usize,
        /// Whether the server allows no more; otherwise this client's settings do not.
        of_server: bool,
    },
    /// A lane waits for the only uplink that it may use.
    LaneWaits {
        /// The lane's name.
        lane: String,
        /// The uplink's name.
        uplink: String,
    },
    /// The uplink that a lane waited for is there.
    LaneServed {
        /// The lane's name.
        lane: String,
        /// The uplink's name.
        uplink: String,
    },
}

impl Notice {
    /// Whether something is worse than before, or than it should be.
    pub fn is_bad(&self) -> bool {
        self.row().1
    }

    /// The name of the event, for programs.
    pub fn name(&self) -> &'static str {
        self.row().0
    }

    /// The uplink concerned, if it is one.
    pub fn uplink(&self) -> Option<&str> {
        self.row().2
    }

    fn row(&self) -> (&'static str, bool, Option<&str>) {
        match self {
            Self::Answer { uplink, .. } => ("connect-answered", true, Some(uplink)),
            Self::Validated { uplink } => ("path-validated", false, Some(uplink)),
            Self::Silent { uplink, .. } => ("path-silent", true, Some(uplink)),
            Self::Back { uplink, .. } => ("path-back", false, Some(uplink)),
            Self::AllSilent => ("outage", true, None),
            Self::Answers { .. } => ("outage-over", false, None),
            Self::Stays { .. } => ("server-asks-to-go", true, None),
            Self::Passes { .. } => ("server-passes-again", false, None),
            Self::Moved { uplink, .. } => ("uplink-moved", false, Some(uplink)),
            Self::CapReached { uplink, .. } => ("cap-reached", true, Some(uplink)),
            Self::CapOver { uplink } => ("cap-over", false, Some(uplink)),
            Self::Portal { uplink } => ("uplink-portal", true, Some(uplink)),
            Self::PortalOver { uplink, .. } => ("uplink-portal-over", false, Some(uplink)),
            Self::Blocked { uplink, .. } => ("uplink-blocked", true, Some(uplink)),
            Self::NoPath { uplink, .. } => ("uplink-without-path", true, Some(uplink)),
            Self::LaneWaits { uplink, .. } => ("lane-waits", true, Some(uplink)),
            Self::LaneServed { uplink, .. } => ("lane-served", false, Some(uplink)),
        }
    }

    /// How long the condition lasted that this notice ends, if it ends one.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            Self::Back { after, .. }
            | Self::Answers { after }
            | Self::Passes { after }
            | Self::PortalOver { after, .. } => Some(*after),
            _ => None,
        }
    }

    /// There is one notice per subject in [`INTERVAL`]: other uplinks get the same answer.
    fn subject(&self) -> String {
        match self {
            Self::Answer { server, reason, .. } => format!("answer {server} {reason}"),
            Self::Stays { drains } => format!("stays {drains}"),
            Self::Moved { uplink, addresses } => format!("moved {uplink} {addresses}"),
            Self::LaneWaits { lane, .. } => format!("lane {lane}"),
            Self::LaneServed { lane, .. } => format!("lane served {lane}"),
            other => format!("{} {}", other.name(), other.uplink().unwrap_or_default()),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = secs(&self.lasted().unwrap_or_default());
        match self {
            Self::Answer { uplink, server, reason, rest, is_proven } => write!(
                f,
                "{server} over {uplink}: {reason}{}; this address waits {} s over this uplink, others \
                 are tried meanwhile",
                if *is_proven { "" } else { MAY_BE_FORGED },
                secs(rest)
            ),
            Self::Validated { uplink } => write!(f, "{uplink} reaches the server and carries packets"),
            Self::Silent { uplink, others: 0 } => {
                write!(f, "{uplink} no longer answers, and it is the only one")
            }
            Self::Silent { uplink, others } => {
                write!(f, "{uplink} no longer answers; other uplinks in use: {others}")
            }
            Self::Back { uplink, .. } => write!(f, "{uplink} answers again after {after} s"),
            Self::AllSilent => f.write_str(
                "no uplink answers: nothing passes until one does; a new connection is tried in 5 s",
            ),
            Self::Answers { .. } => write!(f, "the session answers again after {after} s"),
            Self::Stays { drains: true } => f.write_str(DRAINS),
            Self::Stays { drains: false } => f.write_str(CANNOT_FORWARD),
            Self::Passes { .. } => write!(f, "the server forwards packets again after {after} s"),
            Self::Moved { uplink, addresses } => write!(
                f,
                "the addresses of {uplink} changed to {addresses}; its path must answer again"
            ),
            Self::CapReached { uplink, span, cap_bytes } => write!(
                f,
                "{uplink} reached its cap of {:.1} MB a {span}; until the {span} ends it is used \
                 only while no other uplink answers",
                *cap_bytes as f64 / 1e6
            ),
            Self::CapOver { uplink } => {
                write!(f, "{uplink} is below its caps again and used as before")
            }
            Self::Portal { uplink } => write!(
                f,
                "{uplink} is behind a captive portal: log in to its network. The uplink is not \
                 used until it reaches the server; `roadweave show --json` has the address of the \
                 login page"
            ),
            Self::PortalOver { uplink, .. } => write!(
                f,
                "{uplink} is no longer held back by a captive portal, after {after} s"
            ),
            Self::Blocked { uplink, since } => write!(
                f,
                "nothing has come in over {uplink} in {} s, while other uplinks reach the server; does \
                 its network block UDP?",
                secs(since)
            ),
            Self::NoPath { uplink, paths, of_server } => write!(
                f,
                "{uplink} carries nothing: {paths} other uplinks have paths, and \
                 transport.paths_max{} allows no more",
                if *of_server { " of the server" } else { "" }
            ),
            Self::LaneWaits { lane, uplink } => write!(
                f,
                "lane {lane} waits for its uplink {uplink}, which is missing; packets that wait \
                 longer than the lane allows are dropped"
            ),
            Self::LaneServed { lane, uplink } => write!(f, "lane {lane} has its uplink {uplink}"),
        }
    }
}

/// Events for the driver; notices among them are limited.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    pub(super) events: VecDeque<ClientEvent>,
    last: BTreeMap<String, Instant>,
    recent: VecDeque<Instant>,
    pub(super) suppressed: u64,
}

impl EventQueue {
    /// Returns whether the limit admits `notice`.
    pub(super) fn notify(&mut self, now: Instant, notice: Notice) -> bool {
        // One that ends a condition is admitted, since nothing else reports that end.
        let is_admitted = notice.lasted().is_some() || self.admit(now, &notice);
        if is_admitted {
            self.events.push_back(ClientEvent::Notice(notice));
        }
        is_admitted
    }

    fn admit(&mut self, now: Instant, notice: &Notice) -> bool {
        let subject = notice.subject();
        while self.recent.front().is_some_and(|at| now.since(*at) >= MINUTE) {
            self.recent.pop_front();
        }
        let interval = if matches!(notice, Notice::Answer { .. }) { MINUTE } else { INTERVAL };
        let is_repeated = self.last.get(&subject).is_some_and(|at| now.since(*at) < interval);
        if is_repeated || self.recent.len() >= PER_MINUTE {
            self.suppressed += 1;
            return false;
        }
        if self.last.len() >= SUBJECTS_MAX {
            self.last.retain(|_, at| now.since(*at) < MINUTE);
        }
        if self.last.len() < SUBJECTS_MAX {
            self.last.insert(subject, now);
        }
        self.recent.push_back(now);
        true
    }
}

/// Escapes control characters in an untrusted text, and cuts it.
pub(super) fn legible(text: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().collect::<String>(),
        false => c.to_string(),
    };
    text.chars().take(TEXT_MAX).map(escape).collect()
}

fn secs(duration: &Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

const MAY_BE_FORGED: &str = " (the network there may have answered in the server's place)";
const DRAINS: &str = "the server is draining, and no other server is known: the session stays \
                      until the server ends it";
const CANNOT_FORWARD: &str = "the server cannot forward packets (for example a proxy whose anchor \
                              does not answer), and no other server is known: the session stays, \
                              and no packets pass until it can";

const INTERVAL: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
const PER_MINUTE: usize = 40;
const SUBJECTS_MAX: usize = 256;
const TEXT_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_notices_are_logged_once_and_all_at_a_bounded_rate() {
        let mut event_queue = EventQueue::default();
        let answer = |port: u16, reason: &str| Notice::Answer {
            uplink: format!("wwan{port}"),
            server: SocketAddr::from(([192, 0, 2, 1], 4433)),
            reason: reason.to_owned(),
            rest: Duration::from_secs(1),
            is_proven: false,
        };
        assert!(event_queue.admit(Instant::ZERO, &answer(0, "no")));
        assert!(
            !event_queue.admit(Instant::from_millis(59_000), &answer(1, "no")),
            "the same answer"
        );
        assert!(event_queue.admit(Instant::from_millis(59_000), &answer(1, "never")));
        let flood = (0..10_000).filter(|n| {
            let at = Instant::from_millis(200_000 + n);
            event_queue.admit(at, &answer(0, &format!("no {n}")))
        });
        assert_eq!(flood.count(), PER_MINUTE);
        assert!(event_queue.last.len() <= SUBJECTS_MAX);
    }

    #[test]
    fn a_strangers_text_stays_in_its_line() {
        assert_eq!(legible("no\njoined peer=\u{1b}[1m"), "no\\njoined peer=\\u{1b}[1m");
        assert_eq!(legible(&"x".repeat(1000)).len(), TEXT_MAX);
    }
}
