//! The self-signed certificate for browsers, if none is configured, known by its fingerprint. X.509
//! (RFC 5280) with ECDSA P-256, as browsers lack Ed25519, and no expiry (section 4.1.2.5).

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::keys;

pub struct SelfSigned {
    pub certificate: String,
    pub key: String,
}

/// A certificate for these names and addresses. Panics if the system has no entropy.
pub fn self_signed(hosts: &[String]) -> SelfSigned {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("the system has entropy");
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random)
        .expect("a key that was just made");
    let body = body(pair.public_key().as_ref(), hosts);
    let signature = pair.sign(&random, &body).expect("the system has entropy");
    let whole = sequence(&[&body, ECDSA_WITH_SHA256, &bits(signature.as_ref())]);
    SelfSigned { certificate: pem("CERTIFICATE", &whole), key: pem("PRIVATE KEY", pkcs8.as_ref()) }
}

/// The SHA-256 of a DER certificate in pairs of hexadecimal digits, which people compare.
pub fn fingerprint(certificate: &[u8]) -> String {
    let hash = digest(&SHA256, certificate);
    let pairs: Vec<String> = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

pub fn fingerprint_of_pem(pem: &str) -> String {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
    certificate.map(|it| fingerprint(&it)).unwrap_or_default()
}

fn body(point: &[u8], hosts: &[String]) -> Vec<u8> {
    let mut serial = [0; 16];
    keys::fill(&mut serial);
    serial[0] = serial[0] & 0x7f | 0x40;
    let name = der(0x0c, b"roadweave-controller");
    let name = sequence(&[&der(0x31, &sequence(&[COMMON_NAME, &name]))]);
    let validity = sequence(&[&der(0x17, b"700101000000Z"), &der(0x18, b"99991231235959Z")]);
    let key = sequence(&[&sequence(&[EC_PUBLIC_KEY, P256]), &bits(point)]);
    let hosts: Vec<u8> = hosts.iter().flat_map(|host| general_name(host)).collect();
    let hosts = sequence(&[SUBJECT_ALT_NAME, &der(0x04, &der(0x30, &hosts))]);
    let extensions = der(0xa3, &sequence(&[&hosts]));
    let version_3 = der(0xa0, &der(0x02, &[2]));
    let serial = der(0x02, &serial);
    sequence(&[&version_3, &serial, ECDSA_WITH_SHA256, &name, &validity, &name, &key, &extensions])
}

fn general_name(host: &str) -> Vec<u8> {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => der(0x87, &address.octets()),
        Ok(IpAddr::V6(address)) => der(0x87, &address.octets()),
        Err(_) => der(0x82, host.as_bytes()),
    }
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    der(0x30, &parts.concat())
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    der(0x03, &[&[0], bytes].concat())
}

/// Tag, length and value (X.690 section 8.1).
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let short = length.iter().position(|byte| *byte != 0).map_or(&[0][..], |at| &length[at..]);
    let mut whole = vec![tag];
    if content.len() >= 0x80 {
        whole.push(0x80 | short.len() as u8);
    }
    whole.extend_from_slice(short);
    whole.extend_from_slice(content);
    whole
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let lines: Vec<String> = lines.map(String::from).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

const COMMON_NAME: &[u8] = &[0x06, 3, 0x55, 0x04, 0x03];
const SUBJECT_ALT_NAME: &[u8] = &[0x06, 3, 0x55, 0x1d, 0x11];
const EC_PUBLIC_KEY: &[u8] = &[0x06, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const ECDSA_WITH_SHA256: &[u8] =
    &[0x30, 10, 0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{RootCertStore, crypto::ring};

    use super::*;

    #[test]
    fn a_client_that_trusts_it_takes_it_for_its_hosts_alone() {
        let hosts = ["fleet.example.org", "192.0.2.1", "2001:db8::1"].map(String::from);
        let made = self_signed(&hosts);
        let certificate = CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        for (host, good) in [
            ("fleet.example.org", true),
            ("192.0.2.1", true),
            ("2001:db8::1", true),
            ("other.example.org", false),
            ("192.0.2.2", false),
        ] {
            let name = ServerName::try_from(host).unwrap();
            let verified =
                verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now());
            assert_eq!(verified.is_ok(), good, "{host}: {verified:?}");
        }
        assert_eq!(fingerprint(&certificate).len(), 95);
    }
}
