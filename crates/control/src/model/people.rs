//! Who asks for a tenant: people, programs, and links that expire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Settings, slug, title};

/// A role; each role includes the rights of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Viewer,
    /// Ask a vehicle for closer figures while looking.
    Crew,
    /// Enrol, configure, drain, revoke.
    Operator,
    /// Say who may do what, and read the audit log.
    Owner,
}

/// A person: with a password, or signed in by an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Person {
    /// The name to log in by.
    pub id: String,
    /// What people write.
    pub settings: PersonSettings,
    /// The password's hash (argon2id); never in an answer.
    #[serde(default)]
    #[schema(ignore)]
    pub password: String,
    /// The subject at the issuer, if the person signs in there: the issuer then decides the role.
    pub subject: Option<String>,
}

/// What people write of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonSettings {
    /// How the person is called.
    #[serde(default)]
    pub title: String,
    /// What the person may do.
    pub role: Role,
}

/// A key for a program, or a link for a person without an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    /// Its name.
    pub id: String,
    /// The hash of the secret; never in an answer.
    #[schema(ignore)]
    pub hash: String,
    /// What people write.
    pub settings: ApiKeySettings,
}

/// What people write of an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeySettings {
    /// The purpose of the key, as text.
    #[serde(default)]
    pub title: String,
    /// What the bearer of the key may do.
    pub role: Role,
    /// Until when it is good, milliseconds since 1970; for ever, if absent.
    pub expires_ms: Option<i64>,
    /// The one box that it is for; only with the roles viewer and crew.
    pub device: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    pub id: String,
    pub hash: String,
    pub person: String,
    pub expires_ms: i64,
}

records! {
    Person: "person", "user", secret "password" => |_it| [];
    ApiKey: "api_key", "API key", secret "hash" => |it| ["hash": &it.hash];
    Login: "login", "session", secret "hash"
        => |it| ["hash": &it.hash, "person": &it.person, "expires_ms": it.expires_ms];
}

impl Settings for PersonSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)
    }
}

impl Settings for ApiKeySettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if let Some(device) = &self.device {
            slug(device).map_err(|why| format!("device: {why}"))?;
            if self.role > Role::Crew {
                return Err(
                    "device: a key for one box must have the role viewer or crew".to_owned()
                );
            }
        }
        Ok(())
    }
}
