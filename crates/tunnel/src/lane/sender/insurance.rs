//! Coded packets that are sent without a loss: they leave at once, or not at all.

use roadweave_proto::{DropReason, Instant, PacketId};
use roadweave_recovery::Premium;

use super::LaneSender;
use crate::carrier::Carrier;
use crate::lane::datagram::{DatagramContent, LaneDatagram};
use crate::lane::offers::limit_repairs;

impl LaneSender {
    /// Insures what has left; called when no lane has anything waiting.
    pub(crate) fn insure(&mut self, now: Instant, carrier: &mut impl Carrier) {
        if self.insurance.is_none() {
            return;
        }
        if self.has_backlog() {
            return self.put_off_insurance(now);
        }
        carrier.set_pacing(self.config.strategy.pacing(self.config.pacing));
        while let Some(premium) = self.poll_premium(now, carrier) {
            self.send_premium(now, &premium, carrier);
        }
        self.forget_done();
    }

    pub(crate) fn put_off_insurance(&mut self, now: Instant) {
        self.insurance.iter_mut().for_each(|insurance| insurance.put_off(now));
    }

    pub(super) fn forget_unneeded(&mut self, id: PacketId) {
        let is_insured = self.insurance.as_ref().is_some_and(|it| it.needs(id));
        if !is_insured && !self.recovery.of(id).needs(id) {
            self.coding.encoder.forget(id);
        }
    }

    fn poll_premium(&mut self, now: Instant, carrier: &mut impl Carrier) -> Option<Premium> {
        let mut paths = self.offers(carrier.paths(now));
        limit_repairs(&mut paths);
        self.insurance.as_mut()?.poll(now, &paths)
    }

    fn send_premium(&mut self, now: Instant, premium: &Premium, carrier: &mut impl Carrier) {
        // A packet of the block may have left the pool for lack of memory.
        let Ok(datagrams) = self.encode(premium.start, premium.count, &premium.shares) else {
            return;
        };
        for (path, bytes) in datagrams {
            let length = bytes.len() as u32;
            let content = DatagramContent::Repair { start: premium.start };
            let datagram = LaneDatagram { lane: self.lane, content, bytes };
            if carrier.send_on(now, path, datagram).is_err() {
                self.stats.drops.count(DropReason::CopyUnsent);
                continue;
            }
            self.stats.coded_datagrams += 1;
            self.stats.coded_bytes += u64::from(length);
            self.scheduler.on_sent(now, path, length, 0);
            carrier.account(path, length, true);
        }
    }
}

#[cfg(test)]
mod tests;
