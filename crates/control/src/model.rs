//! What a fleet consists of, as the database keeps it and the interface shows it.
//!
//! Each record has `settings`, which people write, beside what the controller itself has to say.

mod config;
mod delegate;
mod device;
mod people;
mod proxy;
mod tenant;

use serde::de::DeserializeOwned;
use utoipa::ToSchema;

pub use config::{Config, ConfigSettings, Rollout, RolloutSettings, RolloutState, Scope};
pub use delegate::{Delegate, DelegateState};
pub use device::{Device, DeviceSettings, DeviceState, Token, TokenRole, TokenSettings};
pub use people::{ApiKey, ApiKeySettings, Login, Person, PersonSettings, Role};
pub use proxy::{Pool, PoolSettings, Proxy, ProxyRole, ProxySettings, ProxyState};
pub use tenant::{Egress, Limits, Lock, Tenant, TenantSettings};

/// What people write of a record.
pub trait Settings: DeserializeOwned + ToSchema + Send + 'static {
    /// Checks what the types of single fields cannot.
    ///
    /// # Errors
    /// Names the field and says what would be right.
    fn validate(&self) -> Result<(), String>;
}

/// Checks an identifier: what stands in addresses, tags and command lines.
///
/// # Errors
/// Says what it must look like.
pub fn slug(text: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let framed = !text.starts_with('-') && !text.ends_with('-');
    if framed && (1..=63).contains(&text.len()) && text.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "\"{}\" is no name: write 1 to 63 of a-z, 0-9 and \"-\", as bus-17",
        text.chars().take(80).collect::<String>().escape_debug()
    ))
}

/// Checks a list of tags.
fn tags(tags: &[String]) -> Result<(), String> {
    if tags.len() > TAGS_MAX {
        return Err(format!("tags: at most {TAGS_MAX}"));
    }
    tags.iter().try_for_each(|tag| slug(tag).map_err(|why| format!("tags: {why}")))
}

/// Checks a text for people.
fn title(field: &str, text: &str) -> Result<(), String> {
    if text.chars().count() > TITLE_MAX || text.chars().any(char::is_control) {
        return Err(format!("{field}: at most {TITLE_MAX} characters on one line"));
    }
    Ok(())
}

/// Checks a number, which may be absent.
fn at_most(field: &str, number: Option<u32>, most: u32) -> Result<(), String> {
    match number.is_some_and(|number| number > most) {
        true => Err(format!("{field}: at most {most}")),
        false => Ok(()),
    }
}

/// Checks a public key.
///
/// # Errors
/// Says what it must look like.
pub fn public_key(text: &str) -> Result<(), String> {
    let key: Result<roadweave_identity::PublicKey, _> = text.parse();
    key.map(drop).map_err(|error| format!("public_key: {error}"))
}

/// Ten years in seconds: longer than anything here is good.
const SPAN_MAX: u32 = 315_360_000;
/// Megabits per second, and boxes of a proxy.
const MILLION: u32 = 1_000_000;
const TAGS_MAX: usize = 16;
const TITLE_MAX: usize = 200;
