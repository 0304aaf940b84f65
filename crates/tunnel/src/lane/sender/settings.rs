//! Changes to a running lane: strategy, settings, the application's state, and learned state.

use roadweave_proto::wire::Control;
use roadweave_proto::{Instant, PathId, Promise};
use roadweave_recovery::{Insurance, Qoe, RecoveryConfig};
use roadweave_schedule::RestoreError;

use super::{LaneSender, RANGE_SPAN};
use crate::carrier::Carrier;
use crate::lane::arrival_times::ArrivalTimes;
use crate::lane::{LaneConfig, NamesUplink, Strategy};

impl LaneSender {
    /// Follows another strategy from the next packet on; packets sent before stay with their
    /// recovery. Fails, and changes nothing, if the strategy names an uplink where none is known.
    pub(crate) fn set_strategy(
        &mut self,
        strategy: Strategy,
        names_uplinks: bool,
    ) -> Result<(), NamesUplink> {
        strategy.check(names_uplinks)?;
        let mut scheduler = strategy.scheduler(self.config.for_scheduler());
        let learned = self.learned();
        if let Some(learned) = &learned
            && let Err(error) = scheduler.restore(learned)
        {
            tracing::warn!(lane = self.config.name, "{error}");
        }
        self.learning.learned = learned.filter(|_| scheduler.learned().is_none());
        self.learning.path_names.iter().for_each(|(path, name)| scheduler.name_path(*path, name));
        self.scheduler = scheduler;
        self.targets = None;
        self.stale.shedder = strategy.shedder(self.config.for_scheduler());
        self.config.strategy = strategy;
        let recovery = self.config.strategy.recovery(recovery_config(&self.config));
        self.recovery.change(self.coding.next_id, recovery);
        self.insurance = insurance(&self.config);
        // The old recovery's packets must be kept as long as it expects.
        self.keeping.age_max = self.keeping.age_max.max(self.config.keeps_for());
        self.coding.codes |= self.config.strategy.codes();
        self.coding.encoder.set_expiry(self.keeping.age_max + RANGE_SPAN);
        if !self.recovery.has_past() {
            self.settle_age();
        }
        Ok(())
    }

    /// Takes the settings of another lane of the same name and ordering, from the next packet on.
    pub(crate) fn set_config(
        &mut self,
        now: Instant,
        config: LaneConfig,
        names_uplinks: bool,
    ) -> Result<(), NamesUplink> {
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        let what_strategies_see = |lane: &LaneConfig| {
            let for_xnc = (lane.patient, lane.insurance_percent);
            (lane.strategy.clone(), lane.deadline, lane.expire_after, lane.rtp_frames, for_xnc)
        };
        // A new strategy forgets what it knew, so it is only replaced if its input changed.
        if what_strategies_see(&old) != what_strategies_see(new)
            && let Err(error) = self.set_strategy(new.strategy.clone(), names_uplinks)
        {
            self.config = old;
            return Err(error);
        }
        match (&mut self.keeping.arrival_times, self.config.expire_after) {
            (Some(arrival_times), Some(age)) => arrival_times.expire_after = age,
            (arrival_times, age) => *arrival_times = age.map(|age| ArrivalTimes::new(now, age)),
        }
        Ok(())
    }

    pub(crate) fn set_qoe(&mut self, now: Instant, qoe: Qoe) {
        self.recovery.each().for_each(|recovery| recovery.set_qoe(now, qoe));
    }

    pub(super) fn announce(&mut self, carrier: &mut impl Carrier) {
        let promise = Promise {
            order: self.config.order.at_most(self.keeping.age_max),
            age_max: self.keeping.age_max,
            expires: self.keeping.arrival_times.is_some(),
            coded: self.coding.codes,
            acknowledge_on_all: self.config.strategy.entry.acknowledged_on_all,
        };
        if promise == self.announced || !carrier.reports_fates() {
            return;
        }
        let message = Control::LanePromise { lane: self.lane, promise };
        if carrier.send_message(message.to_bytes()) {
            self.announced = promise;
        }
    }

    pub(crate) fn name_path(&mut self, path: PathId, name: &str) {
        if self.learning.path_names.len() >= PATH_NAMES_MAX
            && !self.learning.path_names.contains_key(&path)
        {
            self.learning.path_names.pop_first();
        }
        self.learning.path_names.insert(path, name.to_owned());
        self.scheduler.name_path(path, name);
    }

    pub(crate) fn forget_path(&mut self, path: PathId) {
        self.learning.path_names.remove(&path);
    }

    /// Takes up what the strategy learned before a restart; changes nothing if it cannot be read.
    pub(crate) fn restore(&mut self, learned: &str) -> Result<(), RestoreError> {
        self.scheduler.restore(learned)?;
        self.learning.learned = self.scheduler.learned().is_none().then(|| learned.to_owned());
        Ok(())
    }

    pub(crate) fn learned(&self) -> Option<String> {
        self.scheduler.learned().or_else(|| self.learning.learned.clone())
    }

    pub(super) fn settle_age(&mut self) {
        self.coding.codes = self.config.strategy.codes();
        let age_max = self.config.keeps_for();
        if age_max != self.keeping.age_max {
            self.keeping.age_max = age_max;
            self.coding.encoder.set_expiry(age_max + RANGE_SPAN);
        }
    }
}

const PATH_NAMES_MAX: usize = 32;

pub(super) fn insurance(lane: &LaneConfig) -> Option<Insurance> {
    let percent = lane.insurance_percent;
    (percent > 0 && lane.strategy.codes()).then(|| Insurance::new(recovery_config(lane), percent))
}

pub(super) fn recovery_config(lane: &LaneConfig) -> RecoveryConfig {
    let expire_after = lane.keeps_for();
    RecoveryConfig { deadline: lane.deadline, expire_after }
}
