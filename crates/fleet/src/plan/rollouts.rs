//! Roll-outs in progress: one state machine each, driven by records, outcomes at boxes, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::{Documents, Fleet, RecordId, Written};
use crate::document::Kind;
use crate::records::{Device, Rollout, RolloutSettings, RolloutState, Scope};
use crate::rollout::{Plan, Rollout as Machine, RolloutState as Motion, Wave};

/// The roll-outs in progress.
#[derive(Clone, Debug, Default)]
pub struct Rollouts {
    machines: BTreeMap<RecordId, Machine>,
    said: BTreeMap<RecordId, RolloutState>,
    changed: BTreeSet<RecordId>,
}

/// Changes of roll-outs.
#[derive(Debug, Default)]
pub struct Turned {
    /// Progress to be stored.
    pub progress: Vec<(RecordId, Machine)>,
    /// Changed records.
    pub records: Vec<(RecordId, Rollout)>,
}

fn is_open(fleet: &Fleet, id: &RecordId, rollout: &Rollout) -> bool {
    matches!(rollout.settings.state, RolloutState::Running | RolloutState::Paused)
        && !fleet.waits(id, rollout)
}

impl Rollouts {
    /// The roll-outs that go on, whose progress is not known here.
    pub fn unread(&self, fleet: &Fleet) -> Vec<RecordId> {
        let open = fleet.rollouts.iter().filter(|(id, it)| is_open(fleet, id, it));
        let unread = open.map(|(id, _)| id).filter(|id| !self.machines.contains_key(*id));
        unread.cloned().collect()
    }

    /// Follows the records: goes on with `kept` progress, and starts new roll-outs.
    pub fn refresh(
        &mut self,
        fleet: &Fleet,
        documents: &Documents,
        mut kept: BTreeMap<RecordId, Machine>,
        now: Instant,
    ) {
        let goes_on =
            |id: &RecordId| fleet.rollouts.get(id).is_some_and(|it| is_open(fleet, id, it));
        self.machines.retain(|id, _| goes_on(id));
        self.said.retain(|id, _| goes_on(id));
        for (id, record) in fleet.rollouts.iter().filter(|(id, _)| goes_on(id)) {
            let keys = covered(fleet, id, record);
            let state = record.settings.state;
            if !self.machines.contains_key(id) {
                let mut machine = kept.remove(id).unwrap_or_else(|| {
                    Machine::new(&name(id), plan(record), keys.iter().copied(), now)
                });
                // State and progress are written together, so a difference is a person's change.
                follow(&mut machine, state, now);
                self.said.insert(id.clone(), state);
                for key in &keys {
                    if let Some(written) = documents.get(&(*key, Kind::Configuration)) {
                        hear(&mut machine, key, written, &name(id));
                    }
                }
                self.machines.insert(id.clone(), machine);
                self.changed.insert(id.clone());
            }
            let Some(machine) = self.machines.get_mut(id) else { continue };
            for key in &keys {
                if machine.progress(key).is_none() {
                    machine.add(*key);
                    self.changed.insert(id.clone());
                }
            }
            let gone: Vec<PublicKey> = machine.boxes().filter(|key| !keys.contains(key)).collect();
            for key in gone {
                machine.remove(&key);
                self.changed.insert(id.clone());
            }
            if self.said.insert(id.clone(), state) != Some(state) {
                follow(machine, state, now);
            }
        }
    }

    /// Takes the outcome of a box's configuration.
    pub fn hear(&mut self, key: &PublicKey, written: &Written) {
        for (id, machine) in &mut self.machines {
            if hear(machine, key, written, &name(id)) {
                self.changed.insert(id.clone());
            }
        }
    }

    /// Advances the roll-outs. If the changes cannot be written, the state must be read again.
    pub fn turn(&mut self, fleet: &Fleet, now: Instant, now_ms: i64) -> Turned {
        let mut turned = Turned::default();
        for (id, machine) in &mut self.machines {
            let Some(before) = fleet.rollouts.get(id) else { continue };
            if machine.poll(now) {
                self.changed.insert(id.clone());
            }
            let record = record(before, machine, now_ms);
            if record != *before {
                self.changed.insert(id.clone());
                self.said.insert(id.clone(), record.settings.state);
                turned.records.push((id.clone(), record));
            }
        }
        for id in std::mem::take(&mut self.changed) {
            let machine = self.machines.get(&id).cloned();
            turned.progress.extend(machine.map(|machine| (id, machine)));
        }
        turned
    }

    pub(super) fn is_offered(&self, id: &RecordId, record: &Rollout, key: &PublicKey) -> bool {
        match record.settings.state {
            RolloutState::Done => true,
            RolloutState::Aborted => false,
            RolloutState::Running | RolloutState::Paused => {
                self.machines.get(id).is_some_and(|machine| machine.is_offered(key))
            }
        }
    }
}

pub(super) fn covers(scope: &Scope, device: &Device) -> bool {
    match scope {
        Scope::Tenant => true,
        Scope::Tag(tag) => device.settings.tags.contains(tag),
        Scope::Device(id) => *id == device.id,
    }
}

pub(super) fn name(id: &RecordId) -> String {
    format!("{}/{}", id.0, id.1)
}

fn hear(machine: &mut Machine, key: &PublicKey, written: &Written, about: &str) -> bool {
    let is_about = written.about.split(',').any(|one| one == about);
    let Some(outcome) = written.outcome.as_ref().filter(|_| is_about) else { return false };
    let before = machine.progress(key);
    machine.on_outcome(key, outcome);
    before != machine.progress(key)
}

fn covered(fleet: &Fleet, id: &RecordId, rollout: &Rollout) -> BTreeSet<PublicKey> {
    let Some(config) = fleet.config_of(id, rollout) else { return BTreeSet::new() };
    let ours = fleet
        .active()
        .filter(|(of, device, _)| of.0 == id.0 && covers(&config.settings.scope, device));
    ours.map(|(_, _, key)| key).collect()
}

/// The share of boxes that must confirm before the next wave, percent.
const CONFIRMED_MIN: u8 = 50;

fn plan(rollout: &Rollout) -> Plan {
    let RolloutSettings { waves, rest_s, refusals_max, .. } = &rollout.settings;
    let percent = |share: &u32| Wave(u8::try_from(*share).unwrap_or(100).min(100));
    Plan {
        waves: waves.iter().map(percent).collect(),
        patience: Duration::from_secs((*rest_s).into()),
        failed_percent_max: u8::try_from(*refusals_max).unwrap_or(100).min(100),
        confirmed_min: CONFIRMED_MIN,
    }
}

fn follow(machine: &mut Machine, state: RolloutState, now: Instant) {
    match (state, machine.state()) {
        (RolloutState::Paused, Motion::Running) => machine.halt("paused by an operator"),
        (RolloutState::Running, Motion::Halted { .. }) => machine.resume(now),
        _ => {}
    }
}

fn record(before: &Rollout, machine: &Machine, now_ms: i64) -> Rollout {
    let mut record = before.clone();
    let wave = machine.wave().saturating_sub(1);
    if record.wave != wave {
        (record.wave, record.wave_since_ms) = (wave, now_ms);
    }
    record.why = None;
    match machine.state() {
        Motion::Halted { why } => {
            record.settings.state = RolloutState::Paused;
            record.why = Some(why.clone());
        }
        Motion::Done => record.settings.state = RolloutState::Done,
        Motion::Running => {}
    }
    record
}
