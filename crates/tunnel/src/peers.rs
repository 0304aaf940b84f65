//! The clients that a server knows, and which inner addresses lead to which of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::RwLock;

use ipnet::IpNet;
use roadweave_quic::{PeerPolicy, PublicKey, Refusal};

/// One client that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in logs and statistics.
    pub name: String,
    /// Its inner addresses and the prefixes behind it. It may send from these and no others.
    pub addresses: Vec<IpNet>,
    /// Seconds since 1970 after which it is not let in any more.
    pub expires_unix: Option<u64>,
}

/// The clients that may connect, by key. Shared between the server and its endpoint's handshakes.
#[derive(Debug, Default)]
pub struct PeerTable {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    peers: BTreeMap<PublicKey, Peer>,
    unix_time: u64,
}

impl PeerTable {
    /// A table of `peers`.
    pub fn new(peers: impl IntoIterator<Item = (PublicKey, Peer)>) -> Self {
        let inner = Inner { peers: peers.into_iter().collect(), unix_time: 0 };
        Self { inner: RwLock::new(inner) }
    }

    /// Replaces all peers, for a reload of the configuration.
    pub fn replace(&self, peers: impl IntoIterator<Item = (PublicKey, Peer)>) {
        self.write(|inner| inner.peers = peers.into_iter().collect());
    }

    /// Tells the table the time of day, in seconds since 1970, by which keys expire.
    pub fn set_unix_time(&self, seconds: u64) {
        self.write(|inner| inner.unix_time = seconds);
    }

    /// The peer with `key`, whether it may connect now or not.
    pub fn get(&self, key: &PublicKey) -> Option<Peer> {
        self.read(|inner| inner.peers.get(key).cloned())
    }

    /// The peer that `address` leads to: the one with the longest matching prefix.
    pub fn route(&self, address: IpAddr) -> Option<PublicKey> {
        self.read(|inner| {
            let matches = inner.peers.iter().flat_map(|(key, peer)| {
                let lengths = peer.addresses.iter().filter(|network| network.contains(&address));
                lengths.map(move |network| (network.prefix_len(), *key))
            });
            matches.max_by_key(|(length, _)| *length).map(|(_, key)| key)
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Inner) -> T) -> T {
        read(&self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn write(&self, write: impl FnOnce(&mut Inner)) {
        write(&mut self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

impl PeerPolicy for PeerTable {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        self.read(|inner| match inner.peers.get(key) {
            None => Err(Refusal::Unknown),
            Some(peer) if peer.expires_unix.is_some_and(|end| end <= inner.unix_time) => {
                Err(Refusal::Expired)
            }
            Some(_) => Ok(()),
        })
    }
}
