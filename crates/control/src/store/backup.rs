//! Backups: every row of every table as a line of JSON, the same for both databases.
//!
//! ```text
//! {"format":"roadweave-backup","version":1,"at_ms":...}
//! {"table":"tenant","row":{...}}
//! ...
//! {"rows":1234,"hmac":"..."}        of all lines before, by the controller's key
//! ```
//!
//! A restored database has a higher epoch, so that boxes do not take its documents for older ones.

use std::io::{self, BufRead, Write};

use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::any::AnyTypeInfoKind;
use sqlx::{AssertSqlSafe, Column as _, Row as _, TypeInfo as _, ValueRef as _};

use super::{Store, StoreError};
use crate::keys;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read or write the backup: {0}")]
    File(#[from] io::Error),
    /// Not a backup, truncated, altered, or of another controller.
    #[error("line {line}: {message}")]
    Invalid { line: usize, message: String },
    #[error("the database has {0} tenants already: a backup is restored into an empty database")]
    NotEmpty(i64),
}

impl From<sqlx::Error> for BackupError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    at_ms: i64,
}

#[derive(Serialize, Deserialize)]
struct BackupLine {
    table: String,
    row: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct Foot {
    rows: u64,
    hmac: String,
}

struct Sum(digest::Context);

impl Sum {
    fn add(&mut self, line: &str) {
        self.0.update(line.as_bytes());
        self.0.update(b"\n");
    }

