//! What an agent reads from a disk. Agents and desks together: `crate::desk`'s tests.

use roadweave_identity::Identity;

use super::*;
use crate::token::{JoinToken, Secret};

fn key(seed: u8) -> PublicKey {
    Identity::from_seed([seed; 32]).public_key()
}

fn token() -> JoinToken {
    JoinToken {
        addresses: vec!["127.0.0.1:1".into()],
        controller: key(2),
        root: key(1),
        tenant: "north".parse().expect("a name"),
        secret: Secret::from_bytes([3; 16]),
        delegate: None,
    }
}

#[test]
fn without_a_stream_nothing_is_asked_and_the_absence_is_known() {
    let now = Instant::ZERO;
    let mut agent = Agent::restore(now, key(5), Role::Box, "1.0", Kept::of_token(&token()));
    assert_eq!(agent.away_since(), Some(now));
    agent.on_stream_up(now);
    assert_eq!(agent.away_since(), None);
    agent.on_stream_down(now);
    agent.on_stream_down(now + std::time::Duration::from_secs(9));
    assert_eq!(agent.away_since(), Some(now));
}

#[test]
fn a_configuration_that_cannot_be_used_leaves_the_file_alone_in_force() {
    let mut agent =
        Agent::restore(Instant::ZERO, key(5), Role::Box, "1.0", Kept::of_token(&token()));
    let first = AgentEvent::Configure { version: None, text: None };
    assert_eq!(agent.poll_event(), Some(first));
    // Not the one in force: nothing is undone.
    agent.refuse(Instant::ZERO, Version { epoch: 0, number: 3 }, "line 1: what is this?");
    assert_eq!(agent.poll_event(), None);
}
