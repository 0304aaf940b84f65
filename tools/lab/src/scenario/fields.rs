//! Tables of a scenario's file: traffic, events, cross traffic.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use roadweave_config::Fault;
use roadweave_emulate::Direction;
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl;
use serde::{Deserialize, Serialize};

use crate::event::{Action, CrossTraffic, ScriptEvent};
use crate::traffic::{App, Bulk, FIRST_PORT, FrameSource, TrafficKind, TrafficSpec};
use crate::video::h264::{AccessUnit, Splitter};
use crate::video::quality::Player;

fn fault_at(table: &str, index: usize, field: &str, message: impl fmt::Display) -> Fault {
    Fault::new(
        format!("{table}.{index}.{field}"),
        format!("{table} {}: {field}: {message}", index + 1),
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindName {
    Video,
    Constant,
    Requests,
    Bulk,
    Tcp,
    Call,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficFields {
    kind: KindName,
    name: Option<String>,
    #[serde(default)]
    direction: Direction,
    port: Option<u16>,
    #[serde(default)]
    begin_s: f64,
    lasting_s: Option<f64>,
    rate_kbps: Option<u64>,
    packet_bytes: Option<usize>,
    file: Option<PathBuf>,
    fps: Option<u32>,
    app: Option<App>,
    bytes: Option<u64>,
    congestion: Option<CongestionControl>,
}

impl TrafficFields {
    /// `before` are the applications of the preceding tables.
    pub(super) fn resolve(
        &self,
        index: usize,
        before: &[TrafficSpec],
        duration: Duration,
        dir: &Path,
    ) -> Result<TrafficSpec, Fault> {
        let fault = |field: &str, message: &str| fault_at("traffic", index, field, message);
        let begin = seconds(self.begin_s).ok_or_else(|| fault("begin_s", SECONDS))?;
        if begin >= duration {
            return Err(fault("begin_s", &too_late(self.begin_s, duration)));
        }
        let left = duration.saturating_sub(begin);
        let lasting = match self.lasting_s {
            Some(lasting) => seconds(lasting).ok_or_else(|| fault("lasting_s", SECONDS))?.min(left),
            None => left,
        };
        let port = self.port.unwrap_or_else(|| default_port(index));
        if !(1..LEAD_IN).contains(&port) || before.iter().any(|other| other.port == port) {
            let message = format!("{port}; a port from 1 to 39999 that no other traffic has");
            return Err(fault("port", &message));
        }
        self.check_unused(index)?;
        let kind = match self.kind {
            KindName::Video => self.video(index, dir)?,
            KindName::Constant => self.constant(index)?,
            KindName::Requests => TrafficKind::Requests(
                self.app.ok_or_else(|| fault("app", "absent; speech, music or recommender"))?,
            ),
            KindName::Bulk => TrafficKind::Bulk(self.transfer(index)?),
            KindName::Tcp => TrafficKind::Tcp(self.transfer(index)?),
            KindName::Call => TrafficKind::Call { rate_max: self.rate(index)? },
        };
        Ok(TrafficSpec {
            name: self.name.clone().unwrap_or_else(|| self.default_name()),
            direction: self.direction,
            port,
            begin,
            lasting,
            kind,
        })
    }

    fn default_name(&self) -> String {
        match (self.kind, self.app) {
            (KindName::Requests, app) => app.map_or("recommender", App::name),
            (KindName::Video, _) => "video",
            (KindName::Constant, _) => "constant",
            (KindName::Bulk, _) => "bulk",
            (KindName::Tcp, _) => "tcp",
            (KindName::Call, _) => "call",
        }
        .to_owned()
    }

    fn check_unused(&self, index: usize) -> Result<(), Fault> {
        let kind = self.kind;
        let given = [
            (
                "rate_kbps",
                self.rate_kbps.is_some(),
                matches!(kind, KindName::Video | KindName::Constant | KindName::Call),
            ),
            ("packet_bytes", self.packet_bytes.is_some(), kind == KindName::Constant),
            ("file", self.file.is_some(), kind == KindName::Video),
            ("fps", self.fps.is_some(), kind == KindName::Video),
            ("app", self.app.is_some(), kind == KindName::Requests),
            ("bytes", self.bytes.is_some(), matches!(kind, KindName::Bulk | KindName::Tcp)),
            (
                "congestion",
                self.congestion.is_some(),
                matches!(kind, KindName::Bulk | KindName::Tcp),
            ),
        ];
        match given.into_iter().find(|(_, given, belongs)| *given && !belongs) {
            Some((field, ..)) => {
                Err(fault_at("traffic", index, field, "not applicable to this kind"))
            }
            None => Ok(()),
        }
    }

    fn rate(&self, index: usize) -> Result<Rate, Fault> {
        let rate = self.rate_kbps.filter(|kbps| (1..=RATE_KBPS_MAX).contains(kbps));
        let message = format!("a rate from 1 to {RATE_KBPS_MAX} kbit/s is needed");
        rate.map(Rate::from_kbps).ok_or_else(|| fault_at("traffic", index, "rate_kbps", message))
    }

    fn constant(&self, index: usize) -> Result<TrafficKind, Fault> {
        let packet_bytes = self.packet_bytes.unwrap_or(PACKET_BYTES);
        if !(36..=65_535).contains(&packet_bytes) {
            let message = format!("{packet_bytes}; 36 to 65535 bytes with IP and UDP headers");
            return Err(fault_at("traffic", index, "packet_bytes", message));
        }
        Ok(TrafficKind::Constant { rate: self.rate(index)?, packet_bytes })
    }

    fn transfer(&self, index: usize) -> Result<Bulk, Fault> {
        if self.bytes == Some(0) {
            return Err(fault_at("traffic", index, "bytes", "0; at least one, or absent"));
        }
        let congestion = self.congestion.unwrap_or(CongestionControl::Cubic);
        Ok(Bulk { bytes: self.bytes, congestion })
    }

    fn video(&self, index: usize, dir: &Path) -> Result<TrafficKind, Fault> {
        let fps = self.fps.unwrap_or(Player::default().fps);
        if !(1..=240).contains(&fps) {
            return Err(fault_at("traffic", index, "fps", format!("{fps}; 1 to 240 frames")));
        }
        let frames = match (&self.file, self.rate_kbps) {
            (Some(_), Some(_)) => {
                let message = "a video has a file or a rate, not both";
                return Err(fault_at("traffic", index, "rate_kbps", message));
            }
            (Some(file), None) => {
                let fault = |message| fault_at("traffic", index, "file", message);
                FrameSource::Clip(read_clip(&dir.join(file)).map_err(fault)?)
            }
            (None, _) => FrameSource::Synthetic { bitrate: self.rate(index)? },
        };
        Ok(TrafficKind::Video { frames, player: Player { fps, ..Player::default() } })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventFields {
    at_s: f64,
    link: String,
    action: ActionName,
    delay_ms: Option<f64>,
    factor: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ActionName {
    Down,
    Up,
    Rebind,
    Unplug,
    Plug,
    Delay,
    Capacity,
}

impl EventFields {
    pub(super) fn resolve(
        &self,
        index: usize,
        links: &[&str],
        duration: Duration,
    ) -> Result<ScriptEvent, Fault> {
        let fault = |field: &str, message: &str| fault_at("event", index, field, message);
        let only_for = |field: &str, action: &str| {
            fault(field, &format!("only for events with action = \"{action}\""))
        };
        if self.delay_ms.is_some() && self.action != ActionName::Delay {
            return Err(only_for("delay_ms", "delay"));
        }
        if self.factor.is_some() && self.action != ActionName::Capacity {
            return Err(only_for("factor", "capacity"));
        }
        let action = match self.action {
            ActionName::Down => Action::Down,
            ActionName::Up => Action::Up,
            ActionName::Rebind => Action::Rebind,
            ActionName::Unplug => Action::Unplug,
            ActionName::Plug => Action::Plug,
            ActionName::Delay => {
                let extra = self.delay_ms.filter(|ms| (0.0..=60_000.0).contains(ms));
                let message = "how much delay is added, 0 to 60000 ms";
                let millis = extra.ok_or_else(|| fault("delay_ms", message))?;
                Action::Delay(Duration::from_secs_f64(millis / 1e3))
            }
            ActionName::Capacity => {
                let factor = self.factor.filter(|factor| (0.0..=1_000.0).contains(factor));
                let message = "what the capacity is multiplied by, 0 to 1000";
                Action::Capacity(factor.ok_or_else(|| fault("factor", message))?)
            }
        };
        let at = seconds(self.at_s).ok_or_else(|| fault("at_s", SECONDS))?;
        if at >= duration {
            return Err(fault("at_s", &too_late(self.at_s, duration)));
        }
        Ok(ScriptEvent { at, link: find_link("event", index, &self.link, links)?, action })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CrossFields {
    link: String,
    #[serde(default)]
    direction: Direction,
    rate_kbps: u64,
    packet_bytes: Option<usize>,
    #[serde(default)]
    begin_s: f64,
    end_s: Option<f64>,
    on_s: Option<f64>,
    off_s: Option<f64>,
}

impl CrossFields {
    pub(super) fn resolve(
        &self,
        index: usize,
        links: &[&str],
        duration: Duration,
    ) -> Result<CrossTraffic, Fault> {
        let fault = |field: &str, message: &str| fault_at("cross", index, field, message);
        let time = |field: &str, value: Option<f64>, default| match value {
            Some(value) => seconds(value).ok_or_else(|| fault(field, SECONDS)),
            None => Ok(default),
        };
        if !(1..=RATE_KBPS_MAX).contains(&self.rate_kbps) {
            let message = format!("a rate from 1 to {RATE_KBPS_MAX} kbit/s is needed");
            return Err(fault("rate_kbps", &message));
        }
        let packet_bytes = self.packet_bytes.unwrap_or(PACKET_BYTES);
        if !(1..=65_535).contains(&packet_bytes) {
            return Err(fault("packet_bytes", "1 to 65535 bytes"));
        }
        if self.on_s.is_some() != self.off_s.is_some() {
            let absent = if self.on_s.is_some() { "off_s" } else { "on_s" };
            return Err(fault(absent, "missing; set both on_s and off_s"));
        }
        let on = time("on_s", self.on_s, duration)?;
        if on.is_zero() {
            return Err(fault("on_s", "it must be above 0"));
        }
        let begin = time("begin_s", Some(self.begin_s), Duration::ZERO)?;
        if begin >= duration {
            return Err(fault("begin_s", &too_late(self.begin_s, duration)));
        }
        let end = time("end_s", self.end_s, duration)?;
        if end <= begin {
            return Err(fault("end_s", "it must be later than begin_s"));
        }
        Ok(CrossTraffic {
            link: find_link("cross", index, &self.link, links)?,
            direction: self.direction,
            rate: Rate::from_kbps(self.rate_kbps),
            packet_bytes,
            begin,
            end,
            on,
            off: time("off_s", self.off_s, Duration::ZERO)?,
        })
    }
}

fn find_link(table: &str, index: usize, name: &str, links: &[&str]) -> Result<usize, Fault> {
    links.iter().position(|link| *link == name).ok_or_else(|| {
        let message = format!("no link \"{name}\"; there are: {}", links.join(", "));
        fault_at(table, index, "link", message)
    })
}

/// The port of application `index`; an excessive index gives a port that is rejected later.
fn default_port(index: usize) -> u16 {
    u16::try_from(usize::from(FIRST_PORT) + PORT_STEP * index).unwrap_or(u16::MAX)
}

fn read_clip(file: &Path) -> Result<Arc<[AccessUnit]>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut splitter = Splitter::default();
    let mut clip = File::open(file).map_err(unreadable)?.take(CLIP_BYTES_MAX + 1);
    let mut units = Vec::new();
    let mut piece = Vec::new();
    while clip.by_ref().take(PIECE).read_to_end(&mut piece).map_err(unreadable)? > 0 {
        splitter.push(&piece).map_err(|error| format!("{}: {error}", file.display()))?;
        units.extend(std::iter::from_fn(|| splitter.next_access_unit()));
        piece.clear();
    }
    if clip.limit() == 0 {
        return Err(format!("{}: more than {CLIP_BYTES_MAX} bytes", file.display()));
    }
    splitter.finish();
    units.extend(std::iter::from_fn(|| splitter.next_access_unit()));
    if units.is_empty() {
        return Err(format!("{}: no picture; it must be H.264 in Annex B", file.display()));
    }
    Ok(units.into())
}

fn seconds(value: f64) -> Option<Duration> {
    (0.0..=1e6).contains(&value).then(|| Duration::from_nanos((value * 1e9).round() as u64))
}

fn too_late(value: f64, duration: Duration) -> String {
    format!("{value}; the run ends after {} s", duration.as_secs())
}

const SECONDS: &str = "seconds from 0";
const RATE_KBPS_MAX: u64 = 10_000_000;
const PACKET_BYTES: usize = 1_200;
const LEAD_IN: u16 = 40_000;
const PORT_STEP: usize = 10;
const CLIP_BYTES_MAX: u64 = 1 << 30;
const PIECE: u64 = 1 << 20;
