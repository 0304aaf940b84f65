//! The receiver.
//!
//! ```text
//!           ┌► RTP ──► jitter buffer ─► stamp ─► depayloader ─► decoder ─┐
//! UDP port ─┤                                                            ├► count ─► window or none
//!           └► RTCP ─► session ─► RTCP to the source of the packets      │
//!                      another sender: its own decoder ──────────────────┘
//! ```
//!
//! Pictures are shown as soon as they are decoded: for remote driving the newest picture matters
//! more than an even pace. A complete key frame does not wait for earlier packets ([`jump`]).
//! Payload types other than those of [`crate::rtp`] are ignored.

mod jump;
mod key_frame;
mod record;
mod skip;
mod stamps;
mod window;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_net::NetAddressMeta;
use gstreamer_net::gio;
use gstreamer_net::gio::prelude::*;
use roadweave_terminal::out;

use self::record::Record;
use self::stamps::Stamps;
use crate::budget::Budget;
use crate::gap_wait::GapWait;
use crate::network::{self, PacketKind, Socket};
use crate::options;
use crate::plugins::{self, make, set_if_known};
use crate::statistics::received::{Received, ReceiverReport};
use crate::strangers::Senders;
use crate::{rtp, run};

pub fn run(options: options::Receive) -> Result<()> {
    plugins::start()?;
    // Loads the decoder's large library before the first packet.
    drop(rtp::decoder(options::Codec::H264, options.damaged)?);
    let pipeline = gst::Pipeline::new();
    let record = Record::new(options.frames.as_deref(), options.write.as_deref())?;
    let view = Arc::new(View::new(options.damaged, record));
    build(&pipeline, &options, &view)?;
    let report = |report: &ReceiverReport| match options.run.json {
        true => out::json_line(report),
        false => Ok(out::line(report)?),
    };
    let end = run::until_end(&pipeline, options.run.seconds, false, || {
        report(&view.second())?;
        view.failed()
    });
    report(&view.whole())?;
    end.map(|_| ())
}

#[derive(Debug)]
struct View {
    damaged: bool,
    began: Instant,
    state: Mutex<ReceiverState>,
}

#[derive(Debug)]
struct ReceiverState {
    received: Received,
    record: Record,
    gap_wait: GapWait,
    stamps: Stamps,
    senders: Senders,
    reports: Budget,
    sender: Option<Shown>,
    jitter_buffers: Vec<JitterBuffer>,
    packet: Duration,
    shown: Duration,
    asked: Duration,
    error: Option<anyhow::Error>,
}

#[derive(Debug)]
struct Shown {
    packets: gst::Pad,
    decoder: gst::Pad,
    since: Duration,
}

#[derive(Debug)]
struct JitterBuffer {
    element: gst::glib::WeakRef<gst::Element>,
    lost: u64,
    late: u64,
}

impl View {
    fn new(damaged: bool, record: Record) -> Self {
        let state = ReceiverState {
            received: Received::new(Duration::ZERO),
            record,
            gap_wait: GapWait::new(),
            stamps: Stamps::new(),
            senders: Senders::new(),
            reports: Budget::of_reports(),
            sender: None,
            jitter_buffers: Vec::new(),
            packet: Duration::ZERO,
            shown: Duration::ZERO,
            asked: Duration::ZERO,
            error: None,
        };
        Self { damaged, began: Instant::now(), state: Mutex::new(state) }
    }

    fn on_packet(&self, packet: &mut gst::Buffer) -> bool {
        let now = self.began.elapsed();
        let mut state = self.state();
        let sender = network::sender(packet);
        let taken =
            sender.and_then(|(sender, own)| Some((own, state.senders.take(now, sender, own)?)));
        let Some((own, number)) = taken else {
            state.received.each(|count| count.packets_dropped += 1);
            return false;
        };
        if number != own {
            network::renumber(packet.make_mut(), number);
        }
        state.packet = now;
        state.received.on_packet(packet.size());
        if state.gap_wait.on_packet(now) {
            set_latency(state);
        }
        true
    }

    fn on_report(&self) -> bool {
        let now = self.began.elapsed();
        let mut state = self.state();
        let taken = state.reports.take(now);
        if !taken {
            state.received.each(|count| count.packets_dropped += 1);
        }
        taken
    }

    fn on_frame(&self, pts: Option<gst::ClockTime>) {
        let now = self.began.elapsed();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut state = self.state();
        let stamp = pts.and_then(|pts| state.stamps.find(pts.nseconds()));
        state.shown = now;
        state.received.on_frame(now, unix, stamp);
        if let Some(stamp) = stamp {
            state.record.on_frame(unix, stamp);
        }
    }

