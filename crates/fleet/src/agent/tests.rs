//! What an agent reads from disk. `crate::controller_session`'s tests cover sessions as well.

use super::*;
use crate::testing::{at, key, token};

fn agent() -> Agent {
    Agent::restore(at(0), key(5), Role::Box, "1.0", PersistedState::of_token(&token()))
}

#[test]
fn without_a_stream_nothing_is_asked_and_the_absence_is_known() {
    let mut agent = agent();
    assert_eq!(agent.away_since(), Some(at(0)));
    agent.on_stream_up(at(0));
    assert_eq!(agent.away_since(), None);
    agent.on_stream_down(at(0));
    agent.on_stream_down(at(9));
    assert_eq!(agent.away_since(), Some(at(0)));
}

#[test]
fn a_configuration_that_cannot_be_used_leaves_the_file_alone_in_force() {
    let mut agent = agent();
    let first = AgentEvent::Configure { version: None, text: None };
    assert_eq!(agent.poll_event(), Some(first));
    agent.refuse(at(0), Version { epoch: 0, number: 3 }, "line 1: what is this?");
    assert_eq!(agent.poll_event(), None);
}
