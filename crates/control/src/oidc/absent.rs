//! Without the feature `oidc` there is no issuer, and none can be made.

use super::{OidcError, Pending, SignedIn};

/// No issuer.
#[derive(Debug)]
pub enum Oidc {}

impl Oidc {
    /// The tenant that those who sign in belong to.
    pub fn tenant(&self) -> &str {
        match *self {}
    }

    /// Whether somebody in this tenant is one of its people.
    pub fn vouches_for(&self, _: &str, _: &str) -> bool {
        match *self {}
    }

    /// Where the person is to go.
    ///
    /// # Errors
    /// There is nobody to ask.
    pub async fn begin(&self, _: Option<u16>) -> Result<(String, Pending), OidcError> {
        match *self {}
    }

    /// Who has signed in.
    ///
    /// # Errors
    /// There is nobody to ask.
    pub async fn finish(&self, _: Pending, _: &str) -> Result<SignedIn, OidcError> {
        match *self {}
    }
}
