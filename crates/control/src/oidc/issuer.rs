//! The two steps of a sign-in at an issuer, and the role of its groups.

use openidconnect::{Nonce, PkceCodeVerifier};
use tokio::sync::Semaphore;

use super::provider::{Extra, Provider};
use super::{Http, LOOPBACK, OidcError, Pending, Settings, SignedIn};
use crate::clock::now_ms;
use crate::keys;
use crate::model::Role;

/// An issuer.
#[derive(Debug)]
pub struct Oidc {
    settings: Settings,
    provider: Provider,
    permits: Semaphore,
}

impl Oidc {
    /// An issuer with these settings, asked over `http`.
    pub fn new(settings: Settings, http: Http) -> Self {
        let provider = Provider::new(http);
        Self { settings, provider, permits: Semaphore::new(AT_ONCE) }
    }

    /// The tenant of the people who sign in.
    pub fn tenant(&self) -> &str {
        &self.settings.tenant
    }

    /// Whether the issuer vouches for the person of `tenant` with this
    /// [subject](SignedIn::subject).
    pub fn vouches_for(&self, tenant: &str, subject: &str) -> bool {
        let rest = subject.strip_prefix(&self.settings.issuer);
        tenant == self.settings.tenant && rest.is_some_and(|rest| rest.starts_with(' '))
    }

    /// The URL to sign in at, and the pending sign-in. The redirect leads to the controller, or to
    /// the port `loopback` of the person's own machine.
    pub async fn begin(&self, loopback: Option<u16>) -> Result<(String, Pending), OidcError> {
        let _permit = self.permits.try_acquire().map_err(|_| OidcError::Busy)?;
        let redirect = match loopback {
            Some(port) => format!("{LOOPBACK}{port}/callback"),
            None => {
                let url = self.settings.url.as_deref().unwrap_or_default();
                format!("{url}/api/v1/sessions/oidc/callback")
            }
        };
        let (state, nonce) = (keys::secret(), keys::secret());
        let asked = (&*state, &*nonce, &*redirect);
        let (url, verifier) = self.provider.address(&self.settings, asked).await?;
        let verifier = verifier.into_secret();
        let until_ms = now_ms() + SIGN_IN_MS;
        Ok((url, Pending { state, nonce, verifier, redirect, until_ms }))
    }

    /// Redeems the issuer's code.
    pub async fn finish(&self, pending: Pending, code: &str) -> Result<SignedIn, OidcError> {
        let _permit = self.permits.try_acquire().map_err(|_| OidcError::Busy)?;
        let Pending { nonce, verifier, redirect, .. } = pending;
        let verifier = PkceCodeVerifier::new(verifier);
        let tokens = self.provider.redeem(&self.settings, code, verifier, redirect).await?;
        let claims = self.provider.claims(&self.settings, &tokens, &Nonce::new(nonce)).await?;
        let is_verified = claims.email_verified() == Some(true);
        let email = claims.email().map(|email| email.as_str()).filter(|_| is_verified);
        let role = match self.is_of_domain(email) {
            true => self.role(claims.additional_claims()).ok_or("no group of theirs has a role"),
            false => Err("their address is of no domain that may sign in, or not verified"),
        };
        let named = claims.preferred_username().map(|name| name.as_str());
        let title = email.or(named).unwrap_or_default();
        let shown = title.chars().filter(|c| !c.is_control()).take(TITLE_MAX).collect();
        let subject = format!("{} {}", self.settings.issuer, claims.subject().as_str());
        Ok(SignedIn { subject, title: shown, role })
    }

    fn is_of_domain(&self, email: Option<&str>) -> bool {
        let domain = email.and_then(|email| email.rsplit_once('@')).map(|(_, domain)| domain);
        let allowed = &self.settings.domains;
        allowed.is_empty()
            || domain.is_some_and(|it| allowed.iter().any(|one| one.eq_ignore_ascii_case(it)))
    }

    fn role(&self, claims: &Extra) -> Option<Role> {
        let groups = claims.words(&self.settings.groups_claim);
        groups.iter().filter_map(|group| self.settings.roles.get(*group)).max().copied()
    }
}

const SIGN_IN_MS: i64 = 600_000;
const AT_ONCE: usize = 32;
const TITLE_MAX: usize = 100;
