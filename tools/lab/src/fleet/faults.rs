//! Faults and other planned events of a fleet, and recovery from them.

use std::time::Duration;

use roadweave_fleet::records::ProxyState;

use super::FleetWorld;
use super::agenda::FleetEvent;
use super::controller::OUTBOX_MS;
use super::plan::PlannedEvent;
use super::store::StoreChange;

/// Silence after which a replica drops a stream.
pub(super) const EXPIRY: Duration = Duration::from_secs(75);

impl FleetWorld {
    pub(super) fn handle_planned(&mut self, event: PlannedEvent) {
        match event {
            PlannedEvent::Join { who } => self.connect_after(who, Duration::ZERO),
            PlannedEvent::Garage { who, is_in } => {
                let ride = &mut self.sessions.rides[who];
                ride.is_in_garage = is_in;
                let is_there = ride.has_network();
                self.on_network(who, is_there);
            }
            PlannedEvent::Revoke { who } => self.revoke(who),
            PlannedEvent::Roll { number, cuts, is_refused } => self.roll(number, cuts, is_refused),
            PlannedEvent::Review => self.review(),
            PlannedEvent::Killed { replica, is_over: false } => self.end_replica(replica),
            PlannedEvent::Killed { replica, is_over: true } => {
                self.replicas[replica].begin(&self.store, self.agenda.now)
            }
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
            let again = FleetEvent::Planned(PlannedEvent::Revoke { who });
            return self.agenda.after(Duration::from_secs(1), again);
        }
        let key = self.roster.key(who);
        if self.store.revoke(&self.roster, &[key]) == 0 {
            return;
        }
        let is_reached = |proxy: &usize| {
            let (model, who) = (&self.sessions.proxies[*proxy], self.roster.boxes + proxy);
            let replica = self.members[who].stream.map(|(replica, _)| replica);
            let is_served = replica.is_some_and(|replica| !self.replicas[replica].is_hung);
            model.is_running() && !model.is_partitioned && is_served
        };
        let reached = (0..self.roster.proxies).filter(is_reached).collect();
        self.figures.revoke(key, self.agenda.now, reached);
        self.notify();
    }

    fn end_replica(&mut self, replica: usize) {
        let state = &mut self.replicas[replica];
        (state.is_up, state.is_hung) = (false, false);
        state.backlog.clear();
        let streams: Vec<(usize, u64)> =
            state.desks.iter().map(|(who, (stream, _))| (*who, *stream)).collect();
        for (who, stream) in streams {
            self.replicas[replica].close(who);
            if self.members[who].stream == Some((replica, stream)) {
                let soon = self.agenda.between(100, 3_000);
                self.drop_stream(who, Some(soon));
            }
        }
    }

    fn wake_replica(&mut self, replica: usize) {
        self.replicas[replica].is_hung = false;
        for (who, stream, frames) in std::mem::take(&mut self.replicas[replica].backlog) {
            self.handle_up(who, stream, frames);
        }
        self.agenda.after(Duration::from_millis(OUTBOX_MS), FleetEvent::Outbox(replica));
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
                let noticed = self.agenda.between(least, most);
                self.agenda.after(noticed, FleetEvent::Silent { replica, who });
            }
        }
    }

    pub(super) fn on_silent(&mut self, replica: usize, who: usize) {
        let is_there = self.members[who].stream.is_some_and(|(at, _)| at == replica);
        if is_there && self.replicas[replica].is_hung {
            let soon = self.agenda.between(0, 1_000);
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
            let ride = &mut self.sessions.rides[who];
            ride.is_forgotten = ride.in_tables_from.is_some() && is_unknown;
        }
        let now = self.agenda.now;
        self.replicas.iter_mut().for_each(|replica| replica.begin(&self.store, now));
    }

    fn kill_proxy(&mut self, proxy: usize, is_over: bool) {
        let who = self.roster.boxes + proxy;
        self.sessions.proxies[proxy].is_killed = !is_over;
        if is_over {
            self.members[who].restart(&self.roster, self.agenda.now, who);
            self.flush(who);
            let soon = self.agenda.between(200, 2_000);
            self.connect_after(who, soon);
        } else {
            if let Some((replica, _)) = self.members[who].stream {
                self.replicas[replica].close(who);
            }
            self.drop_stream(who, None);
            self.sessions.lose(&mut self.agenda, &mut self.figures, proxy);
        }
    }

    fn freeze(&mut self, proxy: usize, is_over: bool) {
        let who = self.roster.boxes + proxy;
        self.sessions.proxies[proxy].is_frozen = !is_over;
        if !is_over {
            if let Some((replica, stream)) = self.members[who].stream {
                self.agenda.after(EXPIRY, FleetEvent::Expire { replica, who, stream });
            }
            return self.sessions.lose(&mut self.agenda, &mut self.figures, proxy);
        }
        for (stream, frames) in std::mem::take(&mut self.sessions.proxies[proxy].backlog) {
            self.handle_down(who, stream, frames);
        }
        let holds = |(replica, stream): (usize, u64)| self.replicas[replica].holds(who, stream);
        if !self.members[who].stream.is_some_and(holds) {
            self.drop_stream(who, Some(Duration::from_secs(1)));
        }
    }

    fn drain(&mut self, proxy: usize, is_over: bool) {
        if self.leader().is_none() {
            let again = FleetEvent::Planned(PlannedEvent::Drained { proxy, is_over });
            return self.agenda.after(Duration::from_secs(10), again);
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
        self.sessions.proxies[proxy].is_partitioned = !is_over;
        match is_over {
            true => self.connect_after(who, Duration::from_secs(1)),
            false => self.drop_stream(who, None),
        }
    }
}