    fn on_coded(&self, buffer: &gst::BufferRef) {
        let Ok(bytes) = buffer.map_readable() else { return };
        self.state().record.on_coded(&bytes);
    }

    /// Records a resumption with a key frame while `missing` packets before it were outstanding.
    fn on_jump(&self, missing: usize) {
        let mut state = self.state();
        state.received.each(|count| {
            count.packets_lost += missing as u64;
            count.jumps += 1;
        });
    }

    fn on_key_frame_request(&self) {
        let now = self.began.elapsed();
        let mut state = self.state();
        state.asked = now;
        state.received.each(|count| count.key_frame_requests += 1);
    }

    fn second(&self) -> ReceiverReport {
        let now = self.began.elapsed();
        self.adapt();
        let (report, pad) = {
            let mut state = self.state();
            let wait = state.gap_wait.now();
            let is_unseen = state.sender.is_some() && state.is_unseen(now);
            let pad = state.sender.as_ref().filter(|_| is_unseen).map(|it| it.decoder.clone());
            (state.received.second(now, wait), pad)
        };
        // The last request may have been lost.
        if let Some(pad) = pad {
            rtp::ask_for_key_frame(&pad);
        }
        report
    }

    fn whole(&self) -> ReceiverReport {
        let now = self.began.elapsed();
        self.adapt();
        let mut state = self.state();
        let wait = state.gap_wait.now();
        state.received.whole(now, wait)
    }

    fn adapt(&self) {
        let mut state = self.state();
        let (mut lost, mut late) = (0, 0);
        state.jitter_buffers.retain_mut(|buffer| {
            let Some(element) = buffer.element.upgrade() else { return false };
            let stats = element.property::<gst::Structure>("stats");
            let newly = |name, before: &mut u64| {
                let now = stats.get::<u64>(name).unwrap_or(*before);
                now.saturating_sub(std::mem::replace(before, now))
            };
            lost += newly("num-lost", &mut buffer.lost);
            late += newly("num-late", &mut buffer.late);
            true
        });
        state.received.each(|count| count.packets_lost += lost);
        let before = state.gap_wait.now();
        state.gap_wait.on_second(late);
        let wait = state.gap_wait.now();
        if wait != before {
            set_latency(state);
        }
    }

    fn failed(&self) -> Result<()> {
        self.state().error.take().map_or(Ok(()), Err)
    }

    fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiverState {
    fn is_unseen(&self, now: Duration) -> bool {
        let long = |since| now.saturating_sub(since) > UNSEEN_MOST;
        !long(self.packet) && long(self.shown) && long(self.asked)
    }

    fn show(&mut self, now: Duration, packets: &gst::Pad, decoder: &gst::Pad) {
        let (packets, decoder) = (packets.clone(), decoder.clone());
        self.sender = Some(Shown { packets, decoder, since: now });
        self.stamps.clear();
        self.received.on_new_sender();
    }

    /// Whether a packet of this pad goes to its decoder: if the newest sender brings no pictures,
    /// another active sender is shown again.
    fn passes(&mut self, now: Duration, packets: &gst::Pad, decoder: &gst::Pad) -> bool {
        let Some(shown) = &self.sender else { return false };
        if shown.packets == *packets {
            return true;
        }
        let is_blank = now.saturating_sub(self.shown.max(shown.since)) > BLANK_MOST;
        if is_blank {
            self.show(now, packets, decoder);
        }
        is_blank
    }
}

fn build(pipeline: &gst::Pipeline, options: &options::Receive, view: &Arc<View>) -> Result<()> {
    let socket = Socket::bind(options.listen)?;
    let (source, tee, bin) = (socket.source()?, make("tee")?, make("rtpbin")?);
    plugins::set(&bin, "rtp-profile", "avpf");
    bin.set_property("latency", millis(view.state().gap_wait.now()));
    bin.set_property("do-lost", true);
    bin.set_property("autoremove", true);
    // Anyone may send, each with its own SSRC.
    set_if_known(&bin, "max-streams", SENDERS_MOST);
    let funnel = make("funnel")?;
    if options.window {
        window::check()?;
    }
    let sink = make(if options.window { "autovideosink" } else { "fakesink" })?;
    sink.set_property("sync", false);
    set_if_known(&sink, "async", false);
    let convert = make("videoconvert")?;
    pipeline.add_many([&source, &tee, &bin, &funnel, &convert, &sink])?;
    source.link(&tee)?;
    gst::Element::link_many([&funnel, &convert, &sink])?;
    let counted = Arc::clone(view);
    let shown = convert.static_pad("src").context("a converter without output")?;
    shown.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        counted.on_frame(info.buffer().and_then(|buffer| buffer.pts()));
        gst::PadProbeReturn::Ok
    });

    let rtp = bin.request_pad_simple("recv_rtp_sink_0").context("a session without inputs")?;
    let answers = Arc::<Answers>::default();
    branch(&tee, &rtp, {
        let (view, answers) = (Arc::clone(view), Arc::clone(&answers));
        move |buffer| match PacketKind::of_buffer(buffer) {
            PacketKind::Rtp(payload_type) if rtp::codec(payload_type).is_some() => {
                let is_taken = view.on_packet(buffer);
                if is_taken {
                    answers.on_taken(buffer);
                }
                is_taken
            }
            _ => false,
        }
    })?;
    let rtcp = bin.request_pad_simple("recv_rtcp_sink_0").context("a session without inputs")?;
    branch(&tee, &rtcp, {
        let view = Arc::clone(view);
        move |buffer| PacketKind::of_buffer(buffer) == PacketKind::Rtcp && view.on_report()
    })?;
    answer(pipeline, &bin, &socket, &answers)?;
    rtp::report_often(&bin);
    follow(pipeline, &bin, &funnel, view);
    Ok(())
}

