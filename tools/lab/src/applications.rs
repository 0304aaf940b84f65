//! One application at a time, through the tunnel or over one link without it.
//!
//! ```text
//! links ─┬─► tunnel over all of them ─┬─► application's own congestion control ─► AppFigures
//!        └─► one link as it is ───────┘
//! ```
//!
//! The applications react to the network, unlike the constant video of [`compare`](crate::compare):
//! the best single link in hindsight shows whether several links help them at all.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use roadweave_emulate::{Direction, DuplexLink, Link};
use roadweave_proto::{Instant, Rate};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, Strategy, default_lanes};
use serde::{Deserialize, Serialize};

use crate::run::run;
use crate::scenario::Scenario;
use crate::strategies;
use crate::traffic::{Bulk, Detail, FIRST_PORT, TrafficKind, TrafficReport, TrafficSpec};
use crate::world::WorldError;

/// An application, which sends from the vehicle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Application {
    /// A WebRTC call with video of up to 16 Mbit/s.
    Call,
    /// A TCP upload without end, as RTMP's.
    Cubic,
    Bbr,
}

/// The network that an application has.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// The link at this position, without a tunnel.
    Link(usize),
    /// The tunnel over all links with the product's default lanes.
    Default,
    /// The tunnel over all links with one lane.
    Lane(Strategy),
}

/// One application over some links.
#[derive(Clone, Debug)]
pub struct ApplicationRun {
    pub application: Application,
    pub links: Vec<DuplexLink>,
    pub seconds: u32,
    pub seed: u64,
}

/// What a user of the application notices. Calls have all figures, transfers their rate alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppFigures {
    /// Of the frames shown, or of the bytes received.
    pub rate_mbps: f64,
    /// Gaps above 200 ms before, between and after the shown frames.
    pub freezes: f64,
    /// Share of the time in freezes, 0..1.
    pub frozen: f64,
    /// From the capture of a frame to when it is shown, ms; that of the run if none is shown.
    pub frame_delay_p50_ms: f64,
    pub frame_delay_p95_ms: f64,
    /// Share of frames shown after 400 ms or never, 0..1.
    pub late: f64,
    /// Packets that the receiver requested again.
    pub nacked: f64,
}

impl ApplicationRun {
    /// Runs the application; fails if the world cannot be created.
    pub fn over(&self, way: &Way) -> Result<AppFigures, WorldError> {
        let lanes = match way {
            Way::Link(at) => {
                return Ok(AppFigures::of(&self.over_link(&self.links[*at]), self.lasting()));
            }
            Way::Default => default_lanes(),
            Way::Lane(strategy) => vec![LaneConfig::new("all", strategy.clone())],
        };
        let mut scenario = Scenario::new("application", self.links.clone(), Strategy::xnc());
        scenario.lanes = lanes;
        scenario.traffic = vec![self.spec()];
        (scenario.seconds, scenario.seed) = (self.seconds, self.seed);
        let outcome = run(&scenario)?;
        let report = outcome.traffic.first().map(|report| AppFigures::of(report, self.lasting()));
        Ok(report.unwrap_or_default())
    }

    fn spec(&self) -> TrafficSpec {
        let transfer = |congestion| TrafficKind::Tcp(Bulk { bytes: None, congestion });
        TrafficSpec {
            name: self.application.to_string(),
            direction: Direction::Up,
            port: FIRST_PORT,
            begin: Duration::ZERO,
            lasting: self.lasting(),
            kind: match self.application {
                Application::Call => TrafficKind::Call { rate_max: CALL_RATE_MAX },
                Application::Cubic => transfer(CongestionControl::Cubic),
                Application::Bbr => transfer(CongestionControl::Bbr),
            },
        }
    }

    fn lasting(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    fn over_link(&self, link: &DuplexLink) -> TrafficReport {
        let mut ways: [Link<Bytes>; 2] = [Link::new(link.up.clone()), Link::new(link.down.clone())];
        let mut traffic = self.spec().build(Instant::ZERO, self.seed);
        let (mut now, end) = (Instant::ZERO, Instant::ZERO + self.lasting());
        loop {
            while let Some((direction, packet)) = traffic.poll_transmit(now) {
                // A packet that the queue has no room for is lost.
                let _ = ways[direction as usize].push(now, packet.len(), packet);
            }
            let due = ways.iter().filter_map(Link::poll_timeout).chain(traffic.poll_timeout());
            let Some(due) = due.min().filter(|due| *due < end) else { break };
            now = due.max(now);
            for direction in [Direction::Up, Direction::Down] {
                while let Some(packet) = ways[direction as usize].poll(now) {
                    traffic.handle_arrival(now, direction, &packet);
                }
            }
        }
        traffic.report(end)
    }
}

impl AppFigures {
    fn of(report: &TrafficReport, lasting: Duration) -> Self {
        match &report.detail {
            Detail::Call(call) => {
                let is_shown = call.frames_shown > 0;
                let delay = |ms| if is_shown { ms } else { lasting.as_secs_f64() * 1e3 };
                Self {
                    rate_mbps: call.shown_bps / 1e6,
                    freezes: call.freezes as f64,
                    frozen: call.frozen,
                    frame_delay_p50_ms: delay(call.frame_delay_ms.p50),
                    frame_delay_p95_ms: delay(call.frame_delay_ms.p95),
                    late: call.late,
                    nacked: call.nacked as f64,
                }
            }
            Detail::Tcp(tcp) => Self { rate_mbps: tcp.goodput_bps / 1e6, ..Self::default() },
            _ => Self::default(),
        }
    }
}

impl Application {
    pub const ALL: [Self; 3] = [Self::Call, Self::Cubic, Self::Bbr];
}

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call => "call",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        })
    }
}

impl FromStr for Application {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|application| application.to_string() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(|application| application.to_string()).join(", ");
            format!("there is no application `{name}`; there are {names}")
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(at) => write!(f, "link {at}"),
            Self::Default => f.write_str("default"),
            Self::Lane(strategy) => strategy.fmt(f),
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "default" {
            return Ok(Self::Default);
        }
        strategies::strategy(name).map(Self::Lane).map_err(|error| error.to_string())
    }
}

const CALL_RATE_MAX: Rate = Rate::from_kbps(16_000);

#[cfg(test)]
mod tests;
