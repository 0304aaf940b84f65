//! When each connection wants to be woken.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_proto::Instant;

use crate::event::ConnectionId;

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_connection: BTreeMap<ConnectionId, Instant>,
    queue: BTreeSet<(Instant, ConnectionId)>,
}

impl Deadlines {
    pub(crate) fn set(&mut self, id: ConnectionId, deadline: Option<Instant>) {
        let previous = match deadline {
            Some(deadline) => self.by_connection.insert(id, deadline),
            None => self.by_connection.remove(&id),
        };
        if previous == deadline {
            return;
        }
        if let Some(previous) = previous {
            self.queue.remove(&(previous, id));
        }
        if let Some(deadline) = deadline {
            self.queue.insert((deadline, id));
        }
    }

    pub(crate) fn set_once(&mut self, id: ConnectionId, deadline: Instant) {
        if !self.by_connection.contains_key(&id) {
            self.set(id, Some(deadline));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn earliest_of(&self, skipped: usize, count: usize) -> Vec<ConnectionId> {
        self.queue.iter().skip(skipped).take(count).map(|(_, id)| *id).collect()
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.queue.first().map(|(deadline, _)| *deadline)
    }

    pub(crate) fn earliest_but(&self, left_out: impl Fn(ConnectionId) -> bool) -> Option<Instant> {
        self.queue.iter().find(|(_, id)| !left_out(*id)).map(|(deadline, _)| *deadline)
    }

    pub(crate) fn due(&self, now: Instant) -> Vec<ConnectionId> {
        self.queue.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_deadline_of_a_connection_counts() {
        let mut deadlines = Deadlines::default();
        let at = Instant::from_millis;
        deadlines.set(ConnectionId(1), Some(at(5)));
        deadlines.set(ConnectionId(2), Some(at(7)));
        deadlines.set(ConnectionId(1), Some(at(9)));
        assert_eq!(deadlines.earliest(), Some(at(7)));
        assert_eq!(deadlines.due(at(8)), [ConnectionId(2)]);
        deadlines.set(ConnectionId(2), None);
        assert_eq!(deadlines.due(at(9)), [ConnectionId(1)]);
        deadlines.set(ConnectionId(1), None);
        assert_eq!((deadlines.earliest(), deadlines.queue.len()), (None, 0));
    }
}
