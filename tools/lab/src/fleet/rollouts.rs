//! Rollouts of configurations through a fleet, and their operator.

use std::time::Duration;

use roadweave_fleet::records::{Config, DeviceState, Rollout, RolloutState};
use roadweave_fleet::{Kind, Outcome, Report, Version};
use roadweave_proto::{Instant, SplitMix64};
use serde_json::json;

use super::plan::PlannedEvent;
use super::{FleetEvent, FleetWorld};

const WAVE_REST_S: u32 = 1_800;
const REVIEW: Duration = Duration::from_secs(1_200);
const UNREADABLE: &str = "unreadable";

impl FleetWorld {
    /// Whether a configuration cuts off a box, by the percentage in its text.
    pub(super) fn cuts_off(who: usize, text: &str) -> bool {
        let field = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
            values.next()?.strip_prefix(" = ")?.parse::<u64>().ok()
        };
        match (field("number"), field("cuts")) {
            (Some(number), Some(share)) => SplitMix64::word(number, who as u64) % 100 < share,
            _ => false,
        }
    }

    pub(super) fn refuse_if_unreadable(&mut self, who: usize, text: &str) {
        let now = self.now;
        let agent = &mut self.members[who].agent;
        if let Some(version) = agent.persisted().on_trial()
            && text.starts_with(UNREADABLE)
        {
            agent.refuse(now, version, "line 1: no such field");
        }
    }

    fn is_any(&self, state: RolloutState) -> bool {
        self.store.fleet.rollouts.values().any(|it| it.settings.state == state)
    }

    fn is_rolling(&self) -> bool {
        self.is_any(RolloutState::Running) || self.is_any(RolloutState::Paused)
    }

    pub(super) fn roll(&mut self, number: u32, cuts: u8, is_refused: bool) {
        if self.is_rolling() || self.leader().is_none() {
            let again = FleetEvent::Planned(PlannedEvent::Roll { number, cuts, is_refused });
            return self.after(Duration::from_secs(300), again);
        }
        let id = number.to_string();
        let body = match is_refused {
            true => json!({ UNREADABLE: true }),
            false => json!({ "number": number, "cuts": cuts }),
        };
        let settings = json!({ "body": body });
        let config = json!({ "id": id, "number": number, "author": "", "settings": settings });
        let (waves, rest_s) = ([1, 5, 25, 100], WAVE_REST_S);
        let settings = json!({ "config": id, "waves": waves, "rest_s": rest_s, "refusals_max": 2 });
        let rollout = json!({ "id": id, "wave": 0, "wave_since_ms": 0, "settings": settings });
        let config: Config = serde_json::from_value(config).expect("a configuration");
        let rollout: Rollout = serde_json::from_value(rollout).expect("a rollout");
        for tenant in self.roster.tenants() {
            let of = (tenant, id.clone());
            self.store.fleet.configs.insert(of.clone(), config.clone());
            self.store.fleet.rollouts.insert(of, rollout.clone());
        }
        self.store.lacks_configurations = true;
        self.figures.counts.rollouts[0] += 1;
        self.configure();
    }

    pub(super) fn configure(&mut self) {
        let (was_rolling, was_halted) = (self.is_rolling(), self.is_any(RolloutState::Paused));
        self.store.configure(&self.roster, self.now);
        self.figures.counts.rollouts[1] += u64::from(was_rolling && !self.is_rolling());
        if self.is_any(RolloutState::Paused) && !was_halted {
            self.figures.counts.rollouts[2] += 1;
            self.after(REVIEW, FleetEvent::Planned(PlannedEvent::Review));
        }
        self.notify();
    }

    pub(super) fn on_report(&mut self, who: usize, report: &Report) {
        if report.kind != Kind::Configuration || !self.roster.is_box(who) {
            return;
        }
        let stage = match report.outcome {
            Outcome::InForce => 0,
            Outcome::Confirmed => 1,
            Outcome::TakenBack { .. } => 2,
            Outcome::Refused { .. } => 3,
        };
        let reported = Some((report.version, stage));
        if std::mem::replace(&mut self.store.reported[who], reported) == reported {
            return;
        }
        self.figures.counts.versions[usize::from(stage)] += 1;
        let key = self.roster.key(who);
        let Some(written) = self.store.documents.get_mut(&(key, report.kind)) else { return };
        if written.version == report.version {
            written.outcome = Some(report.outcome.clone());
            self.store.rollouts.hear(&key, written);
            if stage >= 2 {
                self.configure();
            }
        }
    }

    pub(super) fn review(&mut self) {
        if self.leader().is_none() {
            return self.after(Duration::from_secs(10), FleetEvent::Planned(PlannedEvent::Review));
        }
        if !self.is_any(RolloutState::Paused) {
            return;
        }
        for rollout in self.store.fleet.rollouts.values_mut() {
            if rollout.settings.state != RolloutState::Done {
                rollout.settings.state = RolloutState::Aborted;
            }
        }
        self.figures.counts.rollouts[3] += 1;
        self.store.lacks_configurations = true;
        self.configure();
    }

    pub(super) fn drift(&self) -> u64 {
        let in_force = |who: &usize| -> Option<Version> {
            self.members[*who].agent.persisted().configuration_in_force().0
        };
        let is_other = |who: &usize| {
            let of = (self.roster.key(*who), Kind::Configuration);
            let wanted = self.store.documents.get(&of).map(|written| written.version);
            let state = self.store.state(&self.roster, *who);
            state == Some(DeviceState::Active) && in_force(who) != wanted
        };
        (0..self.roster.boxes).filter(is_other).count() as u64
    }

    pub(super) fn cut_off(&self) -> u64 {
        self.rides.iter().filter(|ride| ride.is_cut_off).count() as u64
    }

    pub(super) fn hours(at: Instant) -> f64 {
        at.as_secs_f64() / 3_600.0
    }
}