fn branch(
    tee: &gst::Element,
    to: &gst::Pad,
    is_for_it: impl Fn(&mut gst::Buffer) -> bool + Send + Sync + 'static,
) -> Result<()> {
    let from = tee.request_pad_simple("src_%u").context("a tee without outputs")?;
    from.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data else {
            return gst::PadProbeReturn::Ok;
        };
        if is_for_it(buffer) { gst::PadProbeReturn::Ok } else { gst::PadProbeReturn::Drop }
    });
    from.link(to)?;
    Ok(())
}

/// Sends RTCP to the source of the last accepted packet.
fn answer(
    pipeline: &gst::Pipeline,
    bin: &gst::Element,
    socket: &Socket,
    answers: &Arc<Answers>,
) -> Result<()> {
    let sink = socket.sink(([127, 0, 0, 1], 9).into())?;
    pipeline.add(&sink)?;
    bin.link_pads(Some("send_rtcp_src_0"), &sink, Some("sink"))?;
    let output = sink.static_pad("sink").context("a sink without input")?;
    let (answers, to) = (Arc::clone(answers), sink.downgrade());
    let target = Mutex::new(None);
    output.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let heard = answers.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(heard), Some(sink)) = (heard, to.upgrade()) else {
            return gst::PadProbeReturn::Drop;
        };
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        if target.as_ref() != Some(&heard) {
            sink.set_property("host", heard.0.as_str());
            sink.set_property("port", i32::from(heard.1));
            *target = Some(heard);
        }
        gst::PadProbeReturn::Ok
    });
    Ok(())
}

#[derive(Debug, Default)]
struct Answers(Mutex<Option<(String, u16)>>);

impl Answers {
    fn on_taken(&self, packet: &gst::BufferRef) {
        let from = packet.meta::<NetAddressMeta>().map(|it| it.addr());
        let from = from.and_then(|it| it.downcast::<gio::InetSocketAddress>().ok());
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = from {
            *heard = Some((from.address().to_string(), from.port()));
        }
    }
}

/// Makes a decoder for each new sender, and shows the newest sender's pictures.
fn follow(pipeline: &gst::Pipeline, bin: &gst::Element, funnel: &gst::Element, view: &Arc<View>) {
    bin.connect("request-pt-map", false, |values| {
        let payload_type = values[2].get::<u32>().ok();
        let caps = payload_type.and_then(|it| rtp::caps(u8::try_from(it).ok()?));
        Some(caps.to_value())
    });
    let waiting = Arc::clone(view);
    bin.connect("new-jitterbuffer", false, move |values| {
        let element = values[1].get::<gst::Element>().ok()?;
        let watched = skip::watch(&element, &waiting);
        let mut state = waiting.state();
        element.set_property("latency", millis(state.gap_wait.now()));
        let element = element.downgrade();
        state.jitter_buffers.push(JitterBuffer { element, lost: 0, late: 0 });
        drop(state);
        if let Err(error) = watched {
            waiting.state().error.get_or_insert(error);
        }
        None
    });
    let (pipeline, funnel) = (pipeline.downgrade(), funnel.downgrade());
    let added = Arc::clone(view);
    let left = Arc::clone(view);
    bin.connect("on-bye-ssrc", false, move |_| {
        left.state().received.on_goodbye();
        None
    });
    bin.connect_pad_added(move |_, pad| {
        let (Some(pipeline), Some(funnel)) = (pipeline.upgrade(), funnel.upgrade()) else { return };
        let name = pad.name();
        let mut words = name.strip_prefix("recv_rtp_src_").unwrap_or("").split('_');
        let Some(payload_type) = words.nth(2).and_then(|word| word.parse().ok()) else { return };
        if let Err(error) = show(&pipeline, &funnel, pad, payload_type, &added) {
            added.state().error.get_or_insert(error);
        }
    });
}

