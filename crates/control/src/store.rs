//! The controller's database, SQLite or PostgreSQL, by one SQL text for both.
//!
//! ```text
//! read   ─► a connection ─► rows ─► seal, columns ─► records, or `Altered`
//! change ─► transaction: sequence number (which is also the lock)
//!             └► row + seal ─► audit, hash chain ─► outbox ─► commit, NOTIFY
//! ```
//!
//! Every change takes the next number of the outbox first, so changes are serialized and a reader
//! misses none: of a PostgreSQL sequence a later number may be visible before an earlier one. Every
//! function may fail with [`StoreError::Away`], `Full` or `Internal`; others are documented.

pub mod address;
mod answer;
pub mod audit;
pub mod backup;
mod change;
pub mod document;
pub(crate) mod error;
pub mod note;
pub mod outbox;
pub mod proxy_status;
mod record;
pub mod report;
pub mod revocation;
mod sql;
mod token;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::pool::PoolConnection;
use sqlx::{
    Any, AnyPool, AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _,
    SqlSafeStr as _, Transaction,
};

pub use answer::{IdempotencyState, Once};
pub use audit::AuditEntry;
pub use backup::BackupError;
pub use change::{Actor, Change};
pub use document::{DocumentOutcome, StoredDocument};
pub use error::{Result, StoreError, found};
pub use note::Note;
pub use outbox::{CHANGES_AT_ONCE, Changed};
pub use proxy_status::{Confirmations, FleetState};
pub use record::{Filter, Page, Stored};
pub use report::{BoxSession, Report, STEPS_MS, Sample};
pub use revocation::{Revocable, Revocation};
pub use roadweave_fleet::records::ProxyStatus;
pub use token::{Delegated, Enrolment};

use self::sql::{reads, values};
use crate::keys::StoreKeys;
use crate::model::{Record, Tenant};
use crate::rollback_guard::{AuditCheckpoints, RollbackGuard};

pub struct Store {
    write: AnyPool,
    read: AnyPool,
    pub keys: StoreKeys,
    pub database: Database,
    pub rollback_guard: Arc<RollbackGuard>,
    pub audit_checkpoints: Arc<AuditCheckpoints>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Database {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let parsed: Result<AnyConnectOptions, _> = text.parse();
            return match parsed {
                Ok(_) => Ok(Self::Postgres(text.to_owned())),
                Err(error) => Err(format!("not the address of a database: {error}")),
            };
        }
        match text.strip_prefix("sqlite://").unwrap_or(text) {
            "" => Err("write a path, or postgres://user:password@host/name".to_owned()),
            path if path.contains("://") => {
                Err(format!("\"{path}\" is neither postgres://user:password@host/name nor a path"))
            }
            path => Ok(Self::Sqlite(path.into())),
        }
    }

    pub fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => path.display().to_string(),
            Self::Postgres(url) => match (url.split_once("://"), url.rsplit_once('@')) {
                (Some((scheme, rest)), Some((_, place))) => {
                    let user = rest.split([':', '@']).next().unwrap_or_default();
                    format!("{scheme}://{user}@{place}")
                }
                _ => url.clone(),
            },
        }
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Store {
    /// Opens the database and migrates it. [`StoreError::Migration`] if it is of a newer version.
    pub async fn open(database: &Database, keys: StoreKeys) -> Result<Self> {
        sqlx::any::install_drivers(&[sqlx::sqlite::any::DRIVER, sqlx::postgres::any::DRIVER]).ok();
        let (write, read) = match database {
            Database::Sqlite(path) => {
                let options = sqlite_options(path)?;
                let write = pool(1, SQLITE).connect_with(options.clone()).await?;
                (write, pool(4, SQLITE).connect_lazy_with(options))
            }
            Database::Postgres(url) => {
                let options = url.parse::<AnyConnectOptions>()?.disable_statement_logging();
                let both = pool(POSTGRES_CONNECTIONS, POSTGRES).connect_with(options).await?;
                (both.clone(), both)
            }
        };
        let (database, rollback_guard) = (database.clone(), Arc::default());
        let audit_checkpoints = Arc::default();
        let store = Self { write, read, keys, database, rollback_guard, audit_checkpoints };
        store.migrate().await?;
        Ok(store)
    }

    async fn migrate(&self) -> Result<()> {
        let migrations = MIGRATIONS.iter().map(|(version, name, sql)| {
            let sql = AssertSqlSafe((*sql).to_owned()).into_sql_str();
            Migration::new(*version, (*name).into(), MigrationType::Simple, sql, false)
        });
        let migrator = Migrator::with_migrations(migrations.collect());
        let mut connection = self.write.acquire().await?;
        migrator.run_direct(None, &mut *connection, false).await.map_err(|error| match error {
            sqlx::migrate::MigrateError::Execute(error) => error.into(),
            error => StoreError::Migration(error.to_string()),
        })
    }

    pub async fn ping(&self) -> Result<()> {
        within(ANSWER_MAX, self.scalar(LATEST, vec![])).await.map(drop)
    }

    pub async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }

    async fn reader(&self) -> Result<PoolConnection<Any>> {
        Ok(self.read.acquire().await?)
    }

    async fn begin(&self) -> Result<Transaction<'static, Any>> {
        Ok(match self.database {
            // A transaction that begins with a read may be unable to write later.
            Database::Sqlite(_) => self.write.begin_with("BEGIN IMMEDIATE").await?,
            Database::Postgres(_) => self.write.begin().await?,
        })
    }

    /// Begins a change; others wait until it ends. [`StoreError::Older`] if its number was seen.
    pub async fn change(&self, actor: Actor, now_ms: i64) -> Result<Change<'_>> {
        Change::begin(self, actor, now_ms).await
    }

    reads!(self: &Self, self.reader().await?, self.keys);

    pub async fn list<R: Record>(&self, tenant: &str, filter: &Filter) -> Result<Page<Stored<R>>> {
        let (sql, values) = filter.statement::<R>(tenant);
        Page::of(&self.keys, &self.rows(AssertSqlSafe(sql), values).await?, filter.limit)
    }

    pub async fn tenants(&self, after: &str, limit: u32) -> Result<Page<Stored<Tenant>>> {
        let select = record::select::<Tenant>();
        let sql = format!("{select} WHERE tenant > $1 ORDER BY tenant LIMIT {}", limit + 1);
        Page::of(&self.keys, &self.rows(AssertSqlSafe(sql), values![after]).await?, limit)
    }

    /// At most `limit` records of all tenants; altered rows are logged and skipped.
    pub async fn all<R: Record>(&self, limit: u32) -> Result<Vec<Stored<R>>> {
        let sql = format!("{} ORDER BY tenant, id LIMIT {limit}", record::select::<R>());
        record::unaltered(&self.keys, &self.rows(AssertSqlSafe(sql), vec![]).await?)
    }

    /// The number of the latest change. [`StoreError::Older`] if a later one was seen.
    pub async fn latest_change(&self) -> Result<i64> {
        // Read before the query: another change may be recorded meanwhile.
        let seen = self.rollback_guard.change();
        let found = self.scalar(LATEST, vec![]).await?;
        RollbackGuard::check_change(found, seen)?;
        self.rollback_guard.record_change(found);
        Ok(found)
    }

    /// The epoch, raised by each restored backup. [`StoreError::Older`] if it was not begun here.
    pub async fn epoch(&self) -> Result<i64> {
        let sql = "SELECT value FROM counter WHERE name = 'epoch'";
        let found = self.scalar(sql, vec![]).await?;
        self.rollback_guard.check_epoch(found)?;
        Ok(found)
    }
}

