//! The side of the instance: a caller's thread writes what the tap shows.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use roadweave_tunnel::{Seen, Tap, View, Watch};
use roadweave_types::Instant;
use rustix::net::RecvFlags;
use serde_json::{Value, json};

use super::{
    CAPTURE_BYTES_MAX, CaptureEnd, CapturePlan, CaptureStart, CaptureView, Captured, Line,
};
use crate::callers::Callers;
use crate::clock::Clock;
use crate::local::RpcError;

/// Where the packets of an instance can be watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Whether it has sessions, and so inner packets with paths.
    pub(crate) has_inner: bool,
    pub(crate) tap: Tap,
    pub(crate) clock: Clock,
    /// What the instance is called.
    pub(crate) device: String,
}

/// A capture that was granted.
pub(crate) struct Granted<'a> {
    watch: Watch<'a>,
    watched: &'a Watched,
}

impl Watched {
    /// Begins to watch for a caller.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(crate) fn begin(&self, plan: CapturePlan) -> Result<Granted<'_>, RpcError> {
        let CapturePlan { view, bytes_max } = plan;
        if !(1..=CAPTURE_BYTES_MAX).contains(&bytes_max) {
            let message = format!("bytes_max is {bytes_max}; it may be 1 to {CAPTURE_BYTES_MAX}");
            return Err(RpcError::invalid_params(message));
        }
        if view != CaptureView::Outer && !self.has_inner {
            return Err(RpcError::invalid_params(
                "an anchor has no sessions, and so no paths of inner packets: watch its device \
                 with tcpdump, or the outer packets here",
            ));
        }
        let view = match view {
            CaptureView::Inner => View::Inner,
            CaptureView::InnerAndCoded => View::InnerAndCoded,
            CaptureView::Outer => View::Outer,
        };
        let busy = || RpcError::busy_with("somebody captures from it already; one can at a time");
        let watch = self.tap.watch(view, bytes_max).ok_or_else(busy)?;
        tracing::info!(?view, "somebody captures packets by the local socket");
        Ok(Granted { watch, watched: self })
    }
}

impl Granted<'_> {
    /// Answers the request `id` and writes packets until the caller has enough or leaves, or the
    /// instance ends.
    ///
    /// # Errors
    /// When the caller has left, or reads nothing for a minute.
    pub(crate) fn serve(
        self,
        stream: &UnixStream,
        id: &Value,
        callers: &Callers,
    ) -> io::Result<()> {
        stream.set_write_timeout(Some(STALL_MAX))?;
        let start = CaptureStart { device: self.watched.device.clone() };
        let mut out = BufWriter::with_capacity(BUFFER, stream);
        writeln!(out, "{}", json!({ "jsonrpc": "2.0", "id": id, "result": start }))?;
        out.flush()?;
        let mut times = Times::take(self.watched.clock);
        let mut unchecked = 0;
        loop {
            match self.watch.next(if unchecked > 0 { Duration::ZERO } else { TICK }) {
                Some(seen) => {
                    unchecked += 1;
                    write(&mut out, times.unix_nanos(seen.at), seen)?;
                    if unchecked < CHECK_EVERY {
                        continue;
                    }
                }
                None => out.flush()?,
            }
            unchecked = 0;
            times.keep_up();
            if callers.is_stopped() || has_enough(stream)? {
                break;
            }
        }
        self.watch.stop();
        while let Some(seen) = self.watch.next(Duration::ZERO) {
            write(&mut out, times.unix_nanos(seen.at), seen)?;
        }
        let end = Line::End(CaptureEnd { missed: self.watch.missed() });
        writeln!(out, "{}", json!(end))?;
        out.flush()
    }
}

/// Whether the caller has ended what it writes: then it wants no more.
fn has_enough(stream: &UnixStream) -> io::Result<bool> {
    match rustix::net::recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => Ok(bytes == 0),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write(out: &mut impl Write, unix_nanos: u64, seen: Seen) -> io::Result<()> {
    let Seen { is_out, length, bytes, what, .. } = seen;
    let captured = bytes.len();
    let packet = Captured { unix_nanos, is_out, length, captured, what, bytes: Vec::new() };
    serde_json::to_writer(&mut *out, &Line::Packet(packet))?;
    out.write_all(b"\n")?;
    out.write_all(&bytes)
}

/// The loop's clock against that of the wall.
struct Times {
    clock: Clock,
    here: Instant,
    unix_nanos: u64,
}

impl Times {
    fn take(clock: Clock) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { clock, here: clock.now(), unix_nanos: unix.as_nanos() as u64 }
    }

    fn unix_nanos(&self, at: Instant) -> u64 {
        let since = |later: Instant, earlier: Instant| later.since(earlier).as_nanos() as u64;
        match at >= self.here {
            true => self.unix_nanos.saturating_add(since(at, self.here)),
            false => self.unix_nanos.saturating_sub(since(self.here, at)),
        }
    }

    /// Follows the clock of the wall when somebody has set it.
    fn keep_up(&mut self) {
        let now = Self::take(self.clock);
        if self.unix_nanos(now.here).abs_diff(now.unix_nanos) > STEP.as_nanos() as u64 {
            *self = now;
        }
    }
}

/// How long nothing has to come until it is looked whether the caller is still there.
const TICK: Duration = Duration::from_millis(100);
/// Packets after which that is looked at in any case.
const CHECK_EVERY: usize = 256;
/// How long a caller may read nothing.
const STALL_MAX: Duration = Duration::from_secs(60);
/// By how much the clocks may differ: less is drift, and no reason to lose the order of packets.
const STEP: Duration = Duration::from_millis(10);
/// Bytes that are written at once.
const BUFFER: usize = 1 << 16;
