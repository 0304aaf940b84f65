//! A model of the data plane: which box is on which proxy, faults and recovery.

use std::time::Duration;

use roadweave_fleet::records::ProxyState;
use roadweave_identity::PublicKey;

use super::members::Shortfall;
use super::plan::PlannedEvent;
use super::store::StoreChange;
use super::{FleetEvent, FleetWorld};

const PROBE: Duration = Duration::from_secs(1_800);
const AGAIN: Duration = Duration::from_secs(5);
/// Bytes of measuring one candidate: three probes over two uplinks.
const PROBE_BYTES: u64 = 3 * 2 * 1_200;

impl FleetWorld {
    pub(super) fn choose_after(&mut self, who: usize, span: Duration) {
        self.rides[who].round += 1;
        let round = self.rides[who].round;
        self.after(span, FleetEvent::Choose { who, round });
    }

    fn wants(&self, who: usize) -> bool {
        let ride = &self.rides[who];
        let is_member = ride.in_tables_from.is_some();
        is_member && !ride.is_in_garage && !ride.is_cut_off && !ride.is_revoked
    }

    pub(super) fn accepts(&self, proxy: usize, who: usize) -> bool {
        let (ride, model) = (&self.rides[who], &self.proxies[proxy]);
        let is_in_table = match ride.is_forgotten {
            true => model.table.is_some_and(|table| table.epoch < self.store.epoch),
            false => ride.in_tables_from.is_some_and(|from| model.table >= Some(from)),
        };
        model.is_running() && !model.is_draining && is_in_table
    }

    pub(super) fn choose(&mut self, who: usize, round: u64) {
        if round != self.rides[who].round {
            return;
        }
        if !self.wants(who) {
            return self.set_proxy(who, None);
        }
        let half_hour = self.now.as_nanos() / PROBE.as_nanos() as u64;
        let delay = |proxy: usize| self.roster.round_trip(who, proxy, half_hour);
        let ride = &self.rides[who];
        let usable = ride.candidates.iter().filter(|(proxy, _)| self.accepts(*proxy, who));
        let best = usable.min_by_key(|(proxy, last_resort)| (*last_resort, delay(*proxy)));
        let is_held = |proxy: &usize| self.accepts(*proxy, who) && ride.knows(*proxy);
        let on = ride.on.filter(is_held);
        let pays = |(best, last_resort): (usize, bool), on: usize| {
            let is_better = delay(best) * 3 < delay(on) * 2
                && delay(best) + Duration::from_millis(10) < delay(on);
            is_better && !last_resort
        };
        let chosen = match (on, best) {
            (Some(on), Some(best)) if !pays(*best, on) => Some(on),
            (_, best) => best.map(|(proxy, _)| *proxy),
        };
        self.figures.probe_bytes += ride.candidates.len() as u64 * PROBE_BYTES;
        self.set_proxy(who, chosen);
        let next = match chosen {
            Some(_) => PROBE + self.between(0, 60_000),
            None => AGAIN,
        };
        self.choose_after(who, next);
    }

    pub(super) fn set_proxy(&mut self, who: usize, proxy: Option<usize>) {
        let former = std::mem::replace(&mut self.rides[who].on, proxy);
        if former != proxy {
            self.figures.counts.moves += u64::from(former.is_some() && proxy.is_some());
            former.iter().for_each(|former| {
                self.proxies[*former].boxes.remove(&who);
            });
            proxy.iter().for_each(|proxy| {
                self.proxies[*proxy].boxes.insert(who);
            });
            let key = proxy.map(|proxy| self.roster.key(self.roster.boxes + proxy));
            let now = self.now;
            let agent = &mut self.members[who].agent;
            agent.on_session(now, proxy.is_some());
            agent.set_proxy(key);
            self.flush(who);
        }
        self.account(who);
    }

    pub(super) fn account(&mut self, who: usize) {
        let lack = match self.rides[who].on {
            _ if !self.wants(who) => None,
            None => Some(Shortfall::Proxy),
            Some(proxy) if !self.proxies[proxy].is_running() => Some(Shortfall::LiveProxy),
            Some(_) => None,
        };
        let former = self.rides[who].lacking;
        if former.map(|(lack, _)| lack) == lack {
            return;
        }
        if let Some((lack, since)) = former {
            self.figures.lacked(lack, self.now - since);
        }
        self.rides[who].lacking = lack.map(|lack| (lack, self.now));
    }

