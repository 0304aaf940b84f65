//! A model of the data plane: which box is on which proxy.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_fleet::{Down, Version};
use roadweave_proto::Instant;

use super::agenda::{Agenda, FleetEvent};
use super::figures::FleetFigures;
use super::roster::Roster;

pub(super) const PROBE: Duration = Duration::from_secs(1_800);

#[derive(Default)]
pub(super) struct Ride {
    pub on: Option<usize>,
    /// Candidate proxies, and whether each is a last resort.
    pub candidates: Vec<(usize, bool)>,
    pub is_in_garage: bool,
    pub is_cut_off: bool,
    pub is_revoked: bool,
    pub is_forgotten: bool,
    pub in_tables_from: Option<Version>,
    pub round: u64,
    pub lacking: Option<(Shortfall, Instant)>,
}

impl Ride {
    fn knows(&self, proxy: usize) -> bool {
        self.candidates.iter().any(|(known, _)| *known == proxy)
    }

    pub fn wants(&self) -> bool {
        self.in_tables_from.is_some() && self.has_network() && !self.is_revoked
    }

    pub fn has_network(&self) -> bool {
        !self.is_in_garage && !self.is_cut_off
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortfall {
    Proxy,
    LiveProxy,
}

#[derive(Default)]
pub(super) struct ProxyModel {
    pub is_killed: bool,
    pub is_frozen: bool,
    pub is_draining: bool,
    pub is_partitioned: bool,
    pub boxes: BTreeSet<usize>,
    pub table: Option<Version>,
    pub backlog: Vec<(u64, Vec<Down>)>,
}

impl ProxyModel {
    pub fn is_running(&self) -> bool {
        !self.is_killed && !self.is_frozen
    }

    /// `epoch`: that of the database.
    pub fn accepts(&self, ride: &Ride, epoch: u64) -> bool {
        let is_in_table = match ride.is_forgotten {
            true => self.table.is_some_and(|table| table.epoch < epoch),
            false => ride.in_tables_from.is_some_and(|from| self.table >= Some(from)),
        };
        self.is_running() && !self.is_draining && is_in_table
    }
}

#[derive(Default)]
pub(super) struct Sessions {
    pub rides: Vec<Ride>,
    pub proxies: Vec<ProxyModel>,
}

impl Sessions {
    pub fn choose_after(&mut self, agenda: &mut Agenda, who: usize, span: Duration) {
        self.rides[who].round += 1;
        agenda.after(span, FleetEvent::Choose { who, round: self.rides[who].round });
    }

    /// The proxy that a box is best on; `epoch` is that of the database.
    pub fn choice(&self, roster: &Roster, now: Instant, epoch: u64, who: usize) -> Option<usize> {
        let half_hour = now.as_nanos() / PROBE.as_nanos() as u64;
        let delay = |proxy: usize| roster.round_trip(who, proxy, half_hour);
        let ride = &self.rides[who];
        let accepts = |proxy: usize| self.proxies[proxy].accepts(ride, epoch);
        let usable = ride.candidates.iter().filter(|(proxy, _)| accepts(*proxy));
        let best = usable.min_by_key(|(proxy, last_resort)| (*last_resort, delay(*proxy)));
        let on = ride.on.filter(|proxy| accepts(*proxy) && ride.knows(*proxy));
        let pays = |(best, last_resort): (usize, bool), on: usize| {
            let is_better = delay(best) * 3 < delay(on) * 2
                && delay(best) + Duration::from_millis(10) < delay(on);
            is_better && !last_resort
        };
        match (on, best) {
            (Some(on), Some(best)) if !pays(*best, on) => Some(on),
            (_, best) => best.map(|(proxy, _)| *proxy),
        }
    }

    /// Puts a box on a proxy, or on none; returns its former proxy.
    pub fn put(&mut self, who: usize, proxy: Option<usize>) -> Option<usize> {
        let former = std::mem::replace(&mut self.rides[who].on, proxy);
        if let Some(former) = former.filter(|_| former != proxy) {
            self.proxies[former].boxes.remove(&who);
        }
        if let Some(proxy) = proxy {
            self.proxies[proxy].boxes.insert(who);
        }
        former
    }

    /// Notes whether a box lacks a proxy from now on.
    pub fn account(&mut self, figures: &mut FleetFigures, now: Instant, who: usize) {
        let lack = match self.rides[who].on {
            _ if !self.rides[who].wants() => None,
            None => Some(Shortfall::Proxy),
            Some(proxy) if !self.proxies[proxy].is_running() => Some(Shortfall::LiveProxy),
            Some(_) => None,
        };
        let former = self.rides[who].lacking;
        if former.map(|(lack, _)| lack) == lack {
            return;
        }
        if let Some((lack, since)) = former {
            figures.lacked(lack, now - since);
        }
        self.rides[who].lacking = lack.map(|lack| (lack, now));
    }

    pub fn on_candidates(
        &mut self,
        agenda: &mut Agenda,
        who: usize,
        candidates: Vec<(usize, bool)>,
    ) {
        let ride = &mut self.rides[who];
        ride.candidates = candidates;
        let is_listed = ride.on.is_some_and(|on| ride.knows(on));
        if !is_listed {
            let soon = agenda.between(50, 500);
            self.choose_after(agenda, who, soon);
        }
    }

    pub fn on_drain(&mut self, agenda: &mut Agenda, proxy: usize, drained: bool) {
        self.proxies[proxy].is_draining = drained;
        if !drained {
            return;
        }
        for who in self.proxies[proxy].boxes.clone() {
            let within = agenda.between(0, 60_000);
            self.choose_after(agenda, who, within);
        }
    }

    /// A proxy has failed; its boxes soon notice.
    pub fn lose(&mut self, agenda: &mut Agenda, figures: &mut FleetFigures, proxy: usize) {
        for who in self.proxies[proxy].boxes.clone() {
            self.account(figures, agenda.now, who);
            let soon = agenda.between(300, 900);
            self.choose_after(agenda, who, soon);
        }
    }
}
