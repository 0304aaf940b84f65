//! How many connections the controller serves at once: of all, of a kind, of an address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::api::limit::network;

/// How many connections there may be at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all kinds.
    pub all: usize,
    /// Connections of browsers and programs.
    pub web: usize,
    /// Streams of boxes, and of those who are not known.
    pub boxes: usize,
    /// Connections of one address, but for the streams of members.
    pub of_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: 16_384, web: 2_048, boxes: 12_288, of_address: 1_024 }
    }
}

/// What one connection takes of the limits; dropping it gives that back.
pub(crate) struct ConnectionPermit {
    _of_all: OwnedSemaphorePermit,
    /// None for a member's stream: many boxes may stand behind one address.
    of_address: Option<AddressPermit>,
    boxes: Arc<Semaphore>,
    of_boxes: Option<OwnedSemaphorePermit>,
}

impl ConnectionPermit {
    /// Takes what a stream of such a peer takes; false if there is none left.
    pub(crate) fn settle(&mut self, is_member: bool, is_gate: bool) -> bool {
        if is_member {
            self.of_address = None;
        }
        if is_gate {
            self.of_boxes = None;
        } else if self.of_boxes.is_none() {
            self.of_boxes = Arc::clone(&self.boxes).try_acquire_owned().ok();
        }
        is_gate || self.of_boxes.is_some()
    }
}

/// What is left of the limits.
pub(crate) struct Permits {
    limits: Limits,
    all: Arc<Semaphore>,
    boxes: Arc<Semaphore>,
    web: Arc<Semaphore>,
    addresses: Arc<ByAddress>,
}

impl Permits {
    pub(crate) fn new(limits: Limits) -> Self {
        let [all, boxes, web] =
            [limits.all, limits.boxes, limits.web].map(|most| Arc::new(Semaphore::new(most)));
        Self { limits, all, boxes, web, addresses: Arc::default() }
    }

    /// A permit for a connection from `address`.
    ///
    /// # Errors
    /// Which limit is reached, as metrics call it.
    pub(crate) fn take(&self, address: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let of_all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| "connections")?;
        let of_address = self.addresses.enter(network(address), self.limits.of_address);
        let of_address = Some(of_address.ok_or("connections-of-address")?);
        let boxes = Arc::clone(&self.boxes);
        Ok(ConnectionPermit { _of_all: of_all, of_address, boxes, of_boxes: None })
    }

    /// The permits of browsers and programs.
    pub(crate) fn web(&self) -> Arc<Semaphore> {
        Arc::clone(&self.web)
    }

    /// Waits until every connection has ended.
    pub(crate) async fn all_returned(&self) {
        let all = u32::try_from(self.limits.all).unwrap_or(u32::MAX);
        let _ = self.all.acquire_many(all).await;
    }
}

/// How many connections each address has.
#[derive(Default)]
struct ByAddress(Mutex<HashMap<IpAddr, usize>>);

/// What one connection takes of the limit of its address; dropping it gives that back.
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

/// Waits until all shall stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could say so being gone is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}
