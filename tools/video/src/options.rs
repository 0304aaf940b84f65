//! The command line.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use roadweave_terminal::rate::parse_bps;
use roadweave_terminal::seconds;

/// What is to be done.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Sends a camera, a file or a test picture as RTP, or in SRT
    Send(Send),
    /// Receives RTP from `send` and shows it
    Receive(Receive),
}

/// Options of `send`.
#[derive(Debug, clap::Args)]
pub struct Send {
    /// The source: test, a file, v4l2:/dev/video0, or rtsp://...
    #[arg(long, default_value = "test", value_name = "SOURCE")]
    pub source: Source,
    /// The destination: HOST:PORT for RTP, or srt://HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub to: Address,
    /// Follow the encoder targets of the tunnel's local socket
    #[arg(long, value_name = "SOCKET", requires = "lane")]
    pub feedback: Option<PathBuf>,
    /// The lane whose targets to follow
    #[arg(long, value_name = "NAME", requires = "feedback")]
    pub lane: Option<String>,
    /// Bit rate, headers included; with --feedback, while there are no targets
    #[arg(long, default_value = "2M", value_name = "RATE", value_parser = parse_rate)]
    pub bitrate: u64,
    #[command(flatten)]
    pub picture: Picture,
    /// How pictures recover after a loss
    #[arg(long, value_enum, default_value_t = Recovery::Keyframe)]
    pub recovery: Recovery,
    /// The largest RTP packet, in bytes
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u16).range(300..=9000))]
    pub mtu: u16,
    /// The tunnel's overhead for each packet, in bytes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub overhead: u16,
    /// Write target and size of each frame to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub frames: Option<PathBuf>,
    #[command(flatten)]
    pub srt: Srt,
    #[command(flatten)]
    pub run: Run,
}

/// Options of `send` for SRT alone.
#[derive(Debug, clap::Args)]
pub struct Srt {
    /// SRT: the lowest bit rate, however congested the connection is [default: 300k]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub min_bitrate: Option<u64>,
    /// SRT: how long a packet may take, retransmissions included, in ms [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub latency: Option<u32>,
    /// SRT: the stream id for the receiver, or @FILE if it is a secret
    #[arg(long, value_name = "ID")]
    pub stream_id: Option<String>,
    /// SRT: encrypt with the passphrase in this file
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

impl Srt {
    pub fn is_used(&self) -> bool {
        let Self { min_bitrate, latency, stream_id, passphrase_file } = self;
        let numbers = min_bitrate.is_some() || latency.is_some();
        numbers || stream_id.is_some() || passphrase_file.is_some()
    }
}

/// Options of `receive`.
#[derive(Debug, clap::Args)]
pub struct Receive {
    /// The UDP port, or ADDRESS:PORT
    #[arg(long, value_name = "PORT", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Show the pictures in a window; without it they are only decoded and counted
    #[arg(long)]
    pub window: bool,
    /// Also show damaged pictures after a loss, instead of waiting for the key frame
    #[arg(long)]
    pub damaged: bool,
    /// Write when each picture was captured and shown to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub frames: Option<PathBuf>,
    /// Write the received stream to this file, undecoded
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    #[command(flatten)]
    pub run: Run,
}

/// What pictures are like.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Picture {
    /// The codec; only h264 keeps each frame to its target
    #[arg(long, value_enum, default_value_t = Codec::H264)]
    pub codec: Codec,
    /// Width and height in pixels
    #[arg(long, default_value = "1280x720", value_name = "WxH")]
    pub size: Size,
    /// The highest number of frames a second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=240))]
    pub fps: u32,
}

/// What both commands have.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Run {
    /// Print statistics as JSON lines
    #[arg(long)]
    pub json: bool,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
}

/// How pictures are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Codec {
    /// H.264 by x264
    H264,
    /// H.265 by x265
    H265,
    /// VP8 by libvpx
    Vp8,
}

/// How pictures recover after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Recovery {
    /// A key frame when the receiver asks for one
    Keyframe,
    /// A stripe of each frame is intra-coded, so that each second renews the whole picture (h264
    /// only)
    Refresh,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Test,
    File(PathBuf),
    Camera(PathBuf),
    Rtsp(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Rtp(String, u16),
    Srt(String),
}

