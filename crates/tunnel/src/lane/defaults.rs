//! The lanes of a configuration that names none.
//!
//! ```text
//! real-time     xnc, each packet at once      calls and live video: lateness is loss
//! interactive   raven, reordered, but soon,   what sends little, and waits for the answer
//!               and never after a second
//! tcp           reordered                     } transfers: they take reordering for congestion,
//! other         reordered                     } and bring back by themselves what is lost
//! ```

use std::time::Duration;

use roadweave_proto::{Order, Pacing};

use super::{FlowClass, LaneConfig, LaneRule, Strategy};
use crate::streams::StreamsConfig;

/// The strategy of flows that send little.
const INTERACTIVE: &str = "raven";
/// The longest that an interactive flow waits for a packet of its own. Transfers begin here, and
/// one whose first packets overtake each other takes that for loss.
const INTERACTIVE_WAIT: Duration = Duration::from_millis(100);
/// The age at which a packet of an interactive flow is worth nothing. By then it has been repeated:
/// QUIC does after a second where it knows no round trip (RFC 9002 section 6.2.2), a resolver or a
/// handshake after one or later, and games and controls have sent dozens of newer ones. What comes
/// all the same does harm: a steering command that lay in a dead network for seconds is obeyed when
/// it comes. Not less, for a packet that is lost on a satellite's link, and sent again as soon as
/// that shows, arrives after 0.9 s.
const INTERACTIVE_EXPIRY: Duration = Duration::from_secs(1);
/// What transfers may have waiting for free windows, bytes: a quarter of a second at 32 Mbit/s.
/// The congestion control of transfers fills whatever there is.
const TRANSFER_QUEUE: usize = 1 << 20;

/// The four lanes of a session for which none are configured: real-time, interactive, tcp and
/// other.
pub fn default_lanes() -> Vec<LaneConfig> {
    let transfer = |name: &str, class| LaneConfig {
        rule: LaneRule::class(class),
        rank: 1,
        order: Order::Adaptive { max_buffer: Order::DEFAULT_BUFFER },
        // They leave no room: bursts of theirs would stand in the way of real-time packets.
        pacing: Pacing::Rate,
        queue_bytes_max: TRANSFER_QUEUE,
        ..patient(name)
    };
    vec![
        LaneConfig {
            rule: LaneRule::class(FlowClass::RealTime),
            ..LaneConfig::new("real-time", Strategy::xnc())
        },
        LaneConfig {
            rule: LaneRule::class(FlowClass::Interactive),
            order: Order::Adaptive { max_buffer: INTERACTIVE_WAIT },
            expire_after: Some(INTERACTIVE_EXPIRY),
            ..LaneConfig::new("interactive", INTERACTIVE.parse().expect("the table has it"))
        },
        transfer("tcp", FlowClass::Tcp),
        transfer("other", FlowClass::Other),
    ]
}

/// The lane that streams are sent by: as transfers, but with little that waits in it, since frames
/// are made when there is room for them.
pub(crate) fn stream_lane() -> LaneConfig {
    LaneConfig { rank: 1, pacing: Pacing::Rate, rtp_frames: false, ..patient(StreamsConfig::LANE) }
}

/// The lane of transfers. The repairs of `xnc` come sooner than those of `minrtt`, so that what
/// follows a lost packet waits for less; and a patient lane keeps from links that are much farther
/// than another, where a transfer would be as slow as the farthest.
fn patient(name: &str) -> LaneConfig {
    LaneConfig { patient: true, ..LaneConfig::new(name, Strategy::xnc()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::LANES_MAX;

    #[test]
    fn each_class_has_a_lane() {
        let lanes = default_lanes();
        assert!(lanes.len() <= LANES_MAX);
        let classes: Vec<_> =
            lanes.iter().flat_map(|lane| lane.rule.classes.clone()).flatten().collect();
        assert_eq!(
            classes,
            [FlowClass::RealTime, FlowClass::Interactive, FlowClass::Tcp, FlowClass::Other]
        );
        let expiries: Vec<_> = lanes.iter().map(|lane| lane.expire_after).collect();
        let second = Some(Duration::from_secs(1));
        assert_eq!(expiries, [None, second, None, None], "transfers wait for what they need");
    }
}
