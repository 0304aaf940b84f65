//! Joining by a token of the controller, or by the delegate in the token.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;

use roadweave_config::{ANCHOR_PORT, SERVER_PORT};
use roadweave_fleet::{Chain, Join, Name, Role, Scope};
use roadweave_identity::PublicKey;

use super::{PeerRecord, keys_of};
use crate::authority::NotSigned;
use crate::clock::now_ms;
use crate::model::{DeviceState, ProxyRole};
use crate::store::{Delegated, Enrolment, StoreError};
use crate::streams::Streams;

/// A peer with a key that is not a member's.
pub(super) struct Applicant<'a> {
    pub(super) streams: &'a Streams,
    pub(super) key: PublicKey,
    pub(super) address: SocketAddr,
}

pub(super) struct JoinedPeer {
    pub(super) peer: PeerRecord,
    pub(super) issuers: Vec<PublicKey>,
    pub(super) chain: Chain,
    pub(super) tenant: Name,
}

pub(super) struct Refusal {
    /// For the peer.
    pub(super) reason: String,
    pub(super) retry: bool,
    /// For the log.
    pub(super) why: &'static str,
}

struct EnrolledPeer {
    peer: PeerRecord,
    delegates: Vec<String>,
    statement: Option<String>,
    waits: bool,
}

impl Applicant<'_> {
    pub(super) async fn join(&self, asks: Join) -> Result<JoinedPeer, Refusal> {
        let refusal = |reason: &dyn Display, retry, why| {
            let reason = reason.to_string();
            Refusal { reason, retry, why }
        };
        let delegated = asks.chain.as_ref().map(|chain| self.delegated(chain, &asks)).transpose();
        let delegated = delegated.map_err(|why| refusal(&why, false, "its chain is invalid"))?;
        let enrolment = Enrolment {
            secret: asks.secret.into(),
            public_key: self.key.to_string(),
            name: Some(asks.name.as_str().to_ascii_lowercase()),
            delegated,
        };
        let enrolled = match asks.role {
            Role::Box => self.join_box(&enrolment).await,
            Role::Proxy => self.join_gate(&asks, ProxyRole::Proxy, &enrolment).await,
            Role::Anchor => self.join_gate(&asks, ProxyRole::Anchor, &enrolment).await,
            Role::Delegate => Err(StoreError::Refused("a delegate cannot join".to_owned())),
        };
        let entry = enrolled.map_err(|error| match error.is_passing() {
            true => {
                let reason = "the controller's database does not answer";
                refusal(&reason, true, "the database is away")
            }
            false => {
                tracing::info!(key = %self.key, %error, "a key was refused");
                refusal(&error, false, "it was refused")
            }
        })?;
        if entry.waits {
            let reason = "this box waits for approval: ask again later";
            return Err(refusal(&reason, true, "it waits for approval"));
        }
        let chain = entry.statement.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let (Some(chain), Ok(tenant)) = (chain, entry.peer.tenant.parse()) else {
            let reason = "the root key is elsewhere: this token needs a delegate";
            return Err(refusal(&reason, false, "no key here can sign it"));
        };
        Ok(JoinedPeer { issuers: keys_of(&entry.delegates), peer: entry.peer, chain, tenant })
    }

    async fn join_box(&self, enrolment: &Enrolment) -> Result<EnrolledPeer, StoreError> {
        let Streams { store, authority, .. } = self.streams;
        let device = enrolment.admit_box(store, now_ms(), authority).await?;
        Ok(EnrolledPeer {
            waits: device.record.state == DeviceState::Pending,
            statement: device.record.statement,
            delegates: device.record.delegates,
            peer: PeerRecord { tenant: device.tenant, id: device.record.id, is_gate: false },
        })
    }

    async fn join_gate(
        &self,
        asks: &Join,
        role: ProxyRole,
        enrolment: &Enrolment,
    ) -> Result<EnrolledPeer, StoreError> {
        let reported = asks.addresses.iter().filter_map(|text| text.parse().ok());
        let mut addresses: Vec<SocketAddr> = reported.collect();
        if addresses.is_empty() {
            let port = if role == ProxyRole::Anchor { ANCHOR_PORT } else { SERVER_PORT };
            addresses.push(SocketAddr::new(self.address.ip().to_canonical(), port));
        }
        let Streams { store, authority, .. } = self.streams;
        let as_what = (role, addresses);
        let proxy = enrolment.admit_proxy(store, as_what, now_ms(), authority).await?;
        Ok(EnrolledPeer {
            waits: false,
            statement: proxy.record.statement,
            delegates: proxy.record.delegates,
            peer: PeerRecord { tenant: proxy.tenant, id: proxy.record.id, is_gate: true },
        })
    }

    fn delegated(&self, chain: &Chain, asks: &Join) -> Result<Delegated, NotSigned> {
        let admitted = self.streams.authority.follow(chain)?;
        let statement = admitted.statement;
        let may_share = asks.role != Role::Box && statement.scope == Scope::All;
        let is_scope = statement.scope == Scope::Tenant(asks.tenant.clone()) || may_share;
        let is_name = statement.name == asks.name;
        if statement.key != self.key || statement.role != asks.role || !is_scope || !is_name {
            return Err(NotSigned::new("the chain is for another key"));
        }
        Ok(Delegated {
            tenant: asks.tenant.to_string(),
            keys: admitted.issuers.iter().map(|issuer| issuer.key.to_string()).collect(),
            tags: statement.tags.iter().map(Name::to_string).collect::<BTreeSet<_>>(),
            chain: serde_json::to_string(chain).map_err(NotSigned::new)?,
        })
    }
}
