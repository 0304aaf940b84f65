//! Join tokens: `rw1_` and base64url, as text, QR code or on a stick.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::name::Name;
use crate::statement::Scope;

const PREFIX: &str = "rw1_";
/// Characters: a QR code of version 40 takes 2,953 bytes.
const TOKEN_MAX: usize = 2_900;
/// The usual length of the addresses of controllers together.
const ADDRESS_USUAL: usize = 64;
const ADDRESSES_MAX: usize = 8;

/// Where a new box, proxy or anchor joins, and which keys it trusts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// The addresses of the controller, `host:port` each.
    #[serde(rename = "a")]
    pub addresses: Vec<String>,
    /// The controller's key.
    #[serde(rename = "c")]
    pub controller: PublicKey,
    /// The root key.
    #[serde(rename = "r")]
    pub root: PublicKey,
    /// Its tenant.
    #[serde(rename = "t")]
    pub tenant: Name,
    /// The controller knows its hash.
    #[serde(rename = "s")]
    pub secret: Secret,
    /// For controllers that cannot sign for new keys: a delegate that can.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub delegate: Option<Delegate>,
}

/// A delegate that a token carries.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegate {
    /// Its private key, base64.
    #[serde(rename = "k")]
    pub private_key: String,
    /// Its chain.
    #[serde(rename = "c")]
    pub chain: Chain,
}

impl Delegate {
    /// Whether it fits into a token with the usual addresses.
    pub fn fits_a_token(&self) -> bool {
        let (Some(root), Some(said)) = (self.chain.claimed_root(), self.chain.claimed()) else {
            return false;
        };
        let token = JoinToken {
            addresses: vec!["x".repeat(ADDRESS_USUAL)],
            controller: root,
            root,
            tenant: match said.scope {
                Scope::Tenant(tenant) => tenant,
                Scope::All => said.name,
            },
            secret: Secret::from_bytes([0; 16]),
            delegate: Some(self.clone()),
        };
        token.to_string().len() <= TOKEN_MAX
    }
}

/// 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Secret([u8; 16]);

impl Secret {
    /// A secret of these random bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        BASE64URL.encode(secret.0)
    }
}

impl TryFrom<String> for Secret {
    type Error = TokenError;

    fn try_from(text: String) -> Result<Self, TokenError> {
        let bytes = BASE64URL.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(TokenError::Damaged)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("addresses", &self.addresses)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        let check = crate::Digest::of([json.as_slice()]);
        write!(f, "{PREFIX}{}", BASE64URL.encode([&check.as_bytes()[..4], &json].concat()))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() > TOKEN_MAX {
            return Err(TokenError::Damaged);
        }
        let body = text.strip_prefix(PREFIX).ok_or(TokenError::NoToken)?;
        let bytes = BASE64URL.decode(body).map_err(|_| TokenError::Damaged)?;
        let (check, json) = bytes.split_at_checked(4).ok_or(TokenError::Damaged)?;
        if crate::Digest::of([json]).as_bytes()[..4] != *check {
            return Err(TokenError::Damaged);
        }
        let token: Self = serde_json::from_slice(json).map_err(|_| TokenError::Damaged)?;
        match (1..=ADDRESSES_MAX).contains(&token.addresses.len()) {
            true => Ok(token),
            false => Err(TokenError::Damaged),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not a join token: it should begin with {PREFIX}")]
    NoToken,
    #[error("the join token is damaged: copy all of it, or scan the QR code again")]
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::token;

    #[test]
    fn a_token_survives_being_typed() {
        let text = token().to_string();
        assert!(text.starts_with("rw1_") && text.len() < 400, "{text}");
        assert_eq!(format!(" {text}\n").parse(), Ok(token()));
    }

    #[test]
    fn a_damaged_token_says_so() {
        let text = token().to_string();
        assert_eq!("rw2_abc".parse::<JoinToken>(), Err(TokenError::NoToken));
        for end in 4..text.len() {
            assert_eq!(text[..end].parse::<JoinToken>(), Err(TokenError::Damaged), "{end}");
        }
        let other = if text.as_bytes()[60] == b'A' { "B" } else { "A" };
        let mistyped = format!("{}{other}{}", &text[..60], &text[61..]);
        assert_eq!(mistyped.parse::<JoinToken>(), Err(TokenError::Damaged));
    }

    #[test]
    fn the_secret_stays_out_of_logs() {
        let shown = format!("{:?}", token());
        assert!(!shown.contains(&String::from(token().secret)), "{shown}");
    }
}
