//! Members of a fleet and their documents: sans-IO, for both ends of a controller's stream.
//!
//! ```text
//! Trust (roots, controllers) ◄── TrustList, signed by a former root
//!   ├─ Chain of Statements: root ► delegates ► key of a box, proxy, anchor
//!   ├─ Revocations: a hash chain with a signed head
//!   └─ Document<Body>: versioned, for one key, signed by a controller
//!        ├─ Configuration, Candidates      for boxes
//!        └─ Table of Members, Anchors      for proxies and anchors
//! placement: which proxies a box may choose among; which of them live
//! Rollout: a version of a configuration on its way to many boxes
//! Planning: the documents that all members are to hold
//! Frame: one message of the stream, length and JSON
//! Agent ◄──── stream ────► ControllerSession   of a box, proxy or anchor; of the controller
//! ```
//!
//! Versions are numbers, not dates, for boxes with wrong clocks. Everything read is verified.

mod agent;
mod chain;
mod controller_session;
mod digest;
mod document;
mod envelope;
mod frame;
mod inner;
mod name;
mod placement;
mod plan;
pub mod records;
mod revocation;
mod rollout;
mod statement;
mod table;
mod token;
mod trust;

pub use agent::{Agent, AgentEvent, Egress, Joining, PersistedState, VerifiedServer};
pub use chain::{Admitted, Chain};
pub use controller_session::{
    ControllerSession, ControllerSessionEvent, Published, PublishedTable, PublishedTrust,
};
pub use digest::Digest;
pub use document::{
    Anchor, Anchors, Approval, Body, Candidate, Candidates, Configuration, Document, Kind, Version,
    Waiting,
};
pub use envelope::{Envelope, Signed, remember_proofs};
pub use frame::{
    Down, FRAME_MAX, FrameDecoder, FrameError, HeldVersions, Join, Outcome, Report, Sample, Up,
    encode,
};
pub use inner::{INNER_NETWORKS_MAX, gateway_of, inner_lengths};
pub use name::Name;
pub use placement::{Band, HealthState};
pub use plan::{
    Documents, Draft, Fleet, Planning, Proxies, RecordId, Rollouts, Tables, Turned, Written,
    toml_text,
};
pub use revocation::{Head, Revocation, RevocationError, Revocations};
pub use rollout::{Rollout, RolloutState, Target};
pub use statement::{Grant, Role, Scope, Statement};
pub use table::{Admission, Member, Refused, Table};
pub use token::{Delegate, JoinToken, Secret};
pub use trust::{Trust, TrustList};

#[cfg(test)]
mod testing {
    use roadweave_identity::{Identity, PublicKey};
    use roadweave_proto::Instant;

    use super::*;
    use crate::envelope::Payload;

    pub(crate) fn identity(seed: u8) -> Identity {
        Identity::from_seed([seed; 32])
    }

    pub(crate) fn key(seed: u8) -> PublicKey {
        identity(seed).public_key()
    }

    pub(crate) fn numbered(number: u16) -> PublicKey {
        let mut seed = [7; 32];
        seed[..2].copy_from_slice(&number.to_be_bytes());
        Identity::from_seed(seed).public_key()
    }

    pub(crate) fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    pub(crate) fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    pub(crate) fn sign<T: Payload>(payload: &T, by: u8) -> Signed<T> {
        Signed::sign(payload, &identity(by)).expect("signed")
    }

    pub(crate) fn statement(seed: u8, role: Role) -> Statement {
        let scope = Scope::Tenant(name("north"));
        let tags = Default::default();
        Statement { key: key(seed), name: name("x"), role, scope, tags, grant: None }
    }

    pub(crate) fn delegate(seed: u8, roles: &[Role], uses: Option<u32>) -> Statement {
        let roles = roles.iter().copied().collect();
        let grant = Some(Grant { roles, tags: Default::default(), uses });
        Statement { grant, ..statement(seed, Role::Delegate) }
    }

    pub(crate) fn chain(steps: &[(u8, &Statement)]) -> Chain {
        Chain::new(steps.iter().map(|(by, statement)| sign(*statement, *by)).collect())
    }

    pub(crate) fn member(seed: u8, chain: Chain) -> Member {
        Member { key: key(seed), chain, addresses: vec![], rate_kbps: None, offline_max_s: None }
    }

    pub(crate) fn token() -> JoinToken {
        JoinToken {
            addresses: vec!["127.0.0.1:1".into()],
            controller: key(2),
            root: key(1),
            tenant: name("north"),
            secret: Secret::from_bytes([3; 16]),
            delegate: None,
        }
    }
}
