//! Answers of requests with an idempotency key, so that a repetition does not act twice.
//!
//! ```text
//! note ─► act, and mark that in the same transaction ─► keep the answer
//!  └ crash here: free again after a minute            └ crash here: acted, never again
//! ```

use sqlx::{Any, Row as _, Transaction};

use super::sql::{query, values};
use super::{Result, Store, StoreError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    pub tenant: String,
    pub actor: String,
    pub key: String,
    pub at_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyState {
    /// New, and noted. Act as [`Actor`](super::Actor), then call [`Once::store_answer`].
    New,
    UnderWay,
    OtherRequest,
    Acted,
    Answered(String),
}

impl Once {
    pub async fn note(&self, store: &Store, request: &str) -> Result<IdempotencyState> {
        let Self { tenant, actor, key, at_ms } = self;
        let mut transaction = store.begin().await?;
        query(FREE, values![tenant, actor, key, at_ms - UNDER_WAY_MAX_MS])
            .execute(&mut *transaction)
            .await?;
        let done = query(NOTE, values![tenant, actor, key, request, *at_ms])
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() == 1 {
            transaction.commit().await?;
            return Ok(IdempotencyState::New);
        }
        let row = query(KEPT, values![tenant, actor, key]).fetch_one(&mut *transaction).await?;
        let noted: String = row.try_get("request")?;
        let answer: String = row.try_get("answer")?;
        Ok(if noted != request {
            IdempotencyState::OtherRequest
        } else if answer.is_empty() {
            IdempotencyState::UnderWay
        } else if answer == ACTED {
            IdempotencyState::Acted
        } else {
            let answer = store.keys.decrypt(&self.context(), &answer);
            let altered = || StoreError::Altered { table: "answer", id: self.context() };
            IdempotencyState::Answered(answer.ok_or_else(altered)?)
        })
    }

    /// Stores the encrypted answer of a new request; `None` forgets the request.
    pub async fn store_answer(&self, store: &Store, answer: Option<&str>) -> Result<()> {
        let Self { tenant, actor, key, at_ms } = self;
        let mut transaction = store.begin().await?;
        let (sql, kept) = match answer {
            Some(text) => (KEEP, store.keys.encrypt(&self.context(), text)),
            None => (FORGET, String::new()),
        };
        query(sql, values![kept, tenant, actor, key, *at_ms]).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    fn context(&self) -> String {
        format!("{}/{}/{}", self.tenant, self.actor, self.key)
    }

    /// Marks the request as acted upon. [`StoreError::Refused`] if a repetition has begun.
    pub(super) async fn act(&self, transaction: &mut Transaction<'static, Any>) -> Result<()> {
        let done = query(ACT, values![ACTED, &self.tenant, &self.actor, &self.key, self.at_ms])
            .execute(&mut **transaction)
            .await?;
        match done.rows_affected() {
            0 => Err(StoreError::Refused("the same request is still running".to_owned())),
            _ => Ok(()),
        }
    }
}

const ACTED: &str = "acted";
const UNDER_WAY_MAX_MS: i64 = 60_000;
const FREE: &str = "DELETE FROM answer WHERE tenant = $1 AND actor = $2 AND idempotency_key = $3 \
                    AND answer = '' AND at_ms < $4";
const NOTE: &str = "INSERT INTO answer (tenant, actor, idempotency_key, request, at_ms, answer) \
                    VALUES ($1, $2, $3, $4, $5, '') ON CONFLICT DO NOTHING";
const KEPT: &str = "SELECT request, answer FROM answer \
                    WHERE tenant = $1 AND actor = $2 AND idempotency_key = $3";
const KEEP: &str = "UPDATE answer SET answer = $1 WHERE tenant = $2 AND actor = $3 \
                    AND idempotency_key = $4 AND at_ms = $5";
const FORGET: &str = "DELETE FROM answer WHERE answer = $1 AND tenant = $2 AND actor = $3 \
                      AND idempotency_key = $4 AND at_ms = $5";
/// A later mark does not replace the stored answer.
const ACT: &str = "UPDATE answer SET answer = CASE answer WHEN '' THEN $1 ELSE answer END \
                   WHERE tenant = $2 AND actor = $3 AND idempotency_key = $4 AND at_ms = $5";
