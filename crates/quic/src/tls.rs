//! TLS 1.3 with raw public keys on both sides (RFC 7250): no names, no authorities, no dates.
//!
//! ```text
//! client                                         server
//!   ClientHello ------------------------------->
//!       <-- Certificate: the server's key, signature
//!   is it the pinned key? else alert unknown_ca and WrongServerKey
//!   Certificate: the client's key, signature --->
//!                                   what says the PeerPolicy? else an alert that tells why
//! ```
//!
//! A refusal travels as the alert that RFC 8446 section 6.2 has for it, so that the client's user
//! reads the reason. The handshake's ephemeral keys come from the system's entropy inside the TLS
//! library; nothing that this crate decides depends on them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use noq_proto::rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use noq_proto::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key,
};
use noq_proto::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use noq_proto::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use noq_proto::rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use noq_proto::rustls::sign::CertifiedKey;
use noq_proto::rustls::time_provider::TimeProvider;
use noq_proto::rustls::{
    self, AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, SignatureScheme,
};
use roadweave_types::Instant;

use crate::config::ConfigError;
use crate::event::Refusal;
use crate::identity::{Identity, PublicKey};

/// The application protocol (RFC 7301) that both sides must speak.
pub(crate) const ALPN: &[u8] = b"roadweave/1";

/// The name that a client would ask for; it is never sent.
pub(crate) const SERVER_NAME: &str = "roadweave.invalid";

/// Says who may connect; asked at each handshake.
pub trait PeerPolicy: Send + Sync {
    /// Whether the holder of `key` may connect.
    ///
    /// # Errors
    ///
    /// Why not; both sides learn it.
    fn check(&self, key: &PublicKey) -> Result<(), Refusal>;
}

/// The key that a verifier refused last and why, kept until the endpoint asks: the alert alone does
/// not tell the key.
#[derive(Debug, Default)]
pub(crate) struct HandshakeRefusal(Mutex<Option<(PublicKey, Refusal)>>);

impl HandshakeRefusal {
    fn set(&self, key: PublicKey, why: Refusal) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((key, why));
    }

    /// The refusal that the packet just handled caused, if any.
    pub(crate) fn take(&self) -> Option<(PublicKey, Refusal)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

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

/// TLS for a client that talks to the holder of `server_key` only.
pub(crate) fn client(
    identity: &Identity,
    server_key: PublicKey,
    refusal: Arc<HandshakeRefusal>,
    clock: Arc<Clock>,
) -> Result<QuicClientConfig, ConfigError> {
    let provider = Arc::new(provider());
    let resolver = AlwaysResolvesClientRawPublicKeys::new(certified_key(identity)?);
    let verifier = RawKeyVerifier::new(Arc::new(PinnedKey(server_key)), refusal, &provider);
    let mut config = rustls::ClientConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.try_into().map_err(|error| ConfigError::Tls(format!("{error}")))
}

/// TLS for a server that lets in whom `policy` lets in.
pub(crate) fn server(
    identity: &Identity,
    policy: Arc<dyn PeerPolicy>,
    refusal: Arc<HandshakeRefusal>,
    clock: Arc<Clock>,
) -> Result<QuicServerConfig, ConfigError> {
    let provider = Arc::new(provider());
    let resolver = AlwaysResolvesServerRawPublicKeys::new(certified_key(identity)?);
    let verifier = RawKeyVerifier::new(policy, refusal, &provider);
    let mut config = rustls::ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.try_into().map_err(|error| ConfigError::Tls(format!("{error}")))
}

/// The key of a peer whose handshake is complete.
pub(crate) fn peer_key(session: &dyn noq_proto::crypto::Session) -> Option<PublicKey> {
    let identity = session.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    PublicKey::from_spki(identity.first()?)
}

/// Why a server closed the handshake with `code`, if it refused the client's key.
pub(crate) fn refusal_of(code: noq_proto::TransportErrorCode) -> Option<Refusal> {
    [Refusal::Unknown, Refusal::Expired, Refusal::Revoked, Refusal::Forbidden].into_iter().find(
        |refusal| {
            let alert = AlertDescription::from(certificate_error(*refusal));
            code == noq_proto::TransportErrorCode::crypto(alert.into())
        },
    )
}

fn certificate_error(refusal: Refusal) -> CertificateError {
    match refusal {
        Refusal::Unknown => CertificateError::UnknownIssuer,
        Refusal::Expired => CertificateError::Expired,
        Refusal::Revoked => CertificateError::Revoked,
        Refusal::Forbidden => CertificateError::ApplicationVerificationFailure,
    }
}

/// AES-128 first: the fastest where the processor has it, and every vehicle computer of late has.
fn provider() -> CryptoProvider {
    let suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    CryptoProvider { cipher_suites: suites, ..ring::default_provider() }
}

fn certified_key(identity: &Identity) -> Result<Arc<CertifiedKey>, ConfigError> {
    let pkcs8 = identity.to_pkcs8();
    let der = PrivatePkcs8KeyDer::from(pkcs8.as_slice());
    let key = ring::sign::any_eddsa_type(&der).map_err(tls_error)?;
    let spki = CertificateDer::from(identity.public_key().to_spki());
    Ok(Arc::new(CertifiedKey::new(vec![spki], key)))
}

fn tls_error(error: Error) -> ConfigError {
    ConfigError::Tls(error.to_string())
}

/// Verifies a raw public key for either side: the peer must hold it, and `policy` let it in.
struct RawKeyVerifier {
    policy: Arc<dyn PeerPolicy>,
    refusal: Arc<HandshakeRefusal>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// What a client expects of a server: this key and no other.
struct PinnedKey(PublicKey);

impl PeerPolicy for PinnedKey {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        if *key == self.0 { Ok(()) } else { Err(Refusal::Unknown) }
    }
}

impl RawKeyVerifier {
    fn new(
        policy: Arc<dyn PeerPolicy>,
        refusal: Arc<HandshakeRefusal>,
        provider: &CryptoProvider,
    ) -> Arc<Self> {
        let algorithms = provider.signature_verification_algorithms;
        Arc::new(Self { policy, refusal, algorithms })
    }

    fn check_key(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let key = PublicKey::from_spki(certificate)
            .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.policy.check(&key).map_err(|why| {
            self.refusal.set(key, why);
            Error::InvalidCertificate(certificate_error(why))
        })
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, signature, &self.algorithms)
    }
}

impl fmt::Debug for RawKeyVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawKeyVerifier").finish_non_exhaustive()
    }
}

/// What the traits of both sides ask for in the same words.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for RawKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(end_entity).map(|()| ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for RawKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(end_entity).map(|()| ClientCertVerified::assertion())
    }

    verify_signatures!();
}
