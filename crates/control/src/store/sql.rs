//! Statements and their parameters, on the store's connections or within a change.

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

/// A function that reads a row into a struct whose fields are named like its columns. Others are
/// converted from the column by a function.
macro_rules! reader {
    ($name:ident, $type:ident: $($field:ident),*
     $(; $($other:ident: $convert:ident($column:literal)),*)?) => {
        fn $name(row: &sqlx::any::AnyRow) -> crate::store::Result<$type> {
            Ok($type {
                $($field: row.try_get(stringify!($field))?,)*
                $($($other: $convert(row.try_get($column)?),)*)?
            })
        }
    };
}
pub(super) use reader;

/// Methods that read with the connection of `$self`.
macro_rules! reads {
    ($self:ident: $this:ty, $connection:expr, $keys:expr) => {
        pub(in crate::store) async fn rows(
            $self: $this,
            sql: impl sqlx::SqlSafeStr,
            values: Vec<crate::model::Column>,
        ) -> Result<Vec<sqlx::any::AnyRow>> {
            Ok(crate::store::sql::query(sql, values).fetch_all(&mut *$connection).await?)
        }

        pub(in crate::store) async fn row(
            $self: $this,
            sql: impl sqlx::SqlSafeStr,
            values: Vec<crate::model::Column>,
        ) -> Result<Option<sqlx::any::AnyRow>> {
            Ok(crate::store::sql::query(sql, values).fetch_optional(&mut *$connection).await?)
        }

        pub(in crate::store) async fn scalar(
            $self: $this,
            sql: impl sqlx::SqlSafeStr,
            values: Vec<crate::model::Column>,
        ) -> Result<i64> {
            let row = crate::store::sql::query(sql, values).fetch_one(&mut *$connection).await?;
            Ok(sqlx::Row::try_get(&row, 0)?)
        }

        /// [`StoreError::Altered`] for a row that the controller did not write.
        pub async fn get<R: Record>($self: $this, tenant: &str, id: &str) -> Result<Stored<R>> {
            let sql = format!("{} WHERE tenant = $1 AND id = $2", record::select::<R>());
            let row = $self.row(AssertSqlSafe(sql), values![tenant, id]).await?;
            record::read_found(&$keys, row, id)
        }

        /// The record of any tenant with this value of a unique `column`; errors as of `get`.
        pub async fn find<R: Record>(
            $self: $this,
            column: &'static str,
            is: &str,
        ) -> Result<Stored<R>> {
            let sql = format!("{} WHERE {column} = $1", record::select::<R>());
            let row = $self.row(AssertSqlSafe(sql), values![is]).await?;
            record::read_found(&$keys, row, "")
        }
    };
}
pub(super) use reads;
