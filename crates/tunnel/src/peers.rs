//! The clients that a server knows, and which of them an inner address leads to.
//!
//! ```text
//! worker ─► Peers (clients by key, a trie of their prefixes) ─► PeerTable ─► server, handshakes
//!           built where it may take its time                    swapped in one step
//! ```
//!
//! The trie takes five address bits at a step: 40,000 clients take as long as ten, without a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_identity::{PeerPolicy, PublicKey, Refusal};
use roadweave_proto::Rate;

/// One client that may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The client's name in logs and statistics.
    pub name: String,
    /// The tenant that it belongs to; empty without tenants.
    pub tenant: String,
    /// Its inner addresses and the prefixes behind it; packets from others are dropped.
    pub addresses: Vec<IpNet>,
    /// Seconds since 1970 after which it may not connect.
    pub expires_unix: Option<u64>,
    /// The limit in each direction, of inner packets.
    pub rate_limit: Option<Rate>,
    /// How long without a controller it may still connect.
    pub offline_max: Option<Duration>,
}

impl Peer {
    /// A client of no tenant, without limits of time or rate.
    pub fn new(name: impl Into<String>, addresses: Vec<IpNet>) -> Self {
        Self { name: name.into(), addresses, ..Self::default() }
    }

    pub(crate) fn is_where(&self, other: &Self) -> bool {
        (&self.tenant, &self.addresses) == (&other.tenant, &other.addresses)
    }
}

/// Networks behind clients that are announced to others, at most.
const BEHIND_MAX: usize = 256;

/// A set of clients that may connect.
#[derive(Debug, Default)]
pub struct Peers {
    by_key: BTreeMap<PublicKey, Arc<Peer>>,
    routes: JointPrefixMap<IpNet, PublicKey>,
    behind: Vec<(PublicKey, IpNet)>,
}

impl Peers {
    /// The peer with `key`, whether or not it may connect now.
    pub fn get(&self, key: &PublicKey) -> Option<&Arc<Peer>> {
        self.by_key.get(key)
    }

    /// The peer with the longest prefix that contains `address`.
    pub fn route(&self, address: IpAddr) -> Option<PublicKey> {
        self.routes.get_lpm(&address.into()).map(|(_, key)| *key)
    }

    /// Replaces `former` by `peers`; returns also what changes.
    pub fn after(former: &Self, peers: impl IntoIterator<Item = (PublicKey, Peer)>) -> PeersChange {
        let mut peers: Self = peers.into_iter().collect();
        let mut changed = Vec::new();
        for (key, before) in &former.by_key {
            match peers.by_key.get_mut(key) {
                Some(after) if after == before => *after = before.clone(),
                _ => changed.push(*key),
            }
        }
        PeersChange { peers, changed }
    }

    pub(crate) fn behind(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let tenant = |key| self.by_key.get(key).map_or("", |peer| peer.tenant.as_str());
        self.behind.iter().map(move |(key, network)| (tenant(key), *network))
    }

    /// All clients, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&PublicKey, &Arc<Peer>)> {
        self.by_key.iter()
    }

    /// The number of clients.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are no clients.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

impl FromIterator<(PublicKey, Peer)> for Peers {
    /// If peers share a prefix, the highest key gets it; configurations refuse that.
    fn from_iter<T: IntoIterator<Item = (PublicKey, Peer)>>(peers: T) -> Self {
        let by_key: BTreeMap<_, _> =
            peers.into_iter().map(|(key, peer)| (key, Arc::new(peer))).collect();
        let (mut routes, mut behind) = (JointPrefixMap::new(), Vec::new());
        for (key, peer) in &by_key {
            for network in &peer.addresses {
                routes.insert(network.trunc(), *key);
                let is_host = network.prefix_len() == network.max_prefix_len();
                if !is_host && behind.len() < BEHIND_MAX {
                    behind.push((*key, network.trunc()));
                }
            }
        }
        Self { by_key, routes, behind }
    }
}

