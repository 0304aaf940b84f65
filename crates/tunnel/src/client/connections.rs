//! A client's connections by their ids; those that are gone are ignored.

use roadweave_proto::wire::Control;
use roadweave_proto::{Instant, PathSnapshot};
use roadweave_quic::{Connection, ConnectionId, Endpoint};

pub(super) fn send(endpoint: &mut Endpoint, id: ConnectionId, message: &Control) {
    if let Some(connection) = endpoint.connection_mut(id)
        && let Err(error) = connection.send_message(message.to_bytes())
    {
        tracing::warn!(%error, "cannot send a control message");
    }
}

pub(super) fn close(endpoint: &mut Endpoint, now: Instant, id: ConnectionId, reason: &str) {
    if let Some(connection) = endpoint.connection_mut(id) {
        connection.close(now, 0, reason);
    }
}

pub(super) fn paths(endpoint: &Endpoint, id: Option<ConnectionId>) -> &[PathSnapshot] {
    id.and_then(|id| endpoint.connection(id)).map_or(&[][..], Connection::paths)
}
