//! MPEG-TS in SRT, to any listener; the bit rate follows the connection's statistics.
//!
//! ```text
//! encoder ─► parser ─► mux ─► counted ─► srtsink
//!    ▲                            │         │ each 20 ms
//!    └── limit ◄── steer ◄── backlog ◄──────┘
//! ```

mod backlog;
mod steer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::glib;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::secret;
use serde::Serialize;

use self::backlog::{Backlog, Counters};
use self::steer::{LinkReading, Steer};
use crate::options::{self, Codec};
use crate::plugins::{make, set_if_known};

#[derive(Debug)]
pub struct SrtConnection {
    shared: Arc<SharedSrt>,
}

#[derive(Debug, Default)]
struct SharedSrt {
    bps: AtomicU64,
    given: AtomicU64,
    rtt_us: AtomicU64,
    unacknowledged: AtomicU64,
    silent_ms: AtomicU64,
    over: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SrtReport {
    /// The available rate, bit/s.
    pub room_bps: u64,
    pub rtt_ms: f64,
    pub unacknowledged: u64,
}

impl SrtConnection {
    /// Adds the elements after the encoder to `pipeline`, and monitors them; calls `bytes_sent` for
    /// each buffer. The rate is at most `most_bps`.
    pub fn new(
        pipeline: &gst::Pipeline,
        encoded: &gst::Element,
        uri: &str,
        (codec, most_bps): (Codec, u64),
        options: &options::Srt,
        bytes_sent: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Self> {
        let parser = match codec {
            Codec::H264 => make("h264parse")?,
            Codec::H265 => make("h265parse")?,
            Codec::Vp8 => return Err(BadInput::new("--codec vp8: SRT does not carry it").into()),
        };
        // Parameter sets with each key frame, for late receivers.
        parser.set_property("config-interval", -1_i32);
        let (mux, sink) = (make("mpegtsmux")?, make("srtsink")?);
        let latency = options.latency.unwrap_or(LATENCY_MS);
        let least_bps = options.min_bitrate.unwrap_or(LEAST_BPS);
        if least_bps > most_bps {
            return Err(BadInput::new("--min-bitrate is above --bitrate").into());
        }
        // Seven packets of 188 bytes are the payload of an SRT packet.
        mux.set_property("alignment", 7_i32);
        sink.set_property("uri", format!("{uri}?{PACING}"));
        sink.set_property("latency", latency.cast_signed());
        if let Some(id) = &options.stream_id {
            sink.set_property("streamid", stream_id(id)?);
        }
        if let Some(path) = &options.passphrase_file {
            let text = secret::read(path)?;
            let passphrase = text.trim_end_matches(['\r', '\n']);
            if !(10..=79).contains(&passphrase.len()) {
                let message = format!("{}: SRT takes 10 to 79 bytes", path.display());
                return Err(BadInput::new(message).into());
            }
            sink.set_property("passphrase", passphrase);
            sink.set_property_from_str("pbkeylen", "16");
        }
        sink.set_property("sync", false);
        sink.set_property("async", false);
        // Earlier buffers are dropped, including the first key frame.
        sink.set_property("wait-for-connection", true);
        // The service manager restarts the program, as with cameras.
        set_if_known(&sink, "auto-reconnect", false);
        pipeline.add_many([&parser, &mux, &sink])?;
        gst::Element::link_many([encoded, &parser, &mux, &sink])?;

        let shared = Arc::new(SharedSrt { bps: AtomicU64::new(most_bps), ..SharedSrt::default() });
        count(&sink, &shared, bytes_sent)?;
        let steer = Steer::new(least_bps, most_bps, Duration::from_millis(u64::from(latency)));
        let (watched, weak) = (Arc::clone(&shared), sink.downgrade());
        let thread = thread::Builder::new().name("srt".into());
        thread.spawn(move || watched.watch(&weak, steer)).context("cannot start a thread")?;
        Ok(Self { shared })
    }

    pub fn bps(&self) -> u64 {
        self.shared.bps.load(Ordering::Relaxed)
    }

    pub fn report(&self) -> SrtReport {
        let rtt_us = self.shared.rtt_us.load(Ordering::Relaxed);
        SrtReport {
            room_bps: self.bps(),
            rtt_ms: rtt_us as f64 / 1e3,
            unacknowledged: self.shared.unacknowledged.load(Ordering::Relaxed),
        }
    }

    pub fn silent(&self) -> Duration {
        Duration::from_millis(self.shared.silent_ms.load(Ordering::Relaxed))
    }
}

impl Drop for SrtConnection {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl SharedSrt {
    fn watch(&self, sink: &glib::WeakRef<gst::Element>, mut steer: Steer) {
        let began = Instant::now();
        let mut backlog = Backlog::new();
        while !self.over.load(Ordering::Relaxed)
            && let Some(sink) = sink.upgrade()
        {
            let now = began.elapsed();
            let stats = sink.property::<gst::Structure>("stats");
            let counters = counters(&stats, self.given.load(Ordering::Relaxed));
            // Set once there is a connection.
            if let Ok(ms) = stats.get("negotiated-latency-ms") {
                steer.on_latency(ms);
            }
            let reading = counters.map(|counters| backlog.add(now, counters));
            if let Some(LinkReading { rtt_ms, unacknowledged, .. }) = reading {
                self.rtt_us.store((rtt_ms * 1e3) as u64, Ordering::Relaxed);
                self.unacknowledged.store(unacknowledged as u64, Ordering::Relaxed);
            }
            let silent = u64::try_from(backlog.silent(now).as_millis()).unwrap_or(u64::MAX);
            self.silent_ms.store(silent, Ordering::Relaxed);
            self.bps.store(steer.on_reading(now, reading), Ordering::Relaxed);
            drop(sink);
            thread::sleep(TURN);
        }
    }
}

fn counters(stats: &gst::Structure, given: u64) -> Option<Counters> {
    let count = |name| u64::try_from(i64::from(stats.get::<i32>(name).ok()?)).ok();
    Some(Counters {
        given,
        sent: u64::try_from(stats.get::<i64>("packets-sent").ok()?).ok()?,
        repeated: count("packets-retransmitted")?,
        dropped: count("packets-sent-dropped")?,
        acknowledgements: count("packet-ack-received")?,
        rtt_ms: stats.get("rtt-ms").ok()?,
        sent_bps: stats.get::<f64>("send-rate-mbps").ok()? * 1e6,
    })
}

fn count(
    sink: &gst::Element,
    shared: &Arc<SharedSrt>,
    bytes_sent: impl Fn(usize) + Send + Sync + 'static,
) -> Result<()> {
    let pad = sink.static_pad("sink").context("a sink without input")?;
    let shared = Arc::clone(shared);
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST;
    pad.add_probe(kinds, move |_, info| {
        let add = |bytes: usize| {
            bytes_sent(bytes);
            let packets = bytes.div_ceil(steer::PACKET_BYTES as usize);
            shared.given.fetch_add(packets as u64, Ordering::Relaxed);
        };
        match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => add(buffer.size()),
            Some(gst::PadProbeData::BufferList(list)) => {
                list.iter().for_each(|buffer| add(buffer.size()));
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

/// The text, or the content of the file after an @.
fn stream_id(text: &str) -> Result<String> {
    let id = match text.strip_prefix('@') {
        Some(path) => secret::read(path.as_ref())?.trim_end_matches(['\r', '\n']).to_owned(),
        None => text.to_owned(),
    };
    if !(1..=512).contains(&id.len()) {
        return Err(BadInput::new("--stream-id: SRT takes 1 to 512 bytes").into());
    }
    Ok(id)
}

/// Belacoder's default, known to its users.
const LATENCY_MS: u32 = 2000;
const LEAST_BPS: u64 = 300_000;
const TURN: Duration = Duration::from_millis(20);
/// The rate of the input, and a fifth more for repeats.
const PACING: &str = "maxbw=0&oheadbw=20";
/// A receiver without acknowledgements for this long is gone.
pub const SILENCE_MOST: Duration = Duration::from_secs(6);
