//! The servers that a client may use.

use std::time::Duration;

use roadweave_config::{ClientFile, ServerFields};
use roadweave_fleet::VerifiedServer;
use roadweave_identity::Identity;
use roadweave_proto::ServerName;
use roadweave_tunnel::Candidate;

use crate::driver::MemberOptions;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::driver) struct CandidateOptions {
    /// Tried in turn. Host names are looked up over each uplink while the server does not answer.
    pub(in crate::driver) addresses: Vec<ServerName>,
    pub(in crate::driver) candidate: Candidate,
}

impl CandidateOptions {
    fn of_file(server: &ServerFields) -> Self {
        let millis = server.to_anchor_ms.map_or(0, |ms| ms.get().unsigned_abs());
        Self {
            addresses: server.names(),
            candidate: Candidate {
                name: server.name.clone(),
                site: server.site.clone(),
                to_anchor: Duration::from_millis(millis),
                ..Candidate::only(server.public_key, Vec::new())
            },
        }
    }

    pub(super) fn of_fleet(server: &VerifiedServer) -> Self {
        Self {
            addresses: server.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            candidate: Candidate {
                key: server.key,
                name: server.name.to_string(),
                site: server.site.as_ref().map(ToString::to_string).unwrap_or_default(),
                addresses: Vec::new(),
                to_anchor: Duration::from_micros(server.to_anchor_us.into()),
                last_resort: server.last_resort,
            },
        }
    }
}

pub(super) fn servers(options: &MemberOptions<ClientFile>) -> Vec<CandidateOptions> {
    match &options.membership {
        Some(its) if options.file.server.is_none() => {
            its.candidates().iter().map(CandidateOptions::of_fleet).collect()
        }
        _ => options.file.servers().map(CandidateOptions::of_file).collect(),
    }
}

pub(super) fn candidates(servers: &[CandidateOptions], identity: &Identity) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = servers.iter().map(|it| it.candidate.clone()).collect();
    if candidates.is_empty() {
        // Until the fleet names a server: a candidate without an address, with our own key.
        candidates.push(Candidate::only(identity.public_key(), Vec::new()));
    }
    candidates
}
