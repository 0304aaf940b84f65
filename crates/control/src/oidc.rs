//! People who sign in at an issuer of OpenID Connect, in place of a password here.
//!
//! ```text
//! browser ─ begin ─► url of the issuer, and a sealed cookie: state, nonce, verifier, until when
//!    └─► issuer ─► callback: code, state ─┐
//! cookie ─────────────────────────────────┴─► once: code ─► ID token ─► role by groups, or none
//! ```
//!
//! Nothing is kept here between the two steps, so that strangers who begin cost nothing and any
//! replica may end what another began; a state counts once. The issuer is asked when somebody signs
//! in, and never else: without it all who have a password go on.
//!
//! Behind the feature `oidc`, which the program has and without which this crate builds faster.
//! Source: OpenID Connect Core 1.0 sections 3.1 and 3.1.3.7, RFC 7636, RFC 8252 section 7.3.

#[cfg(not(feature = "oidc"))]
mod absent;
#[cfg(feature = "oidc")]
mod http;
#[cfg(feature = "oidc")]
mod issuer;
#[cfg(feature = "oidc")]
mod provider;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "oidc"))]
pub use absent::Oidc;
#[cfg(feature = "oidc")]
pub use http::{Http, HttpError};
#[cfg(feature = "oidc")]
pub use issuer::Oidc;

use crate::clock::now_ms;
use crate::keys;
use crate::model::Role;

/// What `controller.toml` says of the issuer.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its address, exactly as it names itself.
    pub issuer: String,
    /// The name that it knows the controller by.
    pub client_id: String,
    /// The secret by which the issuer knows the controller, if it has given one.
    pub client_secret: Option<String>,
    /// Where browsers come back to: the controller's callback.
    pub callback: String,
    /// The tenant that those who sign in belong to.
    pub tenant: String,
    /// The claim that has a person's groups.
    pub groups_claim: String,
    /// What is asked for besides `openid`.
    pub scopes: Vec<String>,
    /// The role of each group; the highest counts, and nobody without one gets in.
    pub roles: BTreeMap<String, Role>,
    /// The domains of the addresses that may sign in; any, if empty.
    pub domains: Vec<String>,
}

/// Somebody who is at the issuer now: what the browser keeps meanwhile, sealed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    /// What the issuer hands back with the code.
    pub state: String,
    /// What the ID token must repeat.
    pub nonce: String,
    /// What proves to the issuer that the code was asked for here.
    pub verifier: String,
    /// Where the issuer leads back to.
    pub redirect: String,
    /// Until when, milliseconds since 1970.
    pub until_ms: i64,
}

impl Pending {
    /// Whether `state` is this one's, and in time.
    pub fn is_of(&self, state: &str) -> bool {
        let same = ring::digest::digest(&ring::digest::SHA256, state.as_bytes());
        let ours = ring::digest::digest(&ring::digest::SHA256, self.state.as_bytes());
        same.as_ref() == ours.as_ref() && now_ms() < self.until_ms
    }

    /// Whether a program on the person's own machine waits for the code, and no browser.
    pub fn is_program(&self) -> bool {
        self.redirect.starts_with(LOOPBACK)
    }
}

/// Somebody whom the issuer vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// Issuer and subject, which are that person's for ever.
    pub subject: String,
    /// A name for people.
    pub title: String,
    /// What the groups come to.
    pub role: Result<Role, &'static str>,
}

impl SignedIn {
    /// The name that the person has here.
    pub fn id(&self) -> String {
        format!("oidc-{}", &keys::hash(&self.subject)[..24])
    }
}

/// Why nobody is signed in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OidcError {
    /// The issuer is away, or answers nonsense.
    #[error("the issuer cannot be asked: {0}")]
    Issuer(String),
    /// Too many sign in now.
    #[error("too many sign in at once")]
    Busy,
    /// The issuer does not take the code.
    #[error("the issuer does not take the code: {0}")]
    Code(String),
    /// What the issuer says of the person does not hold.
    #[error("what the issuer says does not hold: {0}")]
    Token(String),
}

/// Where a program on the person's own machine waits.
const LOOPBACK: &str = "http://127.0.0.1:";

#[cfg(test)]
#[cfg(feature = "oidc")]
mod tests;
