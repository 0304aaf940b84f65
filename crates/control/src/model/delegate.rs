//! Delegates: keys that sign for others, where the root key is elsewhere.

use roadweave_fleet::{Admitted, Name, Role, Scope, Statement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{TokenRole, TokenSettings, slug, word};

/// A key that may sign others: that of a token, of a pool, or of a person's machine. The controller
/// never has its private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delegate {
    /// Its name, as the signer wrote it.
    pub id: String,
    /// Its public key.
    pub public_key: String,
    /// Whether the delegate may sign still.
    pub state: DelegateState,
    /// The roles that the delegate may admit.
    pub roles: Vec<TokenRole>,
    /// The tags of boxes that it admits.
    pub tags: Vec<String>,
    /// How many keys it may sign for; any number, if absent.
    pub uses: Option<u32>,
    /// For how many it has signed here, itself or by delegates below it.
    pub used: u32,
    /// Whether the delegate signs for what serves all tenants.
    pub shared: bool,
    /// Whether the delegate may make delegates of its own.
    pub signer: bool,
    /// The keys of the delegates between the root and it.
    pub delegates: Vec<String>,
    /// The chain that leads to it, as JSON.
    pub statement: String,
}

/// Whether a delegate may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DelegateState {
    /// The delegate may sign.
    Active,
    /// The delegate may sign no more, for ever, and what it signed is worth nothing.
    Revoked,
}

impl Delegate {
    /// The delegate that a chain leads to; an error if it is not a delegate of this tenant.
    pub fn of(admitted: &Admitted, chain: String, tenant: &str) -> Result<Self, String> {
        let Statement { key, name, role, scope, grant, .. } = &admitted.statement;
        let grant = match (role, grant) {
            (Role::Delegate, Some(grant)) => grant,
            _ => return Err("the chain does not lead to a delegate".to_owned()),
        };
        if let Scope::Tenant(other) = scope
            && other.as_str() != tenant
        {
            return Err(format!("the delegate is for the tenant \"{other}\", not \"{tenant}\""));
        }
        slug(name.as_str()).map_err(|why| format!("the delegate's name: {why}"))?;
        Ok(Self {
            id: name.to_string(),
            public_key: key.to_string(),
            state: DelegateState::Active,
            roles: grant.roles.iter().filter_map(|role| token_role(*role)).collect(),
            tags: grant.tags.iter().map(Name::to_string).collect(),
            uses: grant.uses,
            used: 0,
            shared: *scope == Scope::All,
            signer: grant.roles.contains(&Role::Delegate),
            delegates: admitted.issuers.iter().map(|issuer| issuer.key.to_string()).collect(),
            statement: chain,
        })
    }

    /// Checks that a token is within the delegate's rights; `to_come`: unused uses of its others.
    pub fn allows(&self, token: &TokenSettings, to_come: u64) -> Result<(), String> {
        let id = &self.id;
        if self.state != DelegateState::Active {
            return Err(format!("the delegate {id} was revoked"));
        }
        // A token contains the key of its delegate.
        if self.signer {
            return Err(format!(
                "delegate: {id} is a signer, whose key must not go into a token: create a delegate \
                 within it (roadweave-controller delegate --key FILE --token)"
            ));
        }
        if !self.roles.contains(&token.role) {
            return Err(format!("role: the delegate {id} may not sign this role"));
        }
        // A box gets all tags of the delegate; proxies and anchors have none.
        let wanted = if token.role == TokenRole::Box { &self.tags[..] } else { &[] };
        if !same(wanted, &token.tags) {
            let tags = wanted.join(", ");
            return Err(format!("tags: must be those of the delegate {id}: {tags}"));
        }
        let wanted = u64::from(token.uses) + to_come + u64::from(self.used);
        match self.uses.filter(|most| wanted > u64::from(*most)) {
            Some(most) => Err(format!(
                "uses: the delegate {id} may sign {most} keys; {} are used or reserved by other \
                 tokens",
                to_come + u64::from(self.used)
            )),
            None => Ok(()),
        }
    }
}

fn same(one: &[String], other: &[String]) -> bool {
    one.iter().all(|word| other.contains(word)) && other.iter().all(|word| one.contains(word))
}

fn token_role(role: Role) -> Option<TokenRole> {
    match role {
        Role::Box => Some(TokenRole::Box),
        Role::Proxy => Some(TokenRole::Proxy),
        Role::Anchor => Some(TokenRole::Anchor),
        Role::Delegate => None,
    }
}

records! {
    Delegate: "delegate", "delegate", key |it| it.public_key
        => |it| ["public_key": &it.public_key, "state": word(&it.state)];
}