/// Width and height in pixels, both even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    pub fn pixels(self) -> usize {
        self.width as usize * self.height as usize
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("test, a file, v4l2:/dev/video0, or rtsp://...".into()),
            "test" => Ok(Self::Test),
            _ if text.starts_with("rtsp://") || text.starts_with("rtsps://") => {
                Ok(Self::Rtsp(text.into()))
            }
            _ => Ok(match text.strip_prefix("v4l2:") {
                Some(device) => Self::Camera(device.into()),
                None => Self::File(text.strip_prefix("file://").unwrap_or(text).into()),
            }),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Test => f.write_str("the test picture"),
            Self::File(path) | Self::Camera(path) => write!(f, "{}", path.display()),
            Self::Rtsp(address) => f.write_str(&without_password(address)),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (srt, rest) = match text.strip_prefix("srt://") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if srt && rest.contains('?') {
            return Err(SRT_OPTIONS.into());
        }
        let (host, port) = rest.rsplit_once(':').ok_or(WHERE)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(WHERE)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains(['/', '?', '@', '#']) {
            return Err(WHERE.into());
        }
        Ok(if srt { Self::Srt(text.into()) } else { Self::Rtp(host.into(), port) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rtp(host, port) => write!(f, "{host}:{port}"),
            Self::Srt(uri) => f.write_str(uri),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| {
            let side = text.parse().ok()?;
            ((16..=8192).contains(&side) && side % 2 == 0).then_some(side)
        };
        text.split_once('x')
            .and_then(|(width, height)| Some(Self { width: side(width)?, height: side(height)? }))
            .ok_or_else(|| "even numbers of pixels from 16 to 8192, such as 1280x720".into())
    }
}

/// A printable text, without user names and passwords in its addresses.
pub fn without_password(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['/', ' ', '"', '\'']).unwrap_or(part.len());
        let host = part[..end].rfind('@').map_or(0, |at| at + 1);
        shown = shown + "://" + &part[host..];
    }
    shown
}

fn parse_rate(text: &str) -> Result<u64, String> {
    parse_bps(text, &(100_000..=200_000_000))
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into());
    port.or_else(|_| text.parse()).map_err(|_| "a port, or ADDRESS:PORT".into())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    seconds::parse_seconds(text, &(0.1..=1e9))
}

const WHERE: &str = "HOST:PORT, or srt://HOST:PORT";
/// Command lines are readable for all users of the machine.
const SRT_OPTIONS: &str =
    "instead of parameters after ?, use --latency, --stream-id and --passphrase-file";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_distinguished() {
        let check = |text: &str, expected| assert_eq!(text.parse(), Ok(expected), "{text}");
        check("test", Source::Test);
        check("./test", Source::File("./test".into()));
        check("a.mp4", Source::File("a.mp4".into()));
        check("file:///a.mp4", Source::File("/a.mp4".into()));
        check("v4l2:/dev/video0", Source::Camera("/dev/video0".into()));
        check("rtsp://camera/1", Source::Rtsp("rtsp://camera/1".into()));
        assert!("".parse::<Source>().is_err());
    }

    #[test]
    fn addresses_have_host_and_port() {
        let check = |text: &str, expected| assert_eq!(text.parse(), Ok(expected), "{text}");
        check("10.0.0.1:5004", Address::Rtp("10.0.0.1".into(), 5004));
        check("[fd00::1]:5004", Address::Rtp("fd00::1".into(), 5004));
        check("srt://host:9000", Address::Srt("srt://host:9000".into()));
        for bad in
            ["", "host", ":5004", "host:", "host:0", "host:70000", "http://host:80/", "srt://"]
        {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
        for bad in ["srt://host:9000?passphrase=secret", "srt://a@host:9000", "host:5004?a"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_rates_and_ports_have_bounds() {
        assert_eq!("640x360".parse(), Ok(Size { width: 640, height: 360 }));
        for bad in ["", "640", "640x", "641x360", "0x0", "99999x16", "-2x16"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(parse_rate("8M"), Ok(8_000_000));
        assert_eq!(parse_rate("250k"), Ok(250_000));
        assert_eq!(parse_rate("30"), Ok(30_000_000));
        for bad in ["", "M", "0", "-1M", "1k", "1G", "NaN", "inf"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_listen("5004"), Ok(([0, 0, 0, 0], 5004).into()));
        assert!(parse_listen("[::]:5004").is_ok() && parse_listen("host:1").is_err());
        assert!(parse_seconds("0").is_err() && parse_seconds("NaN").is_err());
    }

    #[test]
    fn a_password_is_not_printed() {
        let shown = |address: &str| Source::Rtsp(address.into()).to_string();
        assert_eq!(shown("rtsp://me:secret@camera/a@b"), "rtsp://camera/a@b");
        assert_eq!(shown("rtsp://camera/1"), "rtsp://camera/1");
        let text = "cannot open 'rtsp://a:b@c' of me@here, nor rtsp://a:b@d/e";
        let expected = "cannot open 'rtsp://c' of me@here, nor rtsp://d/e";
        assert_eq!(without_password(text), expected);
    }
}
