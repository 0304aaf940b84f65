//! What the transport needs beyond TLS, derived from a seed: connection IDs and keys of tokens.

use std::time::Duration;

use noq_proto::crypto::{CryptoError, HandshakeTokenKey};
use noq_proto::{ConnectionId, ConnectionIdGenerator};
use ring::{aead, hkdf, hmac};

use roadweave_identity::derive_secret;

use crate::shard::Shard;

/// Connection IDs of 8 bytes that lead to a shard: a counter's keyed hash (RFC 9000 section 5.1).
pub(crate) struct SeededIds {
    key: hmac::Key,
    drawn: u64,
    shard: Option<Shard>,
}

impl SeededIds {
    pub(crate) fn new(seed: &[u8; 32], purpose: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &derive_secret(seed, purpose));
        Self { key, drawn: 0, shard: None }
    }

    pub(crate) fn of_shard(self, shard: Option<Shard>) -> Self {
        Self { shard, ..self }
    }

    pub(crate) fn draw(&mut self, len: usize) -> ConnectionId {
        self.drawn += 1;
        let tag = hmac::sign(&self.key, &self.drawn.to_be_bytes());
        ConnectionId::new(&tag.as_ref()[..len])
    }
}

impl ConnectionIdGenerator for SeededIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let Some(shard) = self.shard else { return self.draw(ID_LEN) };
        // One in `count` fits, so that e^-64 of all IDs lead elsewhere.
        let tries = usize::from(shard.map.count()) * TRIES_PER_SHARD;
        let fitting = (0..tries).map(|_| self.draw(ID_LEN)).find(|id| shard.has(id));
        fitting.unwrap_or_else(|| self.draw(ID_LEN))
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

pub(crate) const ID_LEN: usize = 8;
const TRIES_PER_SHARD: usize = 64;

/// Seals the tokens of Retry packets: AES-256-GCM under a key of its own for each nonce.
pub(crate) struct TokenKey(hkdf::Prk);

impl TokenKey {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret))
    }

    fn key_for(&self, nonce: u128) -> Result<aead::LessSafeKey, CryptoError> {
        let info = nonce.to_be_bytes();
        let mut key = [0; 32];
        self.0
            .expand(&[&info], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut key))
            .and_then(|()| aead::UnboundKey::new(&aead::AES_256_GCM, &key))
            .map(aead::LessSafeKey::new)
            .map_err(|_| CryptoError)
    }
}

/// Each key seals one token only, so that its nonce may be constant.
fn zero_nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; 12])
}

impl HandshakeTokenKey for TokenKey {
    fn seal(&self, token_nonce: u128, data: &mut Vec<u8>) -> Result<(), CryptoError> {
        self.key_for(token_nonce)?
            .seal_in_place_append_tag(zero_nonce(), aead::Aad::empty(), data)
            .map_err(|_| CryptoError)
    }

    fn open<'a>(&self, token_nonce: u128, data: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        let plain = self
            .key_for(token_nonce)?
            .open_in_place(zero_nonce(), aead::Aad::empty(), data)
            .map_err(|_| CryptoError)?;
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::ShardMap;

    fn draw(mut ids: SeededIds, count: usize) -> Vec<ConnectionId> {
        (0..count).map(|_| ids.generate_cid()).collect()
    }

    fn distinct(ids: Vec<ConnectionId>) -> usize {
        ids.into_iter().collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn connection_ids_follow_from_the_seed_alone() {
        let draw = |seed| draw(SeededIds::new(&[seed; 32], b"test"), 100);
        assert_eq!(draw(1), draw(1));
        assert_eq!(distinct([draw(1), draw(2)].concat()), 200, "none is drawn twice");
    }

    #[test]
    fn every_id_of_a_shard_leads_to_it_and_none_is_another_shards() {
        let map = ShardMap::new(5, &[3; 32]);
        let mut all = Vec::new();
        for number in 0..5 {
            let ids = SeededIds::new(&[1; 32], b"test").of_shard(Some(Shard { map, number }));
            let drawn = draw(ids, 200);
            for id in &drawn {
                let packet = [&[0x40], &id[..], &[0; 20]].concat();
                assert_eq!(map.shard_of(&packet), number, "{id:?}");
            }
            all.extend(drawn);
        }
        assert_eq!(distinct(all), 1_000);
    }

    #[test]
    fn tokens_open_only_as_they_were_sealed() {
        let key = TokenKey::new(&[1; 32]);
        let mut token = b"address and time".to_vec();
        key.seal(7, &mut token).unwrap();
        assert_eq!(key.open(7, &mut token.clone()).unwrap(), b"address and time");
        assert!(key.open(8, &mut token.clone()).is_err());
        assert!(TokenKey::new(&[2; 32]).open(7, &mut token.clone()).is_err());
        token[3] ^= 1;
        assert!(key.open(7, &mut token).is_err());
    }
}
