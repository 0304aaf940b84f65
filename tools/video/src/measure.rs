//! Measures how well an encoder keeps to its limits: the targets jump, and each frame is compared
//! with its own target. With `--ssim` it also measures the quality of the pictures, and with
//! `--loss` their quality behind a link that loses packets.

mod loss;
mod ssim;
mod view;

use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use gstreamer as gst;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::Serialize;

use self::loss::Link;
use self::view::View;
use crate::encoder::Encoder;
use crate::options::{self, Codec};
use crate::plugins::{self, make, running_time};
use crate::{rtp, run, source};

pub fn run(options: options::Measure) -> Result<()> {
    plugins::start()?;
    let pipeline = gst::Pipeline::new();
    let width = options.picture.size.width as usize;
    let link = options.loss.map(|loss| Link::new(link(&options, loss)));
    let view = View::new(width);
    let sizes = Sizes { given: 0, encoded: Vec::new(), file: None, view, link };
    let sizes = Arc::new(Mutex::new(sizes));
    build(&pipeline, &options, &sizes)?;
    run::until_end(&pipeline, None, false, || Ok(()))?;
    let mut sizes = lock(&sizes);
    sizes.view.finish();
    if sizes.encoded.is_empty() {
        bail!("nothing was encoded");
    }
    for (i, target) in options.targets.iter().enumerate() {
        let of_it = |frame: usize| frame / options.hold as usize % options.targets.len() == i;
        let ratios = |after: usize| -> Vec<f64> {
            let frames = sizes.encoded.iter().enumerate();
            let frames = frames.filter(|(at, _)| of_it(*at) && at % options.hold as usize >= after);
            frames.map(|(_, bytes)| *bytes as f64 / *target as f64).collect()
        };
        let jumps: Vec<f64> = (0..sizes.encoded.len())
            .filter(|at| of_it(*at) && at % (options.hold as usize) < JUMP && *at >= JUMP)
            .map(|at| sizes.encoded[at] as f64 / *target as f64)
            .collect();
        let seen = sizes.view.seen.iter().enumerate().filter(|(at, _)| of_it(*at));
        out::json_line(&Line {
            target_bytes: *target,
            all: Share::of(ratios(0)),
            after_jump: Share::of(jumps),
            ssim_db: view::mean_db(seen.map(|(_, seen)| *seen)),
        })?;
    }
    if options.ssim {
        out::json_line(&sizes.view.report(frame_time(&options)))?;
    }
    Ok(())
}

#[derive(Debug)]
struct Sizes {
    given: usize,
    encoded: Vec<usize>,
    file: Option<File>,
    view: View,
    link: Option<Link>,
}

#[derive(Serialize)]
struct Line {
    target_bytes: usize,
    all: Share,
    /// The first two frames after each change to this target.
    after_jump: Share,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssim_db: Option<f64>,
}

#[derive(Serialize)]
struct Share {
    frames: usize,
    p5: f64,
    p50: f64,
    p95: f64,
    max: f64,
    mean: f64,
    over: usize,
}

impl Share {
    fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        let rounded = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
        let at = |share: f64| rounded(view::quantile(&ratios, share));
        let sum: f64 = ratios.iter().sum();
        Self {
            frames: ratios.len(),
            p5: at(0.05),
            p50: at(0.5),
            p95: at(0.95),
            max: at(1.0),
            mean: rounded(sum / ratios.len().max(1) as f64),
            over: ratios.iter().filter(|ratio| **ratio > 1.0).count(),
        }
    }
}

