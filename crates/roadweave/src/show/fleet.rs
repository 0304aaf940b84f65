//! The fleet of a member, for a terminal.

use roadweave_node::status::{DocumentStatus, FleetStatus};

pub(super) fn fleet(fleet: &FleetStatus) -> String {
    let FleetStatus { name, role, tenant, documents, pinned, .. } = fleet;
    let mut text = format!("\nfleet of {tenant}: {role} {name}, ");
    text += &match (&fleet.controller, fleet.away_seconds) {
        (Some(controller), None) => format!("controller at {controller}\n"),
        (_, away) => {
            let why = fleet.away_why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let seconds = away.unwrap_or_default() as u64;
            match fleet.away_at_least {
                true => format!("controller away for at least {seconds} s (since start){why}\n"),
                false => format!("controller away for {seconds} s{why}\n"),
            }
        }
    };
    for DocumentStatus { kind, version, outcome, why } in documents {
        let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        text += &format!("{kind} {version} {outcome}{why}\n");
    }
    if !pinned.is_empty() {
        text += &format!("overridden by the local file: {}\n", pinned.join(", "));
    }
    if fleet.revocations > 0 {
        text += &format!("keys revoked: {}\n", fleet.revocations);
    }
    if fleet.is_closed {
        text += "no box is admitted: no controller for longer than fleet.offline_max_seconds\n";
    }
    if fleet.is_unwritten {
        text += "cannot write to disk: updates from the controller are lost at the next start\n";
    }
    text
}
