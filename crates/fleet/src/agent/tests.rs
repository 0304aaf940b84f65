//! What an agent reads from disk. `crate::controller_session`'s tests cover sessions as well.

use super::*;
use crate::document::{Anchor, Anchors, Document};
use crate::frame::Down;
use crate::testing::{at, chain, key, name, sign, statement, token};

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

#[test]
fn the_networks_of_an_anchor_are_bounded_and_another_tenants_do_not_count() {
    let state = PersistedState::of_token(&token());
    let mut agent = Agent::restore(at(0), key(5), Role::Proxy, "1.0", state);
    let nets = |texts: &[String]| -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    };
    let usable: Vec<String> = (0..9).map(|number| format!("10.{number}.0.1/16")).collect();
    let lengths = ["0.0.0.0/0", "10.0.0.1/7", "10.77.0.1/32", "::/0", "fd77::1/128"];
    let hosts = ["10.77.0.0/16", "10.77.0.2/16", "10.77.1.1/16", "fd77::/64", "fd77::2/64"];
    let others = lengths.into_iter().chain(hosts).map(str::to_owned);
    let named: Vec<String> = others.chain(usable.clone()).collect();
    let anchor = |tenant: &str| Anchor {
        tenant: name(tenant),
        chain: chain(&[(1, &statement(30, Role::Anchor))]),
        addresses: Vec::new(),
        rate_kbps: None,
        gateways: nets(&named),
    };
    let body = Anchors { anchors: vec![anchor("south"), anchor("north")] };
    let document = Document { subject: key(5), version: Version { epoch: 0, number: 1 }, body };
    let document = sign(&document, 2).into_envelope();
    agent.handle_frame(at(0), Down::Desired { kind: Kind::Anchors, document });
    let found = std::iter::from_fn(|| agent.poll_event()).find_map(|event| match event {
        AgentEvent::Anchors(found) => Some(found),
        _ => None,
    });
    let found: Vec<_> =
        found.iter().flatten().map(|it| (it.tenant.as_str(), it.gateways.clone())).collect();
    assert_eq!(found, [("north", nets(&usable[..8]))]);
}
