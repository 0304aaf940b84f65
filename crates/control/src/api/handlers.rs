//! The handlers of the routes; [`super::routes`] describes each.

pub(super) mod changes;
pub(super) mod configs;
pub(super) mod devices;
pub(super) mod health;
pub(super) mod people;
pub(super) mod records;
pub(super) mod revoking;
pub(super) mod sessions;
pub(super) mod tokens;
