//! Who belongs to a fleet, and what is to hold there: sans-IO, for both ends of a controller's
//! stream.
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
//! Frame: one message of the stream, length and JSON
//! Agent ◄──── stream ────► Desk         of a box, proxy or anchor; of the controller
//! ```
//!
//! Nothing here goes by a date: what is newer is told by numbers, so that a box whose clock says
//! 1970 joins. Everything that is read again from a disk or a database proves itself by a
//! signature.

mod agent;
mod chain;
mod desk;
mod digest;
mod document;
mod envelope;
mod frame;
mod name;
mod placement;
mod revocation;
mod rollout;
mod statement;
mod table;
mod token;
mod trust;

pub use agent::{Agent, AgentEvent, Egress, Joining, Kept, KeptError, VerifiedServer, Works};
pub use chain::{Admitted, CHAIN_MAX, Chain, ChainError, Issuer};
pub use desk::{Desk, DeskEvent, Published, PublishedTable, PublishedTrust};
pub use digest::Digest;
pub use document::{
    Anchor, Anchors, Approval, Approvals, Body, Candidate, Candidates, Configuration, Document,
    DocumentError, Kind, Version, Waiting,
};
pub use envelope::{Envelope, EnvelopeError, Payload, Signed, remember_proofs};
pub use frame::{
    Down, FRAME_MAX, FrameDecoder, FrameError, HeldVersions, Outcome, Report, Sample, Up, encode,
};
pub use name::{InvalidName, Name};
pub use placement::{Band, Health, HealthState, Offered, ProxyView, Seeker, Watch, candidates};
pub use revocation::{Head, Revocation, RevocationError, Revocations};
pub use rollout::{InvalidPlan, Plan, Progress, Rollout, RolloutState, Tally, Target, Wave};
pub use statement::{Grant, Role, Scope, Statement};
pub use table::{Admission, Entry, Member, Refused, Table, TableChange, TableError, TableHead};
pub use token::{Delegate, JoinToken, Secret, TokenError};
pub use trust::{Trust, TrustError, TrustList};
