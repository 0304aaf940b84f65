//! Which keys may be admitted here at all.

use crate::api::{App, Problem};

/// Refuses to admit a key here when nobody here can sign for it.
pub(super) fn root_is_here(app: &App) -> Result<(), Problem> {
    if app.authority.admits() {
        return Ok(());
    }
    Err(Problem::conflict(
        "the root key is elsewhere, so nobody here can sign for a key: let it join by a token with \
         a delegate (roadweave fleet token create --delegate FILE)",
    ))
}

/// Refuses a key on which the whole fleet hangs: who could put it in could revoke it.
pub(super) fn not_ours(app: &App, key: &str) -> Result<(), Problem> {
    let approves = || app.authority.approvers().iter().any(|one| one.to_string() == key);
    match app.authority.is_own(key) || approves() {
        true => Err(Problem::conflict("the key is one of the controller's or of its roots")),
        false => Ok(()),
    }
}
