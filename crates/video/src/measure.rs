//! How well an encoder keeps to the sizes that it is told: the targets jump, and each frame is held
//! against its own.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use gstreamer as gst;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::Serialize;

use crate::encoder::{Encoder, KEY_FRAME_SECONDS};
use crate::options;
use crate::plugins::{self, make};
use crate::{rtp, run, source};

/// Encodes, and prints for each target what became of it.
///
/// # Errors
/// What is missing.
pub fn run(options: options::Measure) -> Result<()> {
    plugins::start()?;
    let pipeline = gst::Pipeline::new();
    let sizes = Arc::new(Mutex::new(Sizes::default()));
    build(&pipeline, &options, &sizes)?;
    run::until_end(&pipeline, None, run::Farewell::None, || Ok(()))?;
    let sizes = lock(&sizes);
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
        out::json_line(&Line {
            target_bytes: *target,
            all: Share::of(ratios(0)),
            after_jump: Share::of(jumps),
        })?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Sizes {
    /// How many frames went in.
    given: usize,
    /// Bytes of each that came out.
    encoded: Vec<usize>,
    file: Option<File>,
}

/// What became of a target.
#[derive(Serialize)]
struct Line {
    target_bytes: usize,
    all: Share,
    /// The first two frames of each time that it holds.
    after_jump: Share,
}

/// Sizes as shares of the target.
#[derive(Serialize)]
struct Share {
    frames: usize,
    p5: f64,
    p50: f64,
    p95: f64,
    max: f64,
    mean: f64,
    /// How many were larger than the target.
    over: usize,
}

impl Share {
    fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        let rounded = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
        let at = |share: f64| {
            let at = (ratios.len() as f64 * share).ceil() as usize;
            rounded(ratios.get(at.saturating_sub(1)).copied().unwrap_or(0.0))
        };
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

/// From the source to an encoder with nothing behind it.
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
    let encoder = Encoder::new(options.picture, options.recovery, KEY_FRAME_SECONDS)?;
    let element = encoder.element().clone();
    let (caps, sink) = (make("capsfilter")?, make("fakesink")?);
    caps.set_property("caps", encoder.caps());
    sink.set_property("sync", false);
    pipeline.add_many([&element, &caps, &sink])?;
    gst::Element::link_many([&source, &element, &caps, &sink])?;

    let given = Arc::clone(sizes);
    let (targets, hold, count) = (options.targets.clone(), options.hold, options.count);
    let key_frames = options.key_frames;
    let output = element.static_pad("src").context("an encoder without output")?;
    let input = element.static_pad("sink").context("an encoder without input")?;
    let (bus, over) = (pipeline.bus().context("a pipeline without a bus")?, pipeline.downgrade());
    input.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let at = lock(&given).given;
        lock(&given).given += 1;
        if at >= count as usize {
            if at == count as usize
                && let Some(pipeline) = over.upgrade()
            {
                // A bus refuses messages only when its pipeline is over.
                let _ = bus.post(gst::message::Eos::builder().src(&pipeline).build());
            }
            return gst::PadProbeReturn::Drop;
        }
        if key_frames.is_some_and(|each| at > 0 && at.is_multiple_of(each.max(1) as usize)) {
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

fn lock(sizes: &Mutex<Sizes>) -> MutexGuard<'_, Sizes> {
    sizes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames after a change of the target that are told of by themselves.
const JUMP: usize = 2;
