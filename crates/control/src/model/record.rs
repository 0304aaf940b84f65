//! What makes a type a record: the name of its table, and its columns.

use serde::Serialize;
use serde::de::DeserializeOwned;

pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    const TABLE: &'static str;
    const KIND: &'static str;
    const COLUMNS: &'static [&'static str];
    const SECRET: &'static str = "";

    /// The name, unique within the tenant.
    fn id(&self) -> &str;

    fn columns(&self) -> Vec<Column>;

    fn public_key(&self) -> Option<&str> {
        None
    }

    /// The record without secrets, for the audit log and the interface.
    fn shown(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove(Self::SECRET);
        }
        value
    }
}

/// A value of a column, or of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    Text(Option<String>),
    Number(Option<i64>),
}

impl<T: AsRef<str> + ?Sized> From<&T> for Column {
    fn from(text: &T) -> Self {
        Self::Text(Some(text.as_ref().to_owned()))
    }
}

impl From<String> for Column {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<String>> for Column {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Column {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<i64>> for Column {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}
