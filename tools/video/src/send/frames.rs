//! The state of each frame in the sender: its target, size and time of capture.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde::Serialize;

use crate::budget::Budget;
use crate::feedback::{Feedback, Renewals};
use crate::log_file::LogFile;
use crate::pace::Pace;
use crate::sizing::{Admitted, Gate, Packets, Target, share};
use crate::srt::SrtConnection;
use crate::stamp::Stamp;
use crate::statistics::sent::{Around, SenderReport, SenderStatistics};
use crate::supersede::{Older, Supersede};

#[derive(Debug)]
pub struct Frames {
    settings: Settings,
    feedback: Option<Feedback>,
    /// Reports to the tunnel the packets superseded by a renewal; `None` with SRT.
    supersede: Option<Supersede>,
    srt: OnceLock<SrtConnection>,
    began: Instant,
    state: Mutex<SenderState>,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub packets: Packets,
    pub fps: u32,
    pub pixels: usize,
    /// The interval of unrequested key frames.
    pub key_interval: Duration,
    /// Whether the encoder keeps each frame to its limit.
    pub keeps_frames: bool,
    /// The rate without a target of the tunnel, bit/s.
    pub bitrate_bps: u64,
}

#[derive(Debug)]
struct SenderState {
    pace: Pace,
    gate: Gate,
    reports: Budget,
    sent: SenderStatistics,
    /// Frames in the encoder and the payloader, oldest first.
    under_way: VecDeque<EncodedFrame>,
    renewals: Renewals,
    newest: Option<(u32, u32)>,
    number: u16,
    picture: Option<Instant>,
    file: Option<LogFile>,
}

#[derive(Clone, Copy, Debug)]
struct EncodedFrame {
    at: Duration,
    captured: Duration,
    target: usize,
    at_once: usize,
    limit: usize,
    sent: bool,
    number: Option<u16>,
}

#[derive(Serialize)]
struct FrameRecord {
    number: u16,
    at_ms: f64,
    captured_unix_ms: f64,
    target_bytes: usize,
    at_once_bytes: usize,
    limit_bytes: usize,
    frame_bytes: usize,
    key: bool,
}

impl Frames {
    /// Follows `feedback`; handles renewals only if superseded packets can be reported to the
    /// tunnel. Writes a line for each frame to `file`.
    pub fn new(
        settings: Settings,
        (feedback, supersede): (Option<Feedback>, Option<Supersede>),
        file: Option<&Path>,
    ) -> Result<Self> {
        let state = SenderState {
            pace: Pace::new(settings.fps),
            gate: Gate::new(settings.packets, settings.pixels, settings.key_interval),
            reports: Budget::of_reports(),
            sent: SenderStatistics::new(Duration::ZERO),
            under_way: VecDeque::new(),
            renewals: Renewals::default(),
            newest: None,
            number: 0,
            picture: None,
            file: file.map(LogFile::create).transpose()?,
        };
        let (srt, began) = (OnceLock::new(), Instant::now());
        Ok(Self { settings, feedback, supersede, srt, began, state: Mutex::new(state) })
    }

    pub fn follow(&self, srt: SrtConnection) {
        let _ = self.srt.set(srt);
    }

    pub fn srt_silent(&self) -> Duration {
        self.srt.get().map_or(Duration::ZERO, SrtConnection::silent)
    }

    pub fn on_picture(&self, at: Duration) -> bool {
        let mut state = self.state();
        state.picture = Some(Instant::now());
        let taken = state.pace.take(at);
        match taken {
            true => state.sent.each(|count| count.frames_taken += 1),
            false => state.sent.each(|count| count.frames_too_fast += 1),
        }
        taken
    }

