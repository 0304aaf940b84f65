//! How many connections there may be: of all, of one address, and of those who have not yet shown
//! the token, so that a stranger in the LAN leaves room for the crew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections of all.
const ALL_MAX: usize = 32;
/// Those of addresses that have not shown the token.
const STRANGERS_MAX: usize = 12;
/// Those of one address: a browser opens six.
const ONE_MAX: usize = 8;
/// Addresses that are remembered.
const KNOWN_MAX: usize = 64;

/// The connections of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    by_address: BTreeMap<IpAddr, usize>,
    /// Addresses that have shown the token.
    known: BTreeSet<IpAddr>,
}

/// One connection. Dropping it gives its place back.
#[derive(Debug)]
pub(crate) struct Place {
    all: Connections,
    address: IpAddr,
}

impl Connections {
    /// A place for a connection of `address`, if there is one.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let mut counts = self.lock();
        let of_one = counts.by_address.get(&address).copied().unwrap_or(0);
        let of_all: usize = counts.by_address.values().sum();
        let is_strange = |address: &IpAddr| !counts.known.contains(address);
        let of_strangers = counts.by_address.iter().filter(|(address, _)| is_strange(address));
        let of_strangers: usize = of_strangers.map(|(_, count)| count).sum();
        let is_full = of_all >= ALL_MAX
            || of_one >= ONE_MAX
            || is_strange(&address) && of_strangers >= STRANGERS_MAX;
        if is_full {
            return None;
        }
        *counts.by_address.entry(address).or_default() += 1;
        drop(counts);
        Some(Place { all: self.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Its address has shown the token.
    pub(crate) fn is_known(&self) {
        let mut counts = self.all.lock();
        if counts.known.len() < KNOWN_MAX {
            counts.known.insert(self.address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_room_for_those_who_have_shown_the_token() {
        let connections = Connections::default();
        let address = |last: u8| IpAddr::from([192, 168, 50, last]);
        let crew = connections.take(address(1)).expect("there is room");
        crew.is_known();
        let many = |last: u8| -> Vec<Place> {
            (0..20).map_while(|_| connections.take(address(last))).collect()
        };
        let (one, other) = (many(2), many(3));
        assert_eq!((one.len(), other.len()), (ONE_MAX, STRANGERS_MAX - ONE_MAX));
        let more = many(1);
        assert_eq!(more.len(), ONE_MAX - 1);
        drop(one);
        let again = many(4);
        assert_eq!(again.len(), STRANGERS_MAX - other.len());
        drop((crew, other, more, again));
        assert!(connections.lock().by_address.is_empty());
    }
}
