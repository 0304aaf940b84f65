//! Statements and their parameters.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, SqlSafeStr};

use crate::model::Column;

macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$(crate::model::Column::from($value)),*] };
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
