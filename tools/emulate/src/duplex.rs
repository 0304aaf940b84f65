//! A link with both of its directions, and how files describe one.
//!
//! ```text
//! [[link]] ─> LinkFields ─┐
//!                         ├─> DuplexLink ─> Emulator (TUN devices)
//! Drive, seed ────────────┘             └─> World (virtual time)
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_proto::{Instant, Rate, SplitMix64};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::csv::UNKNOWN_RTT;
use crate::drive::{Drive, DriveLink};
use crate::error::TraceError;
use crate::link::{Jitter, LinkSettings};
use crate::load::read_trace;
use crate::loss::{AddedLoss, GilbertElliott, with_stretches};
use crate::random::Random;
use crate::synthetic::{Operator, synthetic_trace};
use crate::timeline::Timeline;
use crate::trace::Trace;

/// One link between the vehicle and the other end.
#[derive(Clone, Debug)]
pub struct DuplexLink {
    /// The name, unique among the links in use.
    pub name: String,
    /// From the vehicle.
    pub up: LinkSettings,
    /// To the vehicle.
    pub down: LinkSettings,
}

impl DuplexLink {
    /// The link of a drive with its traces' default queues; `index` is its position, so that equal
    /// links lose different packets.
    pub fn new(link: &DriveLink, index: u64, seed: u64) -> Self {
        Self {
            name: link.name.clone(),
            up: LinkSettings::new(link.up.clone(), SplitMix64::word(seed, 2 * index)),
            down: LinkSettings::new(link.down.clone(), SplitMix64::word(seed, 2 * index + 1)),
        }
    }

    /// Adds `loss` to both directions: bursts to each by itself, stretches to both at once.
    #[must_use]
    pub fn with_loss(mut self, loss: AddedLoss) -> Self {
        // Recordings differ in their rate, and so in their stretches.
        let stretches = Random::part(self.up.seed ^ self.up.queue_bytes as u64, STRETCHES);
        let length = self.up.trace.length().max(self.down.trace.length());
        let length = length.unwrap_or(SYNTHETIC_LENGTH);
        for way in [&mut self.up, &mut self.down] {
            match loss {
                AddedLoss::Independent { share } => {
                    way.burst_loss = Some(GilbertElliott::independent(share));
                }
                AddedLoss::Bursts { share, packets } => {
                    way.burst_loss = Some(GilbertElliott::bursts(share, packets));
                }
                AddedLoss::Stretches { share, within, ms } => {
                    let stretches = &mut stretches.clone();
                    let recorded = way.trace.loss();
                    let loss = with_stretches(recorded, (share, within, ms), length, stretches);
                    way.trace = way.trace.with_loss(loss);
                }
            }
        }
        self
    }

    pub fn of_drive(drive: &Drive, seed: u64) -> Result<Vec<Self>, LinkError> {
        let links = drive.links.iter().zip(0..);
        checked(links.map(|(link, index)| Self::new(link, index, seed)).collect())
    }

    /// The links of a file; paths are relative to `dir`.
    pub fn of_fields(fields: &[LinkFields], seed: u64, dir: &Path) -> Result<Vec<Self>, LinkError> {
        let links = fields.iter().enumerate();
        checked(
            links.map(|(index, link)| link.resolve(index, seed, dir)).collect::<Result<_, _>>()?,
        )
    }
}

/// A link as described in files: capacity, delay and loss come from a recording, an operator or
/// fixed values; fixed values override the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkFields {
    /// The name, 1 to 11 bytes; its interface has this name, the far one `NAME-far`.
    pub name: String,
    /// A recording of the uplink, CSV or Mahimahi.
    pub trace: Option<PathBuf>,
    /// A recording of the downlink; absent: 20 Mbit/s with the uplink's delay and loss.
    pub trace_down: Option<PathBuf>,
    /// A synthetic link of this operator: att, verizon, tmobile or lte.
    pub operator: Option<String>,
    /// Fixed capacity from the vehicle, kbit/s.
    pub rate_kbps: Option<u64>,
    /// Fixed capacity to the vehicle, kbit/s; absent: as from the vehicle if that is fixed.
    pub rate_down_kbps: Option<u64>,
    /// Fixed one-way delay, ms.
    pub delay_ms: Option<f64>,
    /// Standard deviation of the delay from packet to packet, ms.
    pub jitter_ms: Option<f64>,
    pub reorder: bool,
    /// Additional loss, share of packets, 0..1.
    pub loss: Option<f64>,
    /// Mean length of a burst of that loss, packets; absent: independent losses.
    pub loss_burst: Option<f64>,
    /// Queue in each direction, bytes; absent: 500 ms at the mean rate, at least 96,000.
    pub queue_bytes: Option<usize>,
    /// Addresses at the vehicle; absent: 10.201.N.2/24 and fd00:201:N::2/64, N from 1.
    pub near_addresses: Vec<String>,
    /// Addresses at the other end; absent: 10.201.N.1/24 and fd00:201:N::1/64.
    pub far_addresses: Vec<String>,
}

/// Why a description is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    #[error("link {link}: {field}: {problem}; {cure}")]
    Field {
        /// The link's number, from 1.
        link: usize,
        field: &'static str,
        problem: String,
        cure: &'static str,
    },
    #[error("{count} links; an emulation has 1 to {LINKS_MAX}")]
    Count { count: usize },
    #[error(transparent)]
    Trace(#[from] TraceError),
}

