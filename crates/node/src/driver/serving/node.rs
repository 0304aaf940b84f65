//! The interface that `Serving` needs of a server, a proxy, an anchor, or all shards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_tunnel::{
    Anchor, DrainReason, EncoderTarget, EndsStreams, Node, Peers, PeersChange, Server,
    SessionFigures, SetError, SharedState, Strategy, TenantId,
};

use super::super::STATE_INTERVAL;
use super::Tables;
use crate::StateFile;

/// The only tenant of an anchor with one TUN.
const TENANT: TenantId = TenantId(0);

pub(in crate::driver) trait Serves: Node + EndsStreams {
    /// Returns the former table, to be dropped where it does not delay packets.
    fn replace(&mut self, now: Instant, change: PeersChange) -> Option<Arc<Peers>>;

    fn replace_proxies(&mut self, _now: Instant, _change: PeersChange) -> Option<Arc<Peers>> {
        None
    }

    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables);

    fn sessions(&self) -> usize;

    fn is_settled(&self) -> bool {
        true
    }

    /// An anchor is not notified when a client leaves its proxy.
    fn has_session(&self, _key: &PublicKey) -> bool {
        true
    }

    fn figures(&self, _most: usize) -> Vec<SessionFigures> {
        Vec::new()
    }

    /// Starts draining. Clients of an anchor leave as their proxies are drained.
    fn drain(&mut self, _now: Instant, _reason: DrainReason, _over: Duration) {}

    fn undrain(&mut self, _reason: DrainReason) {}

    fn proxy(&mut self) -> Option<&mut Server> {
        None
    }

    fn governed(&mut self) -> Option<&mut dyn Governed> {
        None
    }
}

/// What a request of the local socket may ask of a server, a proxy or all shards.
pub(in crate::driver) trait Governed: Serves {
    fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError>;

    fn encoder_targets(
        &mut self,
        now: Instant,
    ) -> BTreeMap<String, BTreeMap<String, EncoderTarget>>;

    fn is_draining(&self) -> bool;
}

impl Governed for Server {
    fn set_strategy(&mut self, lane: &str, strategy: Strategy) -> Result<(), SetError> {
        self.set_strategy(lane, strategy)
    }

    fn encoder_targets(
        &mut self,
        now: Instant,
    ) -> BTreeMap<String, BTreeMap<String, EncoderTarget>> {
        self.encoder_targets(now)
    }

    fn is_draining(&self) -> bool {
        self.is_draining()
    }
}

impl Serves for Server {
    fn replace(&mut self, _: Instant, change: PeersChange) -> Option<Arc<Peers>> {
        Some(self.replace_peers(change))
    }

    fn revoke(&mut self, _: Instant, keys: Vec<PublicKey>, _: &Tables) {
        self.revoke(keys);
    }

    fn sessions(&self) -> usize {
        self.sessions()
    }

    fn is_settled(&self) -> bool {
        self.is_settled()
    }

    fn has_session(&self, key: &PublicKey) -> bool {
        self.has_session(key)
    }

    fn figures(&self, most: usize) -> Vec<SessionFigures> {
        self.figures(most)
    }

    fn drain(&mut self, now: Instant, reason: DrainReason, over: Duration) {
        self.drain(now, reason, over);
    }

    fn undrain(&mut self, reason: DrainReason) {
        self.undrain(reason);
    }

    fn proxy(&mut self) -> Option<&mut Server> {
        Some(self)
    }

    fn governed(&mut self) -> Option<&mut dyn Governed> {
        Some(self)
    }
}

impl Serves for Anchor {
    fn replace(&mut self, now: Instant, change: PeersChange) -> Option<Arc<Peers>> {
        self.replace_devices(now, TENANT, change)
    }

    fn replace_proxies(&mut self, now: Instant, change: PeersChange) -> Option<Arc<Peers>> {
        Some(self.replace_proxies(now, change))
    }

    fn revoke(&mut self, now: Instant, keys: Vec<PublicKey>, tables: &Tables) {
        tables.for_each(|table| table.revoke(keys.iter().copied()));
        self.on_time_of_day(now);
    }

    fn sessions(&self) -> usize {
        self.attached()
    }
}

pub(in crate::driver) struct LearnedFile {
    file: StateFile,
    kept: SharedState,
    next: Instant,
}

impl LearnedFile {
    pub(in crate::driver) fn restore(directory: &Path, name: &str, kept: SharedState) -> Self {
        let mut file: StateFile = StateFile::new(directory, name);
        kept.restore(file.read());
        Self { file, kept, next: Instant::ZERO + STATE_INTERVAL }
    }

    pub(in crate::driver) fn handle_timeout(&mut self, now: Instant) {
        if self.next <= now {
            self.next = now + STATE_INTERVAL;
            self.file.write(&self.kept.learned());
        }
    }

    pub(in crate::driver) fn write_last(&mut self) {
        self.file.write_last(&self.kept.learned());
    }
}
