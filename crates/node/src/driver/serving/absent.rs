//! Clients that left: when, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use crate::status::AbsentClient;

const ABSENT_MAX: usize = 4_096;

/// How long the firewall connections of a client that left are kept for its return.
const KEEP_CONNECTIONS: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Absent(BTreeMap<PublicKey, Gone>);

#[derive(Debug)]
struct Gone {
    name: String,
    at: Instant,
    reason: String,
    keeps_connections: bool,
}

impl Absent {
    pub(super) fn on_joined(&mut self, key: &PublicKey) {
        self.0.remove(key);
    }

    pub(super) fn on_left(&mut self, now: Instant, key: PublicKey, name: String, reason: String) {
        if self.0.len() >= ABSENT_MAX && !self.0.contains_key(&key) {
            let first = self.0.iter().min_by_key(|(_, gone)| gone.at).map(|(key, _)| *key);
            first.into_iter().for_each(|key| drop(self.0.remove(&key)));
        }
        self.0.insert(key, Gone { name, at: now, reason, keeps_connections: true });
    }

    pub(super) fn take_long_gone(&mut self, now: Instant) -> Vec<PublicKey> {
        let due = self
            .0
            .iter_mut()
            .filter(|(_, gone)| gone.keeps_connections && now.since(gone.at) >= KEEP_CONNECTIONS);
        due.map(|(key, gone)| (*key, gone.keeps_connections = false).0).collect()
    }

    pub(super) fn status(&self, now: Instant) -> Vec<AbsentClient> {
        let mut gone: Vec<_> = self.0.iter().collect();
        gone.sort_by_key(|(_, gone)| std::cmp::Reverse(gone.at));
        let client = |(key, gone): (&PublicKey, &Gone)| AbsentClient {
            peer: gone.name.clone(),
            public_key: key.to_string(),
            left_seconds_ago: now.since(gone.at).as_secs_f64(),
            reason: gone.reason.clone(),
        };
        gone.into_iter().map(client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_went_is_known_until_it_is_back_and_many_do_not_fill_memory() {
        let (mut absent, key) = (Absent::default(), |number: u32| {
            let mut bytes = [7; 32];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            PublicKey::from_bytes(bytes)
        });
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let left = |absent: &mut Absent, number: u32| {
            let name = format!("bus-{number}");
            absent.on_left(at(u64::from(number)), key(number), name, "it was silent".to_owned());
        };
        for number in 0..=ABSENT_MAX as u32 {
            left(&mut absent, number);
        }
        let clients = absent.status(at(5_000));
        assert_eq!(clients.len(), ABSENT_MAX);
        let AbsentClient { peer, left_seconds_ago, reason, .. } = &clients[0];
        assert_eq!((&**peer, *left_seconds_ago, &**reason), ("bus-4096", 904.0, "it was silent"));
        assert!(clients.iter().all(|client| client.peer != "bus-0"), "the first is forgotten");
        assert_eq!(absent.take_long_gone(at(100)).len(), 40, "the first is forgotten");
        assert_eq!(absent.take_long_gone(at(101)), [key(41)], "each once");
        absent.on_joined(&key(4_096));
        assert_eq!(absent.status(at(5_000))[0].peer, "bus-4095");
    }
}
