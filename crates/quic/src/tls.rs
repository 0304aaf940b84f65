//! TLS as QUIC takes it: both sides known by raw public keys, and virtual time.
//!
//! The handshake's ephemeral keys come from the system's entropy; no decision depends on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::rustls::AlertDescription;
use noq_proto::rustls::pki_types::{CertificateDer, UnixTime};
use noq_proto::rustls::time_provider::TimeProvider;
use roadweave_identity::tls::{HandshakeRefusal, Pinned, TlsSide};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, Refusal, tls};
use roadweave_proto::Instant;

use crate::config::ConfigError;

/// The application protocol (RFC 7301) that both sides must speak.
pub(crate) const ALPN: &[u8] = b"roadweave/1";

/// Virtual time for the libraries that would otherwise read the clock.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.elapsed()))
    }
}

impl noq_proto::TimeSource for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.elapsed()
    }
}

pub(crate) fn client(
    identity: &Identity,
    server_key: PublicKey,
    refusal: Arc<HandshakeRefusal>,
    clock: Arc<Clock>,
) -> Result<QuicClientConfig, ConfigError> {
    let policy = Arc::new(Pinned(server_key));
    let side = TlsSide { identity, policy, refusal, alpn: ALPN, time: clock };
    let config = tls::client(side).map_err(tls_error)?;
    config.try_into().map_err(|error| ConfigError::Tls(format!("{error}")))
}

pub(crate) fn server(
    identity: &Identity,
    policy: Arc<dyn PeerPolicy>,
    refusal: Arc<HandshakeRefusal>,
    clock: Arc<Clock>,
    alpn: &'static [u8],
) -> Result<QuicServerConfig, ConfigError> {
    let side = TlsSide { identity, policy, refusal, alpn, time: clock };
    let config = tls::server(side).map_err(tls_error)?;
    config.try_into().map_err(|error| ConfigError::Tls(format!("{error}")))
}

pub(crate) fn peer_key(session: &dyn noq_proto::crypto::Session) -> Option<PublicKey> {
    let identity = session.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    tls::peer_key(&identity)
}

/// The refusal of a client's key that `code` of a server's close stands for, if any.
pub(crate) fn refusal_of(code: noq_proto::TransportErrorCode) -> Option<Refusal> {
    // RFC 9001 section 4.8: the alert is the lowest byte.
    let alert: u8 = u64::from(code).checked_sub(CRYPTO_ERROR)?.try_into().ok()?;
    tls::refusal_of(AlertDescription::from(alert))
}

fn tls_error(error: noq_proto::rustls::Error) -> ConfigError {
    ConfigError::Tls(error.to_string())
}

/// RFC 9001 section 4.8.
const CRYPTO_ERROR: u64 = 0x100;
