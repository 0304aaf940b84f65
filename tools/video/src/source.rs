//! The sources of pictures: test picture, file, camera.

use std::path::Path;

use anyhow::Result;
use gstreamer as gst;
use gstreamer::glib;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;

use crate::options::{Picture, Source};
use crate::plugins::{make, set};

/// Adds a source to `pipeline`; returns the element with raw pictures of the requested size.
///
/// They are labelled with the requested rate, whatever the source declares: the encoder derives a
/// frame's share from it, and the true rate is measured ([`crate::pace`]).
pub fn build(pipeline: &gst::Pipeline, source: &Source, picture: Picture) -> Result<gst::Element> {
    let convert = make("videoconvert")?;
    let scale = make("videoscale")?;
    let size = make("capsfilter")?;
    let raw = gst::Caps::builder("video/x-raw")
        .field("format", "I420")
        .field("width", picture.size.width.cast_signed())
        .field("height", picture.size.height.cast_signed());
    let rate = make("capssetter")?;
    let fps = gst::Fraction::new(picture.fps.cast_signed(), 1);
    rate.set_property("caps", gst::Caps::builder("video/x-raw").field("framerate", fps).build());
    let chain = [&convert, &scale, &size, &rate];
    pipeline.add_many(chain)?;
    gst::Element::link_many(chain)?;
    let raw = match source {
        // It delivers the requested rate, like a camera.
        Source::Test => raw.field("framerate", fps),
        _ => raw,
    };
    size.set_property("caps", raw.build());
    match source {
        Source::Test => {
            let test = make("videotestsrc")?;
            test.set_property("is-live", true);
            set(&test, "pattern", "smpte");
            test.set_property("horizontal-speed", 4_i32);
            pipeline.add(&test)?;
            test.link(&convert)?;
        }
        Source::File(path) => {
            exists(path)?;
            let path = path.canonicalize()?;
            let sync = make("clocksync")?;
            sync.set_property("sync", true);
            pipeline.add(&sync)?;
            sync.link(&convert)?;
            decode(pipeline, glib::filename_to_uri(path, None)?.as_str(), &sync)?;
        }
        Source::Camera(device) => {
            exists(device)?;
            let camera = make("v4l2src")?;
            camera.set_property("device", device.to_string_lossy().as_ref());
            let decoder = make("decodebin")?;
            pipeline.add_many([&camera, &decoder])?;
            camera.link(&decoder)?;
            link_video(&decoder, &convert);
        }
        Source::Rtsp(address) => {
            make("rtspsrc")?;
            decode(pipeline, address, &convert)?;
        }
    }
    Ok(rate)
}

/// Decodes `uri`, without sound.
fn decode(pipeline: &gst::Pipeline, uri: &str, next: &gst::Element) -> Result<()> {
    let decoder = make("uridecodebin")?;
    decoder.set_property("uri", uri);
    decoder.connect("source-setup", false, |values| {
        let source = values[1].get::<gst::Element>().ok()?;
        if source.has_property("tcp-timeout") {
            // In ms for reordering, and in us until a camera counts as gone.
            source.set_property("latency", RTSP_LATENCY_MS);
            source.set_property("tcp-timeout", RTSP_TIMEOUT_US);
            source.set_property("timeout", RTSP_TIMEOUT_US);
        }
        None
    });
    pipeline.add(&decoder)?;
    link_video(&decoder, next);
    Ok(())
}

fn link_video(decoder: &gst::Element, next: &gst::Element) {
    let next = next.downgrade();
    decoder.connect_pad_added(move |_, pad| {
        let Some(sink) = next.upgrade().and_then(|next| next.static_pad("sink")) else { return };
        let caps = pad.current_caps().unwrap_or_else(|| pad.query_caps(None));
        let is_video = caps.structure(0).is_some_and(|it| it.name().starts_with("video/"));
        if is_video && !sink.is_linked() {
            // The source reports a failure, as it then has no output.
            let _ = pad.link(&sink);
        }
    });
}

fn exists(path: &Path) -> Result<(), BadInput> {
    match path.metadata() {
        Ok(it) if it.is_dir() => Err(BadInput::new(format!("{} is a folder", path.display()))),
        Ok(_) => Ok(()),
        Err(error) => Err(BadInput::new(format!("cannot read {}: {error}", path.display()))),
    }
}

const RTSP_LATENCY_MS: u32 = 50;
const RTSP_TIMEOUT_US: u64 = 5_000_000;
