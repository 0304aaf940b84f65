//! The tables of members that may connect to each proxy and anchor.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use roadweave_fleet::{Member, PublishedTable, Table};
use roadweave_identity::PublicKey;

use super::fleet::{Fleet, RecordId};
use super::signing::{Content, Draft, Served, chain, head, version};
use crate::model::{Device, ProxyRole};
use crate::store::StoredDocument;

/// Tables by served tenants: many proxies share one.
#[derive(Default)]
pub(super) struct Tables(BTreeMap<(Served, bool), Table>);

impl Tables {
    fn of(&mut self, fleet: &Fleet, served: Served, has_proxies: bool) -> Table {
        let make = || {
            let boxes = members(fleet, &served);
            let proxies = proxies(fleet, &served).into_iter().filter(|_| has_proxies);
            Table::of(boxes.into_iter().chain(proxies))
        };
        self.0.entry((served.clone(), has_proxies)).or_insert_with(make).clone()
    }

    /// The table with this signed head, if the current members match it.
    pub(super) fn published(
        &mut self,
        fleet: &Fleet,
        paper: &StoredDocument,
    ) -> Option<(PublicKey, Arc<PublishedTable>)> {
        let key: PublicKey = paper.public_key.parse().ok()?;
        let (id, gate, _) = fleet.gates().find(|(_, _, other)| *other == key)?;
        let is_anchor = gate.settings.role == ProxyRole::Anchor;
        let table = self.of(fleet, fleet.served(id, gate), is_anchor);
        let version = version(paper);
        let is_signed = digest(&table, key) == paper.digest;
        let head = head(paper).filter(|_| is_signed)?;
        Some((key, Arc::new(PublishedTable { version, table, head })))
    }
}

pub(super) fn drafts(fleet: &Fleet, drafts: &mut Vec<Draft>) {
    let mut tables = Tables::default();
    for (id, gate, key) in fleet.gates() {
        let is_anchor = gate.settings.role == ProxyRole::Anchor;
        let table = tables.of(fleet, fleet.served(id, gate), is_anchor);
        let digest = digest(&table, key);
        drafts.push(Draft { key, digest, about: String::new(), content: Content::Table(table) });
    }
}

fn digest(table: &Table, key: PublicKey) -> String {
    table.head_for(key, roadweave_fleet::Version::default()).digest.into()
}

fn members(fleet: &Fleet, served: &Served) -> Vec<Member> {
    let ours = fleet.active().filter(|(id, _, _)| served.contains(&id.0));
    let member = |(id, device, key): (&RecordId, &Device, PublicKey)| {
        let chain = chain(device.statement.as_deref())?;
        let own = device.addresses.iter().map(|address| IpNet::from(*address));
        let addresses = own.chain(device.settings.prefixes.iter().copied()).collect();
        let tenant = fleet.tenants.get(&(id.0.clone(), id.0.clone()));
        let offline_max_s = tenant.and_then(|it| it.settings.offline_max_s);
        Some(Member { key, chain, addresses, rate_kbps: None, offline_max_s })
    };
    ours.filter_map(member).collect()
}

fn proxies(fleet: &Fleet, served: &Served) -> Vec<Member> {
    let gates = fleet.gates().filter(|(id, gate, _)| {
        gate.settings.role == ProxyRole::Proxy && !fleet.served(id, gate).is_disjoint(served)
    });
    let member = |(_, gate, key): (_, &crate::model::Proxy, PublicKey)| {
        let chain = chain(gate.statement.as_deref())?;
        let (addresses, rate_kbps, offline_max_s) = (Vec::new(), None, None);
        Some(Member { key, chain, addresses, rate_kbps, offline_max_s })
    };
    gates.filter_map(member).collect()
}
