//! The addresses of boxes within their tenant's prefixes: each is one box's.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use roadweave_fleet::gateway_of;
use sqlx::Row as _;

use super::sql::values;
use super::{Change, Result, StoreError, Stored};
use crate::model::Device;

/// A free address of each prefix. [`StoreError::Refused`] if one has none left.
pub async fn free_of(
    change: &mut Change<'_>,
    tenant: &str,
    prefixes: &[IpNet],
) -> Result<Vec<IpAddr>> {
    if prefixes.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT address FROM address WHERE tenant = $1";
    let rows = change.rows(sql, values![tenant]).await?;
    let taken = rows.iter().map(|row| row.try_get::<String, _>("address"));
    let taken: HashSet<String> = taken.collect::<Result<_, _>>()?;
    let free = prefixes.iter().map(|prefix| {
        let gateway = gateway_of(prefix).map(|it| it.addr());
        let others = prefix.hosts().skip_while(|host| Some(*host) <= gateway);
        let mut hosts = others.take(taken.len() + 1);
        hosts
            .find(|address| !taken.contains(&address.to_string()))
            .ok_or_else(|| StoreError::Refused(format!("the prefix {prefix} has no free address")))
    });
    free.collect()
}

/// Inserts a box with its addresses.
pub async fn insert(
    change: &mut Change<'_>,
    tenant: &str,
    device: Device,
) -> Result<Stored<Device>> {
    let stored = change.insert(tenant, device).await?;
    for address in &stored.record.addresses {
        let sql = "INSERT INTO address (tenant, address, device) VALUES ($1, $2, $3)";
        change.execute(sql, values![tenant, address.to_string(), &stored.record.id]).await?;
    }
    Ok(stored)
}

pub(super) async fn release(change: &mut Change<'_>, tenant: &str, device: &str) -> Result<()> {
    let sql = "DELETE FROM address WHERE tenant = $1 AND device = $2";
    change.execute(sql, values![tenant, device]).await.map(drop)
}
