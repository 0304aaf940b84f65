//! How a client connects: each connection names the key of its server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use roadweave_identity::tls::HandshakeRefusal;
use roadweave_identity::{Identity, PublicKey};

use crate::config::{ConfigError, TransportConfig};
use crate::epoch::Epoch;
use crate::secrets::SeededIds;
use crate::tls::{self, Clock};
use crate::transport;

pub(super) struct Dialer {
    identity: Arc<Identity>,
    pub(super) refusal: Arc<HandshakeRefusal>,
    pub(super) clock: Arc<Clock>,
    transport: Arc<noq_proto::TransportConfig>,
    first_ids: Arc<Mutex<SeededIds>>,
    servers: VecDeque<(PublicKey, noq_proto::ClientConfig)>,
}

impl Dialer {
    pub(super) fn new(
        epoch: Epoch,
        config: &TransportConfig,
        identity: Arc<Identity>,
    ) -> Result<Self, ConfigError> {
        let first_ids = SeededIds::new(&config.rng_seed, b"first connection IDs");
        Ok(Self {
            identity,
            refusal: Arc::default(),
            clock: Arc::default(),
            transport: Arc::new(transport::transport_config(config, epoch)?),
            first_ids: Arc::new(Mutex::new(first_ids)),
            servers: VecDeque::new(),
        })
    }

    pub(super) fn settings(
        &mut self,
        server_key: PublicKey,
    ) -> Result<noq_proto::ClientConfig, ConfigError> {
        if let Some((_, known)) = self.servers.iter().find(|(key, _)| *key == server_key) {
            return Ok(known.clone());
        }
        let (refusal, clock) = (self.refusal.clone(), self.clock.clone());
        let crypto = tls::client(&self.identity, server_key, refusal, clock)?;
        let mut settings = noq_proto::ClientConfig::new(Arc::new(crypto));
        settings.transport_config(self.transport.clone());
        settings.token_store(Arc::new(noq_proto::NoneTokenStore));
        let ids = self.first_ids.clone();
        settings.initial_dst_cid_provider(Arc::new(move || {
            ids.lock().unwrap_or_else(PoisonError::into_inner).draw(INITIAL_ID_LEN)
        }));
        if self.servers.len() >= SERVERS_MAX {
            self.servers.pop_front();
        }
        self.servers.push_back((server_key, settings.clone()));
        Ok(settings)
    }
}

const SERVERS_MAX: usize = 8;
/// At least 8 bytes (RFC 9000 section 7.2).
const INITIAL_ID_LEN: usize = 16;
