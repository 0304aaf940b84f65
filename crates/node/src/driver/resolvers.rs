//! The names of several servers, each with a [`Resolver`].

use std::net::{IpAddr, SocketAddr};

use roadweave_identity::PublicKey;
use roadweave_linux::lookup::{LookupRequest, RouterUpdate};
use roadweave_linux::{Uplink, Waker};
use roadweave_proto::{Instant, ServerName, UplinkId};

use super::client::options::CandidateOptions;
use super::resolver::Resolver;

pub(super) type Changed = Vec<(PublicKey, UplinkId)>;

#[derive(Debug, Default)]
pub(super) struct Resolvers(Vec<(CandidateOptions, Resolver)>);

impl Resolvers {
    pub(super) fn set_servers(
        &mut self,
        now: Instant,
        servers: &[CandidateOptions],
        uplinks: &[Uplink],
        waker: impl Fn() -> Waker,
    ) {
        let mut before = std::mem::take(&mut self.0);
        for server in servers {
            let CandidateOptions { addresses, candidate } = server;
            let known = before.iter().position(|(known, _)| known.candidate.key == candidate.key);
            let resolver = match known.map(|at| before.swap_remove(at).1) {
                Some(mut resolver) => {
                    resolver.set_names(now, addresses);
                    resolver
                }
                None => {
                    let mut resolver = Resolver::new(addresses.clone(), waker());
                    uplinks.iter().for_each(|uplink| resolver.set_uplink(now, uplink));
                    resolver
                }
            };
            self.0.push((server.clone(), resolver));
        }
    }

    pub(super) fn servers(&self) -> Vec<CandidateOptions> {
        self.0.iter().map(|(server, _)| server.clone()).collect()
    }

    pub(super) fn found(&self, server: &PublicKey, uplink: UplinkId) -> &[SocketAddr] {
        let of_server = self.0.iter().find(|(known, _)| known.candidate.key == *server);
        of_server.map_or(&[], |(_, resolver)| resolver.found(uplink))
    }

    pub(super) fn all_found(&self, uplink: UplinkId) -> impl Iterator<Item = &SocketAddr> {
        self.0.iter().flat_map(move |(_, resolver)| resolver.found(uplink))
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flat_map(|(_, resolver)| resolver.addresses())
    }

    pub(super) fn request(
        &mut self,
        now: Instant,
        uplink: UplinkId,
        names: Vec<ServerName>,
    ) -> Option<LookupRequest> {
        let (_, resolver) = self.0.first_mut()?;
        resolver.request(now, uplink, names)
    }

    pub(super) fn has_found(&self) -> bool {
        self.0.iter().any(|(_, resolver)| resolver.has_found())
    }

    pub(super) fn may_reach(&self, ipv4: bool, ipv6: bool) -> bool {
        self.0.iter().any(|(_, resolver)| resolver.may_reach(ipv4, ipv6))
    }

    pub(super) fn set_uplink(&mut self, now: Instant, uplink: &Uplink) {
        self.0.iter_mut().for_each(|(_, resolver)| resolver.set_uplink(now, uplink));
    }

    pub(super) fn remove_uplink(&mut self, uplink: UplinkId) {
        self.0.iter_mut().for_each(|(_, resolver)| resolver.remove_uplink(uplink));
    }

    pub(super) fn on_router_updates(&mut self, now: Instant, updates: &[RouterUpdate]) -> Changed {
        self.all(|resolver| resolver.on_router_updates(now, updates.to_vec()))
    }

    pub(super) fn set_content(&mut self, is_content: bool) {
        self.0.iter_mut().for_each(|(_, resolver)| resolver.set_content(is_content));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|(_, resolver)| resolver.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Changed {
        self.all(|resolver| resolver.handle_timeout(now))
    }

    pub(super) fn poll(&mut self, now: Instant) -> Changed {
        self.all(|resolver| resolver.poll(now))
    }

    fn all(&mut self, mut turn: impl FnMut(&mut Resolver) -> Vec<UplinkId>) -> Changed {
        let mut changed = Changed::new();
        for (server, resolver) in &mut self.0 {
            let key = server.candidate.key;
            changed.extend(turn(resolver).into_iter().map(|uplink| (key, uplink)));
        }
        changed
    }
}
