//! Answers that were given, so that a repeated request does not act twice.

use sqlx::Row as _;

use super::{Store, StoreError};

/// What is known of a request that may be a repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptAnswer {
    /// It is new, and now noted: act, then [`Store::keep_answer`].
    New,
    /// The same is under way.
    UnderWay,
    /// Another request had this key.
    OtherRequest,
    /// This was the answer.
    Answered(String),
}

impl Store {
    /// Notes a request by its idempotency key, or finds what became of it.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn note_request(
        &self,
        (tenant, actor, key): (&str, &str, &str),
        request: &str,
        now_ms: i64,
    ) -> Result<KeptAnswer, StoreError> {
        let mut transaction = self.begin().await?;
        // One that was under way when its controller died is free again after a while.
        sqlx::query(FREE)
            .bind(tenant.to_owned())
            .bind(actor.to_owned())
            .bind(key.to_owned())
            .bind(now_ms - UNDER_WAY_MAX_MS)
            .execute(&mut *transaction)
            .await?;
        let done = sqlx::query(NOTE)
            .bind(tenant.to_owned())
            .bind(actor.to_owned())
            .bind(key.to_owned())
            .bind(request.to_owned())
            .bind(now_ms)
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() == 1 {
            transaction.commit().await?;
            return Ok(KeptAnswer::New);
        }
        let row = sqlx::query(KEPT)
            .bind(tenant.to_owned())
            .bind(actor.to_owned())
            .bind(key.to_owned())
            .fetch_one(&mut *transaction)
            .await?;
        let noted: String = row.try_get("request")?;
        let answer: String = row.try_get("answer")?;
        let context = format!("{tenant}/{actor}/{key}");
        Ok(if noted != request {
            KeptAnswer::OtherRequest
        } else if answer.is_empty() {
            KeptAnswer::UnderWay
        } else {
            let answer = self.keys.decrypt(&context, &answer);
            KeptAnswer::Answered(
                answer.ok_or(StoreError::Altered { table: "answer", id: context })?,
            )
        })
    }

    /// Keeps the answer to a request that was new, where nobody but the controller can read it; or
    /// forgets the request, if it has none that should be repeated.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn keep_answer(
        &self,
        (tenant, actor, key): (&str, &str, &str),
        answer: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        let query = match answer {
            Some(text) => {
                let kept = self.keys.encrypt(&format!("{tenant}/{actor}/{key}"), text);
                sqlx::query(KEEP).bind(kept)
            }
            None => sqlx::query(FORGET).bind(String::new()),
        };
        query
            .bind(tenant.to_owned())
            .bind(actor.to_owned())
            .bind(key.to_owned())
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }
}

const UNDER_WAY_MAX_MS: i64 = 60_000;
const FREE: &str = "DELETE FROM answer WHERE tenant = $1 AND actor = $2 AND idempotency_key = $3 \
                    AND answer = '' AND at_ms < $4";
const NOTE: &str = "INSERT INTO answer (tenant, actor, idempotency_key, request, at_ms, answer) \
                    VALUES ($1, $2, $3, $4, $5, '') ON CONFLICT DO NOTHING";
const KEPT: &str = "SELECT request, answer FROM answer \
                    WHERE tenant = $1 AND actor = $2 AND idempotency_key = $3";
const KEEP: &str = "UPDATE answer SET answer = $1 \
                    WHERE tenant = $2 AND actor = $3 AND idempotency_key = $4";
const FORGET: &str = "DELETE FROM answer WHERE answer = $1 \
                      AND tenant = $2 AND actor = $3 AND idempotency_key = $4";
