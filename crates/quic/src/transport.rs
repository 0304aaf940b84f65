//! The library's settings. Those that make the gate technique work have their reasons.

use std::sync::Arc;

use noq_proto::crypto::rustls::QuicServerConfig;
use noq_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, VarInt};
use ring::hmac;

use crate::config::{ConfigError, INITIAL_MTU, TransportConfig};
use crate::epoch::Epoch;
use crate::gate::GateFactory;
use crate::meter::reordering::PACKET_THRESHOLD;
use crate::secrets::{SeededIds, TokenKey};
use crate::tls::Clock;
use roadweave_identity::derive_secret;

pub(crate) fn transport_config(
    config: &TransportConfig,
    epoch: Epoch,
) -> Result<noq_proto::TransportConfig, ConfigError> {
    let idle_timeout = IdleTimeout::try_from(config.idle_timeout)
        .map_err(|_| ConfigError::OutOfBounds { field: "idle_timeout" })?;
    let seed = derive_secret(&config.rng_seed, b"congestion control");
    let seed = u64::from_le_bytes(*seed.first_chunk().expect("a secret has 32 bytes"));
    let controllers = config.congestion.factory(seed);
    let gates = GateFactory::new(controllers, config.initial_rtt, epoch);

    let mut transport = noq_proto::TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(gates))
        .max_concurrent_multipath_paths(config.max_paths)
        .max_idle_timeout(Some(idle_timeout))
        // Dead paths stay open: a path abandoned in a tunnel would have to be opened again.
        .default_path_max_idle_timeout(None)
        // Keep-alives are ours: the library's would go out on every path.
        .default_path_keep_alive_interval(None)
        .keep_alive_interval(None)
        .initial_rtt(config.initial_rtt)
        // A peer discards packets that more than this overtook.
        .packet_threshold(PACKET_THRESHOLD as u32)
        // The meter detects loss; this is for the library's own frames, and must not come first:
        // the library reports no acknowledgements of packets that it gave up. It is also how long a
        // lost frame of the library waits while later ones arrive.
        .time_threshold(16.0)
        .ack_frequency_config(Some(ack_frequency()))
        .initial_mtu(INITIAL_MTU)
        .mtu_discovery_config(mtu_discovery(config))
        // A handshake's close may need a packet per encryption level. Others are polled one by one.
        .enable_segmentation_offload(true)
        .allow_spin(false)
        .datagram_send_buffer_size(DATAGRAM_QUEUE)
        .datagram_receive_buffer_size(Some(DATAGRAM_QUEUE))
        // There are no streams; see `control`.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0));
    Ok(transport)
}

/// Acknowledgements time the recovery of lost packets.
fn ack_frequency() -> AckFrequencyConfig {
    let mut config = AckFrequencyConfig::default();
    config
        .ack_eliciting_threshold(VarInt::from_u32(0))
        .reordering_threshold(VarInt::from_u32(1))
        .max_ack_delay(Some(std::time::Duration::from_millis(1)));
    config
}

fn mtu_discovery(config: &TransportConfig) -> Option<MtuDiscoveryConfig> {
    (config.mtu_max > INITIAL_MTU).then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(config.mtu_max);
        // Four losses in one acknowledgement look like a narrower path; probe again soon.
        discovery.black_hole_cooldown(std::time::Duration::from_secs(1));
        discovery
    })
}

pub(crate) fn server_config(
    epoch: Epoch,
    config: &TransportConfig,
    crypto: QuicServerConfig,
    clock: Arc<Clock>,
) -> Result<noq_proto::ServerConfig, ConfigError> {
    let token_key = TokenKey::new(&derive_secret(&config.rng_seed, b"tokens"));
    let mut server = noq_proto::ServerConfig::new(Arc::new(crypto), Arc::new(token_key));
    server.transport_config(Arc::new(transport_config(config, epoch)?));
    server.time_source(clock);
    let mut no_tokens = noq_proto::ValidationTokenConfig::default();
    no_tokens.sent(0);
    server.validation_token_config(no_tokens);
    Ok(server)
}

pub(crate) fn endpoint_config(
    config: &TransportConfig,
    reset_key: &[u8; 32],
) -> Result<noq_proto::EndpointConfig, ConfigError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
    let mut endpoint = noq_proto::EndpointConfig::new(Arc::new(key));
    let (seed, shard) = (config.rng_seed, config.shard);
    let ids = move || SeededIds::new(&seed, b"connection IDs").of_shard(shard);
    endpoint
        .cid_generator(Arc::new(move || Box::new(ids())))
        .supported_versions(vec![QUIC_VERSION_1])
        .rng_seed(Some(derive_secret(&seed, b"library")))
        .min_reset_interval(std::time::Duration::ZERO)
        .max_udp_payload_size(config.mtu_max.max(UDP_PAYLOAD_MIN))
        .map_err(|_| ConfigError::OutOfBounds { field: "mtu_max" })?;
    Ok(endpoint)
}

/// The library's queues of datagrams, bytes; ours keep them empty.
const DATAGRAM_QUEUE: usize = 256 * 1024;
const QUIC_VERSION_1: u32 = 1;
/// Least packet that this side takes, bytes: what an Ethernet carries.
const UDP_PAYLOAD_MIN: u16 = 1472;