/// The result of `work`, or [`StoreError::Away`] after `span`: a connection may be silent for ever.
pub async fn within<T, E: From<StoreError>>(
    span: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let silent = || StoreError::Away(format!("no answer within {} s", span.as_secs()));
    tokio::time::timeout(span, work).await.unwrap_or_else(|_| Err(silent().into()))
}

fn sqlite_options(path: &Path) -> Result<AnyConnectOptions> {
    let text = path
        .to_str()
        .ok_or_else(|| StoreError::Refused(format!("the path {} is not UTF-8", path.display())))?;
    let escaped = text.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let options: AnyConnectOptions = format!("sqlite://{escaped}?mode=rwc").parse()?;
    Ok(options.disable_statement_logging())
}

fn pool(connections: u32, settings: &'static [&'static str]) -> AnyPoolOptions {
    let options = AnyPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_MAX);
    let options = options.after_connect(move |connection, _| {
        Box::pin(async move {
            for setting in settings {
                connection.execute(*setting).await?;
            }
            Ok(())
        })
    });
    // SQLite may end a transaction itself, as on a full disk; the library takes it for open then.
    options.after_release(|connection, _| {
        Box::pin(async move {
            let pinged = tokio::time::timeout(ACQUIRE_MAX, connection.ping()).await;
            pinged.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
            Ok(!connection.is_in_transaction())
        })
    })
}

const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "fleet", include_str!("store/migrations/0001_fleet.sql")),
    (2, "documents", include_str!("store/migrations/0002_documents.sql")),
    (3, "delegates", include_str!("store/migrations/0003_delegates.sql")),
    (4, "anchors", include_str!("store/migrations/0004_anchors.sql")),
    (5, "streams", include_str!("store/migrations/0005_streams.sql")),
    (6, "ages", include_str!("store/migrations/0006_ages.sql")),
];
const LATEST: &str = "SELECT value FROM counter WHERE name = 'change'";
/// The time limit of one statement in background work: longer than any statement may take.
pub const ANSWER_MAX: Duration = Duration::from_secs(15);
pub const ANSWERS_MAX: Duration = Duration::from_secs(120);
const ACQUIRE_MAX: Duration = Duration::from_secs(3);
const POSTGRES_CONNECTIONS: u32 = 8;
const SQLITE: &[&str] = &[
    "PRAGMA journal_mode = WAL",
    // A committed change survives a power failure.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 3000",
    "PRAGMA journal_size_limit = 67108864",
];
/// Bounds statements and locks, so that a request ends before its time limit.
const POSTGRES: &[&str] = &[
    "SET statement_timeout = '8s'",
    "SET lock_timeout = '5s'",
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET application_name = 'roadweave-controller'",
];

#[cfg(test)]
pub(crate) mod tests;
