//! Shares the packets of a repair among the paths.

use std::collections::VecDeque;

use roadweave_proto::{PacketId, PathId, PathOffer};

use super::group::Group;
use super::{Spread, XncConfig};
use crate::Repair;

/// Bounds a repair to twice its size.
const LOSS_MAX: f64 = 0.5;

/// The repair of a group with `lost` missing packets, if the windows of `usable` allow it.
pub(super) fn repair_of(
    config: &XncConfig,
    group: &Group,
    lost: u32,
    bytes: u64,
    mut usable: Vec<&PathOffer<'_>>,
) -> Option<Repair> {
    let room = |path: &PathOffer<'_>| path.repair_room() / bytes.max(1);
    let extra = u64::from(config.extra);
    let needed = if lost == 1 { 1 } else { u64::from(lost) + extra };
    usable.retain(|path| room(path) > 0);
    if lost == 1 {
        if config.spread == Spread::ByLoss {
            usable.sort_by_key(|path| path.snapshot.expected_rtt);
            usable.truncate(2);
            usable.sort_by_key(|path| path.snapshot.id);
        }
        let paths: Vec<PathId> = usable.iter().map(|path| path.snapshot.id).collect();
        return (!paths.is_empty()).then(|| group.copies(paths));
    }
    let rooms: Vec<(PathId, u64)> =
        usable.iter().map(|path| (path.snapshot.id, room(path))).collect();
    let path_max = (needed as f64 * config.path_share).floor() as u64;
    if config.spread == Spread::EveryPath {
        let free = rooms.iter().map(|(_, room)| room).sum::<u64>();
        return (free >= needed).then(|| group.coded(every_path(&rooms, path_max)));
    }
    let loss = expected_loss(&usable, &rooms, path_max);
    let size = outlasting_any_path(&rooms, lost.into(), extra, loss)?;
    let size = Size { cap: size.cap.min(path_max), ..size };
    Some(group.coded(in_proportion(&rooms, size)))
}

/// The mean loss of `paths`, 0..1, weighted by what each may carry of a repair.
fn expected_loss(paths: &[&PathOffer<'_>], rooms: &[(PathId, u64)], path_max: u64) -> f64 {
    let weights = rooms.iter().map(|(_, room)| (*room).min(path_max) as f64);
    let lost = paths.iter().zip(weights.clone());
    let lost: f64 = lost.map(|(path, weight)| f64::from(path.snapshot.loss) * weight).sum();
    lost / weights.sum::<f64>().max(1.0)
}

/// As many packets as `rooms` hold, at most `cap` on each path (CellFusion section 4.5.2).
pub(super) fn every_path(rooms: &[(PathId, u64)], cap: u64) -> Vec<(PathId, u16)> {
    rooms.iter().map(|(id, room)| (*id, saturating(*room.min(&cap)))).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) wanted: u64,
    pub(super) cap: u64,
}

/// The smallest repair of `lost` packets with at least `extra` more that survives the loss of any
/// one path. Where the windows do not hold that, `extra` more, as evenly as they allow. `None` if
/// they do not hold these. `loss`: the expected loss, 0..1, which is added.
pub(super) fn outlasting_any_path(
    rooms: &[(PathId, u64)],
    lost: u64,
    extra: u64,
    loss: f64,
) -> Option<Size> {
    let sent_for = |packets: u64| (packets as f64 / (1.0 - loss.min(LOSS_MAX))).ceil() as u64;
    let held = |cap: u64| rooms.iter().map(|(_, room)| (*room).min(cap)).sum::<u64>();
    if held(u64::MAX) < lost + extra {
        return None;
    }
    let (needed, enough) = (sent_for(lost), sent_for(lost + extra));
    let outlasting = (1..=needed).find_map(|cap| {
        let wanted = enough.max(needed + cap);
        (held(cap) >= wanted).then_some(Size { wanted, cap: wanted - needed })
    });
    outlasting.or_else(|| {
        let wanted = enough.min(held(u64::MAX));
        let cap = (1..=wanted).find(|cap| held(*cap) >= wanted)?;
        Some(Size { wanted, cap })
    })
}

/// In proportion to the free windows, within these and the cap.
pub(super) fn in_proportion(rooms: &[(PathId, u64)], size: Size) -> Vec<(PathId, u16)> {
    let Size { wanted, cap } = size;
    let mut shares = vec![0; rooms.len()];
    for _ in 0..wanted {
        // D'Hondt's method: proportion in whole packets, within any limits.
        let open = rooms.iter().enumerate().filter(|(at, (_, room))| shares[*at] < cap.min(*room));
        let emptiest = open.max_by(|(a, (_, of_a)), (b, (_, of_b))| {
            let (left, right) = (of_a * (shares[*b] + 1), of_b * (shares[*a] + 1));
            left.cmp(&right).then(b.cmp(a))
        });
        let Some((at, _)) = emptiest else { break };
        shares[at] += 1;
    }
    let paths = rooms.iter().map(|(id, _)| *id);
    paths.zip(shares).filter(|(_, share)| *share > 0).map(|(id, n)| (id, saturating(n))).collect()
}

/// The repair with the lost packets themselves in place of as many combinations, on the fastest of
/// its paths.
pub(super) fn systematic(
    group: &Group,
    mut shares: Vec<(PathId, u16)>,
    paths: &[PathOffer<'_>],
) -> VecDeque<Repair> {
    let rtt = |id| {
        let path = paths.iter().map(|path| path.snapshot).find(|path| path.id == id);
        path.map(|path| path.expected_rtt)
    };
    let mut fastest: Vec<usize> = (0..shares.len()).collect();
    fastest.sort_by_key(|at| rtt(shares[*at].0));
    let mut repairs = VecDeque::new();
    for id in group.lost_ids() {
        let Some(at) = fastest.iter().find(|at| shares[**at].1 > 0) else { break };
        let (path, share) = &mut shares[*at];
        *share -= 1;
        repairs.push_back(Repair::Copies { id, paths: vec![*path] });
    }
    shares.retain(|(_, share)| *share > 0);
    if !shares.is_empty() {
        repairs.push_back(group.coded(shares));
    }
    repairs
}

/// Copies of the packets in place of combinations: as many on each path, each packet once before
/// any a second time, and none twice on the same path.
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

fn saturating(packets: u64) -> u16 {
    u16::try_from(packets).unwrap_or(u16::MAX)
}