    pub(super) fn on_candidates(&mut self, who: usize, candidates: Vec<(usize, bool)>) {
        let ride = &mut self.rides[who];
        ride.candidates = candidates;
        let is_listed = ride.on.is_some_and(|on| ride.knows(on));
        if !is_listed {
            let soon = self.between(50, 500);
            self.choose_after(who, soon);
        }
    }

    pub(super) fn on_configure(&mut self, who: usize, text: &str) {
        let is_cut_off = Self::cuts_off(who, text);
        let was = std::mem::replace(&mut self.rides[who].is_cut_off, is_cut_off);
        if was != is_cut_off {
            self.on_network(who, !is_cut_off);
        }
        self.refuse_if_unreadable(who, text);
    }

    fn on_network(&mut self, who: usize, is_there: bool) {
        if is_there {
            let (soon, later) = (self.between(300, 2_000), self.between(500, 4_000));
            self.choose_after(who, soon);
            self.connect_after(who, later);
        } else {
            self.rides[who].round += 1;
            self.set_proxy(who, None);
            self.drop_stream(who, None);
        }
        self.account(who);
    }

    pub(super) fn end_session(&mut self, proxy: usize, key: &PublicKey) {
        self.figures.revoked_at(*key, proxy, self.now);
        let Some(who) = self.roster.who(key).filter(|who| self.roster.is_box(*who)) else { return };
        if self.rides[who].on == Some(proxy) {
            self.rides[who].is_revoked = true;
            self.set_proxy(who, None);
        }
        self.rides[who].is_revoked = true;
        self.account(who);
    }

    pub(super) fn on_admitted(&mut self, who: usize) {
        let next = self.store.next_version();
        let ride = &mut self.rides[who];
        (ride.in_tables_from, ride.is_forgotten) = (Some(next), false);
        self.account(who);
    }

    pub(super) fn on_refused(&mut self, who: usize, stream: Option<u64>) {
        if stream.is_none() || self.members[who].stream.map(|(_, held)| held) != stream {
            return;
        }
        self.drop_stream(who, None);
        if self.store.state(&self.roster, who).is_none() {
            // The operator issues another token.
            self.figures.counts.forgotten += 1;
            let newcomer = self.newcomer(who);
            self.members[who].agent = newcomer;
            self.connect_after(who, Duration::from_secs(600));
        }
    }

    pub(super) fn on_drain(&mut self, proxy: usize, drained: bool) {
        self.proxies[proxy].is_draining = drained;
        if !drained {
            return;
        }
        for who in self.proxies[proxy].boxes.clone() {
            let within = self.between(0, 60_000);
            self.choose_after(who, within);
        }
    }

    fn lose(&mut self, proxy: usize) {
        for who in self.proxies[proxy].boxes.clone() {
            self.account(who);
            let soon = self.between(300, 900);
            self.choose_after(who, soon);
        }
    }

    pub(super) fn handle_planned(&mut self, event: PlannedEvent) {
        match event {
            PlannedEvent::Join { who } => self.connect_after(who, Duration::ZERO),
            PlannedEvent::Garage { who, is_in } => {
                self.rides[who].is_in_garage = is_in;
                self.on_network(who, !is_in && !self.rides[who].is_cut_off);
            }
            PlannedEvent::Revoke { who } => self.revoke(who),
            PlannedEvent::Roll { number, cuts, is_refused } => self.roll(number, cuts, is_refused),
            PlannedEvent::Review => self.review(),
            PlannedEvent::Killed { replica, is_over: false } => self.end_replica(replica),
            PlannedEvent::Killed { replica, is_over: true } => self.begin_replica(replica),
            PlannedEvent::Hung { replica, is_over } => self.hang(replica, is_over),
            PlannedEvent::Database { is_over } => self.is_database_away = !is_over,
            PlannedEvent::Backup => self.backup = Some(Box::new(self.store.clone())),
            PlannedEvent::Restored { is_over: false } => {
                (0..self.replicas.len()).for_each(|replica| self.end_replica(replica));
            }
            PlannedEvent::Restored { is_over: true } => self.restore(),
            PlannedEvent::ProxyKilled { proxy, is_over } => self.kill_proxy(proxy, is_over),
            PlannedEvent::Frozen { proxy, is_over } => self.freeze(proxy, is_over),
            PlannedEvent::Drained { proxy, is_over } => self.drain(proxy, is_over),
            PlannedEvent::Partition { proxy, is_over } => self.partition(proxy, is_over),
        }
    }

