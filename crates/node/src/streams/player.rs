//! What a player of the LAN reports about its buffer.

use roadweave_proto::media::Cmcd;
use roadweave_tunnel::Qoe;
use serde::Deserialize;

/// Video rates from here on, kbit/s, are not believed.
const KBPS_MAX: u64 = 10_000_000;

/// A report of a player.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlayerReport {
    /// Distinguishes the players of this box.
    #[serde(default)]
    pub player: u64,
    /// The state of its buffer.
    pub qoe: Qoe,
}

/// `nameless`: the player's number if it does not give its name.
pub(super) fn player_report(cmcd: &Cmcd, nameless: u64) -> Option<PlayerReport> {
    let ms = cmcd.left_ms()?;
    let kbps = cmcd.kbps.filter(|kbps| *kbps < KBPS_MAX).unwrap_or(0);
    let cached_bytes = ms.saturating_mul(kbps) / 8;
    let qoe = Qoe { cached_bytes, cached_frames: ms, bps: kbps * 1000, fps: 1000.0 };
    Some(PlayerReport { player: cmcd.session.unwrap_or(nameless), qoe })
}
