//! A client in a fleet: which servers it uses, and whether its session carries inner packets.

use std::time::Duration;

use roadweave_fleet::VerifiedServer;
use roadweave_identity::PublicKey;
use roadweave_proto::{DropReason, Instant};
use roadweave_tunnel::{Client, SessionStatus};

use super::options::CandidateOptions;

/// The servers to use once the fleet assigns `servers`; `None`: the current ones.
pub(super) fn assigned(servers: &[VerifiedServer]) -> Option<Vec<CandidateOptions>> {
    if servers.is_empty() {
        // An empty list does not mean that the current servers stopped working.
        tracing::warn!("the controller names no proxy; the current ones stay in use");
        return None;
    }
    Some(servers.iter().map(CandidateOptions::of_fleet).collect())
}

/// The servers that are left once keys are revoked; `None`: the current ones. `is_fixed`: the
/// file names them.
pub(super) fn left_of(
    servers: &[CandidateOptions],
    revoked: &[PublicKey],
    is_fixed: bool,
) -> Option<Vec<CandidateOptions>> {
    let left = without(servers, revoked)?;
    if is_fixed {
        tracing::warn!(
            "the key of a server in this box's file is revoked; the server stays in use because \
             the file names it"
        );
        return None;
    }
    tracing::warn!(left = left.len(), "the key of a proxy is revoked; the proxy is no longer used");
    Some(left)
}

const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Detects a session that answers but carries no inner packets, because of unsuitable lanes.
#[derive(Debug, Default)]
pub(super) struct DataPlaneCheck {
    next_look: Instant,
    last: Option<Carried>,
    is_mute: bool,
}

impl DataPlaneCheck {
    pub(super) fn reset(&mut self) {
        self.last = None;
    }

    /// Whether the session of `client` is mute, if that has changed.
    pub(super) fn check(&mut self, client: &Client, now: Instant) -> Option<bool> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_INTERVAL;
        let carried = match client.is_silent() {
            true => None,
            false => client.status().as_ref().map(Carried::of),
        };
        let was_mute = self.is_mute;
        self.look(carried);
        (self.is_mute != was_mute).then_some(self.is_mute)
    }

    /// `None` while no path of the session answers.
    fn look(&mut self, carried: Option<Carried>) {
        let last = match (carried, self.last) {
            (Some(carried), Some(last)) if carried.left == last.left => last,
            (Some(carried), _) => carried,
            (None, _) => {
                (self.last, self.is_mute) = (None, true);
                return;
            }
        };
        self.last = Some(last);
        self.is_mute = carried.is_some_and(|carried| carried.late > last.late);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Carried {
    left: u64,
    late: u64,
}

impl Carried {
    fn of(session: &SessionStatus) -> Self {
        let (mut left, mut late) = (0, 0);
        for lane in &session.stats.lanes {
            left += lane.sent.sent_packets;
            late += lane.sent.drops.get(DropReason::QueueExpired);
            late += lane.sent.drops.get(DropReason::QueueFull);
        }
        Self { left, late }
    }
}

fn without(servers: &[CandidateOptions], revoked: &[PublicKey]) -> Option<Vec<CandidateOptions>> {
    let left: Vec<_> =
        servers.iter().filter(|server| !revoked.contains(&server.candidate.key)).cloned().collect();
    (left.len() < servers.len()).then_some(left)
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;

    use super::*;

    #[test]
    fn a_session_is_mute_while_no_path_answers_or_all_that_would_pass_waits_in_vain() {
        let mut check = DataPlaneCheck::default();
        let mut look = |left, late| {
            check.look(Some(Carried { left, late }));
            check.is_mute
        };
        assert!(!look(10, 3) && !look(10, 3), "nobody sends");
        assert!(look(10, 4) && look(10, 4), "nothing that was sent has left since");
        assert!(!look(11, 5), "some of it leaves");
        assert!(look(11, 6));
        assert!(!look(0, 0));
        assert!(look(0, 1));
        check.reset();
        check.look(Some(Carried { left: 0, late: 1 }));
        assert!(!check.is_mute, "other lanes");
        check.look(None);
        assert!(check.is_mute);
        // Losses during an outage are not the fault of the lanes.
        check.look(Some(Carried { left: 0, late: 9 }));
        assert!(!check.is_mute);
    }

    #[test]
    fn a_revoked_proxy_is_left_though_it_is_the_only_one() {
        let identity = |seed| Identity::from_seed([seed; 32]);
        let server = |seed| {
            CandidateOptions::of_fleet(&VerifiedServer {
                key: identity(seed).public_key(),
                name: format!("p{seed}").parse().expect("a name"),
                site: None,
                addresses: vec!["192.0.2.1:4433".to_owned()],
                to_anchor_us: 0,
                last_resort: false,
            })
        };
        let revoked = [identity(1).public_key()];
        assert_eq!(without(&[server(2)], &revoked), None);
        assert_eq!(without(&[server(1), server(2)], &revoked), Some(vec![server(2)]));
        assert_eq!(without(&[server(1)], &revoked), Some(Vec::new()));
        let own = identity(9);
        let fallback = super::super::options::candidates(&[], &own);
        assert_eq!((fallback.len(), fallback[0].key), (1, own.public_key()));
        assert!(fallback[0].addresses.is_empty());
    }
}
