//! The cookie of a login.

use axum::http::{HeaderMap, header};

/// The prefix makes browsers accept it from this host over HTTPS alone.
pub(super) const COOKIE: &str = "__Host-roadweave";

pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut each = cookies.flat_map(|line| line.split(';')).map(str::trim);
    each.find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
}
