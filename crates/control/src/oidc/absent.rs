//! The types of a build without the feature `oidc`: an issuer cannot be constructed.

use super::{OidcError, Pending, SignedIn};

/// An issuer, which does not exist.
pub enum Oidc {}

impl Oidc {
    pub fn tenant(&self) -> &str {
        match *self {}
    }

    pub fn vouches_for(&self, _: &str, _: &str) -> bool {
        match *self {}
    }

    pub async fn begin(&self, _: Option<u16>) -> Result<(String, Pending), OidcError> {
        match *self {}
    }

    pub async fn finish(&self, _: Pending, _: &str) -> Result<SignedIn, OidcError> {
        match *self {}
    }
}