    fn text(&self) -> String {
        keys::hex(self.0.clone().finish().as_ref())
    }
}

pub async fn write(store: &Store, out: &mut impl Write, now_ms: i64) -> Result<u64, BackupError> {
    let mut sum = Sum(digest::Context::new(&digest::SHA256));
    let put = |out: &mut dyn Write, line: String, sum: &mut Sum| {
        sum.add(&line);
        writeln!(out, "{line}")
    };
    let head = Head { format: FORMAT.to_owned(), version: 1, at_ms: now_ms };
    put(out, json(&head), &mut sum)?;
    let mut transaction = match store.database {
        super::Database::Sqlite(_) => store.read.begin().await?,
        super::Database::Postgres(_) => {
            store.read.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?
        }
    };
    let mut rows = 0;
    for (table, order) in TABLES {
        let mut last = None;
        loop {
            let found = page(&mut transaction, table, order, last.as_ref()).await?;
            for row in &found {
                let line = BackupLine { table: (*table).to_owned(), row: fields(row)? };
                put(out, json(&line), &mut sum)?;
                last = Some(line.row);
            }
            rows += found.len() as u64;
            if found.len() < AT_ONCE {
                break;
            }
        }
    }
    let hmac = store.keys.link(&["backup", &sum.text()]);
    writeln!(out, "{}", json(&Foot { rows, hmac }))?;
    out.flush()?;
    Ok(rows)
}

/// Restores into this empty database, in one transaction, and raises the epoch above that of
/// the backup and above `epoch_seen`, this controller's last. `begin` records the new epoch
/// before the commit. Returns the number of rows and the new epoch.
pub async fn restore(
    store: &Store,
    input: &mut impl BufRead,
    epoch_seen: i64,
    begin: impl FnOnce(i64) -> io::Result<()>,
) -> Result<(u64, i64), BackupError> {
    let mut transaction = store.begin().await?;
    let tenants: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM tenant").fetch_one(&mut *transaction).await?;
    if tenants > 0 {
        return Err(BackupError::NotEmpty(tenants));
    }
    sqlx::query("DELETE FROM counter").execute(&mut *transaction).await?;
    let mut sum = Sum(digest::Context::new(&digest::SHA256));
    let (mut is_whole, mut rows) = (false, 0);
    for (at, line) in input.lines().enumerate() {
        let (line, at) = (line?, at + 1);
        let invalid = |message: &str| invalid(at, message);
        if is_whole {
            return Err(invalid("the backup has data after its end"));
        }
        if at == 1 {
            let read: Result<Head, _> = serde_json::from_str(&line);
            if !read.is_ok_and(|it| it.format == FORMAT && it.version == 1) {
                return Err(invalid(
                    "this is not a backup of roadweave-controller, or its version is unknown",
                ));
            }
        } else if let Ok(BackupLine { table, row }) = serde_json::from_str(&line) {
            let known = TABLES.iter().find(|(name, _)| *name == table);
            let (table, _) = known.ok_or_else(|| invalid("unknown table"))?;
            insert(&mut transaction, table, row, at).await?;
            rows += 1;
        } else {
            let read: Foot =
                serde_json::from_str(&line).map_err(|_| invalid("not a row and not the end"))?;
            if !store.keys.is_linked(&["backup", &sum.text()], &read.hmac) || read.rows != rows {
                return Err(invalid(
                    "the backup was altered, or belongs to a controller with another key",
                ));
            }
            is_whole = true;
            continue;
        }
        sum.add(&line);
    }
    if !is_whole {
        return Err(invalid(0, "the backup is truncated"));
    }
    let epoch = raise(&mut transaction, epoch_seen).await?;
    begin(epoch)?;
    transaction.commit().await?;
    Ok((rows, epoch))
}

/// The rows of a table after `last`, by an index: an offset would exceed a statement's time limit.
async fn page(
    transaction: &mut sqlx::Transaction<'static, sqlx::Any>,
    table: &str,
    order: &str,
    last: Option<&Map<String, Value>>,
) -> Result<Vec<sqlx::any::AnyRow>, sqlx::Error> {
    let keys = || order.split(", ");
    let after = last.map_or(String::new(), |_| {
        let places: Vec<String> = keys().zip(1..).map(|(_, at)| format!("${at}")).collect();
        format!("WHERE ({order}) > ({})", places.join(", "))
    });
    let sql = format!("SELECT * FROM {table} {after} ORDER BY {order} LIMIT {AT_ONCE}");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for value in last.into_iter().flat_map(|row| keys().map(|key| &row[key])) {
        query = match value {
            Value::String(text) => query.bind(text.clone()),
            number => query.bind(number.as_i64()),
        };
    }
    query.fetch_all(&mut **transaction).await
}

async fn raise(
    transaction: &mut sqlx::Transaction<'static, sqlx::Any>,
    seen: i64,
) -> Result<i64, BackupError> {
    let of_backup: i64 = sqlx::query_scalar(EPOCH).fetch_one(&mut **transaction).await?;
    // An epoch far ahead was written by an attacker, to leave no room for later ones.
    let most = seen.saturating_add(EPOCHS_AT_ONCE);
    let epoch = of_backup.min(most).max(seen).checked_add(1);
    let epoch = epoch.ok_or_else(|| invalid(0, format!("there is no epoch after {seen}")))?;
    sqlx::query(RAISE).bind(epoch).execute(&mut **transaction).await?;
    Ok(epoch)
}

fn invalid(line: usize, message: impl Into<String>) -> BackupError {
    BackupError::Invalid { line, message: message.into() }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers are JSON")
}

fn fields(row: &sqlx::any::AnyRow) -> Result<Map<String, Value>, sqlx::Error> {
    let mut fields = Map::new();
    for column in row.columns() {
        let value = row.try_get_raw(column.ordinal())?;
        let value = if value.is_null() {
            Value::Null
        } else if column.type_info().kind() == AnyTypeInfoKind::BigInt
            || value.type_info().name() == "BIGINT"
        {
            row.try_get::<i64, _>(column.ordinal())?.into()
        } else {
            row.try_get::<String, _>(column.ordinal())?.into()
        };
        fields.insert(column.name().to_owned(), value);
    }
    Ok(fields)
}

async fn insert(
    transaction: &mut sqlx::Transaction<'static, sqlx::Any>,
    table: &str,
    row: Map<String, Value>,
    line: usize,
) -> Result<(), BackupError> {
    let good = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    if row.is_empty() || !row.keys().all(|name| good(name)) {
        return Err(invalid(line, "no row"));
    }
    let names: Vec<&str> = row.keys().map(String::as_str).collect();
    let places: Vec<String> = (1..=row.len()).map(|at| format!("${at}")).collect();
    let (names, places) = (names.join(", "), places.join(", "));
    let sql = format!("INSERT INTO {table} ({names}) VALUES ({places})");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for (name, value) in &row {
        query = match value {
            Value::String(text) => query.bind(text.clone()),
            Value::Number(number) => query.bind(number.as_i64()),
            // The nullable integer columns; all others are text.
            Value::Null if name.ends_with("_ms") || name == "load" => query.bind(None::<i64>),
            Value::Null => query.bind(None::<String>),
            _ => return Err(invalid(line, format!("{name} is neither text nor number"))),
        };
    }
    match query.execute(&mut **transaction).await.map_err(StoreError::from) {
        Ok(_) => Ok(()),
        Err(error @ (StoreError::Away(_) | StoreError::Full)) => Err(error.into()),
        Err(error) => Err(invalid(line, error.to_string())),
    }
}

const FORMAT: &str = "roadweave-backup";
const AT_ONCE: usize = 1000;
const EPOCHS_AT_ONCE: i64 = 1_000_000;
const EPOCH: &str = "SELECT value FROM counter WHERE name = 'epoch'";
const RAISE: &str = "UPDATE counter SET value = $1 WHERE name = 'epoch'";
/// Each table and its primary key; referenced tables come first.
const TABLES: &[(&str, &str)] = &[
    ("counter", "name"),
    ("tenant", "tenant"),
    ("person", "tenant, id"),
    ("api_key", "tenant, id"),
    ("pool", "tenant, id"),
    ("proxy", "tenant, id"),
    ("proxy_status", "tenant, proxy"),
    ("delegate", "tenant, id"),
    ("token", "tenant, id"),
    ("device", "tenant, id"),
    ("address", "tenant, address"),
    ("config", "tenant, id"),
    ("rollout", "tenant, id"),
    ("progress", "tenant, rollout"),
    ("report", "tenant, device"),
    ("session", "tenant, device, attachment"),
    ("sample", "tenant, device, step_ms, at_ms"),
    ("revocation", "serial"),
    ("audit", "tenant, serial"),
    ("change", "sequence, position"),
];
