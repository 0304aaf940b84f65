//! `[oidc]` of `controller.toml`: sign-in at an OpenID Connect issuer.

use std::path::Path;
#[cfg(feature = "oidc")]
use std::path::PathBuf;

#[cfg(feature = "oidc")]
use anyhow::Context as _;
use anyhow::Result;
use roadweave_config::Fault;
use roadweave_terminal::exit::BadInput;
#[cfg(feature = "oidc")]
use roadweave_terminal::secret;

use crate::model::slug;
#[cfg(feature = "oidc")]
use crate::oidc::Http;
use crate::oidc::{Oidc, Settings};

impl Settings {
    pub(crate) fn validate(&self) -> Result<(), Fault> {
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

    #[cfg(not(feature = "oidc"))]
    pub(crate) fn open(&self, _: &Path, _: &str) -> Result<Oidc> {
        Err(BadInput::new("[oidc]: this program was built without OpenID Connect").into())
    }

    #[cfg(feature = "oidc")]
    pub(crate) fn open(&self, folder: &Path, address: &str) -> Result<Oidc> {
        let secret = match &self.client_secret_file {
            Some(path) => Some(secret::read(&folder.join(path))?.trim().to_owned()),
            None => self.client_secret.clone(),
        };
        let authorities = self.authorities.as_ref().map(|path| folder.join(path));
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let authorities = authorities.as_ref().map(read).transpose()?;
        let http = Http::new(authorities.as_deref())
            .map_err(|why| BadInput::new(format!("oidc.authorities: {why}")))?;
        let base = self.url.clone().unwrap_or_else(|| format!("https://{address}"));
        let settings = Self { client_secret: secret, url: Some(base), ..self.clone() };
        Ok(Oidc::new(settings, http))
    }
}

fn is_address(text: &str) -> bool {
    let here = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
    let is_known = text.starts_with("https://") || here.iter().any(|it| text.starts_with(it));
    is_known && !text.contains([' ', '?', '#', '@'])
}
