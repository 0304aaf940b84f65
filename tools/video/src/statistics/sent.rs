//! The sender's counters.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{ReportSpan, bps, rounded};
use crate::feedback::FeedbackState;
use crate::srt::SrtReport;

#[derive(Debug)]
pub struct SenderStatistics {
    second: Count,
    whole: Count,
    answered: Option<Duration>,
    began: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub since: Duration,
    pub frames: u64,
    pub frames_skipped: u64,
    pub frames_too_fast: u64,
    pub frames_taken: u64,
    pub frames_too_large: u64,
    pub frame_bytes: u64,
    pub packet_bytes: u64,
    pub target_bytes: u64,
    pub key_frames_asked: u64,
    pub renewals: u64,
    pub rtcp_dropped: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Around {
    pub feedback: Option<FeedbackState>,
    pub feedback_bad_lines: u64,
    pub source_fps: f64,
    pub answers: bool,
    pub srt: Option<SrtReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SenderReport {
    pub span: ReportSpan,
    pub seconds: f64,
    pub frames: u64,
    /// Frames skipped because the target left no room.
    pub frames_skipped: u64,
    /// Frames of the source beyond the requested rate.
    pub frames_too_fast: u64,
    /// Frames dropped because the encoder was busy.
    pub frames_too_slow: u64,
    /// Frames larger than their limit.
    pub frames_too_large: u64,
    /// Frames a second of the source.
    pub source_fps: f64,
    /// RTP packets with their headers, or the input of SRT, bit/s.
    pub bitrate_bps: u64,
    /// The mean target of a frame, in bytes of the tunnel's datagrams.
    pub target_bytes: Option<u64>,
    /// The mean size of an encoded frame.
    pub frame_bytes: Option<u64>,
    /// Key frames requested by the receiver.
    pub key_frames_asked: u64,
    /// Key frames requested by the tunnel; absent without `--feedback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewals: Option<u64>,
    /// RTCP packets beyond the budget.
    pub rtcp_dropped: u64,
    /// The subscription to the tunnel's targets; absent without `--feedback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackState>,
    /// Malformed lines of the subscription since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback_bad_lines: Option<u64>,
    /// Seconds without an answer of the receiver; 0 while it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_silent_s: Option<f64>,
    /// The SRT connection; absent with RTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srt: Option<SrtReport>,
}

impl SenderStatistics {
    pub fn new(now: Duration) -> Self {
        let count = Count { since: now, ..Count::default() };
        Self { second: count, whole: count, answered: None, began: now }
    }

    pub fn on_frame(&mut self, bytes: usize, limit: usize, target: usize) {
        self.each(|count| {
            count.frames += 1;
            count.frames_too_large += u64::from(bytes > limit);
            count.frame_bytes += bytes as u64;
            count.target_bytes = count.target_bytes.saturating_add(target as u64);
        });
    }

    pub fn on_answer(&mut self, now: Duration) {
        self.answered = Some(now);
    }

    pub fn second(&mut self, now: Duration, around: Around) -> SenderReport {
        let next = Count { since: now, ..Count::default() };
        let second = std::mem::replace(&mut self.second, next);
        self.report(ReportSpan::Second, second, now, around)
    }

    pub fn whole(&self, now: Duration, around: Around) -> SenderReport {
        self.report(ReportSpan::Whole, self.whole, now, around)
    }

    fn report(
        &self,
        span: ReportSpan,
        count: Count,
        now: Duration,
        around: Around,
    ) -> SenderReport {
        let seconds = now.saturating_sub(count.since).as_secs_f64();
        let mean = |bytes: u64| bytes.checked_div(count.frames);
        let silent = now.saturating_sub(self.answered.unwrap_or(self.began));
        let silent = if silent < SILENT_AFTER { Duration::ZERO } else { silent };
        SenderReport {
            span,
            seconds: rounded(seconds),
            frames: count.frames,
            frames_skipped: count.frames_skipped,
            frames_too_fast: count.frames_too_fast,
            frames_too_slow: count.frames_taken.saturating_sub(count.frames + count.frames_skipped),
            frames_too_large: count.frames_too_large,
            source_fps: rounded(around.source_fps),
            bitrate_bps: bps(count.packet_bytes, seconds),
            target_bytes: mean(count.target_bytes),
            frame_bytes: mean(count.frame_bytes),
            key_frames_asked: count.key_frames_asked,
            renewals: around.feedback.map(|_| count.renewals),
            rtcp_dropped: count.rtcp_dropped,
            feedback: around.feedback,
            feedback_bad_lines: around.feedback.map(|_| around.feedback_bad_lines),
            receiver_silent_s: around.answers.then(|| rounded(silent.as_secs_f64())),
            srt: around.srt,
        }
    }

    pub fn each(&mut self, mut act: impl FnMut(&mut Count)) {
        act(&mut self.second);
        act(&mut self.whole);
    }
}

impl fmt::Display for SenderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.span == ReportSpan::Whole {
            write!(f, "in all {:.1} s: ", self.seconds)?;
        }
        write!(f, "{} frames", self.frames)?;
        if let (Some(bytes), Some(target)) = (self.frame_bytes, self.target_bytes) {
            write!(f, " of {bytes} bytes, target {target}")?;
        }
        write!(f, ", {} skipped", self.frames_skipped)?;
        write!(f, ", {:.2} Mbit/s", self.bitrate_bps as f64 / 1e6)?;
        write!(f, ", {} key frames asked for", self.key_frames_asked)?;
        if let Some(renewals @ 1..) = self.renewals {
            write!(f, ", {renewals} by the tunnel")?;
        }
        match self.feedback {
            Some(FeedbackState::Absent) => write!(f, ", the tunnel's program is not running")?,
            Some(FeedbackState::NoTarget) => write!(f, ", no target for the lane")?,
            Some(FeedbackState::Followed) | None => {}
        }
        if let Some(SrtReport { room_bps, rtt_ms, unacknowledged }) = self.srt {
            let room = room_bps as f64 / 1e6;
            write!(f, ", room for {room:.2} Mbit/s, round trip {rtt_ms:.0} ms")?;
            write!(f, ", {unacknowledged} packets not acknowledged")?;
        }
        match self.receiver_silent_s {
            Some(silent) if silent > 0.0 => {
                write!(f, ", nothing from the receiver for {silent:.0} s")
            }
            _ => Ok(()),
        }
    }
}

