//! How a driver runs a router.

use bytes::Bytes;
use roadweave_proto::wire::{Geneve, GeneveContent, GeneveError};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::Transmit;

use super::{HELLO_INTERVAL, Router};
use crate::node::{Node, RecvMeta};

impl Node for Router {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        self.session.handle_inner(now, packet);
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let RecvMeta { socket, remote, local, .. } = *meta;
        let link = self.links.find(socket.0, remote);
        if link.is_none() && !self.links.may_be_peer(socket.0, remote) {
            self.drops.count(DropReason::UnknownPeer);
            return;
        }
        match Geneve::parse(payload) {
            Ok(Geneve { vni, .. }) if vni != self.vni => {
                self.drops.count(DropReason::UnknownMessage);
            }
            Ok(Geneve { content: GeneveContent::Hello(hello), .. }) => {
                let link = self.links.find_by_number(socket.0, remote, hello.link).or(link);
                self.handle_hello(now, link, &hello, remote, local, payload.len());
            }
            Ok(Geneve { content: GeneveContent::Inner { sequence, packet }, .. }) => match link {
                Some(link) => {
                    self.links.get_mut(link).on_heard(now, payload.len());
                    self.handle_inner_copy(now, link, sequence, packet);
                }
                None => self.drops.count(DropReason::UnknownPeer),
            },
            Err(error) if error.is_malformed() => self.drops.count(DropReason::MalformedMessage),
            Err(GeneveError::Family(_)) => self.drops.count(DropReason::MalformedInner),
            Err(_) => self.drops.count(DropReason::UnknownMessage),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if now >= self.next_hello {
            self.next_hello = now + HELLO_INTERVAL;
            self.links.send_hellos(now);
            self.refresh(now);
        }
        self.session.handle_timeout(now, &mut self.links);
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.links.poll_transmit()
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        self.session.poll_inner()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.session.poll_timeout().into_iter().chain([self.next_hello]).min()
    }
}