    /// The limit of the picture of time `at`, captured `age` ago; `None` if it is not encoded.
    pub fn before_encoder(&self, at: Duration, age: Duration) -> Option<Admitted> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let said = self.feedback.as_ref().and_then(|feedback| feedback.target(Instant::now()));
        let renewals = self.supersede.as_ref().and(self.feedback.as_ref()).map(Feedback::renewals);
        let mut state = self.state();
        let older = renewals.and_then(|renewals| state.renew(renewals));
        // Before the key frame, which has no room until then.
        self.supersede.iter().zip(older).for_each(|(supersede, older)| supersede.report(older));
        let fps = state.pace.fps().min(f64::from(self.settings.fps));
        let target = said.and_then(|target| target.per_frame(fps, self.settings.keeps_frames));
        let target = target.unwrap_or_else(|| share(self.settings.bitrate_bps, fps));
        let room = self.srt.get().map_or(usize::MAX, |srt| share(srt.bps(), fps));
        let target = target.min(room);
        let at_once = said.and_then(Target::at_once).unwrap_or(target).min(room);
        let Some(admitted) = state.gate.admit(at, target, at_once) else {
            state.sent.each(|count| count.frames_skipped += 1);
            return None;
        };
        let limit = admitted.bytes;
        if state.under_way.len() >= UNDER_WAY_MOST {
            state.under_way.pop_front();
        }
        let captured = now.saturating_sub(age);
        state.under_way.push_back(EncodedFrame {
            at,
            captured,
            target,
            at_once,
            limit,
            sent: admitted.sent,
            number: None,
        });
        Some(admitted)
    }

    pub fn after_encoder(&self, at: Duration, bytes: usize, key: bool) -> bool {
        let mut state = self.state();
        if state.find(at).is_some_and(|frame| !frame.sent) {
            state.sent.each(|count| count.frames_skipped += 1);
            return false;
        }
        let number = state.number;
        state.number = number.wrapping_add(1);
        let Some(frame) = state.find(at) else { return true };
        frame.number = Some(number);
        let EncodedFrame { at: frame_at, captured, target, at_once, limit, .. } = *frame;
        state.sent.on_frame(bytes, limit, target);
        let line = FrameRecord {
            number,
            at_ms: frame_at.as_secs_f64() * 1e3,
            captured_unix_ms: captured.as_secs_f64() * 1e3,
            target_bytes: target,
            at_once_bytes: at_once,
            limit_bytes: limit,
            frame_bytes: bytes,
            key,
        };
        if let Some(file) = &mut state.file {
            file.write((serde_json::to_string(&line).unwrap_or_default() + "\n").into_bytes());
        }
        true
    }

    pub fn stamp(&self, at: Duration) -> Option<Stamp> {
        let mut state = self.state();
        let frame = state.find(at)?;
        Some(Stamp { captured: frame.captured, number: frame.number? })
    }

    pub fn on_packet(&self, bytes: usize, rtp: Option<(u32, u32)>) {
        let mut state = self.state();
        state.sent.each(|count| count.packet_bytes += bytes as u64);
        state.newest = rtp.or(state.newest);
    }

    /// Handles a key frame request of the receiver, for the next frame that the gate admits.
    pub fn on_key_frame_asked(&self) {
        let mut state = self.state();
        state.sent.each(|count| count.key_frames_asked += 1);
        state.gate.ask_for_key_frame();
    }

    pub fn on_answer(&self, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.began);
        let mut state = self.state();
        let taken = state.reports.take(now);
        match taken {
            true => state.sent.on_answer(now),
            false => state.sent.each(|count| count.rtcp_dropped += 1),
        }
        taken
    }

    pub fn has_begun(&self) -> bool {
        self.state().picture.is_some()
    }

    pub fn since_picture(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.state().picture.unwrap_or(self.began))
    }

    pub fn second(&self, now: Instant, answers: bool) -> SenderReport {
        let mut state = self.state();
        let around = self.around(&state, now, answers);
        state.sent.second(now.saturating_duration_since(self.began), around)
    }

    pub fn whole(&self, now: Instant, answers: bool) -> SenderReport {
        let state = self.state();
        let around = self.around(&state, now, answers);
        state.sent.whole(now.saturating_duration_since(self.began), around)
    }

    fn around(&self, state: &SenderState, now: Instant, answers: bool) -> Around {
        let feedback = self.feedback.as_ref();
        Around {
            feedback: feedback.map(|feedback| feedback.state(now)),
            feedback_bad_lines: feedback.map_or(0, Feedback::bad_lines),
            source_fps: state.pace.fps(),
            answers,
            srt: self.srt.get().map(SrtConnection::report),
        }
    }

    fn state(&self) -> MutexGuard<'_, SenderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SenderState {
    /// After a new renewal the next frame is a key frame; returns the packets that it supersedes.
    fn renew(&mut self, renewals: Renewals) -> Option<Older> {
        let before = std::mem::replace(&mut self.renewals, renewals);
        if renewals.count <= before.count {
            return None;
        }
        self.sent.each(|count| count.renewals += 1);
        self.gate.renew();
        let (ssrc, newest) = self.newest?;
        let connection = renewals.connection;
        Some(Older { ssrc, timestamp: newest.wrapping_add(1), connection })
    }

    fn find(&mut self, at: Duration) -> Option<&mut EncodedFrame> {
        let frame = self.under_way.iter_mut().min_by_key(|frame| frame.at.abs_diff(at))?;
        (frame.at.abs_diff(at) < ROUNDED_BY_MOST).then_some(frame)
    }
}

/// An encoder without delay holds one frame; older ones were lost.
const UNDER_WAY_MOST: usize = 64;
const ROUNDED_BY_MOST: Duration = Duration::from_millis(2);
