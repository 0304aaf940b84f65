//! Runs a pipeline to its end, with a report each second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use gstreamer as gst;
use gstreamer::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ElementError {
    pub factory: String,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Asked,
}

/// Plays `pipeline` until its source ends, `seconds` have passed, or a signal arrives; calls
/// `each_second` in between. With `says_goodbye` the stream ends first, so that RTCP BYE is sent.
pub fn until_end(
    pipeline: &gst::Pipeline,
    seconds: Option<Duration>,
    says_goodbye: bool,
    mut each_second: impl FnMut() -> Result<()>,
) -> Result<End> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked))?;
    }
    let _stop = Stop(pipeline);
    let bus = pipeline.bus().context("a pipeline without a bus")?;
    if pipeline.set_state(gst::State::Playing).is_err() {
        return Err(first_error(&bus).unwrap_or_else(|| anyhow!("the pipeline does not start")));
    }
    let began = Instant::now();
    let mut next = began + SECOND;
    loop {
        let now = Instant::now();
        if now >= next {
            each_second()?;
            next = (next + SECOND).max(now);
        }
        if asked.load(Ordering::Relaxed) || seconds.is_some_and(|it| began.elapsed() >= it) {
            if says_goodbye && pipeline.send_event(gst::event::Eos::new()) {
                await_goodbye(&bus);
            }
            return Ok(End::Asked);
        }
        let message = bus.timed_pop_filtered(
            gst::ClockTime::from_mseconds(50),
            &[gst::MessageType::Error, gst::MessageType::Eos, gst::MessageType::Latency],
        );
        match message.as_deref().map(gst::MessageRef::view) {
            Some(gst::MessageView::Error(error)) => return Err(gst_error(error)),
            Some(gst::MessageView::Eos(_)) => {
                if says_goodbye {
                    await_goodbye(&bus);
                }
                return Ok(End::Source);
            }
            Some(gst::MessageView::Latency(_)) => {
                // Sinks do not wait for their time, so a failure does not matter.
                let _ = pipeline.recalculate_latency();
            }
            _ => {}
        }
    }
}

/// Gives the session a moment for its BYE.
fn await_goodbye(bus: &gst::Bus) {
    let last = [gst::MessageType::Error, gst::MessageType::Eos];
    let _ = bus.timed_pop_filtered(FAREWELL_MOST, &last);
}

fn first_error(bus: &gst::Bus) -> Option<anyhow::Error> {
    match bus.pop_filtered(&[gst::MessageType::Error])?.view() {
        gst::MessageView::Error(error) => Some(gst_error(error)),
        _ => None,
    }
}

/// An element's error in one line: its text, and the cause in its details.
fn gst_error(error: &gst::message::Error) -> anyhow::Error {
    let source = error.src().and_then(|source| source.downcast_ref::<gst::Element>());
    let factory = source.and_then(ElementExt::factory);
    let factory = factory.map_or_else(String::new, |factory| factory.name().to_string());
    let details = error.debug().map(|it| it.to_string()).unwrap_or_default();
    tracing::debug!("{factory}: {details}");
    // The details are "gstx.c(12): function (): /path/of/element:" followed by the cause, if any. A
    // bin forwards details of other elements; a missing plugin has its details in brackets.
    let is_place =
        |line: &&str| line.is_empty() || line.ends_with(':') || line.contains("/GstPipeline:");
    let cause = details.lines().map(str::trim).find(|line| !is_place(line));
    let cause = cause.and_then(|cause| cause.split(" (video/").next());
    let words = error.error().to_string();
    let words = words.trim_end_matches('.');
    let text = cause.map_or_else(|| words.to_owned(), |cause| format!("{words}: {cause}"));
    ElementError { factory, text }.into()
}

/// Stops a pipeline on all paths: elements must not be dropped while they run.
struct Stop<'a>(&'a gst::Pipeline);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

const FAREWELL_MOST: gst::ClockTime = gst::ClockTime::from_mseconds(300);
const SECOND: Duration = Duration::from_secs(1);
