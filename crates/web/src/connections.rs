//! Limits of connections: in total, of one address, and without the token, where the oldest yields.
//! The holder shows the token in one round trip, so silent connections cannot lock it out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

const ALL_MAX: usize = 32;
const STRANGERS_MAX: usize = 12;
/// Of one address: a browser opens six.
const ONE_MAX: usize = 8;
/// Of a connection without the token: the page has four files.
const REQUESTS_MAX: u32 = 32;

#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    all: BTreeMap<u64, OpenConnection>,
    count: u64,
}

#[derive(Debug)]
struct OpenConnection {
    address: IpAddr,
    is_known: bool,
    gives_way: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) struct Permit {
    all: Connections,
    number: u64,
    gives_way: Arc<Notify>,
    requests: AtomicU32,
}

impl Connections {
    /// `None` if all that could give way have shown the token.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Permit> {
        let mut places = self.lock();
        let all = places.all.values();
        let of_one = all.clone().filter(|entry| entry.address == address).count();
        let of_strangers = all.clone().filter(|entry| !entry.is_known).count();
        let one_is_full = of_one >= ONE_MAX;
        if one_is_full || of_strangers >= STRANGERS_MAX || all.len() >= ALL_MAX {
            let may_go = |entry: &OpenConnection| {
                !entry.is_known && (!one_is_full || entry.address == address)
            };
            let oldest = places.all.iter().find(|(_, entry)| may_go(entry));
            let number = oldest.map(|(number, _)| *number)?;
            if let Some(entry) = places.all.remove(&number) {
                entry.gives_way.notify_one();
            }
        }
        places.count += 1;
        let (number, gives_way) = (places.count, Arc::new(Notify::new()));
        let entry = OpenConnection { address, is_known: false, gives_way: Arc::clone(&gives_way) };
        places.all.insert(number, entry);
        drop(places);
        Some(Permit { all: self.clone(), number, gives_way, requests: AtomicU32::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn is_known(&self) {
        if let Some(entry) = self.all.lock().all.get_mut(&self.number) {
            entry.is_known = true;
        }
    }

    pub(crate) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }

    /// Counts a request; returns whether it was the last one allowed without the token.
    pub(crate) fn is_last_request(&self) -> bool {
        let is_known = self.all.lock().all.get(&self.number).is_some_and(|entry| entry.is_known);
        !is_known && self.requests.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS_MAX
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 168, 50, last])
    }

    fn numbers(connections: &Connections) -> Vec<u64> {
        connections.lock().all.keys().copied().collect()
    }

    #[test]
    fn the_oldest_that_has_not_shown_the_token_gives_way() {
        let connections = Connections::default();
        let take = |last| connections.take(address(last)).expect("there is room");
        let crew = take(1);
        crew.is_known();
        let same: Vec<Permit> = (0..20).map(|_| take(1)).collect();
        assert_eq!(numbers(&connections), [&[1], &(15..=21).collect::<Vec<u64>>()[..]].concat());
        let others: Vec<Permit> = (2..20).map(take).collect();
        assert_eq!(numbers(&connections), [&[1], &(28..=39).collect::<Vec<u64>>()[..]].concat());
        drop((crew, same, others));
        assert!(numbers(&connections).is_empty());
    }

    #[test]
    fn who_has_shown_the_token_keeps_the_place_and_there_are_never_more() {
        let connections = Connections::default();
        let mut all = Vec::new();
        for last in 0..100 {
            let Some(place) = connections.take(address(last % 50)) else { continue };
            place.is_known();
            all.push(place);
        }
        assert_eq!((all.len(), numbers(&connections).len()), (ALL_MAX, ALL_MAX));
        all.pop();
        let stranger = connections.take(address(60)).expect("there is one");
        let next = connections.take(address(61)).expect("the stranger gives way");
        let numbers = numbers(&connections);
        assert!(!numbers.contains(&stranger.number) && numbers.contains(&next.number));
        assert_eq!(numbers.len(), ALL_MAX);
    }

    #[test]
    fn without_the_token_a_connection_has_few_requests() {
        let connections = Connections::default();
        let place = connections.take(address(1)).expect("there is room");
        let requests = (1..=REQUESTS_MAX).map(|_| place.is_last_request());
        assert_eq!(requests.filter(|is_last| *is_last).count(), 1);
        place.is_known();
        assert!(!place.is_last_request());
    }
}
