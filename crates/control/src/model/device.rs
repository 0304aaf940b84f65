//! Boxes, the tokens by which they join, and delegates: keys that sign for others, where the root
//! key is elsewhere.

use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_fleet::{Admitted, Name, Role, Scope, Statement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{SPAN_MAX, Settings, at_most, slug, tags, title, word};

/// A box: the device in a vehicle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Its name.
    pub id: String,
    /// Its public key, which it has made itself.
    pub public_key: String,
    /// Whether the box is admitted.
    pub state: DeviceState,
    /// Its inner addresses.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
    /// The token that it joined by.
    pub token: Option<String>,
    /// The pool of proxies that it is for, as that token has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The statement that admits its key.
    pub statement: Option<String>,
    /// The keys of the delegates between the root and its own.
    #[serde(default)]
    pub delegates: Vec<String>,
    /// What people write.
    pub settings: DeviceSettings,
}

/// Whether a box is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// The box waits for admission by a person.
    Pending,
    /// The box's key is admitted.
    Active,
    /// The box's key is admitted no more, for ever.
    Revoked,
}

/// What people write of a box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSettings {
    /// How the box is called among people.
    pub title: String,
    /// Words to find it and to configure it by.
    pub tags: Vec<String>,
    /// The networks behind it.
    #[schema(value_type = Vec<String>)]
    pub prefixes: Vec<IpNet>,
}

/// A token: lets in so many boxes, proxies or anchors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its name.
    pub id: String,
    /// The hash of the secret; never in an answer.
    #[schema(ignore)]
    pub hash: String,
    /// How many more boxes it lets in.
    pub uses_left: i64,
    /// Until when it is good, milliseconds since 1970; for ever, if absent.
    pub expires_ms: Option<i64>,
    /// What people write.
    pub settings: TokenSettings,
}

/// What people write of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenSettings {
    /// What the token is for, in words.
    pub title: String,
    /// How many boxes it lets in.
    pub uses: u32,
    /// How long it is good, seconds; for ever, if absent.
    #[schema(maximum = 315360000)]
    pub lifetime_s: Option<u32>,
    /// The tags that boxes get.
    pub tags: Vec<String>,
    /// The pool of proxies that boxes are for.
    pub pool: Option<String>,
    /// Whether each box has to be approved.
    pub approval: bool,
    /// What those who join by the token become.
    pub role: TokenRole,
    /// The delegate that signs for those who join, where the root key is elsewhere. The token's
    /// text has its private key, and nobody else.
    pub delegate: Option<String>,
}

/// What a token lets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenRole {
    /// Boxes.
    #[default]
    Box,
    /// Proxies, into the pool that it names.
    Proxy,
    /// Anchors.
    Anchor,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self {
            title: String::new(),
            uses: 1,
            lifetime_s: Some(86_400),
            tags: Vec::new(),
            pool: None,
            approval: false,
            role: TokenRole::Box,
            delegate: None,
        }
    }
}

records! {
    Device: "device", "device", key |it| it.public_key => |it| [
        "public_key": &it.public_key,
        "state": word(&it.state),
        "tags": format!(",{},", it.settings.tags.join(","))
    ];
    Token: "token", "token", secret "hash" => |it| [
        "hash": &it.hash,
        "pool": it.settings.pool.clone(),
        "uses_left": it.uses_left
    ];
}

impl Settings for DeviceSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        tags(&self.tags)?;
        if self.prefixes.len() > PREFIXES_MAX {
            return Err(format!("prefixes: at most {PREFIXES_MAX}"));
        }
        match self.prefixes.iter().find(|prefix| prefix.trunc() != **prefix) {
            Some(prefix) => {
                Err(format!("prefixes: {prefix} has host bits; write {}", prefix.trunc()))
            }
            None => Ok(()),
        }
    }
}

impl Settings for TokenSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        tags(&self.tags)?;
        if !(1..=USES_MAX).contains(&self.uses) {
            return Err(format!("uses: 1 to {USES_MAX}"));
        }
        if self.role != TokenRole::Box && (self.approval || !self.tags.is_empty()) {
            return Err("role: approval and tags are of boxes".to_owned());
        }
        if self.lifetime_s == Some(0) {
            return Err("lifetime_s: at least 1".to_owned());
        }
        at_most("lifetime_s", self.lifetime_s, SPAN_MAX)?;
        for (field, name) in [("pool", &self.pool), ("delegate", &self.delegate)] {
            name.as_deref().map_or(Ok(()), slug).map_err(|why| format!("{field}: {why}"))?;
        }
        Ok(())
    }
}

const PREFIXES_MAX: usize = 16;
const USES_MAX: u32 = 10_000;

/// A key that may sign for others: that of a token, of a pool, or of somebody's machine. Its
/// private half is never here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delegate {
    /// Its name, as the signer wrote it.
    pub id: String,
    /// Its public key.
    pub public_key: String,
    /// Whether the delegate may sign still.
    pub state: DelegateState,
    /// What those whom the delegate lets in may be.
    pub roles: Vec<TokenRole>,
    /// The tags that boxes get by it.
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
            _ => return Err("the chain leads to no delegate".to_owned()),
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

    /// Checks that a token with these settings stays within what this delegate may sign for;
    /// `to_come` is the number of unused uses of its other tokens.
    pub fn allows(&self, token: &TokenSettings, to_come: u64) -> Result<(), String> {
        let id = &self.id;
        if self.state != DelegateState::Active {
            return Err(format!("the delegate {id} was revoked"));
        }
        // A token contains the key of its delegate.
        if self.signer {
            return Err(format!(
                "delegate: {id} is a signer, whose key belongs into no token: make a delegate \
                 within it (roadweave-controller delegate --key FILE --token)"
            ));
        }
        if !self.roles.contains(&token.role) {
            return Err(format!("role: the delegate {id} may not sign for this"));
        }
        // A box gets all tags of the delegate; proxies and anchors have none.
        let wanted = if token.role == TokenRole::Box { &self.tags[..] } else { &[] };
        if !same(wanted, &token.tags) {
            let tags = wanted.join(", ");
            return Err(format!("tags: those of the delegate {id} for this are: {tags}"));
        }
        let wanted = u64::from(token.uses) + to_come + u64::from(self.used);
        match self.uses.filter(|most| wanted > u64::from(*most)) {
            Some(most) => Err(format!(
                "uses: the delegate {id} may sign for {most} keys; {} are taken or promised by \
                 other tokens",
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
