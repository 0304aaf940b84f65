//! Records: rows that only the controller writes, each with a seal: JSON, with some fields repeated
//! as columns for searches and unique keys. If columns or seal do not match, it is not ours.

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::sql::values;
use super::{Result, StoreError};
use crate::keys::StoreKeys;
use crate::model::{Column, Record};

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

impl Filter {
    pub(super) fn statement<R: Record>(&self, tenant: &str) -> (String, Vec<Column>) {
        let mut sql = format!("{} WHERE tenant = $1 AND id > $2", select::<R>());
        let mut values = values![tenant, &self.after];
        for (column, value) in &self.equal {
            values.push(value.into());
            sql += &format!(" AND {column} = ${}", values.len());
        }
        if let Some((column, word)) = &self.word {
            values.push(format!("%,{},%", word.replace(['%', '_', '\\', ','], "")).into());
            sql += &format!(" AND {column} LIKE ${}", values.len());
        }
        sql += &format!(" ORDER BY id LIMIT {}", self.limit + 1);
        (sql, values)
    }
}

impl<R: Record> Page<Stored<R>> {
    /// A page of `limit` records; a further row shows that there is a next one.
    pub(super) fn of(keys: &StoreKeys, rows: &[AnyRow], limit: u32) -> Result<Self> {
        let more = rows.len() > limit as usize;
        let items = rows.iter().take(limit as usize).map(|row| read(keys, row));
        let items: Vec<Stored<R>> = items.collect::<Result<_, _>>()?;
        let next = items.last().filter(|_| more).map(|last| last.record.id().to_owned());
        Ok(Self { items, next })
    }
}

/// The records of `rows`; altered rows are logged and skipped.
pub(super) fn unaltered<R: Record>(keys: &StoreKeys, rows: &[AnyRow]) -> Result<Vec<Stored<R>>> {
    let whole = rows.iter().map(|row| read(keys, row));
    whole.filter(|it| !matches!(it, Err(StoreError::Altered { .. }))).collect()
}

pub(super) fn read_found<R: Record>(
    keys: &StoreKeys,
    row: Option<AnyRow>,
    id: &str,
) -> Result<Stored<R>> {
    let absent = || StoreError::NotFound { kind: R::KIND, id: id.to_owned() };
    read(keys, &row.ok_or_else(absent)?)
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
