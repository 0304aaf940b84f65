//! The tables of members that may connect to each proxy and anchor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use roadweave_identity::PublicKey;

use super::{Fleet, RecordId, chain};
use crate::records::{Device, DeviceState, Proxy, ProxyRole};
use crate::table::{Entry, Member, Table};

/// Tables by served tenants, which many proxies share. Entries of boxes are costly, so they stay.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    entries: BTreeMap<RecordId, (Device, Option<u32>, Arc<Entry>)>,
    made: BTreeMap<(BTreeSet<String>, bool), Table>,
}

impl Tables {
    /// Follows changed records: call it before [`Tables::of`].
    pub fn refresh(&mut self, fleet: &Fleet) {
        self.made.clear();
        let is_active = |it: &Device| it.state == DeviceState::Active;
        self.entries.retain(|id, _| fleet.devices.get(id).is_some_and(is_active));
    }

    /// The table of a proxy or an anchor. An anchor's has proxies too.
    pub fn of(&mut self, fleet: &Fleet, id: &RecordId, gate: &Proxy) -> Table {
        let of = (fleet.served(id, gate), gate.settings.role == ProxyRole::Anchor);
        if let Some(table) = self.made.get(&of) {
            return table.clone();
        }
        let boxes = fleet.active().filter(|(id, ..)| of.0.contains(&id.0));
        let boxes = boxes.filter_map(|(id, device, key)| self.entry(fleet, id, device, key));
        let mut entries: Vec<Arc<Entry>> = boxes.collect();
        if of.1 {
            entries.extend(proxies(fleet, &of.0));
        }
        self.made.entry(of).or_insert_with(|| Table::of(entries)).clone()
    }

    fn entry(
        &mut self,
        fleet: &Fleet,
        id: &RecordId,
        device: &Device,
        key: PublicKey,
    ) -> Option<Arc<Entry>> {
        let offline_max_s = fleet.tenant(&id.0).and_then(|it| it.settings.offline_max_s);
        if let Some((of, offline, entry)) = self.entries.get(id)
            && (of, *offline) == (device, offline_max_s)
        {
            return Some(entry.clone());
        }
        let chain = chain(device.statement.as_deref())?;
        let own = device.addresses.iter().map(|address| IpNet::from(*address));
        let addresses = own.chain(device.settings.prefixes.iter().copied()).collect();
        let member = Member { key, chain, addresses, rate_kbps: None, offline_max_s };
        let entry: Arc<Entry> = member.into();
        self.entries.insert(id.clone(), (device.clone(), offline_max_s, entry.clone()));
        Some(entry)
    }
}

fn proxies(fleet: &Fleet, served: &BTreeSet<String>) -> impl Iterator<Item = Arc<Entry>> {
    let gates = fleet.gates().filter(|(id, gate, _)| {
        gate.settings.role == ProxyRole::Proxy && !fleet.served(id, gate).is_disjoint(served)
    });
    gates.filter_map(|(_, gate, key)| {
        let chain = chain(gate.statement.as_deref())?;
        let (addresses, rate_kbps, offline_max_s) = (Vec::new(), None, None);
        Some(Member { key, chain, addresses, rate_kbps, offline_max_s }.into())
    })
}
