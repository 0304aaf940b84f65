//! The lanes of a configuration without lanes.
//!
//! ```text
//! real-time     xnc, in order, but soon       calls and live video: lateness is loss
//! interactive   raven, reordered, but soon,   what sends little, and waits for the answer
//!               and never after a second
//! tcp           reordered                     } transfers: they take reordering for congestion,
//! other         reordered                     } and bring back by themselves what is lost
//! ```

use std::time::Duration;

use roadweave_proto::{Order, Pacing};

use super::{FlowClass, LaneConfig, LaneRule, Strategy};

/// Calls take reordering for congestion (tools/experiments/calls.md), and longer waits delay more.
const REAL_TIME_WAIT: Duration = Duration::from_millis(150);
const INTERACTIVE: &str = "raven";
/// Transfers begin here, and take early reordering for loss.
const INTERACTIVE_WAIT: Duration = Duration::from_millis(100);
/// By then QUIC has repeated the packet (RFC 9002 section 6.2.2), and resolvers and handshakes too;
/// a stale steering command does harm. A packet lost on a satellite link and resent takes 0.9 s.
const INTERACTIVE_EXPIRY: Duration = Duration::from_secs(1);
/// Bytes that transfers, which fill any queue, may queue: a quarter of a second at 32 Mbit/s.
const TRANSFER_QUEUE: usize = 1 << 20;

/// The four default lanes: real-time, interactive, tcp and other.
pub fn default_lanes() -> Vec<LaneConfig> {
    let transfer = |name: &str, class| LaneConfig {
        rule: LaneRule::class(class),
        rank: 1,
        order: Order::Adaptive { max_buffer: Order::DEFAULT_BUFFER },
        // Bursts of transfers would stand in the way of real-time packets.
        pacing: Pacing::Rate,
        queue_bytes_max: TRANSFER_QUEUE,
        ..patient(name)
    };
    vec![
        LaneConfig {
            rule: LaneRule::class(FlowClass::RealTime),
            order: Order::Adaptive { max_buffer: REAL_TIME_WAIT },
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

/// The lane of transfers: `xnc` repairs sooner than `minrtt`; a patient lane avoids far links.
pub(crate) fn patient(name: &str) -> LaneConfig {
    LaneConfig { patient: true, ..LaneConfig::new(name, Strategy::xnc()) }
}
