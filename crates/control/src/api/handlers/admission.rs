//! Which keys may be admitted here.

use crate::api::{App, Problem, Result};

pub(super) fn root_is_here(app: &App) -> Result<()> {
    if app.authority.admits() {
        return Ok(());
    }
    Err(Problem::conflict(
        "the root key is elsewhere, so nobody here can sign for a key: let it join by a token with \
         a delegate (roadweave fleet token create --delegate FILE)",
    ))
}

/// Refuses keys that the fleet depends on: a record with such a key could be revoked.
pub(super) fn not_ours(app: &App, key: &str) -> Result<()> {
    let approves = || app.authority.approvers().iter().any(|one| one.to_string() == key);
    match app.authority.is_own(key) || approves() {
        true => Err(Problem::conflict("the key is one of the controller's or of its roots")),
        false => Ok(()),
    }
}