fn build(
    pipeline: &gst::Pipeline,
    options: &options::Measure,
    sizes: &Arc<Mutex<Sizes>>,
) -> Result<()> {
    if let Some(path) = &options.write {
        let refused = |error| BadInput::new(format!("cannot write {}: {error}", path.display()));
        lock(sizes).file = Some(File::create(path).map_err(refused)?);
    }
    let source = source::build(pipeline, &options.source, options.picture, false)?;
    let encoder = Encoder::new(options.picture, options.recovery, Some(KEY_FRAME_SECONDS))?;
    let element = encoder.element.clone();
    let (caps, tee) = (make("capsfilter")?, make("tee")?);
    caps.set_property("caps", encoder.caps());
    pipeline.add_many([&element, &caps, &tee])?;
    gst::Element::link_many([&source, &element, &caps, &tee])?;
    if options.ssim {
        decode(pipeline, &tee, options, sizes, false)?;
        decode(pipeline, &tee, options, sizes, true)?;
    } else {
        let sink = make("fakesink")?;
        sink.set_property("sync", false);
        pipeline.add(&sink)?;
        tee.link(&sink)?;
    }

    let given = Arc::clone(sizes);
    let (targets, hold, count) = (options.targets.clone(), options.hold, options.count);
    let (key_frames, compares) = (options.key_frames, options.ssim);
    let pixels = options.picture.size.width as usize * options.picture.size.height as usize;
    let output = element.static_pad("src").context("an encoder without output")?;
    let input = element.static_pad("sink").context("an encoder without input")?;
    let (bus, over) = (pipeline.bus().context("a pipeline without a bus")?, pipeline.downgrade());
    input.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let at = lock(&given).given;
        lock(&given).given += 1;
        if at >= count as usize {
            if at == count as usize
                && let Some(pipeline) = over.upgrade()
            {
                // A bus refuses messages only once its pipeline has ended.
                let _ = bus.post(gst::message::Eos::builder().src(&pipeline).build());
            }
            return gst::PadProbeReturn::Drop;
        }
        if let (true, Some(buffer)) = (compares, info.buffer()) {
            lock(&given).view.begin(running_time(pad, buffer), luma(buffer, pixels));
        }
        let is_asked = lock(&given).link.as_ref().is_some_and(|link| link.is_asked(at));
        let is_due = key_frames.is_some_and(|each| at.is_multiple_of(each.max(1) as usize));
        if is_asked || at > 0 && is_due {
            output.send_event(rtp::key_frame_event());
        }
        encoder.limit(targets[at / hold as usize % targets.len()]);
        gst::PadProbeReturn::Ok
    });
    let taken = Arc::clone(sizes);
    let output = element.static_pad("src").context("an encoder without output")?;
    output.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let mut sizes = lock(&taken);
        if let Some(buffer) = info.buffer() {
            sizes.encoded.push(buffer.size());
            if let (Some(file), Ok(bytes)) = (&mut sizes.file, buffer.map_readable())
                && file.write_all(&bytes).is_err()
            {
                tracing::warn!("what is encoded cannot be written");
                sizes.file = None;
            }
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

/// Decodes frames for the viewer, behind the link if `lossy`.
fn decode(
    pipeline: &gst::Pipeline,
    tee: &gst::Element,
    options: &options::Measure,
    sizes: &Arc<Mutex<Sizes>>,
    lossy: bool,
) -> Result<()> {
    let refresh = options.recovery == options::Recovery::Refresh;
    let [_, decoder] = rtp::decoder(options.picture.codec, lossy && refresh)?;
    let sink = make("fakesink")?;
    sink.set_property("sync", false);
    // Two decoders share a thread: neither may wait for the other's first picture.
    sink.set_property("async", false);
    pipeline.add_many([&decoder, &sink])?;
    gst::Element::link_many([tee, &decoder, &sink])?;
    if lossy {
        let link = Arc::clone(sizes);
        let is_h264 = matches!(options.picture.codec, Codec::H264 | Codec::OpenH264);
        let input = decoder.static_pad("sink").context("a decoder without input")?;
        input.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            let Some(buffer) = info.buffer_mut() else { return gst::PadProbeReturn::Ok };
            let mut sizes = lock(&link);
            // The last frame that left the encoder.
            let index = sizes.encoded.len().saturating_sub(1);
            let Some(link) = &mut sizes.link else { return gst::PadProbeReturn::Ok };
            match lose(link, index, buffer, is_h264) {
                Some(left) => *buffer = left,
                None => return gst::PadProbeReturn::Handled,
            }
            gst::PadProbeReturn::Ok
        });
    }
    let pixels = options.picture.size.width as usize * options.picture.size.height as usize;
    let view = Arc::clone(sizes);
    let output = decoder.static_pad("src").context("a decoder without output")?;
    output.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        if let Some(buffer) = info.buffer() {
            let at = running_time(pad, buffer);
            lock(&view).view.decoded(at, luma(buffer, pixels), lossy);
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

fn lose(link: &mut Link, index: usize, frame: &gst::Buffer, is_h264: bool) -> Option<gst::Buffer> {
    let bytes = frame.map_readable().ok()?;
    let whole = std::iter::once(0..bytes.len());
    let units = if is_h264 { loss::units(&bytes) } else { whole.collect() };
    let lengths: Vec<usize> = units.iter().map(ExactSizeIterator::len).collect();
    let is_key = !frame.flags().contains(gst::BufferFlags::DELTA_UNIT);
    let arrived = link.send(index, is_key, &lengths);
    let kept = units.into_iter().zip(arrived).filter(|(_, arrived)| *arrived);
    let left: Vec<u8> = kept.flat_map(|(unit, _)| bytes[unit].to_vec()).collect();
    if left.is_empty() {
        return None;
    }
    let mut buffer = gst::Buffer::from_mut_slice(left);
    let part = buffer.get_mut()?;
    part.set_pts(frame.pts());
    part.set_dts(frame.dts());
    part.set_flags(frame.flags());
    Some(buffer)
}

/// The first plane of an I420 picture.
fn luma(picture: &gst::BufferRef, pixels: usize) -> Vec<u8> {
    let mut luma = vec![0; pixels];
    // A picture that is too short stays black.
    let _ = picture.copy_to_slice(0, &mut luma);
    luma
}

fn link(options: &options::Measure, loss: f64) -> loss::Settings {
    let frame = frame_time(options);
    loss::Settings {
        loss: loss / 100.0,
        burst: options.burst,
        answer: Duration::from_millis(options.round_trip) + GAP_WAIT + frame,
        frame,
        recovery: options.recovery,
        seed: options.seed,
    }
}

fn frame_time(options: &options::Measure) -> Duration {
    Duration::from_secs(1) / options.picture.fps
}

fn lock(sizes: &Mutex<Sizes>) -> MutexGuard<'_, Sizes> {
    sizes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of frames after a change of the target that are reported separately.
const JUMP: usize = 2;
const GAP_WAIT: Duration = Duration::from_millis(20);
/// Interval of the encoder's own key frames.
const KEY_FRAME_SECONDS: u32 = 10;
