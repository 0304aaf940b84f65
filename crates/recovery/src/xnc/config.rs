//! The parameters of XNC.

use std::time::Duration;

use roadweave_proto::{PathOffer, PathSnapshot};

use crate::RecoveryConfig;
use crate::threshold::{late_after, loss_threshold, paper_threshold};

/// How many packets a repair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// As many as the windows hold, at most ρ·n' on each path; a single packet on every usable path
    /// (CellFusion section 4.5.2). Any one path restores all.
    EveryPath,
    /// n' and the expected loss, in proportion to the windows, at most what the others can lose on
    /// any path; a single packet on the two fastest paths.
    ByLoss,
}

/// When a packet counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// After min(threshold, PTO), the threshold from the lane's deadline (section 4.4.1), never
    /// before the path could have answered.
    Qoe,
    /// After min(threshold, PTO), the threshold of an application that knows the path's round trip.
    Paper,
    /// When QUIC says so, or after the PTO (RFC 9002 section 6): the ablation of section 8.3.5.
    Quic,
}

/// The defaults are the paper's, except for spread, extra and systematic repairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XncConfig {
    /// Deadline and t_expire.
    pub lane: RecoveryConfig,
    /// r: packets of a range (section 4.4.2).
    pub range_packets: u32,
    /// t: time of a range (section 4.4.2).
    pub range_span: Duration,
    /// k: coded packets beyond the lost ones (section 4.5.1).
    pub extra: u16,
    /// ρ, 1 to 1.2: the share of n' that one path may carry (section 4.5.2).
    pub path_share: f64,
    /// How many packets a repair sends.
    pub spread: Spread,
    /// Whether repairs are coded. Otherwise they are as many copies of the lost packets, spread in
    /// the same way: the ablation of section 8.3.5.
    pub codes: bool,
    /// Whether a repair begins with the lost packets themselves, on its fastest paths. Each of them
    /// helps at once, while combinations help once as many have arrived as were lost.
    pub systematic: bool,
    /// Whether combinations span packets that have arrived: scattered losses are repaired together.
    pub bridges: bool,
    /// When a packet counts as lost.
    pub detection: Detection,
    /// How long the losses of a range are gathered.
    pub gather: Duration,
    /// Whether a repair that did not arrive is sent again, and very late packets are repaired
    /// although they may only be slow.
    pub retries: bool,
}

impl Default for XncConfig {
    fn default() -> Self {
        Self {
            lane: RecoveryConfig::default(),
            range_packets: 10,
            range_span: Duration::from_millis(60),
            extra: 2,
            path_share: 1.1,
            spread: Spread::ByLoss,
            codes: true,
            systematic: true,
            bridges: true,
            detection: Detection::Qoe,
            gather: Duration::from_millis(5),
            retries: true,
        }
    }
}

impl XncConfig {
    /// As in the paper.
    pub fn sigcomm23(lane: RecoveryConfig) -> Self {
        Self {
            lane,
            extra: 3,
            spread: Spread::EveryPath,
            systematic: false,
            bridges: false,
            detection: Detection::Paper,
            gather: Duration::ZERO,
            retries: false,
            ..Self::default()
        }
    }

    pub(super) fn loss_delay<'a>(
        &self,
        path: &PathSnapshot,
        paths: impl IntoIterator<Item = &'a PathSnapshot>,
    ) -> Duration {
        match self.detection {
            Detection::Qoe => loss_threshold(path, paths, self.lane.deadline),
            Detection::Paper => paper_threshold(path, paths, self.lane.deadline),
            Detection::Quic => path.pto,
        }
    }

    pub(super) fn repairs_early(&self) -> bool {
        self.retries && self.detection == Detection::Qoe
    }

    /// When a packet is repaired on credit, if another path is faster.
    pub(super) fn late_after(
        &self,
        path: &PathSnapshot,
        paths: &[PathOffer<'_>],
    ) -> Option<Duration> {
        let faster = |offer: &PathOffer<'_>| {
            let other = offer.snapshot;
            other.id != path.id
                && other.is_usable()
                && offer.repair_room() >= u64::from(other.mtu) * 2
                && other.expected_rtt <= path.expected_rtt
        };
        let may = self.repairs_early() && paths.iter().any(faster);
        may.then(|| late_after(path, self.lane.deadline))
    }
}
