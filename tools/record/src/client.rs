//! The client's side of the recording of one link.
//!
//! ```text
//!  new ─ Hello, Challenge ─> ready ─ start ─ Open, Welcome ─> running ─ finish ─> done ─> recording
//!                              ^                                 │
//!                              └─ silence for 3 s: the session moves to the link's present address
//! ```
//!
//! All links of a vehicle start together and follow one plan, so that their recordings belong to
//! one drive. The server's log arrives while the plan runs, so a client that stops early keeps its
//! recording.

use std::time::Duration;

use roadweave_proto::Instant;

use crate::arrivals::Arrivals;
use crate::endpoint::{Endpoint, header_bytes};
use crate::error::RecordError;
use crate::log::LogReceiver;
use crate::measurement::{DelayClock, LinkRecording, Measured, Wall};
use crate::message::{Message, Open, RecordRefusal, Report, Welcome};
use crate::plan::{Phase, PlanClock, RecordPlan};
use crate::sender::SILENCE_MAX;
use crate::token::{PROOF_BYTES, RecordToken};

/// Records one link in both directions.
#[derive(Debug)]
pub struct RecordClient {
    plan: RecordPlan,
    header_bytes: u16,
    nonce: u64,
    unix_epoch: Duration,
    handshake: Handshake,
    clock: Option<PlanClock>,
    endpoint: Option<Endpoint>,
    /// When the server last acknowledged a packet of the client.
    answered_at: Instant,
    wall: Option<Wall>,
    log: LogReceiver,
    log_discarded: u32,
    up: Arrivals,
    down: Arrivals,
    up_bytes: u64,
    round_trip: Option<Duration>,
    finish: Option<Finish>,
    refused: Option<RecordRefusal>,
    token: Option<RecordToken>,
}

#[derive(Clone, Copy, Debug)]
enum Handshake {
    Idle,
    Challenge {
        next: Instant,
    },
    /// The client has the secret, but has not requested a session.
    Ready {
        token: u64,
    },
    Welcome {
        token: u64,
        next: Instant,
        until: Instant,
    },
}

#[derive(Clone, Copy, Debug)]
struct Finish {
    elapsed: Duration,
    /// When to stop waiting for the rest of the server's log.
    deadline: Instant,
    complete: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordProgress {
    /// The elapsed part of the plan.
    pub elapsed: Duration,
    /// The cycle, from 1; 0 before the first.
    pub cycle: u16,
    pub phase: RecordPhase,
    /// Bytes of data received by the server, as IP packets.
    pub up_bytes: u64,
    /// Bytes of data received by the client, as IP packets.
    pub down_bytes: u64,
    /// The round-trip time of the last report.
    pub round_trip: Option<Duration>,
}

roadweave_proto::named! {
    RecordPhase {
        /// The client looks for the server, initially or again.
        Connecting = "connecting",
        /// The client waits for the start of the plan.
        Ready = "ready",
        /// The link is filled.
        Saturating = "saturating",
        /// The queue drains, or delays are measured.
        Probing = "probing",
        /// The client fetches the rest of the server's log.
        Finishing = "finishing",
        Done = "done",
    }
}

impl RecordClient {
    /// A client that looks for the server.
    ///
    /// `nonce` is random; `unix_epoch` is the wall clock, since 1970, at [`Instant::ZERO`].
    pub fn new(plan: RecordPlan, is_ipv4: bool, nonce: u64, unix_epoch: Duration) -> Self {
        Self {
            plan,
            header_bytes: header_bytes(is_ipv4),
            nonce,
            unix_epoch,
            handshake: Handshake::Challenge { next: Instant::ZERO },
            clock: None,
            endpoint: None,
            answered_at: Instant::ZERO,
            wall: None,
            log: LogReceiver::default(),
            log_discarded: 0,
            up: Arrivals::default(),
            down: Arrivals::default(),
            up_bytes: 0,
            round_trip: None,
            finish: None,
            refused: None,
            token: None,
        }
    }

    /// Sets the token that the client proves to have.
    pub fn with_token(self, token: Option<RecordToken>) -> Self {
        Self { token, ..self }
    }

    pub fn plan(&self) -> &RecordPlan {
        &self.plan
    }

    /// Whether the server has answered.
    pub fn is_ready(&self) -> bool {
        self.endpoint.is_some() || !matches!(self.handshake, Handshake::Challenge { .. })
    }

    /// Why the server refused, if it did.
    pub fn refusal(&self) -> Option<RecordRefusal> {
        self.refused
    }

    /// Starts the plan; all links of a vehicle at the same time, ready or not.
    pub fn start(&mut self, now: Instant) {
        self.clock = Some(PlanClock::new(now, Duration::ZERO));
    }

    /// Ends the plan now, if it has not ended, and fetches the rest of the log.
    pub fn finish(&mut self, now: Instant) {
        if self.finish.is_none() {
            let elapsed = self.clock.map_or(Duration::ZERO, |clock| clock.elapsed(now));
            let elapsed = elapsed.min(self.plan.duration());
            let deadline = now + FINISH_MAX;
            self.finish = Some(Finish { elapsed, deadline, complete: false, closed: false });
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.sender.finish();
            }
        }
    }

