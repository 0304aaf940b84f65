//! Rollouts of configurations through a fleet, and their operator.

use std::time::Duration;

use roadweave_fleet::{
    Configuration, Kind, Outcome, Plan, Progress, Report, Rollout, RolloutState, Version,
};
use roadweave_proto::{Instant, SplitMix64};

use super::plan::Event as Planned;
use super::store::{Change, DeviceState};
use super::{Event, World};

const PATIENCE: Duration = Duration::from_secs(1_800);
const REVIEW: Duration = Duration::from_secs(1_200);
const UNREADABLE: &str = "unreadable";

impl World {
    /// Whether a configuration cuts off a box, by the percentage in its text.
    pub(super) fn cuts_off(who: usize, text: &str) -> bool {
        let mut words = text.split(' ');
        let number = words.next().and_then(|word| word.parse::<u64>().ok());
        let share = words.next().and_then(|word| word.parse::<u64>().ok());
        match (number, share) {
            (Some(number), Some(share)) => SplitMix64::word(number, who as u64) % 100 < share,
            _ => false,
        }
    }

    pub(super) fn refuse_if_unreadable(&mut self, who: usize, text: &str) {
        let now = self.now;
        let agent = &mut self.members[who].agent;
        if let Some(version) = agent.kept().on_trial()
            && text.ends_with(UNREADABLE)
        {
            agent.refuse(now, version, "line 1: no such field");
        }
    }

    pub(super) fn roll(&mut self, number: u32, cuts: u8, is_refused: bool) {
        let is_busy = self.store.rollout.as_ref().is_some_and(|(_, rollout)| {
            matches!(rollout.state(), RolloutState::Running | RolloutState::Halted { .. })
        });
        if is_busy || self.leader().is_none() {
            let again = Event::Planned(Planned::Roll { number, cuts, is_refused });
            return self.after(Duration::from_secs(300), again);
        }
        let text = if is_refused { UNREADABLE.to_owned() } else { format!("{number} {cuts}") };
        let devices = self.store.devices.iter().enumerate();
        let active = devices.filter(|(_, device)| device.state == DeviceState::Active);
        let keys: Vec<_> = active.map(|(who, _)| self.cast.key(who)).collect();
        let plan = Plan { patience: PATIENCE, ..Plan::default() };
        // The world's clock does not depend on replicas.
        let rollout = Rollout::new(&number.to_string(), plan, keys, self.now);
        self.store.rollout = Some((number, rollout));
        self.store.rolling = text;
        self.figures.rollouts += 1;
        self.offer();
    }

    fn offer(&mut self) {
        let Some((number, rollout)) = &self.store.rollout else { return };
        let (number, text) = (*number, self.store.rolling.clone());
        let offered: Vec<usize> = rollout.offered().filter_map(|key| self.cast.who(&key)).collect();
        for who in offered {
            let device = &self.store.devices[who];
            if device.rollout == Some(number) || device.state != DeviceState::Active {
                continue;
            }
            let body = Configuration { text: text.clone(), approval: None };
            let signed = self.store.sign(&self.cast, who, body);
            let device = &mut self.store.devices[who];
            device.former = device.configuration.replace(signed);
            device.rollout = Some(number);
            self.store.outbox.push(Change::Device(who));
        }
        self.notify();
    }

    pub(super) fn poll_rollout(&mut self) {
        let now = self.now;
        let Some((_, rollout)) = &mut self.store.rollout else { return };
        if !rollout.poll(now) {
            return;
        }
        if *rollout.state() == RolloutState::Done {
            self.store.good = self.store.rolling.clone();
            self.figures.rollouts_done += 1;
        }
        self.offer();
    }

    pub(super) fn on_report(&mut self, who: usize, report: &Report) {
        if report.kind != Kind::Configuration || !self.cast.is_box(who) {
            return;
        }
        let device = &mut self.store.devices[who];
        let stage = match report.outcome {
            Outcome::InForce => 0,
            Outcome::Confirmed => 1,
            Outcome::TakenBack { .. } => 2,
            Outcome::Refused { .. } => 3,
        };
        if device.reported == Some((report.version, stage)) {
            return;
        }
        device.reported = Some((report.version, stage));
        self.figures.reported[usize::from(stage)] += 1;
        let is_this = |stored: &super::store::Stored| stored.0 == report.version;
        let is_rolling = device.configuration.as_ref().is_some_and(is_this);
        let key = self.cast.key(who);
        let Some((number, rollout)) = &mut self.store.rollout else { return };
        if !is_rolling || device.rollout != Some(*number) {
            return;
        }
        let was_running = *rollout.state() == RolloutState::Running;
        rollout.on_outcome(&key, &report.outcome);
        let number = *number;
        if was_running && matches!(rollout.state(), RolloutState::Halted { .. }) {
            self.on_halt(number);
        }
    }

    fn on_halt(&mut self, number: u32) {
        self.figures.rollouts_halted += 1;
        let Some((_, rollout)) = &self.store.rollout else { return };
        for (who, device) in self.store.devices.iter_mut().enumerate() {
            let progress = rollout.progress(&self.cast.key(who));
            if device.rollout == Some(number) && progress == Some(Progress::Offered) {
                device.configuration = device.former.take();
                device.rollout = None;
            }
        }
        self.after(REVIEW, Event::Planned(Planned::Review { number }));
    }

    /// Aborts: boxes with the version get the last good configuration under a new number.
    pub(super) fn review(&mut self, number: u32) {
        if self.leader().is_none() {
            let again = Event::Planned(Planned::Review { number });
            return self.after(Duration::from_secs(10), again);
        }
        let Some((held, rollout)) = &mut self.store.rollout else { return };
        if *held != number || !matches!(rollout.state(), RolloutState::Halted { .. }) {
            return;
        }
        rollout.abort();
        self.figures.rollouts_aborted += 1;
        let text = self.store.good.clone();
        for who in 0..self.store.devices.len() {
            let device = &self.store.devices[who];
            if device.rollout != Some(number) || device.state != DeviceState::Active {
                continue;
            }
            let body = Configuration { text: text.clone(), approval: None };
            let signed = self.store.sign(&self.cast, who, body);
            let device = &mut self.store.devices[who];
            (device.configuration, device.rollout) = (Some(signed), None);
            self.store.outbox.push(Change::Device(who));
        }
        self.notify();
    }

    pub(super) fn drift(&self) -> u64 {
        let in_force = |who: &usize| -> Option<Version> {
            self.members[*who].agent.kept().configuration_in_force().0
        };
        let is_other = |who: &usize| {
            let device = &self.store.devices[*who];
            let wanted = device.configuration.as_ref().map(|stored| stored.0);
            device.state == DeviceState::Active && in_force(who) != wanted
        };
        (0..self.cast.boxes).filter(is_other).count() as u64
    }

    pub(super) fn cut_off(&self) -> u64 {
        self.rides.iter().filter(|ride| ride.is_cut_off).count() as u64
    }

    pub(super) fn hours(at: Instant) -> f64 {
        at.as_secs_f64() / 3_600.0
    }
}
