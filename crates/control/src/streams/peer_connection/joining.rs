//! Joining by a token of the controller, or by the delegate in the token.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use roadweave_config::{ANCHOR_PORT, SERVER_PORT};
use roadweave_fleet::{
    Chain, ControllerSession, Head, Join, Name, Revocation, Revocations, Role, Scope, Signed,
};

use super::{PeerConnection, PeerRecord, keys_of};
use crate::authority::NotSigned;
use crate::clock::now_ms;
use crate::model::{DeviceState, ProxyRole};
use crate::store::{Actor, Delegated, Enrolment, StoreError};
use crate::streams::Streams;

struct EnrolledPeer {
    peer: PeerRecord,
    delegates: Vec<String>,
    statement: Option<String>,
    waits: bool,
}

impl PeerConnection<'_> {
    pub(super) async fn join(
        &mut self,
        asks: Join,
        session: &mut ControllerSession,
    ) -> Result<(), &'static str> {
        let chain = asks.chain.as_ref();
        let delegated = chain.map(|chain| self.delegated(chain, &asks)).transpose();
        let delegated = match delegated {
            Ok(delegated) => delegated,
            Err(why) => {
                session.refuse(&why.to_string(), false);
                return Err("its chain is invalid");
            }
        };
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
        match enrolled {
            Ok(entry) => self.welcome(entry, session).await,
            Err(error) if error.is_passing() => {
                session.refuse("the controller's database does not answer", true);
                Err("the database is away")
            }
            Err(error) => {
                session.refuse(&error.to_string(), false);
                tracing::info!(key = %self.key, %error, "a key was refused");
                Err("it was refused")
            }
        }
    }

    async fn join_box(&self, enrolment: &Enrolment) -> Result<EnrolledPeer, StoreError> {
        let Streams { store, authority, .. } = self.streams;
        let device = store.enrol(enrolment, now_ms(), authority).await?;
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
        let proxy = store.enrol_proxy(enrolment, as_what, now_ms(), authority).await?;
        Ok(EnrolledPeer {
            waits: false,
            statement: proxy.record.statement,
            delegates: proxy.record.delegates,
            peer: PeerRecord { tenant: proxy.tenant, id: proxy.record.id, is_gate: true },
        })
    }

    async fn welcome(
        &mut self,
        entry: EnrolledPeer,
        session: &mut ControllerSession,
    ) -> Result<(), &'static str> {
        if entry.waits {
            session.refuse("this box waits for approval: ask again later", true);
            return Err("it waits for approval");
        }
        let chain = entry.statement.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let (Some(chain), Ok(name)) = (chain, entry.peer.tenant.parse()) else {
            session.refuse("the root key is elsewhere: this token needs a delegate", false);
            return Err("no key here can sign it");
        };
        session.welcome(chain, name);
        (self.peer, self.issuers) = (Some(entry.peer), keys_of(&entry.delegates));
        session.signed_by(self.issuers.clone());
        self.arrived(session).await;
        Ok(())
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

    /// Restores revocations that the database, an older copy, lacks.
    pub(super) async fn surplus(
        &self,
        entries: &[Revocation],
        head: &Signed<Head>,
    ) -> Result<(), &'static str> {
        let Some(PeerRecord { tenant, is_gate: true, .. }) = &self.peer else {
            return Err("only proxies return revocations");
        };
        // Only a complete chain signed by this controller counts.
        let mut theirs = Revocations::default();
        let controller = self.streams.authority.controller().public_key();
        theirs.extend(entries, head, [controller]).map_err(|_| "its revocations are invalid")?;
        let taken = self.take_back(tenant, entries).await;
        taken.map_err(|error| {
            tracing::error!(%error, "cannot store revocations that a proxy returned");
            "cannot store revocations"
        })
    }

    async fn take_back(&self, tenant: &str, entries: &[Revocation]) -> Result<(), StoreError> {
        let actor = Actor::new(format!("stream:{}", self.name()));
        let mut change = self.streams.store.change(actor.clone(), now_ms()).await?;
        let mut of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in entries {
            let key = entry.key.to_string();
            if change.is_revoked(&key).await? {
                continue;
            }
            let owner = change.owner_of_key(&key).await?.unwrap_or_else(|| tenant.to_owned());
            change.append(&owner, &key, WHY).await?;
            of.entry(owner).or_default().insert(key);
        }
        if !of.is_empty() {
            let count: usize = of.values().map(BTreeSet::len).sum();
            tracing::warn!(count, "a proxy returned revocations that the database did not have");
            change.commit().await?;
        }
        for (owner, keys) in of {
            self.streams.store.mark_revoked(&owner, &keys, &actor, now_ms()).await?;
        }
        Ok(())
    }
}

const WHY: &str = "revoked before the database was restored, according to a proxy";
