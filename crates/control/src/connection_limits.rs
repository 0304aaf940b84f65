//! Limits of concurrent connections: in all, by kind, and by address. Valid keys have their own
//! places. Others are strangers until a request shows a key; the oldest yields to the newest.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub all: usize,
    pub web: usize,
    pub boxes: usize,
    /// Connections of browsers and programs without a valid key, and streams of unknown peers.
    pub strangers: usize,
    /// Connections of one address, except members' streams.
    pub of_address: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { all: 16_384, web: 2_048, boxes: 10_240, strangers: 2_048, of_address: 1_024 }
    }
}

pub(crate) struct ConnectionPermit {
    _of_all: OwnedSemaphorePermit,
    /// None for a member's stream: many boxes may share an address.
    of_address: Option<AddressPermit>,
    pub(crate) handshake: Arc<Stranger>,
    boxes: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    of_kind: Option<(bool, OwnedSemaphorePermit)>,
}

impl ConnectionPermit {
    /// False if there is no place left.
    pub(crate) fn settle(&mut self, is_member: bool, is_gate: bool) -> bool {
        if is_member {
            self.of_address = None;
        }
        if is_gate {
            self.of_kind = None;
        } else if self.of_kind.as_ref().is_none_or(|(of_member, _)| *of_member != is_member) {
            let kind = if is_member { &self.boxes } else { &self.strangers };
            let taken = Arc::clone(kind).try_acquire_owned().ok();
            self.of_kind = taken.map(|taken| (is_member, taken));
        }
        is_gate || self.of_kind.is_some()
    }
}

pub(crate) struct Permits {
    limits: ConnectionLimits,
    all: Arc<Semaphore>,
    boxes: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    handshakes: Strangers,
    web: Arc<Web>,
    addresses: Arc<ByAddress>,
}

impl Permits {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        let [all, boxes, strangers] =
            [limits.all, limits.boxes, limits.strangers].map(|most| Arc::new(Semaphore::new(most)));
        let web = Arc::new(Web {
            known: Arc::new(Semaphore::new(limits.web)),
            strangers_max: limits.strangers,
            strangers: Strangers::default(),
        });
        let (handshakes, addresses) = (Strangers::default(), Arc::default());
        Self { limits, all, boxes, strangers, handshakes, web, addresses }
    }

    /// A permit for a connection from `address`, or the label of the reached limit in metrics.
    pub(crate) async fn take(&self, address: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let of_all = match Arc::clone(&self.all).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // The oldest handshake is most likely a stranger's: a peer with a key is quick.
                self.handshakes.make_room();
                let permit = Arc::clone(&self.all).acquire_owned();
                let permit = tokio::time::timeout(ROOM_WAIT, permit).await;
                permit.ok().and_then(Result::ok).ok_or("connections")?
            }
        };
        let of_address = self.addresses.enter(network(address), self.limits.of_address);
        let of_address = Some(of_address.ok_or("connections-of-address")?);
        let (boxes, strangers) = (Arc::clone(&self.boxes), Arc::clone(&self.strangers));
        let handshake = self.handshakes.enter(self.limits.all);
        let of_kind = None;
        Ok(ConnectionPermit { _of_all: of_all, of_address, handshake, boxes, strangers, of_kind })
    }

    pub(crate) fn web(&self) -> Arc<Web> {
        Arc::clone(&self.web)
    }

    pub(crate) async fn all_returned(&self) {
        let all = u32::try_from(self.limits.all).unwrap_or(u32::MAX);
        let _ = self.all.acquire_many(all).await;
    }
}

#[derive(Debug, Default)]
struct Strangers(Mutex<VecDeque<Weak<Stranger>>>);

impl Strangers {
    fn enter(&self, most: usize) -> Arc<Stranger> {
        let stranger = Arc::new(Stranger::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= most {
            all.retain(|it| it.upgrade().is_some_and(|it| !it.is_known()));
        }
        if all.len() >= most {
            Self::drop_oldest(&mut all);
        }
        all.push_back(Arc::downgrade(&stranger));
        stranger
    }

    fn make_room(&self) {
        Self::drop_oldest(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn drop_oldest(all: &mut VecDeque<Weak<Stranger>>) {
        while let Some(oldest) = all.pop_front() {
            if let Some(oldest) = oldest.upgrade().filter(|it| !it.is_known()) {
                return oldest.gives_way.notify_one();
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stranger {
    is_known: AtomicBool,
    gives_way: Notify,
}

impl Stranger {
    pub(crate) fn on_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(crate) async fn gives_way(&self) {
        loop {
            self.gives_way.notified().await;
            if !self.is_known() {
                return;
            }
        }
    }
}

pub(crate) struct Web {
    known: Arc<Semaphore>,
    strangers_max: usize,
    strangers: Strangers,
}

impl Web {
    pub(crate) fn enter(&self) -> Arc<WebPlace> {
        let (known, of_known) = (Arc::clone(&self.known), Mutex::default());
        let stranger = self.strangers.enter(self.strangers_max);
        Arc::new(WebPlace { stranger, known, of_known })
    }
}

pub(crate) struct WebPlace {
    pub(crate) stranger: Arc<Stranger>,
    known: Arc<Semaphore>,
    of_known: Mutex<Option<OwnedSemaphorePermit>>,
}

impl WebPlace {
    /// Moves the connection to the places of valid keys; false if no place is left.
    pub(crate) fn admit(&self) -> bool {
        let mut of_known = self.of_known.lock().unwrap_or_else(PoisonError::into_inner);
        if of_known.is_none() {
            *of_known = Arc::clone(&self.known).try_acquire_owned().ok();
        }
        if of_known.is_some() {
            self.stranger.on_known();
        }
        of_known.is_some()
    }
}

#[derive(Default)]
struct ByAddress(Mutex<HashMap<IpAddr, usize>>);

struct AddressPermit(Arc<ByAddress>, IpAddr);

impl ByAddress {
    fn enter(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<AddressPermit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(AddressPermit(Arc::clone(self), address))
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut all = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.1);
            }
        }
    }
}

pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

const ROOM_WAIT: Duration = Duration::from_millis(50);

/// The key of an address: for IPv6 its /64, since one host may use all of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gives_way(place: &WebPlace) -> bool {
        let waiting = std::pin::pin!(place.stranger.gives_way());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.poll(&mut context).is_ready()
    }

    #[test]
    fn the_oldest_stranger_gives_way_and_who_has_a_key_does_not() {
        let permits =
            Permits::new(ConnectionLimits { web: 2, strangers: 3, ..ConnectionLimits::default() });
        let web = permits.web();
        let known = [web.enter(), web.enter()];
        assert!(known.iter().all(|place| place.admit()));
        let strangers: Vec<_> = (0..5).map(|_| web.enter()).collect();
        let gone: Vec<bool> = strangers.iter().map(|place| gives_way(place)).collect();
        assert_eq!(gone, [true, true, false, false, false]);
        assert!(!known.iter().any(|place| gives_way(place)));
        assert!(!strangers[2].admit(), "there are two places for keys");
        drop(known);
        assert!(strangers[2].admit());
        let _more: Vec<_> = (0..3).map(|_| web.enter()).collect();
        assert!(!gives_way(&strangers[2]) && gives_way(&strangers[3]) && gives_way(&strangers[4]));
    }
}
