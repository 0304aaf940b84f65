//! The records of a fleet, as the database stores and the interface shows them. Each record has
//! `settings`, which people write, and fields that the controller maintains.

/// Makes types records: table and kind, secret field, public key, and columns.
macro_rules! records {
    ($($type:ident: $table:literal, $kind:literal $(, secret $secret:literal)?
        $(, key |$of:ident| $key:expr)? => |$it:ident| [$($column:literal: $value:expr),*];)*) => {$(
        impl crate::model::Record for $type {
            const TABLE: &'static str = $table;
            const KIND: &'static str = $kind;
            const COLUMNS: &'static [&'static str] = &[$($column),*];
            $(const SECRET: &'static str = $secret;)?

            fn id(&self) -> &str {
                &self.id
            }

            $(fn public_key(&self) -> Option<&str> {
                let $of = self;
                Some(&$key)
            })?

            fn columns(&self) -> Vec<crate::model::Column> {
                let $it = self;
                vec![$(crate::model::Column::from($value)),*]
            }
        }
    )*};
}

mod delegate;
mod people;
mod record;
mod records;

use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

pub use delegate::{Delegate, DelegateState};
pub use people::{ApiKey, ApiKeySettings, Login, Person, PersonSettings, Role};
pub use record::{Column, Record};
pub use roadweave_fleet::records::{
    Config, ConfigSettings, Device, DeviceSettings, DeviceState, Pool, PoolSettings, Proxy,
    ProxyRole, ProxySettings, ProxyState, Rollout, RolloutSettings, RolloutState, Scope, Tenant,
    TenantSettings, Token, TokenRole, TokenSettings,
};

pub trait Settings: DeserializeOwned + ToSchema + Send + 'static {
    /// An error names the field and says what is allowed.
    fn validate(&self) -> Result<(), String>;
}

/// Checks an identifier, which is part of URLs, tags and command lines.
pub fn slug(text: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let framed = !text.starts_with('-') && !text.ends_with('-');
    if framed && (1..=63).contains(&text.len()) && text.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "\"{}\" is not a name: write 1 to 63 of a-z, 0-9 and \"-\", such as bus-17",
        text.chars().take(80).collect::<String>().escape_debug()
    ))
}

fn tags(tags: &[String]) -> Result<(), String> {
    if tags.len() > TAGS_MAX {
        return Err(format!("tags: at most {TAGS_MAX}"));
    }
    tags.iter().try_for_each(|tag| slug(tag).map_err(|why| format!("tags: {why}")))
}

fn title(field: &str, text: &str) -> Result<(), String> {
    if text.chars().count() > TITLE_MAX || text.chars().any(char::is_control) {
        return Err(format!("{field}: at most {TITLE_MAX} characters on one line"));
    }
    Ok(())
}

/// The name of a variant in the database, which is that in JSON.
pub(crate) fn word(variant: &impl Serialize) -> String {
    let name = serde_json::to_value(variant).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

fn at_most(field: &str, number: Option<u32>, most: u32) -> Result<(), String> {
    match number.is_some_and(|number| number > most) {
        true => Err(format!("{field}: at most {most}")),
        false => Ok(()),
    }
}

pub fn public_key(text: &str) -> Result<(), String> {
    let key: Result<roadweave_identity::PublicKey, _> = text.parse();
    key.map(drop).map_err(|error| format!("public_key: {error}"))
}

const SPAN_MAX: u32 = 315_360_000;
const MILLION: u32 = 1_000_000;
const TAGS_MAX: usize = 16;
const TITLE_MAX: usize = 200;
