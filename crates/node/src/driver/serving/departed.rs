//! The addresses of clients that left.

use std::net::IpAddr;
use std::sync::Arc;

use roadweave_identity::PublicKey;
use roadweave_tunnel::Peers;

#[derive(Debug)]
pub(super) struct Departed {
    pub(super) peers: Arc<Peers>,
    pub(super) keys: Vec<PublicKey>,
}

impl Departed {
    /// A client's default route may be another's too, and is ignored.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let owner = self.peers.route(address).filter(|key| self.keys.contains(key));
        let peer = owner.and_then(|key| self.peers.get(&key));
        let mut own = peer.iter().flat_map(|peer| &peer.addresses);
        own.any(|own| own.prefix_len() > 0 && own.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use roadweave_identity::Identity;
    use roadweave_tunnel::Peer;

    use super::*;

    fn peer(seed: u8, addresses: &[&str]) -> (PublicKey, Peer) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let peer = Peer::new(format!("bus-{seed}"), addresses);
        (Identity::from_seed([seed; 32]).public_key(), peer)
    }

    fn left(peers: &[(PublicKey, Peer)], key: PublicKey) -> Departed {
        Departed { peers: Arc::new(peers.iter().cloned().collect()), keys: vec![key] }
    }

    #[test]
    fn the_longest_prefix_says_whose_a_connection_is() {
        let peers = [peer(1, &["0.0.0.0/0", "10.0.0.0/8"]), peer(2, &["10.9.0.2/32"])];
        let first = left(&peers, peers[0].0);
        let has = |text: &str| first.has(text.parse().unwrap());
        assert!(has("10.9.0.3"));
        assert!(!has("10.9.0.2"), "another's");
        assert!(!has("203.0.113.1"), "the machine has such addresses too");
    }
}
