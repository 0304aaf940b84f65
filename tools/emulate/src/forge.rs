//! QUIC packets that any attacker on the path can forge in a server's name.
//!
//! ```text
//! a client's first packet ─► Eavesdropper ─► a close, any frames, a retry, a version negotiation
//! ```
//!
//! The keys of Initial packets follow from an ID in the first of them (RFC 9001 section 5.2),
//! version negotiation and retries have no keys at all, and a stateless reset is a guess.

use bytes::{Buf, BufMut};
use noq_proto::rustls::Side;
use noq_proto::rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use noq_proto::rustls::quic::{Keys, Version};
use ring::aead;
use roadweave_proto::wire::put_varint;

/// An attacker who has seen a client's first packet.
#[derive(Clone, Debug)]
pub struct Eavesdropper {
    /// The ID that the client gave the server; the keys are made of it.
    first_id: Vec<u8>,
    client_id: Vec<u8>,
    /// The ID that forged packets give the server.
    server_id: Vec<u8>,
}

impl Eavesdropper {
    /// Reads a packet; `None` unless it is a client's Initial packet of QUIC version 1.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let (first, [first_id, client_id]) = read_ids(packet)?;
        let server_id = first_id.clone();
        (first & TYPE == INITIAL).then_some(Self { first_id, client_id, server_id })
    }

    /// Reads an answer of the server, and uses its ID from then on.
    pub fn hear_server(&mut self, packet: &[u8]) {
        if let Some((_, [to, from])) = read_ids(packet)
            && to == self.client_id
        {
            self.server_id = from;
        }
    }

    /// An Initial packet of the server that closes the connection with `code` and `reason`.
    pub fn close(&self, code: u64, reason: &[u8]) -> Vec<u8> {
        let mut frame = vec![CONNECTION_CLOSE];
        put_varint(&mut frame, code);
        put_varint(&mut frame, 0); // the type of the frame that is to blame: none
        put_varint(&mut frame, reason.len() as u64);
        frame.extend(reason);
        self.initial(FORGED_NUMBER, &frame)
    }

    /// An Initial packet of the server with number `number`, below 256, and these frames.
    pub fn initial(&self, number: u8, frames: &[u8]) -> Vec<u8> {
        let mut payload = frames.to_vec();
        // Padded, if too short to sample for header protection (RFC 9001 section 5.4.2).
        payload.resize(payload.len().max(PAYLOAD_MIN), 0);
        let mut packet = self.header(LONG | FIXED | INITIAL, QUIC_VERSION_1);
        put_varint(&mut packet, 0); // no token
        let length = 1 + payload.len() + aead::AES_128_GCM.tag_len();
        put_varint(&mut packet, length as u64);
        let number_at = packet.len();
        packet.push(number);
        let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
        let suite = suite.expect("the suite of Initial packets is for QUIC");
        let Keys { local: keys, .. } = suite.keys(&self.first_id, Side::Server, Version::V1);
        let tag = keys
            .packet
            .encrypt_in_place(u64::from(number), &packet, &mut payload)
            .expect("the first packets of a key may be encrypted");
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let (head, sample) = packet.split_at_mut(number_at + SAMPLE_AFTER);
        let (first, rest) = head.split_at_mut(1);
        keys.header
            .encrypt_in_place(
                &sample[..keys.header.sample_len()],
                &mut first[0],
                &mut rest[number_at - 1..number_at],
            )
            .expect("the sample has the right length");
        packet
    }

    /// A packet that says that the server speaks only `versions`.
    pub fn version_negotiation(&self, versions: &[u32]) -> Vec<u8> {
        let mut packet = self.header(LONG | FIXED, 0);
        versions.iter().for_each(|version| packet.put_u32(*version));
        packet
    }

    /// A packet that asks the client to begin again with `token`.
    pub fn retry(&self, token: &[u8]) -> Vec<u8> {
        let mut packet = self.header(LONG | FIXED | RETRY, QUIC_VERSION_1);
        packet.extend(token);
        // The public key and nonce of RFC 9001 section 5.8.
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, &RETRY_KEY).map(aead::LessSafeKey::new);
        let key = key.expect("the key has the right length");
        let mut pseudo = vec![self.first_id.len() as u8];
        pseudo.extend(&self.first_id);
        pseudo.extend(&packet);
        let nonce = aead::Nonce::assume_unique_for_key(RETRY_NONCE);
        let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(pseudo), &mut []);
        packet.extend(tag.expect("nothing is encrypted").as_ref());
        packet
    }

    fn header(&self, first: u8, version: u32) -> Vec<u8> {
        let mut packet = vec![first];
        packet.put_u32(version);
        for id in [&self.client_id, &self.server_id] {
            packet.push(id.len() as u8);
            packet.extend(id);
        }
        packet
    }
}

/// Looks like a stateless reset (RFC 9000 section 10.3); `random` gives its bits and its token.
pub fn stateless_reset(mut random: impl FnMut() -> u64) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..RESET_WORDS).flat_map(|_| random().to_be_bytes()).collect();
    packet[0] = packet[0] & !LONG | FIXED;
    packet
}

fn read_ids(mut packet: &[u8]) -> Option<(u8, [Vec<u8>; 2])> {
    let first = packet.try_get_u8().ok()?;
    let version = packet.try_get_u32().ok()?;
    if first & LONG == 0 || version != QUIC_VERSION_1 {
        return None;
    }
    let mut id = || {
        let length = usize::from(packet.try_get_u8().ok()?);
        let id = packet.get(..length)?.to_vec();
        packet.advance(length);
        (length <= ID_MAX).then_some(id)
    };
    Some((first, [id()?, id()?]))
}

const LONG: u8 = 0x80;
const FIXED: u8 = 0x40;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const RETRY: u8 = 0x30;
const QUIC_VERSION_1: u32 = 1;
const ID_MAX: usize = 20;
const CONNECTION_CLOSE: u8 = 0x1c;
/// A packet number that the server has not used yet.
const FORGED_NUMBER: u8 = 100;
const PAYLOAD_MIN: usize = 20;
/// Distance of the header protection's sample from the packet number.
const SAMPLE_AFTER: usize = 4;
const RETRY_KEY: [u8; 16] = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
const RETRY_NONCE: [u8; 12] =
    [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
const RESET_WORDS: usize = 6;