    fn revoke(&mut self, who: usize) {
        if self.leader().is_none() {
            return self
                .after(Duration::from_secs(1), FleetEvent::Planned(PlannedEvent::Revoke { who }));
        }
        let key = self.roster.key(who);
        if self.store.revoke(&self.roster, &[key]) == 0 {
            return;
        }
        let is_reached = |proxy: &usize| {
            let (model, who) = (&self.proxies[*proxy], self.roster.boxes + proxy);
            let replica = self.members[who].stream.map(|(replica, _)| replica);
            let is_served = replica.is_some_and(|replica| !self.replicas[replica].is_hung);
            model.is_running() && !model.is_partitioned && is_served
        };
        let reached = (0..self.roster.proxies).filter(is_reached).collect();
        self.figures.revoke(key, self.now, reached);
        self.notify();
    }

    fn begin_replica(&mut self, replica: usize) {
        let now = self.now;
        self.replicas[replica].begin(&self.store, now);
    }

    fn hang(&mut self, replica: usize, is_over: bool) {
        if !self.replicas[replica].is_up {
            return;
        }
        if is_over {
            return self.wake_replica(replica);
        }
        self.replicas[replica].is_hung = true;
        let streams: Vec<usize> = self.replicas[replica].desks.keys().copied().collect();
        for who in streams {
            if self.members[who].stream.is_some_and(|(at, _)| at == replica) {
                // Proxies probe every ten seconds, boxes every minute to save traffic. Both notice
                // before another replica's watch declares a proxy dead.
                let (least, most) =
                    if self.roster.is_box(who) { (15_000, 75_000) } else { (10_000, 30_000) };
                let noticed = self.between(least, most);
                self.after(noticed, FleetEvent::Silent { replica, who });
            }
        }
    }

    pub(super) fn on_silent(&mut self, replica: usize, who: usize) {
        let is_there = self.members[who].stream.is_some_and(|(at, _)| at == replica);
        if is_there && self.replicas[replica].is_hung {
            let soon = self.between(0, 1_000);
            self.drop_stream(who, Some(soon));
        }
    }

    /// `roadweave-controller restore`: restores the backup, in an epoch begun by a root.
    fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        let (epoch, config) = (self.store.epoch + 1, self.config.clone());
        self.store = backup.restored(&self.roster, epoch, &config);
        self.sent_tables = vec![None; self.roster.proxies];
        for who in 0..self.roster.boxes {
            let is_unknown = self.store.state(&self.roster, who).is_none();
            let ride = &mut self.rides[who];
            ride.is_forgotten = ride.in_tables_from.is_some() && is_unknown;
        }
        (0..self.replicas.len()).for_each(|replica| self.begin_replica(replica));
    }

    fn kill_proxy(&mut self, proxy: usize, is_over: bool) {
        let who = self.roster.boxes + proxy;
        self.proxies[proxy].is_killed = !is_over;
        if is_over {
            self.restart(who);
            let soon = self.between(200, 2_000);
            self.connect_after(who, soon);
        } else {
            if let Some((replica, _)) = self.members[who].stream {
                self.replicas[replica].close(who);
            }
            self.drop_stream(who, None);
            self.lose(proxy);
        }
    }

    fn freeze(&mut self, proxy: usize, is_over: bool) {
        let who = self.roster.boxes + proxy;
        self.proxies[proxy].is_frozen = !is_over;
        if !is_over {
            self.expire_later(who);
            return self.lose(proxy);
        }
        for (stream, frames) in std::mem::take(&mut self.proxies[proxy].backlog) {
            self.handle_down(who, stream, frames);
        }
        let holds = |(replica, stream): (usize, u64)| {
            let desk = self.replicas[replica].desks.get(&who);
            desk.is_some_and(|(held, _)| *held == stream)
        };
        if !self.members[who].stream.is_some_and(holds) {
            self.drop_stream(who, Some(Duration::from_secs(1)));
        }
    }

    fn drain(&mut self, proxy: usize, is_over: bool) {
        if self.leader().is_none() {
            let again = FleetEvent::Planned(PlannedEvent::Drained { proxy, is_over });
            return self.after(Duration::from_secs(10), again);
        }
        let id = self.roster.id(self.roster.boxes + proxy);
        let state = if is_over { ProxyState::Active } else { ProxyState::Draining };
        self.store.fleet.proxies.get_mut(&id).expect("proxies stay").state = state;
        self.replace(proxy);
        self.store.outbox.push(StoreChange::Drain(proxy));
        self.notify();
    }

    fn partition(&mut self, proxy: usize, is_over: bool) {
        let who = self.roster.boxes + proxy;
        self.proxies[proxy].is_partitioned = !is_over;
        match is_over {
            true => self.connect_after(who, Duration::from_secs(1)),
            false => self.drop_stream(who, None),
        }
    }
}
