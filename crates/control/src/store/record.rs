//! Records: rows that only the controller writes, each with a seal: JSON, with some fields repeated
//! as columns for searches and unique keys. If columns or seal do not match, it is not ours.

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row as _};

use super::sql::{query, values};
use super::{Result, Store, StoreError};
use crate::keys::StoreKeys;
use crate::model::{Column, Record, Tenant};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<R> {
    pub tenant: String,
    /// The number of writes; its ETag.
    pub version: i64,
    pub changed_ms: i64,
    pub record: R,
}

#[derive(Clone, Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The name after which the next page begins; `None` at the end.
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Columns and their required values.
    pub equal: Vec<(&'static str, String)>,
    /// A column of comma-separated words, and a required word.
    pub word: Option<(&'static str, String)>,
    pub after: String,
    pub limit: u32,
}

impl Store {
    /// [`StoreError::Altered`] for a row that the controller did not write.
    pub async fn get<R: Record>(&self, tenant: &str, id: &str) -> Result<Stored<R>> {
        get(&self.keys, &mut *self.reader().await?, tenant, id).await
    }

    /// The record of any tenant with this value of a unique `column`; errors as of [`Store::get`].
    pub async fn find<R: Record>(&self, column: &'static str, value: &str) -> Result<Stored<R>> {
        find(&self.keys, &mut *self.reader().await?, column, value).await
    }

    pub async fn list<R: Record>(&self, tenant: &str, filter: &Filter) -> Result<Page<Stored<R>>> {
        let mut sql = format!("{} WHERE tenant = $1 AND id > $2", select::<R>());
        let mut values = values![tenant, &filter.after];
        for (column, value) in &filter.equal {
            values.push(value.into());
            sql += &format!(" AND {column} = ${}", values.len());
        }
        if let Some((column, word)) = &filter.word {
            values.push(format!("%,{},%", word.replace(['%', '_', '\\', ','], "")).into());
            sql += &format!(" AND {column} LIKE ${}", values.len());
        }
        sql += &format!(" ORDER BY id LIMIT {}", filter.limit + 1);
        let rows = self.rows(AssertSqlSafe(sql), values).await?;
        self.page(&rows, filter.limit)
    }

    pub(super) fn page<R: Record>(&self, rows: &[AnyRow], limit: u32) -> Result<Page<Stored<R>>> {
        let more = rows.len() > limit as usize;
        let items = rows.iter().take(limit as usize).map(|row| read(&self.keys, row));
        let items: Vec<Stored<R>> = items.collect::<Result<_, _>>()?;
        let next = items.last().filter(|_| more).map(|last| last.record.id().to_owned());
        Ok(Page { items, next })
    }

    pub async fn tenants(&self, after: &str, limit: u32) -> Result<Page<Stored<Tenant>>> {
        let sql =
            format!("{} WHERE tenant > $1 ORDER BY tenant LIMIT {}", select::<Tenant>(), limit + 1);
        self.page(&self.rows(AssertSqlSafe(sql), values![after]).await?, limit)
    }

    /// At most `limit` records of all tenants; altered rows are logged and skipped.
    pub async fn all<R: Record>(&self, limit: u32) -> Result<Vec<Stored<R>>> {
        let sql = format!("{} ORDER BY tenant, id LIMIT {limit}", select::<R>());
        let rows = self.rows(AssertSqlSafe(sql), vec![]).await?;
        let whole = rows.iter().filter_map(|row| match read(&self.keys, row) {
            Err(StoreError::Altered { .. }) => None,
            other => Some(other),
        });
        whole.collect()
    }
}

pub(super) async fn get<'c, R: Record>(
    keys: &StoreKeys,
    executor: impl Executor<'c, Database = Any>,
    tenant: &str,
    id: &str,
) -> Result<Stored<R>> {
    let sql = format!("{} WHERE tenant = $1 AND id = $2", select::<R>());
    let query = query(AssertSqlSafe(sql), values![tenant, id]);
    match query.fetch_optional(executor).await? {
        Some(row) => read(keys, &row),
        None => Err(not_found::<R>(id)),
    }
}

pub(super) async fn find<'c, R: Record>(
    keys: &StoreKeys,
    executor: impl Executor<'c, Database = Any>,
    column: &'static str,
    value: &str,
) -> Result<Stored<R>> {
    let sql = format!("{} WHERE {column} = $1", select::<R>());
    let row = query(AssertSqlSafe(sql), values![value]).fetch_optional(executor).await?;
    row.map_or_else(|| Err(not_found::<R>("")), |row| read(keys, &row))
}

pub(super) fn not_found<R: Record>(id: &str) -> StoreError {
    StoreError::NotFound { kind: R::KIND, id: id.to_owned() }
}

pub(super) fn select<R: Record>() -> String {
    let columns: String = R::COLUMNS.iter().map(|column| format!(", {column}")).collect();
    format!("SELECT tenant, id, version, changed_ms, body, seal{columns} FROM {}", R::TABLE)
}

pub(super) fn read<R: Record>(keys: &StoreKeys, row: &AnyRow) -> Result<Stored<R>> {
    let tenant: String = row.try_get("tenant")?;
    let id: String = row.try_get("id")?;
    let version: i64 = row.try_get("version")?;
    let changed_ms: i64 = row.try_get("changed_ms")?;
    let body: String = row.try_get("body")?;
    let seal: String = row.try_get("seal")?;
    let of = (&*tenant, &*id, version, changed_ms);
    let whole = with_parts::<R, _>(of, &body, |parts| keys.is_sealed(parts, &seal));
    let record = whole.then(|| serde_json::from_str::<R>(&body).ok()).flatten();
    match record {
        Some(record) if record.id() == id && has_columns(&record, row)? => {
            Ok(Stored { tenant, version, changed_ms, record })
        }
        _ => {
            tracing::error!(
                table = R::TABLE,
                tenant,
                id,
                "a row was altered outside the controller"
            );
            Err(StoreError::Altered { table: R::TABLE, id })
        }
    }
}

fn has_columns<R: Record>(record: &R, row: &AnyRow) -> Result<bool, sqlx::Error> {
    for (name, expected) in R::COLUMNS.iter().zip(record.columns()) {
        let same = match expected {
            Column::Text(text) => row.try_get::<Option<String>, _>(*name)? == text,
            Column::Number(number) => row.try_get::<Option<i64>, _>(*name)? == number,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn with_parts<R: Record, T>(
    (tenant, id, version, changed_ms): (&str, &str, i64, i64),
    body: &str,
    act: impl FnOnce(&[&str]) -> T,
) -> T {
    act(&[R::TABLE, tenant, id, &version.to_string(), &changed_ms.to_string(), body])
}