fn checked(links: Vec<DuplexLink>) -> Result<Vec<DuplexLink>, LinkError> {
    let count = links.len();
    if !(1..=LINKS_MAX).contains(&count) {
        return Err(LinkError::Count { count });
    }
    for (index, link) in links.iter().enumerate() {
        let field = |problem: &str| LinkError::Field {
            link: index + 1,
            field: "name",
            problem: format!("`{}` {problem}", link.name),
            cure: "a name is 1 to 11 letters, digits, `-` or `_`, different for each link",
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if !(1..=NAME_BYTES_MAX).contains(&link.name.len()) || !link.name.chars().all(fits) {
            return Err(field("is not a name"));
        }
        if links[..index].iter().any(|before| before.name == link.name) {
            return Err(field("occurs twice"));
        }
    }
    Ok(links)
}

impl LinkFields {
    fn resolve(&self, index: usize, seed: u64, dir: &Path) -> Result<DuplexLink, LinkError> {
        let mut link = DuplexLink::new(&self.drive_link(index, seed, dir)?, index as u64, seed);
        let jitter = self.jitter_ms.map(|ms| Self::millis(index, "jitter_ms", ms)).transpose()?;
        let jitter = jitter.map(|deviation| Jitter { deviation, reorders: self.reorder });
        let burst_loss = self.burst_loss(index)?;
        for settings in [&mut link.up, &mut link.down] {
            settings.origin = Instant::ZERO;
            settings.queue_bytes = self.queue_bytes.unwrap_or(settings.queue_bytes);
            (settings.jitter, settings.burst_loss) = (jitter, burst_loss);
        }
        Ok(link)
    }

    fn drive_link(&self, index: usize, seed: u64, dir: &Path) -> Result<DriveLink, LinkError> {
        let mut link = match (&self.trace, &self.operator) {
            (Some(_), Some(_)) => {
                let cure = "a link has a trace or an operator, not both";
                return refuse(index, "operator", "the link already has a trace", cure);
            }
            (Some(file), None) => {
                DriveLink::from_uplink(&*self.name, read_trace(&dir.join(file), UNKNOWN_RTT)?)
            }
            (None, Some(name)) => {
                let cure = "an operator is att, verizon, tmobile or lte";
                let Some(operator) = Operator::by_name(name) else {
                    return refuse(index, "operator", format!("unknown `{name}`"), cure);
                };
                let trace = synthetic_trace(seed, index as u64, &operator, SYNTHETIC_LENGTH);
                DriveLink::from_uplink(&*self.name, trace)
            }
            (None, None) => {
                let Some(kbps) = self.rate_kbps else {
                    let cure = "a link has a trace, an operator or a fixed rate_kbps";
                    return refuse(index, "rate_kbps", "absent", cure);
                };
                let trace = Trace::constant(Rate::from_kbps(kbps), UNKNOWN_RTT / 2);
                DriveLink::symmetric(&*self.name, trace)
            }
        };
        if let Some(file) = &self.trace_down {
            link.down = read_trace(&dir.join(file), UNKNOWN_RTT)?;
        }
        if let Some(kbps) = self.rate_kbps {
            link.up = link.up.with_capacity(Rate::from_kbps(kbps));
        }
        if let Some(kbps) = self.rate_down_kbps {
            link.down = link.down.with_capacity(Rate::from_kbps(kbps));
        }
        if let Some(ms) = self.delay_ms {
            let delay = Timeline::constant(Self::millis(index, "delay_ms", ms)?);
            link.up = link.up.with_delay(delay.clone());
            link.down = link.down.with_delay(delay);
        }
        Ok(link)
    }

    fn burst_loss(&self, index: usize) -> Result<Option<GilbertElliott>, LinkError> {
        let Some(loss) = self.loss else { return Ok(None) };
        if !(0.0..=1.0).contains(&loss) {
            return refuse(index, "loss", format!("{loss}"), "a share of packets from 0 to 1");
        }
        match self.loss_burst {
            None => Ok(Some(GilbertElliott::independent(loss))),
            Some(burst) if (1.0..=1e6).contains(&burst) => {
                Ok(Some(GilbertElliott::bursts(loss, burst)))
            }
            Some(burst) => refuse(index, "loss_burst", format!("{burst}"), "1 to 1e6 packets"),
        }
    }

    fn millis(index: usize, field: &'static str, ms: f64) -> Result<Duration, LinkError> {
        if (0.0..=1e6).contains(&ms) {
            return Ok(Duration::from_nanos((ms * 1e6).round() as u64));
        }
        refuse(index, field, format!("{ms}"), "milliseconds from 0 to 1e6")
    }
}

fn refuse<T>(
    index: usize,
    field: &'static str,
    problem: impl Into<String>,
    cure: &'static str,
) -> Result<T, LinkError> {
    Err(LinkError::Field { link: index + 1, field, problem: problem.into(), cure })
}

/// Maximum number of links, which is a byte of their addresses.
pub const LINKS_MAX: usize = 64;
/// `NAME-far` must be a valid interface name.
const NAME_BYTES_MAX: usize = 11;
/// The part of a link's random numbers that stretches of loss take.
const STRETCHES: u64 = 1;
const SYNTHETIC_LENGTH: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
