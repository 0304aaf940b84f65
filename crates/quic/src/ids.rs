//! A small set of connections.

use std::collections::VecDeque;

use crate::event::ConnectionId;

/// Connections, ascending. Keeps its memory when emptied: each turn fills and empties it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSet(VecDeque<ConnectionId>);

impl ConnectionSet {
    pub(crate) fn insert(&mut self, id: ConnectionId) {
        if let Err(at) = self.0.binary_search(&id) {
            self.0.insert(at, id);
        }
    }

    pub(crate) fn remove(&mut self, id: ConnectionId) {
        if let Ok(at) = self.0.binary_search(&id) {
            self.0.remove(at);
        }
    }

    pub(crate) fn contains(&self, id: ConnectionId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ConnectionId> {
        self.0.iter().copied()
    }

    pub(crate) fn pop(&mut self) -> Option<ConnectionId> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_in_it_once_and_in_order() {
        let mut set = ConnectionSet::default();
        [5, 1, 3, 5, 1].into_iter().for_each(|id| set.insert(ConnectionId(id)));
        assert_eq!(set.iter().map(|id| id.0).collect::<Vec<_>>(), [1, 3, 5]);
        set.remove(ConnectionId(3));
        set.remove(ConnectionId(4));
        assert!(set.contains(ConnectionId(5)) && !set.contains(ConnectionId(3)));
        assert_eq!(set.pop(), Some(ConnectionId(1)));
        assert_eq!((set.pop(), set.pop()), (Some(ConnectionId(5)), None));
    }
}