/// Receivers report each second (RFC 3550 section 6.2, RFC 4585), or each five seconds if idle.
const SILENT_AFTER: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    const AROUND: Around = Around {
        feedback: None,
        feedback_bad_lines: 0,
        source_fps: 30.0,
        answers: true,
        srt: None,
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_covers_itself_and_the_total_everything() {
        let mut sent = SenderStatistics::new(s(0));
        sent.on_frame(900, 1000, 2000);
        sent.on_frame(1100, 1000, 2000);
        sent.each(|count| count.packet_bytes += 2500);
        sent.each(|count| count.frames_skipped += 1);
        sent.each(|count| count.frames_taken += 5);
        let report = sent.second(s(1), AROUND);
        assert_eq!((report.frames, report.frames_too_large, report.frames_skipped), (2, 1, 1));
        assert_eq!(report.frames_too_slow, 2);
        assert_eq!((report.frame_bytes, report.target_bytes), (Some(1000), Some(2000)));
        assert_eq!(report.bitrate_bps, 20_000);
        let report = sent.second(s(2), AROUND);
        assert_eq!((report.frames, report.frame_bytes, report.bitrate_bps), (0, None, 0));
        assert_eq!(sent.whole(s(2), AROUND).bitrate_bps, 10_000);
    }

    #[test]
    fn renewals_are_reported_where_the_tunnel_is_followed() {
        let mut sent = SenderStatistics::new(s(0));
        sent.each(|count| count.renewals += 1);
        assert_eq!(sent.whole(s(1), AROUND).renewals, None);
        let followed = Around { feedback: Some(FeedbackState::Followed), ..AROUND };
        assert!(sent.second(s(1), followed).to_string().ends_with("for, 1 by the tunnel"));
        let (second, whole) = (sent.second(s(2), followed), sent.whole(s(2), followed));
        assert_eq!((second.renewals, whole.renewals), (Some(0), Some(1)));
    }

    #[test]
    fn a_receiver_that_falls_silent_is_reported() {
        let mut sent = SenderStatistics::new(s(0));
        let silent = |sent: &SenderStatistics, now| sent.whole(s(now), AROUND).receiver_silent_s;
        assert_eq!(silent(&sent, 7), Some(0.0));
        assert_eq!(silent(&sent, 9), Some(9.0));
        assert!(sent.whole(s(9), AROUND).to_string().ends_with("from the receiver for 9 s"));
        sent.on_answer(s(9));
        assert_eq!(silent(&sent, 10), Some(0.0));
        assert_eq!(silent(&sent, 20), Some(11.0));
        let srt = Around { answers: false, ..AROUND };
        assert_eq!(sent.whole(s(20), srt).receiver_silent_s, None);
    }
}
