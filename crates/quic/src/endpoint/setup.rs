//! How endpoints of clients and servers are made.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;

use super::dialer::Dialer;
use super::door::Door;
use super::half_open::HalfOpen;
use super::response_limiter::ResponseLimiter;
use super::{Endpoint, WorkList};
use crate::config::{ConfigError, TransportConfig};
use crate::epoch::Epoch;
use crate::outbox::Outbox;
use crate::secrets::{SeededIds, TokenKey};
use crate::stats::EndpointStats;
use crate::tls::{self, Clock};
use crate::transport;
use roadweave_identity::tls::HandshakeRefusal;
use roadweave_identity::{Identity, PeerPolicy, derive_secret};

impl Endpoint {
    /// An endpoint that connects to servers, each by its key.
    ///
    /// # Errors
    /// The configuration breaks its bounds.
    pub fn client(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let dialer = Dialer::new(epoch, config, identity)?;
        let (refusal, clock) = (dialer.refusal.clone(), dialer.clock.clone());
        let reset_key = derive_secret(&config.rng_seed, b"reset");
        let endpoint_config = Arc::new(endpoint_config(config, &reset_key)?);
        let quic = noq_proto::Endpoint::new(endpoint_config, None, true);
        Ok(Self::new(epoch, config, quic, Some(dialer), refusal, clock))
    }

    /// An endpoint that lets in whom `policy` lets in.
    ///
    /// The key of its stateless resets is derived from its private key and `reset_salt`, so that
    /// after a restart its former clients learn at once that their connections are gone.
    ///
    /// # Errors
    /// The configuration breaks its bounds.
    pub fn server(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
        policy: Arc<dyn PeerPolicy>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let (refusal, clock) = (Arc::new(HandshakeRefusal::default()), Arc::new(Clock::default()));
        let crypto = tls::server(&identity, policy, refusal.clone(), clock.clone())?;
        let token_key = TokenKey::new(&derive_secret(&config.rng_seed, b"tokens"));
        let mut server = noq_proto::ServerConfig::new(Arc::new(crypto), Arc::new(token_key));
        server.transport_config(Arc::new(transport::transport_config(config, epoch)?));
        server.time_source(clock.clone());
        let mut no_tokens = noq_proto::ValidationTokenConfig::default();
        no_tokens.sent(0);
        server.validation_token_config(no_tokens);
        let reset_key = derive_secret(&identity.derive(b"stateless reset"), &config.reset_salt);
        let endpoint_config = Arc::new(endpoint_config(config, &reset_key)?);
        let door = Door::new(server);
        let quic = noq_proto::Endpoint::new(endpoint_config, Some(door.open()), true);
        let endpoint = Self::new(epoch, config, quic, None, refusal, clock);
        Ok(Self { door: Some(door), ..endpoint })
    }

    fn new(
        epoch: Epoch,
        config: &TransportConfig,
        quic: noq_proto::Endpoint,
        dialer: Option<Dialer>,
        refusal: Arc<HandshakeRefusal>,
        clock: Arc<Clock>,
    ) -> Self {
        let response_limiter = match &dialer {
            Some(_) => ResponseLimiter::of_client(),
            None => ResponseLimiter::of_server(),
        };
        Self {
            epoch,
            config: Arc::new(config.clone()),
            quic,
            door: None,
            idle_probes: Arc::default(),
            dialer,
            refusal,
            clock,
            connections: BTreeMap::new(),
            handles: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            half_open: HalfOpen::default(),
            response_limiter,
            work: WorkList::default(),
            events: VecDeque::new(),
            outbox: Outbox::default(),
            scratch: Vec::new(),
            stats: EndpointStats::default(),
        }
    }
}

fn endpoint_config(
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
        .min_reset_interval(Duration::ZERO)
        .max_udp_payload_size(config.mtu_max.max(UDP_PAYLOAD_MIN))
        .map_err(|_| ConfigError::OutOfBounds { field: "mtu_max" })?;
    Ok(endpoint)
}

const QUIC_VERSION_1: u32 = 1;
/// Least packet that this side takes, bytes: what an Ethernet carries.
const UDP_PAYLOAD_MIN: u16 = 1472;
