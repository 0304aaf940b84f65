//! GStreamer's elements, and the Debian packages that contain them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::glib;
use gstreamer::prelude::*;
use roadweave_terminal::exit::BadInput;

pub fn start() -> Result<()> {
    gst::init().context("GStreamer does not start")
}

pub fn make(name: &str) -> Result<gst::Element> {
    gst::ElementFactory::make(name).build().map_err(|_| missing(name).into())
}

/// Sets a property by its text, like `gst-launch-1.0`. Panics if the element lacks it.
pub fn set(element: &gst::Element, property: &str, value: &str) {
    element.set_property_from_str(property, value);
}

pub fn set_if_known(element: &gst::Element, property: &str, value: impl Into<glib::Value>) {
    if element.has_property(property) {
        element.set_property_from_value(property, &value.into());
    }
}

/// The running time of a buffer. Encoders shift time stamps, but not this.
pub fn running_time(pad: &gst::Pad, buffer: &gst::BufferRef) -> Duration {
    let segment = pad.sticky_event::<gst::event::Segment>(0);
    let segment = segment.as_ref().and_then(|it| it.segment().downcast_ref::<gst::ClockTime>());
    let time = match (segment, buffer.pts()) {
        (Some(segment), pts @ Some(_)) => segment.to_running_time(pts),
        (_, pts) => pts,
    };
    time.map_or(Duration::ZERO, Duration::from)
}

fn missing(name: &str) -> BadInput {
    BadInput::new(match package(name) {
        Some(package) => {
            format!("GStreamer has no {name}: apt install {package}")
        }
        None => format!("GStreamer has no {name}"),
    })
}

fn package(name: &str) -> Option<&'static str> {
    let has = |(names, _): &&(&str, &str)| names.split(' ').any(|it| it == name);
    PACKAGES.iter().find(has).map(|(_, package)| *package)
}

const PACKAGES: [(&str, &str); 6] = [
    ("queue tee capsfilter fakesink filesrc", "libgstreamer1.0-0"),
    (
        "videotestsrc videoconvert videoscale uridecodebin decodebin clocksync",
        "gstreamer1.0-plugins-base",
    ),
    (
        "capssetter rtpbin udpsrc udpsink rtph264pay rtph265pay rtpvp8pay rtph264depay rtph265depay \
         rtpvp8depay vp8enc vp8dec v4l2src rtspsrc autovideosink",
        "gstreamer1.0-plugins-good",
    ),
    ("h264parse h265parse x265enc mpegtsmux srtsink", "gstreamer1.0-plugins-bad"),
    ("x264enc", "gstreamer1.0-plugins-ugly"),
    ("avdec_h264 avdec_h265", "gstreamer1.0-libav"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_plugin_is_reported_with_its_package() {
        for (element, package) in
            [("x264enc", "ugly"), ("vp8enc", "good"), ("videotestsrc", "base")]
        {
            let message = missing(element).to_string();
            let expected = format!("{element}: apt install gstreamer1.0-plugins-{package}");
            assert!(message.ends_with(&expected), "{message}");
        }
        assert_eq!(package("nothing"), None);
    }
}