    /// Whether the recording is over.
    pub fn is_done(&self, now: Instant) -> bool {
        let over = |finish: &Finish| finish.complete || now >= finish.deadline;
        self.refused.is_some()
            || self.finish.as_ref().is_some_and(|finish| self.endpoint.is_none() || over(finish))
    }

    pub fn handle_datagram(&mut self, now: Instant, payload: &[u8]) {
        match Message::decode(payload) {
            Some(Message::Challenge { nonce, token }) if nonce == self.nonce => {
                if let Handshake::Challenge { .. } = self.handshake {
                    self.handshake = Handshake::Ready { token };
                }
            }
            Some(Message::Welcome(welcome)) => self.handle_welcome(now, welcome),
            Some(Message::Refuse { to, why }) => self.handle_refusal(to, why),
            Some(Message::Packet(packet)) => {
                let arrivals = &mut self.down;
                if let Some(endpoint) = session(&mut self.endpoint, packet.token) {
                    let plan = &self.plan;
                    endpoint.handle_packet(now, &packet, &mut |entry| arrivals.add(plan, entry));
                }
            }
            Some(Message::Report(report)) => self.handle_report(now, &report, payload.len()),
            _ => {}
        }
    }

    /// The next datagram to send to the server.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.is_done(now) {
            return self.poll_close();
        }
        let is_over = |clock: PlanClock| clock.elapsed(now) >= self.plan.duration();
        if self.clock.is_some_and(is_over) {
            self.finish(now);
        }
        if let Some(datagram) = self.poll_handshake(now) {
            return Some(datagram);
        }
        let endpoint = self.endpoint.as_mut()?;
        let confirmed = self.log.count;
        // A probe does not wait behind a report.
        if let Some(packet) = endpoint.poll_packet(now, confirmed) {
            return Some(packet);
        }
        let (plan, arrivals) = (&self.plan, &mut self.down);
        let report = endpoint.receiver.poll_report(now, &mut |entry| arrivals.add(plan, entry))?;
        Some(Message::Report(Report { token: endpoint.token, confirmed, ..report }).encode())
    }

    /// When to call [`RecordClient::poll_transmit`] next; [`Instant::FAR_FUTURE`] for never.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        if self.is_done(now) {
            return Instant::FAR_FUTURE;
        }
        let handshake = match self.handshake {
            Handshake::Challenge { next } | Handshake::Welcome { next, .. } => next,
            Handshake::Ready { .. } if self.clock.is_some() => now,
            Handshake::Ready { .. } => Instant::FAR_FUTURE,
            Handshake::Idle => self.silent_from(),
        };
        let endpoint = self.endpoint.as_ref();
        let session = endpoint.map_or(Instant::FAR_FUTURE, |end| end.poll_timeout(now));
        let finish = self.finish.map_or(Instant::FAR_FUTURE, |finish| finish.deadline);
        let over = self.clock.filter(|_| self.finish.is_none());
        let over = over.map_or(Instant::FAR_FUTURE, |clock| clock.instant(self.plan.duration()));
        handshake.min(session).min(finish).min(over)
    }

    pub fn progress(&self, now: Instant) -> RecordProgress {
        let elapsed = self.clock.map_or(Duration::ZERO, |clock| clock.elapsed(now));
        let moment = self.plan.moment(elapsed, true);
        let phase = match &self.endpoint {
            _ if self.is_done(now) => RecordPhase::Done,
            _ if self.finish.is_some() => RecordPhase::Finishing,
            None if self.clock.is_none() && self.is_ready() => RecordPhase::Ready,
            None => RecordPhase::Connecting,
            Some(_) if now >= self.silent_from() => RecordPhase::Connecting,
            Some(_) if moment.phase == Phase::Saturate => RecordPhase::Saturating,
            Some(_) => RecordPhase::Probing,
        };
        let down_bytes = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.receiver.bytes);
        RecordProgress {
            elapsed: elapsed.min(self.plan.duration()),
            cycle: moment.cycle.min(self.plan.cycles()),
            phase,
            up_bytes: self.up_bytes,
            down_bytes,
            round_trip: self.round_trip,
        }
    }

    pub fn recording(&self, delay_clock: DelayClock) -> Result<LinkRecording, RecordError> {
        if let Some(why) = self.refused {
            return Err(RecordError::Refused(why));
        }
        if self.endpoint.is_none() {
            return Err(RecordError::NoAnswer);
        }
        let measured = Measured {
            plan: &self.plan,
            elapsed: self.finish.map_or(Duration::ZERO, |finish| finish.elapsed),
            up: &self.up,
            down: &self.down,
            wall: self.wall.filter(|_| delay_clock == DelayClock::Synchronized),
            entries_missing: u64::from(self.log_discarded) + self.log.missing(),
        };
        measured.recording()
    }

    fn handle_welcome(&mut self, now: Instant, welcome: Welcome) {
        let (Handshake::Welcome { token, .. }, Some(clock)) = (self.handshake, self.clock) else {
            return;
        };
        if welcome.token != token {
            return;
        }
        self.handshake = Handshake::Idle;
        self.answered_at = now;
        match &mut self.endpoint {
            Some(endpoint) if welcome.resumed => endpoint.on_heard(now),
            _ => {
                let (up, header_bytes) = (self.plan.up, self.header_bytes);
                let mut endpoint = Endpoint::new(now, token, &self.plan, clock, up, header_bytes);
                if self.finish.is_some() {
                    endpoint.sender.finish();
                }
                self.endpoint = Some(endpoint);
                self.log = LogReceiver::default();
            }
        }
        let start = self.unix_epoch + clock.instant(Duration::ZERO).since(Instant::ZERO);
        let client_us = u64::try_from(start.as_micros()).unwrap_or(u64::MAX);
        self.wall = Some(Wall { client_us, server_us: welcome.start_unix_us });
    }

    fn handle_refusal(&mut self, to: u64, why: RecordRefusal) {
        let is_ours = match self.handshake {
            Handshake::Challenge { .. } => to == self.nonce,
            Handshake::Welcome { token, .. } => to == token,
            Handshake::Ready { .. } | Handshake::Idle => false,
        };
        // A lost session that cannot be resumed ends, but keeps its recording.
        if is_ours && self.endpoint.is_none() {
            self.refused = Some(why);
        }
    }

    fn handle_report(&mut self, now: Instant, report: &Report, payload_bytes: usize) {
        let Some(endpoint) = session(&mut self.endpoint, report.token) else { return };
        let (plan, arrivals) = (&self.plan, &mut self.down);
        let log = &mut |entry| arrivals.add(plan, entry);
        if endpoint.handle_report(now, report, payload_bytes, log) {
            self.answered_at = now;
            self.handshake = Handshake::Idle;
        }
        let sent = Duration::from_micros(report.sent_us);
        let held = Duration::from_micros(report.held_us.into());
        let elapsed = self.clock.map_or(Duration::ZERO, |clock| clock.elapsed(now));
        self.round_trip = Some(elapsed.saturating_sub(sent + held));
        self.up_bytes = self.up_bytes.max(report.bytes);
        self.log_discarded = self.log_discarded.max(report.log_discarded);
        for entry in self.log.accept(report.log_first, report.log_end, &report.entries) {
            self.up.add(&self.plan, *entry);
        }
        if let Some(finish) = &mut self.finish {
            // A packet sent after the end has arrived: earlier packets have arrived or are lost.
            finish.complete |= sent >= finish.elapsed && self.log.is_complete();
        }
    }

    fn poll_handshake(&mut self, now: Instant) -> Option<Vec<u8>> {
        let begins = match self.handshake {
            Handshake::Idle => self.endpoint.is_some() && now >= self.silent_from(),
            Handshake::Challenge { next } => next <= now,
            // The secret is invalid, as after a restart of the server.
            Handshake::Welcome { until, .. } => until <= now,
            Handshake::Ready { .. } => false,
        };
        if begins {
            self.handshake = Handshake::Challenge { next: now + RETRY };
            return Some(Message::Hello { nonce: self.nonce }.encode());
        }
        let (token, until) = match self.handshake {
            Handshake::Ready { token } => (token, now + OPEN_MAX),
            Handshake::Welcome { token, next, until } if next <= now => (token, until),
            _ => return None,
        };
        let elapsed_us = self.clock?.elapsed_us(now);
        self.handshake = Handshake::Welcome { token, next: now + RETRY, until };
        Some(self.open(token, elapsed_us))
    }

    fn open(&self, token: u64, elapsed_us: u64) -> Vec<u8> {
        let resume = self.endpoint.as_ref().map_or(0, |endpoint| endpoint.token);
        let proof = [0; PROOF_BYTES];
        let mut open = Open { token, resume, elapsed_us, plan: self.plan.clone(), proof };
        if let Some(token) = &self.token {
            open.proof = token.prove(&open.request());
        }
        Message::Open(open).encode()
    }

    fn poll_close(&mut self) -> Option<Vec<u8>> {
        let finish = self.finish.as_mut().filter(|finish| !finish.closed)?;
        finish.closed = true;
        let token = self.endpoint.as_ref()?.token;
        Some(Message::Close { token }.encode())
    }

    fn silent_from(&self) -> Instant {
        let endpoint = self.endpoint.as_ref();
        endpoint.map_or(Instant::FAR_FUTURE, |_| self.answered_at + SILENCE_MAX)
    }
}

fn session(endpoint: &mut Option<Endpoint>, token: u64) -> Option<&mut Endpoint> {
    endpoint.as_mut().filter(|endpoint| endpoint.token == token)
}

/// Interval of requests without an answer.
const RETRY: Duration = Duration::from_millis(500);
const OPEN_MAX: Duration = Duration::from_secs(5);
const FINISH_MAX: Duration = Duration::from_secs(5);
