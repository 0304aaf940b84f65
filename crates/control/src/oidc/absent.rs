//! The types of a build without the feature `oidc`: an issuer cannot be constructed.

use std::path::Path;

use roadweave_terminal::exit::BadInput;

use super::{OidcError, Pending, Settings, SignedIn};

/// An issuer, which does not exist.
pub enum Oidc {}

impl Oidc {
    pub fn open(_: &Settings, _: &Path, _: &str) -> anyhow::Result<Self> {
        Err(BadInput::new("[oidc]: this program was built without OpenID Connect").into())
    }

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
