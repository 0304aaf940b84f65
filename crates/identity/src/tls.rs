//! TLS 1.3 with raw public keys on both sides (RFC 7250): no names, authorities or dates.
//!
//! ```text
//! client                                         server
//!   ClientHello ------------------------------->
//!       <-- Certificate: the server's key, signature
//!   the client's PeerPolicy accepts? else an alert
//!   Certificate: the client's key, signature --->
//!                         the server's PeerPolicy accepts? else an alert with the reason
//! ```
//!
//! A refusal is the matching alert of RFC 8446 section 6.2, so the other side learns the reason.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ::ring::rand::{SecureRandom as _, SystemRandom};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms, ring,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::time_provider::TimeProvider;
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, SignatureScheme,
};
use webpki::ring::ED25519;

use crate::keys::{Identity, PublicKey};
use crate::peer_policy::{PeerPolicy, Refusal};

/// The server name of the TLS library; it is never sent.
pub const SERVER_NAME: &str = "roadweave.invalid";

/// The last refused key and why, until taken: the alert alone does not name the key.
#[derive(Debug, Default)]
pub struct HandshakeRefusal(Mutex<Option<(PublicKey, Refusal)>>);

impl HandshakeRefusal {
    fn set(&self, key: PublicKey, why: Refusal) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((key, why));
    }

    /// The refusal caused by the bytes just handled.
    pub fn take(&self) -> Option<(PublicKey, Refusal)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// One side of a handshake.
#[derive(Clone)]
pub struct TlsSide<'a> {
    /// Its key pair.
    pub identity: &'a Identity,
    /// Decides which peers it accepts.
    pub policy: Arc<dyn PeerPolicy>,
    /// Receives a refusal.
    pub refusal: Arc<HandshakeRefusal>,
    /// The application protocol (RFC 7301) of both sides.
    pub alpn: &'a [u8],
    /// The clock of the TLS library; no decision depends on it.
    pub time: Arc<dyn TimeProvider>,
}

/// The TLS configuration of a client; fails if the TLS library rejects the key.
pub fn client(side: TlsSide<'_>) -> Result<rustls::ClientConfig, Error> {
    let provider = Arc::new(provider());
    let resolver = AlwaysResolvesClientRawPublicKeys::new(certified_key(side.identity)?);
    let verifier = Arc::new(RawKeyVerifier { policy: side.policy, refusal: side.refusal });
    let mut config = rustls::ClientConfig::builder_with_details(provider, side.time)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![side.alpn.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// The TLS configuration of a server; fails if the TLS library rejects the key.
pub fn server(side: TlsSide<'_>) -> Result<rustls::ServerConfig, Error> {
    let provider = Arc::new(provider());
    let resolver = AlwaysResolvesServerRawPublicKeys::new(certified_key(side.identity)?);
    let verifier = Arc::new(RawKeyVerifier { policy: side.policy, refusal: side.refusal });
    let mut config = rustls::ServerConfig::builder_with_details(provider, side.time)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![side.alpn.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The public key of a peer that presented `certificates`.
pub fn peer_key(certificates: &[CertificateDer<'_>]) -> Option<PublicKey> {
    PublicKey::from_spki(certificates.first()?)
}

/// The refusal of the reader's key that `alert` stands for, if it does.
pub fn refusal_of(alert: AlertDescription) -> Option<Refusal> {
    let says = |refusal: &Refusal| AlertDescription::from(certificate_error(*refusal)) == alert;
    Refusal::ALL.into_iter().find(says)
}

fn certificate_error(refusal: Refusal) -> CertificateError {
    match refusal {
        Refusal::Unknown => CertificateError::UnknownIssuer,
        Refusal::Expired => CertificateError::Expired,
        Refusal::Revoked => CertificateError::Revoked,
        Refusal::Forbidden => CertificateError::ApplicationVerificationFailure,
    }
}

/// Only Ed25519 and X25519, for less code. AES-128 first: the fastest with hardware support.
fn provider() -> CryptoProvider {
    let suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    CryptoProvider {
        cipher_suites: suites,
        kx_groups: vec![ring::kx_group::X25519],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &System,
        key_provider: &System,
    }
}

fn certified_key(identity: &Identity) -> Result<Arc<CertifiedKey>, Error> {
    let pkcs8 = identity.to_pkcs8();
    let der = PrivatePkcs8KeyDer::from(pkcs8.as_slice());
    let key = ring::sign::any_eddsa_type(&der)?;
    let spki = CertificateDer::from(identity.public_key().to_spki());
    Ok(Arc::new(CertifiedKey::new(vec![spki], key)))
}

static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[ED25519],
    mapping: &[(SignatureScheme::ED25519, &[ED25519])],
};

/// The system's random numbers, and PKCS #8 keys.
#[derive(Debug)]
struct System;

impl SecureRandom for System {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        SystemRandom::new().fill(bytes).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for System {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        match &key {
            PrivateKeyDer::Pkcs8(der) => ring::sign::any_eddsa_type(der),
            _ => Err(Error::General("the key is not PKCS #8".to_owned())),
        }
    }
}

/// Accepts one key.
#[derive(Clone, Copy, Debug)]
pub struct Pinned(pub PublicKey);

impl PeerPolicy for Pinned {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        if *key == self.0 { Ok(()) } else { Err(Refusal::Unknown) }
    }
}

/// Verifies a raw public key for either side: the peer must hold it, and `policy` accept it.
struct RawKeyVerifier {
    policy: Arc<dyn PeerPolicy>,
    refusal: Arc<HandshakeRefusal>,
}

impl RawKeyVerifier {
    fn check_key(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let key = PublicKey::from_spki(certificate)
            .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.policy.check(&key).map_err(|why| {
            self.refusal.set(key, why);
            Error::InvalidCertificate(certificate_error(why))
        })
    }
}

impl fmt::Debug for RawKeyVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawKeyVerifier").finish_non_exhaustive()
    }
}

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
            let spki = SubjectPublicKeyInfoDer::from(certificate.as_ref());
            verify_tls13_signature_with_raw_key(message, &spki, signature, &SIGNATURES)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_identities_write_them_and_in_no_other_form() {
        let pkcs8 = PrivatePkcs8KeyDer::from(Identity::from_seed([7; 32]).to_pkcs8().to_vec());
        assert!(System.load_private_key(pkcs8.clone_key().into()).is_ok());
        let sec1 = PrivateKeyDer::Sec1(pkcs8.secret_pkcs8_der().to_vec().into());
        assert!(System.load_private_key(sec1).is_err());
    }
}
