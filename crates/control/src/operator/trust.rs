//! Authenticates the controller's certificate: by its fingerprint, or by certificate authorities.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use ring::digest::{SHA256, digest};
use roadweave_terminal::exit::BadInput;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

pub fn tls(known: Option<&str>) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("TLS 1.3")?;
    let Some(text) = known else {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    };
    let pinned = Pinned(fingerprint(text)?);
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(pinned));
    Ok(builder.with_no_client_auth())
}

pub fn fingerprint(text: &str) -> Result<[u8; 32]> {
    let digits: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let pair = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(pair).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    Ok(bytes.ok_or_else(|| {
        BadInput::new("the fingerprint is 32 bytes in hexadecimal, as A1:B2:...; init prints it")
    })?)
}

/// Accepts this SHA-256 fingerprint: X.509, for browsers; `roadweave-identity` has raw keys.
#[derive(Debug)]
struct Pinned([u8; 32]);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match digest(&SHA256, certificate).as_ref() == self.0 {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_printed_and_otherwise_refused() {
        let printed = ["0F"; 32].join(":");
        assert_eq!(fingerprint(&printed).unwrap(), [15; 32]);
        assert_eq!(fingerprint(&"0f".repeat(32)).unwrap(), [15; 32]);
        for bad in ["", "0F", "zz", &"0f".repeat(33), &"0".repeat(63)] {
            assert!(fingerprint(bad).is_err(), "{bad}");
        }
    }
}
