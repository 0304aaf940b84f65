//! Roll-outs in progress: one state machine of the fleet crate each, driven by records, reports of
//! boxes, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_fleet::{Outcome, Plan, Rollout as Machine, RolloutState as Motion, Wave};
use roadweave_identity::PublicKey;
use roadweave_proto::Instant;

use super::fleet::{Fleet, RecordId};
use super::texts::covers;
use crate::model::{Rollout, RolloutSettings, RolloutState};
use crate::store::{Store, StoreError, Stored, StoredDocument};

#[derive(Debug, Default)]
pub(super) struct Rollouts {
    machines: BTreeMap<RecordId, Machine>,
    /// The state last written by people.
    said: BTreeMap<RecordId, RolloutState>,
    changed: BTreeSet<RecordId>,
}

#[derive(Debug, Default)]
pub(super) struct Turned {
    pub(super) progress: Vec<(RecordId, String)>,
    pub(super) records: Vec<(Stored<Rollout>, Rollout)>,
}

impl Turned {
    pub(super) fn is_empty(&self) -> bool {
        self.progress.is_empty() && self.records.is_empty()
    }
}

impl Rollouts {
    /// Restores roll-outs from the database, and starts new ones.
    pub(super) async fn refresh(
        &mut self,
        fleet: &Fleet,
        store: &Store,
        papers: impl Fn(&PublicKey) -> Option<StoredDocument>,
        now: Instant,
    ) -> Result<(), StoreError> {
        let is_open = |id: &RecordId, it: &Stored<Rollout>| {
            matches!(it.record.settings.state, RolloutState::Running | RolloutState::Paused)
                && !fleet.waits(id, &it.record)
        };
        let goes_on = |id: &RecordId| fleet.rollouts.get(id).is_some_and(|it| is_open(id, it));
        self.machines.retain(|id, _| goes_on(id));
        self.said.retain(|id, _| goes_on(id));
        for (id, stored) in fleet.rollouts.iter().filter(|(id, it)| is_open(id, it)) {
            let keys = covered(fleet, id, &stored.record);
            if !self.machines.contains_key(id) {
                let kept = store.progress(&id.0, &id.1).await?;
                let kept = kept.and_then(|text| serde_json::from_str(&text).ok());
                let mut machine = kept.unwrap_or_else(|| {
                    let plan = plan(&stored.record);
                    Machine::new(&name(id), plan, keys.iter().copied(), now)
                });
                // State and progress are written together, so a difference is a person's change
                // since.
                follow(&mut machine, stored.record.settings.state, now);
                self.said.insert(id.clone(), stored.record.settings.state);
                // Outcomes that arrived while no replica was planning.
                let about = name(id);
                for paper in keys.iter().filter_map(&papers) {
                    hear(&mut machine, &paper, &about);
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
            let state = stored.record.settings.state;
            if self.said.insert(id.clone(), state) != Some(state) {
                follow(machine, state, now);
            }
        }
        Ok(())
    }

    pub(super) fn hear(&mut self, paper: &StoredDocument) {
        for (id, machine) in &mut self.machines {
            if hear(machine, paper, &name(id)) {
                self.changed.insert(id.clone());
            }
        }
    }

    /// Advances the roll-outs. If the changes cannot be written, the state must be read again.
    pub(super) fn turn(&mut self, fleet: &Fleet, now: Instant, now_ms: i64) -> Turned {
        let mut turned = Turned::default();
        for (id, machine) in &mut self.machines {
            let Some(stored) = fleet.rollouts.get(id) else { continue };
            if machine.poll(now) {
                self.changed.insert(id.clone());
            }
            let record = record(&stored.record, machine, now_ms);
            if record != stored.record {
                self.changed.insert(id.clone());
                self.said.insert(id.clone(), record.settings.state);
                turned.records.push((stored.clone(), record));
            }
        }
        for id in std::mem::take(&mut self.changed) {
            let body = self.machines.get(&id).and_then(|it| serde_json::to_string(it).ok());
            turned.progress.extend(body.map(|body| (id, body)));
        }
        turned
    }

    pub(super) fn is_offered(&self, fleet: &Fleet, id: &RecordId, key: &PublicKey) -> bool {
        let Some(stored) = fleet.rollouts.get(id) else { return false };
        match stored.record.settings.state {
            RolloutState::Done => true,
            RolloutState::Aborted => false,
            RolloutState::Running | RolloutState::Paused => {
                self.machines.get(id).is_some_and(|machine| machine.is_offered(key))
            }
        }
    }
}

pub(super) fn name(id: &RecordId) -> String {
    format!("{}/{}", id.0, id.1)
}

fn hear(machine: &mut Machine, paper: &StoredDocument, about: &str) -> bool {
    let Ok(key) = paper.public_key.parse::<PublicKey>() else { return false };
    let Ok(outcome) = serde_json::from_str::<Outcome>(&paper.outcome) else { return false };
    let is_about = paper.about.split(',').any(|one| one == about);
    let before = machine.progress(&key);
    if is_about {
        machine.on_outcome(&key, &outcome);
    }
    before != machine.progress(&key)
}

fn covered(fleet: &Fleet, id: &RecordId, rollout: &Rollout) -> BTreeSet<PublicKey> {
    let config = fleet.configs.get(&(id.0.clone(), rollout.settings.config.clone()));
    let Some(config) = config else { return BTreeSet::new() };
    let ours = fleet
        .active()
        .filter(|(of, device, _)| of.0 == id.0 && covers(&config.settings.scope, device));
    ours.map(|(_, _, key)| key).collect()
}

fn plan(rollout: &Rollout) -> Plan {
    let RolloutSettings { waves, rest_s, refusals_max, .. } = &rollout.settings;
    let percent = |share: &u32| Wave::Percent(u8::try_from(*share).unwrap_or(100).min(100));
    Plan {
        waves: waves.iter().map(percent).collect(),
        patience: Duration::from_secs((*rest_s).into()),
        failed_percent_max: u8::try_from(*refusals_max).unwrap_or(100).min(100),
        failed_max: u32::MAX,
        ..Plan::default()
    }
}

fn follow(machine: &mut Machine, state: RolloutState, now: Instant) {
    match (state, machine.state()) {
        (RolloutState::Paused, Motion::Running) => machine.halt("a person has paused it"),
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
        Motion::Running | Motion::Aborted => {}
    }
    record
}
