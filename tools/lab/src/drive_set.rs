//! Synthetic drives, with as many of each class as among the recorded drives.
//!
//! ```text
//! DriveSet: 0, 1, 2, .. ─> class of its 90 s at 30 Mbit/s ─┬─> still wanted: the next drive
//!                                                          └─> enough of them: left out
//! ```
//!
//! Unselected drives would have too few easy ones: the recorded drives seem to be chosen by class
//! (tools/experiments/synthetic-drives.md).

use std::time::Duration;

use roadweave_emulate::{Drive, DriveSet, Trace};
use roadweave_proto::Rate;

use crate::class::Class;

/// The drives of a set, by class; equal seeds give equal drives, regardless of the number taken.
#[derive(Clone, Debug)]
pub struct DrivesByClass {
    set: DriveSet,
    next: u32,
    wanted: [u32; Class::ALL.len()],
    looked_at: u32,
}

impl DrivesByClass {
    /// Drives of `set`, chosen by the class of their first 90 s, whatever their length.
    pub fn of(set: DriveSet) -> Self {
        Self { set, next: 0, wanted: RECORDED, looked_at: 0 }
    }

    fn takes(&mut self, index: u32) -> bool {
        let drive = DriveSet { length: LENGTH, ..self.set }.drive(index);
        let mut class = class(&drive) as usize;
        self.looked_at += 1;
        if self.wanted[class] == 0 {
            let any = self.wanted.iter().position(|&wanted| wanted > 0);
            match any.filter(|_| self.looked_at > LOOKED_AT_MAX) {
                Some(any) => class = any,
                None => return false,
            }
        }
        self.wanted[class] -= 1;
        true
    }
}

impl Iterator for DrivesByClass {
    type Item = Drive;

    fn next(&mut self) -> Option<Drive> {
        if self.wanted == [0; Class::ALL.len()] {
            (self.wanted, self.looked_at) = (RECORDED, 0);
        }
        loop {
            let index = self.next;
            self.next = index.wrapping_add(1);
            if self.takes(index) {
                return Some(self.set.drive(index));
            }
        }
    }
}

fn class(drive: &Drive) -> Class {
    let links: Vec<&Trace> = drive.links.iter().map(|link| &link.up).collect();
    Class::of(&links, BITRATE, LENGTH)
}

/// Easy, decisive, tight and starved drives among each [`DriveSet::DRIVES`].
const RECORDED: [u32; Class::ALL.len()] = [7, 36, 8, 8];
const LENGTH: Duration = Duration::from_secs(90);
const BITRATE: Rate = Rate::from_kbps(30_000);
/// After this many drives any class is taken; some 170 usually suffice.
const LOOKED_AT_MAX: u32 = 40 * DriveSet::DRIVES;

#[cfg(test)]
mod tests {
    use super::*;

    fn drives(seed: u64, length: Duration) -> DrivesByClass {
        DrivesByClass::of(DriveSet { seed, length })
    }

    #[test]
    fn each_fifty_nine_have_the_recorded_classes() {
        for seed in 1..4 {
            let mut drives = drives(seed, LENGTH);
            for _ in 0..2 {
                let mut classes = [0; Class::ALL.len()];
                for drive in drives.by_ref().take(DriveSet::DRIVES as usize) {
                    classes[class(&drive) as usize] += 1;
                }
                assert_eq!(classes, RECORDED, "seed {seed}");
            }
        }
    }

    #[test]
    fn which_drives_are_in_it_depends_on_neither_length_nor_number() {
        let first: Vec<Drive> = drives(7, LENGTH).take(3).collect();
        let more: Vec<Drive> = drives(7, LENGTH).take(9).collect();
        assert_eq!(first, more[..3]);
        let (mut short, mut long) = (drives(7, Duration::from_secs(1)), drives(7, LENGTH));
        for _ in 0..DriveSet::DRIVES {
            assert_eq!(short.next().unwrap().links.len(), 4);
            long.next();
            assert_eq!(short.next, long.next);
        }
    }

    #[test]
    fn what_is_not_found_is_made_up_for_by_others() {
        let mut drives = drives(1, Duration::from_secs(1));
        drives.wanted = [1, 0, 0, 1];
        drives.looked_at = LOOKED_AT_MAX;
        let first = DriveSet { seed: 1, length: LENGTH }.drive(0);
        assert!(matches!(class(&first), Class::Decisive | Class::Tight));
        drives.next();
        assert_eq!((drives.next, drives.wanted), (1, [0, 0, 0, 1]));
    }
}