fn show(
    pipeline: &gst::Pipeline,
    funnel: &gst::Element,
    packets: &gst::Pad,
    payload_type: u8,
    view: &Arc<View>,
) -> Result<()> {
    let codec = rtp::codec(payload_type).context("a payload type that is not ours")?;
    let [unpack, decode] = rtp::decoder(codec, view.damaged)?;
    let form = make("capsfilter")?;
    let is_written = view.state().record.wants_stream();
    if let Some(caps) = rtp::byte_stream(codec).filter(|_| is_written) {
        form.set_property("caps", caps);
    }
    pipeline.add_many([&unpack, &form, &decode])?;
    gst::Element::link_many([&unpack, &form, &decode])?;
    let (from, to) = (decode.static_pad("src"), funnel.request_pad_simple("sink_%u"));
    let (from, to) = (from.context("a decoder without output")?, to.context("no more senders")?);
    from.link(&to)?;
    let input = unpack.static_pad("sink").context("a depayloader without input")?;
    let (stamped, decoder) = (Arc::clone(view), input.clone());
    packets.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM, {
        move |own, info| {
            let now = stamped.began.elapsed();
            let mut state = stamped.state();
            match &mut info.data {
                Some(gst::PadProbeData::Buffer(_)) if !state.passes(now, own, &decoder) => {
                    gst::PadProbeReturn::Drop
                }
                Some(gst::PadProbeData::Buffer(buffer)) => {
                    if let (Some(pts), Some(stamp)) = (buffer.pts(), rtp::read(buffer)) {
                        let at = state.stamps.add(pts.nseconds(), stamp);
                        buffer.make_mut().set_pts(gst::ClockTime::from_nseconds(at));
                    }
                    gst::PadProbeReturn::Ok
                }
                Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Eos => {
                    gst::PadProbeReturn::Drop
                }
                _ => gst::PadProbeReturn::Ok,
            }
        }
    });
    if is_written {
        let (written, coded) = (Arc::clone(view), unpack.static_pad("src"));
        let coded = coded.context("a depayloader without output")?;
        coded.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            info.buffer().into_iter().for_each(|buffer| written.on_coded(buffer));
            gst::PadProbeReturn::Ok
        });
    }
    for element in [&decode, &form, &unpack] {
        element.sync_state_with_parent()?;
    }
    view.state().show(view.began.elapsed(), packets, &input);
    packets.link(&input)?;
    let parts = (pipeline.downgrade(), funnel.downgrade(), to);
    packets.connect_unlinked(move |_, _| {
        let (Some(pipeline), Some(funnel)) = (parts.0.upgrade(), parts.1.upgrade()) else { return };
        funnel.release_request_pad(&parts.2);
        for element in [&unpack, &form, &decode] {
            let _ = element.set_state(gst::State::Null);
            let _ = pipeline.remove(element);
        }
    });
    Ok(())
}

/// Sets the wait of the jitter buffers, without the lock, because they call back.
fn set_latency(state: MutexGuard<'_, ReceiverState>) {
    let wait = millis(state.gap_wait.now());
    let elements = state.jitter_buffers.iter().filter_map(|it| it.element.upgrade());
    let elements: Vec<_> = elements.collect();
    drop(state);
    elements.iter().for_each(|element| element.set_property("latency", wait));
}

fn millis(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)
}

/// Limit of concurrent senders; silent ones are removed.
const SENDERS_MOST: u32 = 8;
/// Longest time without a picture of the newest sender while another one sends.
const BLANK_MOST: Duration = Duration::from_secs(3);
/// Longest time with packets but without a picture, until a key frame is requested again.
const UNSEEN_MOST: Duration = Duration::from_millis(700);
