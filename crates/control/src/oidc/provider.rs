//! An issuer: its cached metadata and keys, the two steps of a sign-in, and the role of its groups.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreAuthenticationFlow, CoreErrorResponseType,
    CoreGenderClaim, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm,
    CoreProviderMetadata, CoreRevocableToken, CoreRevocationErrorResponse,
    CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AdditionalClaims, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken,
    EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet, EndpointSet, IdTokenClaims,
    IdTokenFields, IssuerUrl, Nonce, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    RequestTokenError, Scope, StandardErrorResponse, StandardTokenResponse, TokenResponse as _,
};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};

use super::{Http, LOOPBACK, OidcError, Pending, Settings, SignedIn};
use crate::clock::now_ms;
use crate::keys;
use crate::model::Role;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Extra(BTreeMap<String, Value>);

impl AdditionalClaims for Extra {}

impl Extra {
    fn words(&self, claim: &str) -> Vec<&str> {
        match self.0.get(claim) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

type Claims = IdTokenClaims<Extra, CoreGenderClaim>;
type Fields = IdTokenFields<
    Extra,
    EmptyExtraTokenFields,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm,
>;
type Tokens = StandardTokenResponse<Fields, CoreTokenType>;
type Known = Client<
    Extra,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    Tokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

type Found = Result<Arc<Known>, String>;

fn redirect_url(text: String) -> Result<RedirectUrl, OidcError> {
    RedirectUrl::new(text).map_err(|error| OidcError::Issuer(error.to_string()))
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_LENGTH_MAX).collect()
}

fn now() -> chrono::DateTime<chrono::Utc> {
    let now = chrono::DateTime::from_timestamp_millis(crate::clock::now_ms());
    now.unwrap_or(chrono::DateTime::UNIX_EPOCH)
}

/// Asymmetric signatures only: the client secret must not sign.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];
const SKEW: chrono::TimeDelta = chrono::TimeDelta::seconds(60);
const TOKEN_AGE_MAX: chrono::TimeDelta = chrono::TimeDelta::minutes(10);
const METADATA_AGE_MAX: Duration = Duration::from_secs(600);
const KEYS_REST: Duration = Duration::from_secs(1);
const AWAY_REST: Duration = Duration::from_secs(3);
const ERROR_LENGTH_MAX: usize = 300;

/// An https issuer names https URLs only: a plain one could be a local service.
fn check_addresses(issuer: &str, metadata: &CoreProviderMetadata) -> Result<(), String> {
    let mut all = vec![metadata.authorization_endpoint().as_str(), metadata.jwks_uri().as_str()];
    all.extend(metadata.token_endpoint().map(|it| it.as_str()));
    let is_tls = |address: &str| address.starts_with("https://");
    match all.into_iter().find(|it| is_tls(issuer) && !is_tls(it)) {
        Some(address) => Err(format!("its metadata has {address}, which is not https")),
        None => Ok(()),
    }
}

pub struct Oidc {
    settings: Settings,
    http: Http,
    known: Mutex<Option<(Instant, Found)>>,
    permits: Semaphore,
}

impl Oidc {
    /// The issuer of a controller in `folder` whose own address is `address`.
    pub fn open(settings: &Settings, folder: &Path, address: &str) -> Result<Self> {
        let secret = match &settings.client_secret_file {
            Some(path) => Some(secret::read(&folder.join(path))?.trim().to_owned()),
            None => settings.client_secret.clone(),
        };
        let read = |path: &PathBuf| {
            let path = folder.join(path);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let authorities = settings.authorities.as_ref().map(read).transpose()?;
        let http = Http::new(authorities.as_deref())
            .map_err(|why| BadInput::new(format!("oidc.authorities: {why}")))?;
        let base = settings.url.clone().unwrap_or_else(|| format!("https://{address}"));
        let settings = Settings { client_secret: secret, url: Some(base), ..settings.clone() };
        Ok(Self::new(settings, http))
    }

    pub fn new(settings: Settings, http: Http) -> Self {
        Self { settings, http, known: Mutex::default(), permits: Semaphore::new(AT_ONCE) }
    }

    pub fn tenant(&self) -> &str {
        &self.settings.tenant
    }

    pub fn vouches_for(&self, tenant: &str, subject: &str) -> bool {
        let rest = subject.strip_prefix(&self.settings.issuer);
        tenant == self.settings.tenant && rest.is_some_and(|rest| rest.starts_with(' '))
    }

    /// The redirect leads to the controller, or to the port `loopback` of the person's own machine.
    pub async fn begin(&self, loopback: Option<u16>) -> Result<(String, Pending), OidcError> {
        let _permit = self.permits.try_acquire().map_err(|_| OidcError::Busy)?;
        let redirect = match loopback {
            Some(port) => format!("{LOOPBACK}{port}/callback"),
            None => {
                let url = self.settings.url.as_deref().unwrap_or_default();
                format!("{url}/api/v1/sessions/oidc/callback")
            }
        };
        let known = self.known(METADATA_AGE_MAX).await?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (state, nonce) = (keys::secret(), keys::secret());
        let (csrf, once) = (CsrfToken::new(state.clone()), Nonce::new(nonce.clone()));
        let flow = CoreAuthenticationFlow::AuthorizationCode;
        let mut request = known
            .authorize_url(flow, || csrf, || once)
            .set_pkce_challenge(challenge)
            .set_redirect_uri(Cow::Owned(redirect_url(redirect.clone())?));
        if loopback.is_some() {
            // A program may be another person's: the issuer has to ask (RFC 8252 section 8.6).
            request = request.add_prompt(CoreAuthPrompt::Login);
        }
        for scope in &self.settings.scopes {
            request = request.add_scope(Scope::new(scope.clone()));
        }
        let (url, _, _) = request.url();
        let (verifier, until_ms) = (verifier.into_secret(), now_ms() + SIGN_IN_MS);
        Ok((url.to_string(), Pending { state, nonce, verifier, redirect, until_ms }))
    }

    pub async fn finish(&self, pending: Pending, code: &str) -> Result<SignedIn, OidcError> {
        let _permit = self.permits.try_acquire().map_err(|_| OidcError::Busy)?;
        let Pending { nonce, verifier, redirect, .. } = pending;
        let verifier = PkceCodeVerifier::new(verifier);
        let tokens = self.redeem(code, verifier, redirect).await?;
        let claims = self.claims(&tokens, &Nonce::new(nonce)).await?;
        let is_verified = claims.email_verified() == Some(true);
        let email = claims.email().map(|email| email.as_str()).filter(|_| is_verified);
        let role = match self.is_of_domain(email) {
            true => self.role(claims.additional_claims()).ok_or("no group of the user has a role"),
            false => Err("the e-mail address is not verified, or its domain may not sign in"),
        };
        let named = claims.preferred_username().map(|name| name.as_str());
        let title = email.or(named).unwrap_or_default();
        let shown = title.chars().filter(|c| !c.is_control()).take(TITLE_MAX).collect();
        let subject = format!("{} {}", self.settings.issuer, claims.subject().as_str());
        Ok(SignedIn { subject, title: shown, role })
    }

    /// Metadata of at most this age; concurrent callers wait for one request.
    async fn known(&self, age_max: Duration) -> Result<Arc<Known>, OidcError> {
        let mut known = self.known.lock().await;
        if let Some((at, found)) = &*known {
            let age_max = if found.is_ok() { age_max } else { age_max.min(AWAY_REST) };
            if at.elapsed() < age_max {
                return found.clone().map_err(OidcError::Issuer);
            }
        }
        let found = self.discover().await;
        *known = Some((Instant::now(), found.clone()));
        found.map_err(OidcError::Issuer)
    }

    async fn discover(&self) -> Found {
        let issuer =
            IssuerUrl::new(self.settings.issuer.clone()).map_err(|error| error.to_string())?;
        let metadata = CoreProviderMetadata::discover_async(issuer, &self.http).await;
        let metadata = metadata.map_err(|error| error_chain(&error))?;
        check_addresses(&self.settings.issuer, &metadata)?;
        let secret = self.settings.client_secret.clone().map(ClientSecret::new);
        let client_id = ClientId::new(self.settings.client_id.clone());
        Ok(Arc::new(Known::from_provider_metadata(metadata, client_id, secret)))
    }

    async fn redeem(
        &self,
        code: &str,
        verifier: PkceCodeVerifier,
        redirect: String,
    ) -> Result<Tokens, OidcError> {
        let known = self.known(METADATA_AGE_MAX).await?;
        let request = known
            .exchange_code(AuthorizationCode::new(code.to_owned()))
            .map_err(|error| OidcError::Issuer(error_chain(&error)))?
            .set_pkce_verifier(verifier)
            .set_redirect_uri(Cow::Owned(redirect_url(redirect)?));
        request.request_async(&self.http).await.map_err(|error| match &error {
            RequestTokenError::ServerResponse(_) => OidcError::Code(error_chain(&error)),
            RequestTokenError::Parse(..) => OidcError::Token(error_chain(&error)),
            _ => OidcError::Issuer(error_chain(&error)),
        })
    }

    async fn claims(&self, tokens: &Tokens, nonce: &Nonce) -> Result<Claims, OidcError> {
        let token = tokens.id_token();
        let token = token.ok_or_else(|| OidcError::Token("there is no ID token".to_owned()))?;
        let mut age_max = METADATA_AGE_MAX;
        loop {
            let known = self.known(age_max).await?;
            let verifier = known
                .id_token_verifier()
                .set_allowed_algs(ALGORITHMS)
                .set_time_fn(|| now() - SKEW)
                .set_issue_time_verifier_fn(|at| {
                    let age = now() - at;
                    match (-SKEW..=TOKEN_AGE_MAX).contains(&age) {
                        true => Ok(()),
                        false => Err("it was issued at another time".to_owned()),
                    }
                });
            match token.claims(&verifier, nonce) {
                Ok(claims) => return Ok(claims.clone()),
                // The issuer may have rotated its keys.
                Err(openidconnect::ClaimsVerificationError::SignatureVerification(_))
                    if age_max == METADATA_AGE_MAX =>
                {
                    age_max = KEYS_REST;
                }
                Err(error) => return Err(OidcError::Token(error_chain(&error))),
            }
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_issuer_with_tls_cannot_name_plain_urls() {
        let check = |issuer: &str, field: &str, address: &str| {
            let mut description = json!({
                "issuer": issuer,
                "authorization_endpoint": "https://issuer.test/a",
                "token_endpoint": "https://other.test/t",
                "jwks_uri": "https://issuer.test/k",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["EdDSA"],
            });
            description[field] = json!(address);
            check_addresses(issuer, &serde_json::from_value(description).unwrap())
        };
        for field in ["authorization_endpoint", "token_endpoint", "jwks_uri"] {
            check("https://issuer.test", field, "https://elsewhere.test/x").unwrap();
            check("http://127.0.0.1:5556", field, "http://127.0.0.1:5556/x").unwrap();
            let error = check("https://issuer.test", field, "http://127.0.0.1:9200/x").unwrap_err();
            assert!(error.contains("9200") && error.contains("not https"), "{error}");
        }
    }
}
