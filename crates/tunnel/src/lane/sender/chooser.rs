//! Chooses the paths of packets: the scheduler, what it has learned, and the encoder's targets.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer};
use roadweave_schedule::{
    AcknowledgedDatagram, Decision, PacketInfo, PathSet, RestoreError, Scheduler,
};

use crate::lane::EncoderTarget;
use crate::lane::encoder::Targets;

#[derive(Debug)]
pub(crate) struct Chooser {
    pub(super) scheduler: Box<dyn Scheduler>,
    path_names: BTreeMap<PathId, String>,
    /// What a former scheduler has learned, while the present one learns nothing.
    learned: Option<String>,
    /// Absent unless an encoder has asked recently.
    targets: Option<Targets>,
}

impl Chooser {
    pub(super) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self { scheduler, path_names: BTreeMap::new(), learned: None, targets: None }
    }

    /// Follows another scheduler, which takes up what the former one has learned.
    pub(super) fn replace(&mut self, mut scheduler: Box<dyn Scheduler>, lane: &str) {
        let learned = self.learned();
        if let Some(learned) = &learned
            && let Err(error) = scheduler.restore(learned)
        {
            tracing::warn!(lane, "{error}");
        }
        self.learned = learned.filter(|_| scheduler.learned().is_none());
        self.path_names.iter().for_each(|(path, name)| scheduler.name_path(*path, name));
        self.scheduler = scheduler;
        self.targets = None;
    }

    pub(super) fn select(
        &mut self,
        now: Instant,
        packet: &PacketInfo,
        paths: &[PathOffer<'_>],
    ) -> Vec<PathId> {
        match self.scheduler.select(now, packet, paths) {
            Decision::Send(chosen) => path_ids(chosen, packet.bytes, paths),
            Decision::Wait => Vec::new(),
        }
    }

    pub(crate) fn name_path(&mut self, path: PathId, name: &str) {
        if self.path_names.len() >= PATH_NAMES_MAX && !self.path_names.contains_key(&path) {
            self.path_names.pop_first();
        }
        self.path_names.insert(path, name.to_owned());
        self.scheduler.name_path(path, name);
    }

    pub(crate) fn forget_path(&mut self, path: PathId) {
        self.path_names.remove(&path);
    }

    pub(crate) fn restore(&mut self, learned: &str) -> Result<(), RestoreError> {
        self.scheduler.restore(learned)?;
        self.learned = self.scheduler.learned().is_none().then(|| learned.to_owned());
        Ok(())
    }

    pub(crate) fn learned(&self) -> Option<String> {
        self.scheduler.learned().or_else(|| self.learned.clone())
    }

    pub(super) fn encoder_target(
        &mut self,
        now: Instant,
        deadline: Duration,
        paths: &[PathOffer<'_>],
        (waiting, under_way): (u64, u64),
    ) -> EncoderTarget {
        let targets = self.targets.get_or_insert_with(|| Targets::new(deadline));
        targets.take(now, &*self.scheduler, paths, waiting, under_way)
    }

    pub(crate) fn last_encoder_target(&self) -> Option<EncoderTarget> {
        self.targets.as_ref().map(|targets| targets.target)
    }

    /// A datagram of any lane was acknowledged.
    pub(crate) fn hear_acknowledged(&mut self, now: Instant, acknowledged: &AcknowledgedDatagram) {
        self.targets.take_if(|targets| !targets.is_wanted(now));
        if let Some(targets) = &mut self.targets {
            targets.windows.on_acknowledged(now, acknowledged);
        }
    }
}

/// The paths chosen for a packet, its own first, then those of copies, usable ones before others.
fn path_ids(chosen: PathSet, bytes: usize, paths: &[PathOffer<'_>]) -> Vec<PathId> {
    let first = chosen.first_choice(bytes as u64, paths);
    let mut order: Vec<usize> = chosen.iter().filter(|at| *at < paths.len()).collect();
    order.sort_by_key(|at| (Some(*at) != first, !paths[*at].is_usable()));
    order.into_iter().map(|at| paths[at].snapshot.id).collect()
}

const PATH_NAMES_MAX: usize = 32;
