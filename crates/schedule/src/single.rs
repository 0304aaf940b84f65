//! `single:<uplink>`: everything on one uplink. A yardstick.

use std::collections::BTreeSet;

use roadweave_proto::{Instant, PathId, PathOffer};

use crate::{Decision, PacketInfo, PathSet, Scheduler};

const PATHS_MAX: usize = 64;

/// The scheduler of one uplink: without a path over it, packets wait.
#[derive(Debug)]
pub struct Single {
    uplink: String,
    paths: BTreeSet<PathId>,
}

impl Single {
    /// Uses the paths over `uplink`.
    pub fn new(uplink: &str) -> Self {
        Self { uplink: uplink.to_owned(), paths: BTreeSet::new() }
    }
}

impl Scheduler for Single {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        // With one link a suspect path is as good.
        let may_carry = |path: &PathOffer<'_>| {
            self.paths.contains(&path.snapshot.id)
                && path.takes_data()
                && path.snapshot.room() >= packet.bytes as u64
        };
        paths
            .iter()
            .position(may_carry)
            .map_or(Decision::Wait, |position| Decision::Send(PathSet::one(position)))
    }

    fn share_of(&self, paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        let own = paths.iter().zip(rooms);
        let own = own.filter(|(path, _)| self.paths.contains(&path.snapshot.id));
        own.map(|(_, room)| *room).sum()
    }

    fn name_path(&mut self, path: PathId, name: &str) {
        if name != self.uplink {
            self.paths.remove(&path);
            return;
        }
        // Ids of paths are not reused; the oldest goes.
        if self.paths.len() >= PATHS_MAX {
            self.paths.pop_first();
        }
        self.paths.insert(path);
    }
}

#[cfg(test)]
mod tests {
    use roadweave_proto::PathSnapshot;

    use super::*;
    use crate::testing::{Among, path, to};

    #[test]
    fn packets_wait_for_the_uplink_and_follow_it_to_its_next_path() {
        let mut single = Single::new("wwan1");
        let select = |single: &mut Single, ids: &[u32]| {
            let paths: Vec<PathSnapshot> = ids.iter().map(|id| path(*id, 50, 30_000)).collect();
            single.choose(&paths)
        };
        single.name_path(PathId(0), "wwan0");
        assert_eq!(select(&mut single, &[0, 1]), Decision::Wait, "nobody has named it yet");
        single.name_path(PathId(1), "wwan1");
        assert_eq!(select(&mut single, &[0, 1]), to(1));
        assert_eq!(select(&mut single, &[0]), Decision::Wait, "it was unplugged");
        single.name_path(PathId(7), "wwan1");
        assert_eq!(select(&mut single, &[0, 7]), to(1));
        (100..1000).for_each(|id| single.name_path(PathId(id), "wwan1"));
        assert!(single.paths.len() <= PATHS_MAX);
    }
}
