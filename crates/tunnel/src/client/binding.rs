//! The client's binding: a signed statement for the tenant's anchor that names the client's proxy.
//!
//! A proxy names tenant and anchor in its welcome; the client signs that it is there now, with a
//! number above all that it signed before. A client that restarted, or was restored from an image,
//! begins too low: the anchor returns its newest binding with this client's own signature, and the
//! client goes beyond it. So nothing is written to flash, and only the client can raise the number.

use std::sync::Arc;

use roadweave_identity::{Identity, PublicKey, Signature};
use roadweave_proto::DropReason;
use roadweave_proto::wire::{Binding, Control, TenantAnchor};
use roadweave_quic::{Connection, Endpoint};

use super::{Current, connections};

#[derive(Debug)]
pub(super) struct Bindings {
    identity: Arc<Identity>,
    number: u64,
    answers_left: u32,
}

impl Bindings {
    pub(super) fn new(identity: Arc<Identity>) -> Self {
        Self { identity, number: 0, answers_left: 0 }
    }

    pub(super) fn on_session(&mut self, current: &Current, endpoint: &mut Endpoint) {
        self.answers_left = ANSWERS_MAX;
        self.send(current, endpoint);
    }

    pub(super) fn on_newest(
        &mut self,
        newest: &Binding,
        current: &Current,
        endpoint: &mut Endpoint,
    ) -> Result<(), DropReason> {
        if self.answers_left == 0 || !self.raise(newest) {
            return Err(DropReason::MalformedMessage);
        }
        self.answers_left -= 1;
        self.send(current, endpoint);
        Ok(())
    }

    fn send(&mut self, current: &Current, endpoint: &mut Endpoint) {
        let proxy = endpoint.connection(current.id).and_then(Connection::peer);
        if let (Some(anchor), Some(proxy)) = (&current.welcome.anchor, proxy) {
            let binding = self.sign(anchor, proxy);
            connections::send(endpoint, current.id, &Control::Binding(binding));
        }
    }

    fn sign(&mut self, anchor: &TenantAnchor, proxy: PublicKey) -> Binding {
        self.number = self.number.saturating_add(1);
        let mut binding = Binding {
            tenant: anchor.tenant.clone(),
            anchor: anchor.key,
            proxy: *proxy.as_bytes(),
            number: self.number,
            signature: [0; 64],
        };
        binding.signature = *self.identity.sign(&binding.signed()).as_bytes();
        binding
    }

    fn raise(&mut self, newest: &Binding) -> bool {
        let signature = Signature::from_bytes(newest.signature);
        let is_own = self.identity.public_key().verifies(&newest.signed(), &signature);
        if is_own {
            self.number = self.number.max(newest.number);
        }
        is_own
    }
}

/// A proxy that returns newer bindings again and again is not answered for ever.
const ANSWERS_MAX: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn bindings(seed: u8) -> Bindings {
        Bindings::new(Arc::new(Identity::from_seed([seed; 32])))
    }

    #[test]
    fn a_client_counts_on_from_its_own_bindings_only() {
        let anchor = TenantAnchor { tenant: "acme".into(), key: [7; 32] };
        let proxy = Identity::from_seed([9; 32]).public_key();
        let (mut before, mut restored, mut other) = (bindings(1), bindings(1), bindings(2));
        (0..40).for_each(|_| _ = before.sign(&anchor, proxy));
        let newest = before.sign(&anchor, proxy);
        assert_eq!(newest.number, 41);
        assert!(!other.raise(&newest) && other.number == 0);
        let mut forged = newest.clone();
        forged.number = u64::MAX;
        assert!(!restored.raise(&forged) && restored.number == 0);
        assert!(restored.raise(&newest));
        assert_eq!(restored.sign(&anchor, proxy).number, 42);
        let old = Binding { number: 3, ..newest };
        assert!(!before.raise(&old));
    }
}
