//! What one key says of another.

use std::collections::BTreeSet;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::envelope::Payload;
use crate::name::Name;

roadweave_proto::named! {
    /// The role of a key in the fleet.
    Role {
        /// A vehicle's box.
        Box = "box",
        /// Ends multipath at the edge.
        Proxy = "proxy",
        /// Holds the inner prefix of tenants.
        Anchor = "anchor",
        /// Signs for others: a token, a pool of proxies, an operator's machine.
        Delegate = "delegate",
    }
}

/// The tenants of something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All tenants: the installation's own proxies and anchors, and their delegates.
    All,
    /// One tenant.
    Tenant(Name),
}

impl Scope {
    /// Whether `other` lies within this.
    pub fn covers(&self, other: &Self) -> bool {
        *self == Self::All || self == other
    }
}

/// What a delegate may sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The roles it may give; with [`Role::Delegate`] it may pass on its grant.
    pub roles: BTreeSet<Role>,
    /// The tags it may give.
    pub tags: BTreeSet<Name>,
    /// The number of keys it may sign for; `None`: unlimited. Readers of a table refuse more.
    pub uses: Option<u32>,
}

impl Grant {
    fn allows(&self, statement: &Statement) -> bool {
        let within = |inner: &Self| {
            inner.roles.is_subset(&self.roles)
                && inner.tags.is_subset(&self.tags)
                && self.uses.is_none_or(|most| inner.uses.is_some_and(|uses| uses <= most))
        };
        self.roles.contains(&statement.role)
            && statement.tags.is_subset(&self.tags)
            && statement.grant.as_ref().is_none_or(within)
    }
}

/// A signed statement of one key about another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The key that it is about.
    pub key: PublicKey,
    /// Its name, for people.
    pub name: Name,
    /// The role of that key.
    pub role: Role,
    /// The tenants of the role.
    pub scope: Scope,
    /// Groups by which people and configurations address it.
    #[serde(default)]
    pub tags: BTreeSet<Name>,
    /// What it may sign, for a delegate.
    pub grant: Option<Grant>,
}

impl Statement {
    pub(crate) fn may_sign(&self, other: &Self) -> bool {
        self.role == Role::Delegate
            && self.scope.covers(&other.scope)
            && self.grant.as_ref().is_some_and(|grant| grant.allows(other))
    }
}

impl Payload for Statement {
    const TYPE: &'static str = "application/vnd.roadweave.statement+json";
}
