//! Statements and their parameters.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, SqlSafeStr};

/// A value of a column, or of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A text, or none.
    Text(Option<String>),
    /// A number, or none.
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

macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$(crate::store::sql::Column::from($value)),*] };
}
pub(super) use values;

pub(super) fn query(
    sql: impl SqlSafeStr,
    values: Vec<Column>,
) -> Query<'static, Any, AnyArguments> {
    let mut query: Query<'static, Any, AnyArguments> = sqlx::query(sql);
    for value in values {
        query = match value {
            Column::Text(text) => query.bind(text),
            Column::Number(number) => query.bind(number),
        };
    }
    query
}

/// A function that reads a row into a struct whose fields are named like its columns.
macro_rules! reader {
    ($name:ident, $type:ident: $($field:ident),*) => {
        fn $name(row: &sqlx::any::AnyRow) -> Result<$type, StoreError> {
            Ok($type { $($field: row.try_get(stringify!($field))?),* })
        }
    };
}
pub(super) use reader;
