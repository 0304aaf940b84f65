//! Clients that may connect, and the validation of their list.

use std::collections::BTreeMap;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use roadweave_identity::PublicKey;
use roadweave_tunnel::Peer;
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use crate::Fault;
use crate::secret::PrivateKey;
use crate::values::{RateMbps, networks, validate_networks};

/// A client that may connect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFields {
    /// A client's name in logs and statistics.
    pub name: String,
    /// One of `tenants`. Default: required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// Its inner addresses and the prefixes behind it, the only sources it may use; clients may not
    /// share any, except those of different tenants.
    #[serde(deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// When its key expires, such as `2027-01-31T00:00:00Z`, see configuration.md#keys-that-expire.
    /// Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Datetime>,
    /// Maximum rate of inner packets each way, Mbit/s; the excess is dropped (`rate-limited`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_mbps: Option<RateMbps>,
}

impl PeerFields {
    pub(crate) fn to_peer(&self) -> Peer {
        Peer {
            tenant: self.tenant.clone().unwrap_or_default(),
            expires_unix: self.expires.as_ref().and_then(|moment| unix_seconds(moment).ok()),
            rate_limit: self.rate_limit_mbps.map(RateMbps::rate),
            ..Peer::new(self.name.clone(), self.addresses.clone())
        }
    }
}

/// The clients of a file.
pub fn peers(peers: &[PeerFields]) -> Vec<(PublicKey, Peer)> {
    peers.iter().map(|peer| (peer.public_key, peer.to_peer())).collect()
}

fn unix_seconds(moment: &Datetime) -> Result<u64, String> {
    let text = moment.to_string();
    let parsed: jiff::Timestamp = text.parse().map_err(|_| {
        format!(
            "expires = {text} is no moment; write one with a time zone, as 2027-01-31T00:00:00Z"
        )
    })?;
    Ok(parsed.as_second().max(0).unsigned_abs())
}

pub(crate) fn expired_peers(peers: &[PeerFields], now_unix: u64) -> Vec<String> {
    let expired = peers.iter().filter_map(|peer| {
        let moment = peer.expires.as_ref()?;
        unix_seconds(moment).is_ok_and(|at| at <= now_unix).then(|| {
            format!(
                "peer \"{}\" is no longer admitted: its key expired at {moment}; renew `expires`, \
                 or remove the peer",
                peer.name
            )
        })
    });
    expired.collect()
}

pub(crate) struct PeersCheck<'a> {
    list: &'static str,
    own_key: Option<PublicKey>,
    own_addresses: &'a [IpNet],
    /// The file's tenants: each peer must name one. `None`: no peer may name one.
    tenants: Option<&'a [&'a str]>,
    private_key: PrivateKey,
    keys: BTreeMap<PublicKey, usize>,
    /// By tenant: those of different tenants may be the same.
    networks: BTreeMap<&'a str, JointPrefixMap<IpNet, usize>>,
}

impl<'a> PeersCheck<'a> {
    pub(crate) fn new(
        list: &'static str,
        private_key: &PrivateKey,
        own_addresses: &'a [IpNet],
        tenants: Option<&'a [&'a str]>,
    ) -> Self {
        let own_key = private_key.identity().ok().map(|identity| identity.public_key());
        let (keys, networks) = (BTreeMap::new(), BTreeMap::new());
        let private_key = private_key.clone();
        Self { list, private_key, own_key, own_addresses, tenants, keys, networks }
    }

    pub(crate) fn check(mut self, peers: &'a [PeerFields]) -> Result<(), Fault> {
        (0..peers.len()).try_for_each(|position| self.check_peer(peers, position))
    }

    fn check_peer(&mut self, peers: &'a [PeerFields], position: usize) -> Result<(), Fault> {
        let (list, peer) = (self.list, &peers[position]);
        let fault =
            |field: &str, message| Err(Fault::new(format!("{list}.{position}.{field}"), message));
        if self.own_key == Some(peer.public_key) {
            let message = format!(
                "peer \"{}\": public_key is that of this server's own private_key; write the client's",
                peer.name
            );
            return fault("public_key", message);
        }
        if self.private_key.is_written_as(&peer.public_key) {
            let message = format!(
                "peer \"{}\": public_key is this server's own private_key; write the client's public key",
                peer.name
            );
            return fault("public_key", message);
        }
        if let Some(same) = self.keys.insert(peer.public_key, position) {
            let message = format!(
                "peers \"{}\" and \"{}\" have the same public_key; give each client its own",
                peers[same].name, peer.name
            );
            return fault("public_key", message);
        }
        let tenant = peer.tenant.as_deref();
        let wrong_tenant = match (self.tenants, tenant) {
            (None, None) => None,
            (None, Some(_)) => Some("only the peers of a proxy have one; remove it".to_owned()),
            (Some(all), tenant) if tenant.is_some_and(|tenant| all.contains(&tenant)) => None,
            (Some(all), _) => Some(format!("write one of those in tenants: {}", all.join(", "))),
        };
        if let Some(message) = wrong_tenant {
            let message = format!("peer \"{}\": tenant is none; {message}", peer.name);
            return fault(if tenant.is_some() { "tenant" } else { "name" }, message);
        }
        if peer.addresses.is_empty() {
            let message = format!(
                "peer \"{}\": addresses is empty; give it an inner address of its own, \
                 such as addresses = [\"10.77.0.2/32\"]",
                peer.name
            );
            return fault("addresses", message);
        }
        self.check_addresses(peers, position)?;
        match peer.expires.as_ref().map(unix_seconds) {
            Some(Err(error)) => fault("expires", format!("peer \"{}\": {error}", peer.name)),
            _ => Ok(()),
        }
    }

    fn check_addresses(&mut self, peers: &'a [PeerFields], position: usize) -> Result<(), Fault> {
        let (list, peer) = (self.list, &peers[position]);
        validate_networks(&format!("{list}.{position}.addresses"), &peer.addresses)?;
        let networks = self.networks.entry(peer.tenant.as_deref().unwrap_or_default()).or_default();
        for (number, address) in peer.addresses.iter().enumerate() {
            let fault =
                |message| Err(Fault::new(format!("{list}.{position}.addresses.{number}"), message));
            if let Some(own) = self.own_addresses.iter().find(|own| address.contains(&own.addr())) {
                return fault(format!(
                    "peer \"{}\": {address} holds the server's own address {}; \
                     give the client others",
                    peer.name,
                    own.addr()
                ));
            }
            if let Some((other, shared)) = sharing(networks, position, address) {
                return fault(format!(
                    "peers \"{}\" and \"{}\" share addresses, {shared} and {address}; \
                     give each client its own",
                    peers[other].name, peer.name
                ));
            }
            networks.insert(*address, position);
        }
        Ok(())
    }
}

/// A prefix of another peer that overlaps with `network`, with that peer's position.
fn sharing(
    taken: &JointPrefixMap<IpNet, usize>,
    position: usize,
    network: &IpNet,
) -> Option<(usize, IpNet)> {
    let around = taken.get_lpm(network);
    let mut shared = around.into_iter().chain(taken.children(network));
    let (taken, other) = shared.find(|(_, other)| **other != position)?;
    Some((*other, taken))
}