/// New peers, and how they differ from the former ones.
#[derive(Debug)]
pub struct PeersChange {
    /// The peers.
    pub peers: Peers,
    /// The keys of former peers that are gone or changed, ascending.
    pub changed: Vec<PublicKey>,
}

#[derive(Debug, Default)]
struct Barred {
    revoked: BTreeSet<PublicKey>,
    closed_but: Option<BTreeSet<PublicKey>>,
}

/// The clients that may connect, shared between the server and its endpoint's handshakes.
#[derive(Debug, Default)]
pub struct PeerTable {
    peers: RwLock<Arc<Peers>>,
    barred: RwLock<Barred>,
    unix_time: AtomicU64,
    /// Seconds without a controller.
    away: AtomicU64,
}

impl PeerTable {
    /// A table of `peers`.
    pub fn new(peers: impl IntoIterator<Item = (PublicKey, Peer)>) -> Self {
        Self::from(peers.into_iter().collect::<Peers>())
    }

    /// Replaces all peers; returns the former ones, since dropping thousands takes a while.
    pub fn replace(&self, peers: Peers) -> Arc<Peers> {
        let mut held = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, Arc::new(peers))
    }

    /// The peers as they are now.
    pub fn peers(&self) -> Arc<Peers> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bars these keys for good.
    pub fn revoke(&self, keys: impl IntoIterator<Item = PublicKey>) {
        self.barred.write().unwrap_or_else(PoisonError::into_inner).revoked.extend(keys);
    }

    /// Admits only `some` of the clients, or all again.
    pub fn close_but(&self, some: Option<BTreeSet<PublicKey>>) {
        self.barred.write().unwrap_or_else(PoisonError::into_inner).closed_but = some;
    }

    /// Sets the time of day, in seconds since 1970, by which keys expire.
    pub fn set_unix_time(&self, seconds: u64) {
        self.unix_time.store(seconds, Ordering::Relaxed);
    }

    /// Sets how long there has been no controller.
    pub fn set_away(&self, away: Duration) {
        self.away.store(away.as_secs(), Ordering::Relaxed);
    }

    /// The peer with `key`, whether or not it may connect now.
    pub fn get(&self, key: &PublicKey) -> Option<Arc<Peer>> {
        self.read(|peers| peers.get(key).cloned())
    }

    /// The peer with the longest prefix that contains `address`.
    pub fn route(&self, address: IpAddr) -> Option<PublicKey> {
        self.read(|peers| peers.route(address))
    }

    fn read<T>(&self, read: impl FnOnce(&Peers) -> T) -> T {
        read(&self.peers.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<Peers> for PeerTable {
    fn from(peers: Peers) -> Self {
        let peers = RwLock::new(Arc::new(peers));
        Self { peers, ..Self::default() }
    }
}

impl PeerPolicy for PeerTable {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        let unix_time = self.unix_time.load(Ordering::Relaxed);
        let barred = self.barred.read().unwrap_or_else(PoisonError::into_inner);
        if barred.revoked.contains(key) {
            return Err(Refusal::Revoked);
        }
        let is_closed = barred.closed_but.as_ref().is_some_and(|some| !some.contains(key));
        drop(barred);
        let away = Duration::from_secs(self.away.load(Ordering::Relaxed));
        let is_offline = |peer: &Peer| peer.offline_max.is_some_and(|most| away >= most);
        let has_expired = |peer: &Peer| peer.expires_unix.is_some_and(|end| end <= unix_time);
        self.read(|peers| match peers.get(key) {
            None => Err(Refusal::Unknown),
            Some(peer) if has_expired(peer) => Err(Refusal::Expired),
            Some(peer) if is_closed || is_offline(peer) => Err(Refusal::Forbidden),
            Some(_) => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;
    use proptest::prelude::*;

    fn peer(addresses: &[IpNet]) -> Peer {
        Peer::new("box", addresses.to_vec())
    }

    fn networks() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u32..64, 20_u8..=32).prop_map(|(low, length)| {
            let address = IpAddr::from((0x0a4d_0000 | low << 6).to_be_bytes());
            IpNet::new(address, length).expect("at most 32 bits")
        });
        let v6 = (0_u128..64, 100_u8..=128).prop_map(|(low, length)| {
            let address = IpAddr::from((0xfd77 << 112 | low << 14).to_be_bytes());
            IpNet::new(address, length).expect("at most 128 bits")
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn an_address_leads_to_the_longest_prefix_that_holds_it(
            owned in prop::collection::vec(prop::collection::vec(networks(), 1..4), 1..20),
            asked in prop::collection::vec(networks(), 1..40),
        ) {
            let mut taken = BTreeSet::new();
            let peers: Vec<(PublicKey, Peer)> = (0_u8..)
                .zip(&owned)
                .map(|(number, networks)| {
                    let mine: Vec<IpNet> =
                        networks.iter().copied().filter(|net| taken.insert(net.trunc())).collect();
                    (key(number), peer(&mine))
                })
                .collect();
            let table = PeerTable::new(peers.clone());
            for address in asked.iter().map(IpNet::addr) {
                let holding = peers.iter().flat_map(|(key, peer)| {
                    let holds = peer.addresses.iter().filter(|net| net.contains(&address));
                    holds.map(move |net| (net.prefix_len(), *key))
                });
                let expected = holding.max_by_key(|(length, _)| *length).map(|(_, key)| key);
                prop_assert_eq!(table.route(address), expected, "{}", address);
            }
        }
    }

    #[test]
    fn revoked_keys_are_refused_even_if_configured() {
        let network: IpNet = "10.77.0.2/32".parse().unwrap();
        let both = || [(key(1), peer(&[network])), (key(2), peer(&[]))];
        let table = PeerTable::new(both());
        table.revoke([key(1)]);
        table.replace(both().into_iter().collect());
        assert_eq!((table.check(&key(1)), table.check(&key(2))), (Err(Refusal::Revoked), Ok(())));
        table.close_but(Some([key(1)].into()));
        assert_eq!(table.check(&key(2)), Err(Refusal::Forbidden));
        assert_eq!(table.check(&key(1)), Err(Refusal::Revoked));
        table.close_but(None);
        assert_eq!(table.check(&key(2)), Ok(()));
    }

    #[test]
    fn who_may_not_be_without_a_controller_for_long_is_let_in_again_when_one_is_there() {
        let most = |seconds| Some(Duration::from_secs(seconds));
        let of = |number, offline_max| (key(number), Peer { offline_max, ..peer(&[]) });
        let table = PeerTable::new([of(1, None), of(2, most(60)), of(3, most(3_600))]);
        let let_in = |away: u64| {
            table.set_away(Duration::from_secs(away));
            [1, 2, 3].map(|number| table.check(&key(number)).is_ok())
        };
        assert_eq!(let_in(59), [true; 3]);
        assert_eq!(let_in(60), [true, false, true]);
        assert_eq!(table.check(&key(2)), Err(Refusal::Forbidden));
        assert_eq!(let_in(1_000_000), [true, false, false]);
        assert_eq!(let_in(0), [true; 3]);
    }

    #[test]
    fn what_is_replaced_leads_nowhere() {
        let network: IpNet = "10.77.0.2/32".parse().unwrap();
        let table = PeerTable::new([(key(1), peer(&[network]))]);
        assert_eq!(table.route(network.addr()), Some(key(1)));
        let former = table.replace([(key(2), peer(&[network]))].into_iter().collect());
        assert_eq!((former.len(), table.route(network.addr())), (1, Some(key(2))));
        assert_eq!((table.check(&key(1)), table.check(&key(2))), (Err(Refusal::Unknown), Ok(())));
    }
}
