//! Statements that run on the store's connections, or within a change.

use sqlx::any::AnyRow;
use sqlx::{Row as _, SqlSafeStr};

use super::sql::query;
use super::{Change, Store, StoreError};
use crate::model::Column;

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
