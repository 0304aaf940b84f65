//! Sign-in at an OpenID Connect issuer, in place of a password here.
//!
//! ```text
//! browser ─ begin ─► URL of the issuer, and a sealed cookie: state, nonce, verifier, expiry
//!    └─► issuer ─► callback: code, state ─┐
//! cookie ─────────────────────────────────┴─► once: code ─► ID token ─► role by groups, or none
//! ```
//!
//! Nothing is stored between the two steps, so pending sign-ins of strangers cost nothing and any
//! replica can finish one; each state counts once. The issuer is asked only during a sign-in.
//!
//! Behind the feature `oidc`, which the program has and without which this crate builds faster.
//! Source: OpenID Connect Core 1.0 sections 3.1 and 3.1.3.7, RFC 7636, RFC 8252 section 7.3.

#[cfg(not(feature = "oidc"))]
mod absent;
#[cfg(feature = "oidc")]
mod http;
#[cfg(feature = "oidc")]
mod provider;

use std::collections::BTreeMap;
use std::path::PathBuf;

use roadweave_config::Fault;
use serde::{Deserialize, Serialize};

#[cfg(not(feature = "oidc"))]
pub use absent::Oidc;
#[cfg(feature = "oidc")]
pub use http::Http;
#[cfg(feature = "oidc")]
pub use provider::Oidc;

use crate::clock::now_ms;
use crate::keys;
use crate::model::{Role, slug};

/// The issuer's configuration: `[oidc]` of `controller.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The issuer's URL, exactly as it names itself.
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Option<String>,
    pub client_secret_file: Option<PathBuf>,
    /// The tenant of the people who sign in.
    #[serde(default = "home")]
    pub tenant: String,
    /// The controller's URL for browsers; by default the first of its addresses.
    pub url: Option<String>,
    /// The claim with a person's groups.
    #[serde(default = "groups")]
    pub groups_claim: String,
    /// Scopes besides `openid`.
    #[serde(default = "scopes")]
    pub scopes: Vec<String>,
    /// The role of each group; the highest counts. A person without a role is refused.
    pub roles: BTreeMap<String, Role>,
    /// The domains of the addresses that may sign in; any, if empty.
    #[serde(default)]
    pub domains: Vec<String>,
    /// The certificate authorities of the issuer (PEM), in place of this machine's.
    pub authorities: Option<PathBuf>,
}

impl Settings {
    pub fn validate(&self) -> Result<(), Fault> {
        let bad = |field: &str, why: &str| {
            Err(Fault::new(format!("oidc.{field}"), format!("oidc.{field}: {why}")))
        };
        if !is_address(&self.issuer) {
            return bad("issuer", "write the issuer's own name, such as https://login.example.org");
        }
        let is_base =
            |url: &str| url.starts_with("https://") && is_address(url) && !url.ends_with('/');
        if self.url.as_deref().is_some_and(|url| !is_base(url)) {
            return bad("url", "write https://fleet.example.org, without a slash at the end");
        }
        if self.client_id.is_empty() {
            return bad("client_id", "get one from the issuer");
        }
        if self.client_secret.is_some() && self.client_secret_file.is_some() {
            return bad("client_secret", "set it here or in client_secret_file");
        }
        if self.roles.is_empty() {
            return bad(
                "roles",
                "without roles no user can sign in: write roles = { fleet-ops = \"operator\" }",
            );
        }
        if self.scopes.iter().any(|scope| scope.is_empty() || scope.contains(char::is_whitespace)) {
            return bad("scopes", "one word each");
        }
        slug(&self.tenant).or_else(|why| bad("tenant", &why))
    }
}

fn is_address(text: &str) -> bool {
    let here = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
    let is_known = text.starts_with("https://") || here.iter().any(|it| text.starts_with(it));
    is_known && !text.contains([' ', '?', '#', '@'])
}

fn home() -> String {
    "home".to_owned()
}

fn groups() -> String {
    "groups".to_owned()
}

fn scopes() -> Vec<String> {
    ["email", "profile"].map(str::to_owned).into()
}

/// A pending sign-in, sealed in the browser's cookie.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    pub state: String,
    /// Repeated in the ID token.
    pub nonce: String,
    pub verifier: String,
    pub redirect: String,
    pub until_ms: i64,
}

impl Pending {
    pub fn is_of(&self, state: &str) -> bool {
        let same = ring::digest::digest(&ring::digest::SHA256, state.as_bytes());
        let ours = ring::digest::digest(&ring::digest::SHA256, self.state.as_bytes());
        same.as_ref() == ours.as_ref() && now_ms() < self.until_ms
    }

    /// Whether a program on the person's own machine waits for the code.
    pub fn is_program(&self) -> bool {
        self.redirect.starts_with(LOOPBACK)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// Issuer and subject, which identify the person permanently.
    pub subject: String,
    pub title: String,
    pub role: Result<Role, &'static str>,
}

impl SignedIn {
    pub fn id(&self) -> String {
        format!("oidc-{}", &keys::hash(&self.subject)[..24])
    }
}

#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "oidc"), expect(dead_code, reason = "an issuer has them alone"))]
pub enum OidcError {
    #[error("cannot reach the issuer: {0}")]
    Issuer(String),
    #[error("too many sign-ins at once")]
    Busy,
    #[error("the issuer refused the code: {0}")]
    Code(String),
    #[error("the issuer's answer is invalid: {0}")]
    Token(String),
}

/// The redirect URI of a program on the person's own machine, without port and path.
const LOOPBACK: &str = "http://127.0.0.1:";

#[cfg(test)]
#[cfg(feature = "oidc")]
mod tests;
