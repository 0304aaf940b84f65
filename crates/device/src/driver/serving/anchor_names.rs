//! Looks up the names of a proxy's anchors.
//!
//! ```text
//! names ─► a thread for each anchor, few at once ─► addresses ─► the leg tries them in turn
//!   ▲          10 to 60 s while the leg is away, 60 s to 1 h while it is up │
//!   └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Anchors are authenticated by key, so a wrong address costs one attempt only.

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, ServerHost, ServerName};
use roadweave_tunnel::Server;

use crate::Waker;
use crate::driver::resolver::{Resolver, SYSTEM};

/// An anchor's key, and its names or addresses.
pub(super) type AnchorPlace = (PublicKey, Vec<ServerName>);

#[derive(Debug)]
pub(super) struct AnchorNames {
    resolvers: Vec<(PublicKey, Resolver)>,
    waker: Waker,
}

impl AnchorNames {
    pub(super) fn new(waker: Waker) -> Self {
        Self { resolvers: Vec::new(), waker }
    }

    /// Replaces the anchors. Results for unchanged names are kept.
    pub(super) fn set(&mut self, now: Instant, proxy: &mut Server, anchors: &[AnchorPlace]) {
        let mut wanted: Vec<AnchorPlace> = Vec::new();
        for (key, names) in anchors {
            match wanted.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => {
                    let new = names.iter().filter(|name| !known.contains(name));
                    let new: Vec<_> = new.cloned().collect();
                    known.extend(new);
                }
                None => wanted.push((*key, names.clone())),
            }
        }
        let mut before = std::mem::take(&mut self.resolvers);
        for (key, mut names) in wanted {
            names.truncate(NAMES_MAX);
            let known = before.iter().position(|(known, _)| *known == key);
            let mut resolver = match known.map(|at| before.swap_remove(at).1) {
                Some(resolver) => resolver,
                None => {
                    let mut resolver = Resolver::new(Vec::new(), self.waker.clone());
                    resolver.set_system(now);
                    resolver
                }
            };
            resolver.set_names(now, &names);
            let known = match resolver.found(SYSTEM) {
                [] => literals(&names),
                found => found.to_vec(),
            };
            proxy.set_anchor_addresses(key, known);
            if names.iter().any(|name| matches!(name.host(), ServerHost::Name(_))) {
                self.resolvers.push((key, resolver));
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // A thread that ends wakes the loop.
        if self.searching() >= SEARCHES_MAX {
            return None;
        }
        self.resolvers.iter().filter_map(|(_, resolver)| resolver.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, proxy: &mut Server) {
        let mut searching = self.searching();
        for (key, resolver) in &mut self.resolvers {
            resolver.set_content(proxy.is_leg_up(*key));
            let was_searching = resolver.is_searching();
            let mut is_new = !resolver.poll(now).is_empty();
            if was_searching || searching < SEARCHES_MAX {
                is_new |= !resolver.handle_timeout(now).is_empty();
            }
            searching += usize::from(resolver.is_searching());
            searching -= usize::from(was_searching);
            if is_new {
                let found = resolver.found(SYSTEM).to_vec();
                tracing::info!(anchor = %key, ?found, "the anchor is at other addresses");
                proxy.set_anchor_addresses(*key, found);
            }
        }
    }

    fn searching(&self) -> usize {
        self.resolvers.iter().filter(|(_, resolver)| resolver.is_searching()).count()
    }
}

fn literals(names: &[ServerName]) -> Vec<std::net::SocketAddr> {
    let literal = |name: &ServerName| match name.host() {
        ServerHost::Address(address) => Some((*address, name.port()).into()),
        ServerHost::Name(_) => None,
    };
    names.iter().filter_map(literal).collect()
}

const NAMES_MAX: usize = 8;
const SEARCHES_MAX: usize = 8;
