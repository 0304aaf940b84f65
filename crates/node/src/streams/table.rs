//! Connections by number, with a queue of connections that have work, and deadlines.

use std::collections::{BTreeMap, VecDeque};

use roadweave_linux::Token;
use roadweave_proto::{Deadlines, Instant};

use super::TOKENS;

/// Numbers are not reused, so a late event does not reach another connection.
pub(super) type Number = u64;

#[derive(Debug)]
pub(super) struct Table<C> {
    first: Token,
    next: Number,
    connections: BTreeMap<Number, TableEntry<C>>,
    ready: VecDeque<Number>,
    deadlines: Deadlines<Number>,
}

#[derive(Debug)]
struct TableEntry<C> {
    connection: C,
    is_ready: bool,
}

impl<C> Table<C> {
    pub(super) fn new(first: Token) -> Self {
        Self {
            first,
            next: 0,
            connections: BTreeMap::new(),
            ready: VecDeque::new(),
            deadlines: Deadlines::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn next(&self) -> Number {
        self.next
    }

    pub(super) fn insert(&mut self, connection: C) -> Number {
        let number = self.next;
        self.next += 1;
        self.connections.insert(number, TableEntry { connection, is_ready: false });
        self.wake(number);
        number
    }

    pub(super) fn remove(&mut self, number: Number) -> Option<C> {
        self.deadlines.set(number, None);
        self.connections.remove(&number).map(|entry| entry.connection)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &C> {
        self.connections.values().map(|entry| &entry.connection)
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut C> {
        self.connections.get_mut(&number).map(|entry| &mut entry.connection)
    }

    pub(super) fn token(&self, number: Number) -> Token {
        Token(self.first.0 + 1 + number)
    }

    pub(super) fn number_of(&self, token: Token) -> Option<Number> {
        token.0.checked_sub(self.first.0 + 1).filter(|number| *number < TOKENS)
    }

    pub(super) fn wake(&mut self, number: Number) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        if !std::mem::replace(&mut entry.is_ready, true) {
            self.ready.push_back(number);
        }
    }

    pub(super) fn take_ready(&mut self) -> Option<Number> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(entry) = self.connections.get_mut(&number) {
                entry.is_ready = false;
                return Some(number);
            }
        }
    }

    pub(super) fn set_deadline(&mut self, number: Number, deadline: Option<Instant>) {
        if self.connections.contains_key(&number) {
            self.deadlines.set(number, deadline);
        }
    }

    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<Number> {
        self.deadlines.pop_due(now)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ready = (!self.ready.is_empty()).then_some(Instant::ZERO);
        ready.or_else(|| self.deadlines.earliest())
    }
}
