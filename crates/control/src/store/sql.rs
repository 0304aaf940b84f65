//! Statements and their parameters.

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _, SqlSafeStr};

use super::{Change, Store, StoreError};
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

/// Functions that read with the connection of `$self`.
macro_rules! reads {
    ($self:ident: $this:ty, $connection:expr) => {
        pub(super) async fn rows(
            $self: $this,
            sql: impl SqlSafeStr,
            values: Vec<Column>,
        ) -> Result<Vec<AnyRow>, StoreError> {
            Ok(query(sql, values).fetch_all(&mut *$connection).await?)
        }

        pub(super) async fn row(
            $self: $this,
            sql: impl SqlSafeStr,
            values: Vec<Column>,
        ) -> Result<Option<AnyRow>, StoreError> {
            Ok(query(sql, values).fetch_optional(&mut *$connection).await?)
        }

        pub(super) async fn scalar(
            $self: $this,
            sql: impl SqlSafeStr,
            values: Vec<Column>,
        ) -> Result<i64, StoreError> {
            Ok(query(sql, values).fetch_one(&mut *$connection).await?.try_get(0)?)
        }
    };
}

impl Store {
    reads!(self: &Self, self.reader().await?);
}

impl Change<'_> {
    reads!(self: &mut Self, self.transaction);

    pub(super) async fn execute(
        &mut self,
        sql: impl SqlSafeStr,
        values: Vec<Column>,
    ) -> Result<u64, StoreError> {
        Ok(query(sql, values).execute(&mut *self.transaction).await?.rows_affected())
    }
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
