//! Errors of the store.

use sqlx::error::{DatabaseError, ErrorKind};

use crate::authority::NotSigned;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no {kind} \"{id}\"")]
    NotFound { kind: &'static str, id: String },
    #[error("{0}")]
    Taken(String),
    /// A reference to a missing record, or from an existing one.
    #[error("{0}")]
    Reference(String),
    #[error("the {kind} \"{id}\" has changed: it has version {current}")]
    Changed { kind: &'static str, id: String, current: i64 },
    #[error("{0}")]
    Refused(String),
    #[error("the row \"{id}\" of table {table} was altered outside the controller; it is not used")]
    Altered { table: &'static str, id: String },
    #[error("cannot reach the database: {0}")]
    Away(String),
    /// An older copy of the controller's database, or one of an unknown epoch; with advice.
    #[error("the database {0}")]
    Older(String),
    #[error("the disk of the database is full: free some space; nothing is stored until then")]
    Full,
    #[error("cannot upgrade the database to this version: {0}")]
    Migration(String),
    #[error("the database refused a statement: {0}")]
    Internal(String),
}

impl StoreError {
    /// Whether the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Full | Self::Older(_))
    }
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What was found; `None` for [`StoreError::NotFound`].
pub fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(StoreError::NotFound { .. }) => Ok(None),
        other => other.map(Some),
    }
}

impl From<NotSigned> for StoreError {
    fn from(error: NotSigned) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => of_database(&*error),
            sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => Self::Full,
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::BeginFailed
            | sqlx::Error::Protocol(_) => Self::Away(error.to_string()),
            error => Self::Internal(error.to_string()),
        }
    }
}

fn of_database(error: &dyn DatabaseError) -> StoreError {
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::UniqueViolation => return StoreError::Taken(message),
        ErrorKind::ForeignKeyViolation => return StoreError::Reference(message),
        _ => {}
    }
    let code = error.code().unwrap_or_default();
    // SQLite's are numbers (primary code in the low byte), PostgreSQL's have 5 characters.
    let primary = code.parse::<u32>().ok().filter(|_| code.len() < 5).map(|code| code & 0xff);
    match (primary, &*code) {
        (Some(SQLITE_FULL), _) | (None, "53100") => StoreError::Full,
        (Some(SQLITE_BUSY | SQLITE_LOCKED | SQLITE_IOERR | SQLITE_CANTOPEN), _) => {
            StoreError::Away(message)
        }
        (None, code)
            if ["08", "53", "57", "40"].iter().any(|class| code.starts_with(class))
                || ["25P03", "55P03", "25006"].contains(&code) =>
        {
            StoreError::Away(message)
        }
        _ => StoreError::Internal(message),
    }
}

const SQLITE_BUSY: u32 = 5;
const SQLITE_LOCKED: u32 = 6;
const SQLITE_IOERR: u32 = 10;
const SQLITE_FULL: u32 = 13;
const SQLITE_CANTOPEN: u32 = 14;
