//! Queries across records: tenants, logins, addresses, keys, numbers.

use sqlx::{AssertSqlSafe, Row as _};

use super::record::select;
use super::sql::values;
use super::{Change, Page, Result, Store, Stored};
use crate::model::{Scope, Tenant};

impl Store {
    /// The tenants after a name.
    pub async fn tenants(&self, after: &str, limit: u32) -> Result<Page<Stored<Tenant>>> {
        let sql =
            format!("{} WHERE tenant > $1 ORDER BY tenant LIMIT {}", select::<Tenant>(), limit + 1);
        self.page(&self.rows(AssertSqlSafe(sql), values![after]).await?, limit)
    }
}

impl Change<'_> {
    /// Ends all logins of a person.
    pub async fn end_logins(&mut self, tenant: &str, person: &str) -> Result<()> {
        let sql = "DELETE FROM login WHERE tenant = $1 AND person = $2";
        self.execute(sql, values![tenant, person]).await.map(drop)
    }

    /// Frees the addresses of a box.
    pub async fn free(&mut self, tenant: &str, device: &str) -> Result<()> {
        let sql = "DELETE FROM address WHERE tenant = $1 AND device = $2";
        self.execute(sql, values![tenant, device]).await.map(drop)
    }

    /// The tenant of the box, proxy or delegate with this key.
    pub async fn owner_of_key(&mut self, public_key: &str) -> Result<Option<String>> {
        let row = self.row(OWNER, values![public_key]).await?;
        Ok(row.map(|row| row.try_get("tenant")).transpose()?)
    }

    /// The number of the next configuration of a scope.
    pub async fn next_config(&mut self, tenant: &str, scope: &Scope) -> Result<i64> {
        let sql = "SELECT COALESCE(MAX(number), 0) FROM config WHERE tenant = $1 AND scope = $2";
        Ok(self.scalar(sql, values![tenant, scope.to_string()]).await? + 1)
    }
}

const OWNER: &str = "SELECT tenant FROM device WHERE public_key = $1 \
                     UNION SELECT tenant FROM proxy WHERE public_key = $1 \
                     UNION SELECT tenant FROM delegate WHERE public_key = $1";
