//! Records: rows that the controller alone writes, each with a seal.
//!
//! A record lies in its row as JSON. Columns beside it repeat what is searched for or must be
//! unique; a row whose columns or seal do not fit the JSON was written by somebody else.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row as _};

use super::{Store, StoreError};
use crate::keys::StoreKeys;

/// What can be kept in a table of its own.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The table.
    const TABLE: &'static str;
    /// What people call one of them.
    const KIND: &'static str;
    /// The columns beside those that every table has.
    const COLUMNS: &'static [&'static str] = &[];

    /// Its name, unique within its tenant.
    fn id(&self) -> &str;

    /// The values of [`Record::COLUMNS`].
    fn columns(&self) -> Vec<Column> {
        Vec::new()
    }

    /// The public key that it is about, which stands in no other record of any kind or tenant.
    fn public_key(&self) -> Option<&str> {
        None
    }

    /// What of it may be told: to the audit log and over the interface.
    fn shown(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A text.
    Text(String),
    /// A text that may be absent.
    Optional(Option<String>),
    /// A number.
    Number(i64),
}

impl Column {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<R> {
    /// The tenant that the record belongs to.
    pub tenant: String,
    /// How often it was written; its ETag.
    pub version: i64,
    /// When the record was written last, milliseconds since 1970.
    pub changed_ms: i64,
    /// The record itself.
    pub record: R,
}

/// Some of the records, in the order of their names.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The records.
    pub items: Vec<T>,
    /// After which name the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// Which records a list is of.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Columns and the values that they must have.
    pub equal: Vec<(&'static str, String)>,
    /// A column of words between commas, and the word that must be among them.
    pub word: Option<(&'static str, String)>,
    /// Only names after this one.
    pub after: String,
    /// At most so many.
    pub limit: u32,
}

impl Store {
    /// The record of this name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and [`StoreError::Altered`] of one that the controller did not
    /// write.
    pub async fn get<R: Record>(&self, tenant: &str, id: &str) -> Result<Stored<R>, StoreError> {
        get(&self.keys, &mut *self.reader().await?, tenant, id).await
    }

    /// The one record of all tenants whose `column`, which is unique, has this value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn find<R: Record>(
        &self,
        column: &'static str,
        value: &str,
    ) -> Result<Stored<R>, StoreError> {
        find(&self.keys, &mut *self.reader().await?, column, value).await
    }

    /// The records of a tenant that pass the filter.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn list<R: Record>(
        &self,
        tenant: &str,
        filter: &Filter,
    ) -> Result<Page<Stored<R>>, StoreError> {
        let mut sql = format!("{} WHERE tenant = $1 AND id > $2", select::<R>());
        let mut values = vec![tenant.to_owned(), filter.after.clone()];
        for (column, value) in &filter.equal {
            values.push(value.clone());
            sql += &format!(" AND {column} = ${}", values.len());
        }
        if let Some((column, word)) = &filter.word {
            values.push(format!("%,{},%", word.replace(['%', '_', '\\', ','], "")));
            sql += &format!(" AND {column} LIKE ${}", values.len());
        }
        sql += &format!(" ORDER BY id LIMIT {}", filter.limit + 1);
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for value in values {
            query = query.bind(value);
        }
        let rows = query.fetch_all(&mut *self.reader().await?).await?;
        let more = rows.len() > filter.limit as usize;
        let items = rows.iter().take(filter.limit as usize).map(|row| read(&self.keys, row));
        let items: Vec<Stored<R>> = items.collect::<Result<_, _>>()?;
        let next = items.last().filter(|_| more).map(|last| last.record.id().to_owned());
        Ok(Page { items, next })
    }

    /// All records of a kind, of all tenants, for those who serve all: at most `limit`.
    ///
    /// # Errors
    /// As [`Store::get`], but a row that was altered is left out and told.
    pub async fn all<R: Record>(&self, limit: u32) -> Result<Vec<Stored<R>>, StoreError> {
        let sql = format!("{} ORDER BY tenant, id LIMIT {limit}", select::<R>());
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut *self.reader().await?).await?;
        let whole = rows.iter().filter_map(|row| match read(&self.keys, row) {
            Err(StoreError::Altered { .. }) => None,
            other => Some(other),
        });
        whole.collect()
    }

    /// How many rows a table has.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn count<R: Record>(&self, tenant: &str) -> Result<i64, StoreError> {
        let sql = format!("SELECT COUNT(*) FROM {} WHERE tenant = $1", R::TABLE);
        let count = sqlx::query_scalar(AssertSqlSafe(sql)).bind(tenant.to_owned());
        Ok(count.fetch_one(&mut *self.reader().await?).await?)
    }
}

pub(super) async fn get<'c, R: Record>(
    keys: &StoreKeys,
    executor: impl Executor<'c, Database = Any>,
    tenant: &str,
    id: &str,
) -> Result<Stored<R>, StoreError> {
    let sql = format!("{} WHERE tenant = $1 AND id = $2", select::<R>());
    let query = sqlx::query(AssertSqlSafe(sql)).bind(tenant.to_owned()).bind(id.to_owned());
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
) -> Result<Stored<R>, StoreError> {
    let sql = format!("{} WHERE {column} = $1", select::<R>());
    let row =
        sqlx::query(AssertSqlSafe(sql)).bind(value.to_owned()).fetch_optional(executor).await?;
    row.map_or_else(|| Err(not_found::<R>("")), |row| read(keys, &row))
}

pub(super) fn not_found<R: Record>(id: &str) -> StoreError {
    StoreError::NotFound { kind: R::KIND, id: id.to_owned() }
}

pub(super) fn select<R: Record>() -> String {
    let columns: String = R::COLUMNS.iter().map(|column| format!(", {column}")).collect();
    format!("SELECT tenant, id, version, changed_ms, body, seal{columns} FROM {}", R::TABLE)
}

/// The record of a row, if the controller wrote it.
pub(super) fn read<R: Record>(keys: &StoreKeys, row: &AnyRow) -> Result<Stored<R>, StoreError> {
    let tenant: String = row.try_get("tenant")?;
    let id: String = row.try_get("id")?;
    let version: i64 = row.try_get("version")?;
    let changed_ms: i64 = row.try_get("changed_ms")?;
    let body: String = row.try_get("body")?;
    let seal: String = row.try_get("seal")?;
    let stamp = Stamp { table: R::TABLE, tenant: &tenant, id: &id, version, changed_ms };
    let whole = keys.is_sealed(&stamp.parts(&body).each_ref().map(AsRef::as_ref), &seal);
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
            Column::Text(text) => row.try_get::<String, _>(*name)? == text,
            Column::Optional(text) => row.try_get::<Option<String>, _>(*name)? == text,
            Column::Number(number) => row.try_get::<i64, _>(*name)? == number,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a seal covers besides the record.
pub(super) struct Stamp<'a> {
    pub(super) table: &'static str,
    pub(super) tenant: &'a str,
    pub(super) id: &'a str,
    pub(super) version: i64,
    pub(super) changed_ms: i64,
}

impl Stamp<'_> {
    pub(super) fn parts(&self, body: &str) -> [String; 6] {
        [
            self.table.to_owned(),
            self.tenant.to_owned(),
            self.id.to_owned(),
            self.version.to_string(),
            self.changed_ms.to_string(),
            body.to_owned(),
        ]
    }

    pub(super) fn seal(&self, keys: &StoreKeys, body: &str) -> String {
        keys.seal(&self.parts(body).each_ref().map(AsRef::as_ref))
    }
}
