//! What tests of several modules use.

use std::sync::Arc;

use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::wire::Binding;
use roadweave_proto::{Instant, Rate};
use roadweave_quic::{Epoch, TransportConfig};

use crate::anchor::{Anchor, AnchorConfig, AnchorTenant};
use crate::peers::{Peer, PeerTable};
use crate::streams::StreamsConfig;

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(crate) fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

pub(crate) fn at_second(seconds: u64) -> Instant {
    at(seconds * 1000)
}

#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
pub(crate) fn epoch() -> Epoch {
    Epoch::new(std::time::Instant::now())
}

pub(crate) fn anchor(devices: &[u8], proxies: &[u8], rate_limit: Option<Rate>) -> Anchor {
    let peer = |seed: &u8| (key(*seed), Peer::new(seed.to_string(), Vec::new()));
    let table = |seeds: &[u8]| Arc::new(PeerTable::new(seeds.iter().map(peer)));
    let (name, devices) = ("acme".into(), table(devices));
    let tenant = AnchorTenant { name, devices, clients_reach_clients: false, rate_limit };
    let (transport, streams) = (TransportConfig::new([3; 32]), Some(StreamsConfig::default()));
    let (tenants, leg_rate, memory_max) = (vec![tenant], None, 32 << 20);
    let config = AnchorConfig { transport, tenants, leg_rate, streams, memory_max };
    Anchor::new(epoch(), config, Arc::new(identity(9)), table(proxies)).expect("usable")
}

pub(crate) fn signed(device: u8, anchor: u8, proxy: u8, number: u64) -> Binding {
    let [anchor, proxy] = [anchor, proxy].map(|seed| *key(seed).as_bytes());
    let (tenant, signature) = ("acme".into(), [0; 64]);
    let mut binding = Binding { tenant, anchor, proxy, number, signature };
    binding.signature = *identity(device).sign(&binding.signed()).as_bytes();
    binding
}
