//! How the packets of a repair are shared out among the paths.

use std::collections::VecDeque;

use roadweave_types::{PacketId, PathId};

use crate::Repair;

/// No repair grows beyond twice its size for the sake of loss.
pub(super) const LOSS_MAX: f64 = 0.5;

/// As many packets as the windows hold, at most `cap` on each path.
///
/// `rooms`: path and free window in packets. Source: CellFusion section 4.5.2.
pub(super) fn every_path(rooms: &[(PathId, u64)], cap: u64) -> Vec<(PathId, u16)> {
    rooms.iter().map(|(id, room)| (*id, saturating(*room.min(&cap)))).collect()
}

/// `wanted` packets in proportion to the free windows, at most `cap` and the window on each path.
pub(super) fn in_proportion(rooms: &[(PathId, u64)], cap: u64, wanted: u64) -> Vec<(PathId, u16)> {
    let free: u64 = rooms.iter().map(|(_, room)| room).sum();
    let limit = |room: &u64| (*room).min(cap);
    let mut shares: Vec<u64> =
        rooms.iter().map(|(_, room)| (wanted * room / free.max(1)).min(limit(room))).collect();
    // What rounding and caps leave over goes where there is room.
    let mut rest = wanted - shares.iter().sum::<u64>();
    for (share, (_, room)) in shares.iter_mut().zip(rooms) {
        let more = (limit(room) - *share).min(rest);
        *share += more;
        rest -= more;
    }
    let paths = rooms.iter().map(|(id, _)| *id);
    paths.zip(shares).filter(|(_, share)| *share > 0).map(|(id, n)| (id, saturating(n))).collect()
}

/// The packets of a repair themselves in place of combinations: as many copies on each path, each packet
/// once before any goes out a second time, and none twice on the same path.
pub(super) fn uncoded(start: PacketId, count: u16, shares: &[(PathId, u16)]) -> VecDeque<Repair> {
    let most = shares.iter().map(|(_, share)| *share).max().unwrap_or(0);
    // Path by path in turn, so that a packet's copies go different ways.
    let places = (0..most).flat_map(|round| {
        shares.iter().filter(move |(_, share)| *share > round).map(|(path, _)| *path)
    });
    let mut paths_of: Vec<Vec<PathId>> = vec![Vec::new(); usize::from(count)];
    for path in places {
        let without = paths_of.iter_mut().filter(|paths| !paths.contains(&path));
        if let Some(paths) = without.min_by_key(|paths| paths.len()) {
            paths.push(path);
        }
    }
    let ids = (0..).map(|offset| start.plus(offset));
    let with_paths = ids.zip(paths_of).filter(|(_, paths)| !paths.is_empty());
    with_paths
        .map(|(id, mut paths)| {
            paths.sort_unstable();
            Repair::Copies { id, paths }
        })
        .collect()
}

pub(super) fn saturating(packets: u64) -> u16 {
    u16::try_from(packets).unwrap_or(u16::MAX)
}
