//! The connection to the controllers: one stream at a time, with ever longer rests between rounds
//! of attempts. Addresses and routes are tried in parallel, so a bad one does not block the others.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use roadweave_fleet::{Down, FrameError, Up};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, Refusal};
use roadweave_linux::lookup::Found;
use roadweave_linux::{DeviceError, Waker, wait_any};
use roadweave_proto::{Instant, ServerName};
use rustix::event::{PollFd, PollFlags};

use super::backoff::Backoff;
use super::controller_route::ControllerRoute;
use super::stream::{ControllerStream, StreamError};

const STAGGER: Duration = Duration::from_millis(300);
const ATTEMPTS_MAX: usize = 4;
const ADDRESSES_MAX: usize = 32;
const WAYS_MAX: usize = 8;
const HELD: Duration = Duration::from_secs(30);
const REASON_MAX: usize = 400;

#[derive(Debug)]
pub(super) enum ConnectionEvent {
    Up {
        address: SocketAddr,
        way: String,
        controller: PublicKey,
    },
    Frame(Down),
    /// The stream ended, or a round failed.
    Down {
        reason: String,
    },
}

#[derive(Debug, Default)]
pub(super) struct Controllers(RwLock<BTreeSet<PublicKey>>);

impl Controllers {
    pub(super) fn set(&self, keys: BTreeSet<PublicKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }
}

impl PeerPolicy for Controllers {
    fn check(&self, key: &PublicKey) -> Result<(), Refusal> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if keys.contains(key) { Ok(()) } else { Err(Refusal::Unknown) }
    }
}

pub(super) struct ConnectionOptions {
    pub(super) identity: Arc<Identity>,
    pub(super) controllers: Arc<Controllers>,
    pub(super) names: Vec<ServerName>,
    pub(super) seed: u64,
    pub(super) keep_alive: Duration,
}

pub(super) struct ControllerConnection {
    options: ConnectionOptions,
    waker: Waker,
    ways: Vec<ControllerRoute>,
    backoff: Backoff,
    state: ConnectionState,
    events: VecDeque<ConnectionEvent>,
}

enum ConnectionState {
    Resting(Instant),
    Dialling(Dialling),
    Up { stream: Box<ControllerStream>, since: Instant },
}

struct Dialling {
    sender: Sender<(ControllerRoute, Found)>,
    answers: Receiver<(ControllerRoute, Found)>,
    legs: Vec<Leg>,
    attempts: Vec<ControllerStream>,
    next_start: Instant,
    reasons: Vec<String>,
}

struct Leg {
    way: ControllerRoute,
    /// Dropping it ends the look-up's thread; `None` once it has answered.
    look_up: Option<Arc<()>>,
    waiting: VecDeque<SocketAddr>,
    tried: usize,
}

impl ControllerConnection {
    pub(super) fn new(
        now: Instant,
        options: ConnectionOptions,
        ways: Vec<ControllerRoute>,
    ) -> Result<Self, DeviceError> {
        let backoff = Backoff::new(options.seed);
        let (waker, state, events) =
            (Waker::new()?, ConnectionState::Resting(now), VecDeque::new());
        Ok(Self { options, waker, ways, backoff, state, events })
    }

    pub(super) fn set_names(&mut self, names: Vec<ServerName>) {
        self.options.names = names;
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub(super) fn wait(&mut self, now: Instant, until: Option<Instant>) {
        let until = [until, self.poll_timeout()].into_iter().flatten().min();
        let timeout = until.map_or(WAIT_MAX, |until| until.since(now)).min(WAIT_MAX);
        let streams: Vec<&ControllerStream> = match &self.state {
            ConnectionState::Resting(_) => Vec::new(),
            ConnectionState::Dialling(dialling) => dialling.attempts.iter().collect(),
            ConnectionState::Up { stream, .. } => vec![stream],
        };
        let of_stream = |stream| PollFd::new(stream, interest_of(stream));
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        fds.extend(streams.into_iter().map(of_stream));
        if let Err(error) = wait_any(&mut fds, timeout) {
            tracing::warn!(%error, "cannot wait for the controller");
        }
        self.waker.clear();
    }

    pub(super) fn set_ways(&mut self, now: Instant, ways: Vec<ControllerRoute>) {
        let is_there = |way: &ControllerRoute| ways.iter().any(|other| other.is_same(way));
        let is_new = ways.iter().any(|way| !self.ways.iter().any(|other| other.is_same(way)));
        let lost = match &self.state {
            ConnectionState::Up { stream, .. } => !is_there(&stream.way),
            _ => false,
        };
        self.ways = ways;
        self.ways.truncate(WAYS_MAX);
        if lost {
            self.end(now, "the route of the connection is gone".to_owned());
            self.state = ConnectionState::Resting(now);
        } else if matches!(self.state, ConnectionState::Dialling(_)) {
            self.change_round();
        } else if is_new && matches!(self.state, ConnectionState::Resting(_)) {
            self.state = ConnectionState::Resting(now);
        }
    }

    fn change_round(&mut self) {
        let ConnectionState::Dialling(dialling) = &mut self.state else { return };
        let is_there = |way: &ControllerRoute| self.ways.iter().any(|other| other.is_same(way));
        dialling.legs.retain(|leg| is_there(&leg.way));
        dialling.attempts.retain(|stream| is_there(&stream.way));
        for way in &self.ways {
            if !dialling.legs.iter().any(|leg| leg.way.is_same(way)) {
                dialling.look_up(way, &self.options.names, self.waker.clone());
            }
        }
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        match &self.state {
            ConnectionState::Up { stream, .. } => stream.peer(),
            _ => None,
        }
    }

    pub(super) fn end(&mut self, now: Instant, reason: String) {
        if let ConnectionState::Up { since, .. } = &self.state
            && now.since(*since) >= HELD
        {
            self.backoff.settle();
        }
        self.state = ConnectionState::Resting(now + self.backoff.next());
        self.events.push_back(ConnectionEvent::Down { reason });
    }

    pub(super) fn has_room(&mut self) -> bool {
        match &mut self.state {
            ConnectionState::Up { stream, .. } => stream.has_room(),
            _ => false,
        }
    }

    pub(super) fn send(&mut self, now: Instant, message: &Up) -> Result<(), FrameError> {
        let ConnectionState::Up { stream, .. } = &mut self.state else { return Ok(()) };
        match stream.send(message) {
            Err(StreamError::Frame(error)) => return Err(error),
            Err(error) => self.end(now, error.to_string()),
            Ok(()) => {}
        }
        Ok(())
    }

    pub(super) fn seek(&mut self, now: Instant) {
        if let ConnectionState::Resting(until) = &mut self.state {
            *until = now.min(*until);
        }
    }

    /// The answer comes after all that the controller has sent before.
    pub(super) fn ask(&mut self, now: Instant) {
        let ConnectionState::Up { stream, .. } = &mut self.state else { return };
        if let Err(error) = stream.ask(now) {
            self.end(now, error.to_string());
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            ConnectionState::Resting(_) if self.ways.is_empty() => None,
            ConnectionState::Resting(until) => Some(*until),
            ConnectionState::Up { stream, .. } => Some(stream.poll_timeout()),
            ConnectionState::Dialling(dialling) => {
                let attempts = dialling.attempts.iter().map(ControllerStream::poll_timeout);
                let next = dialling.next_leg().map(|_| dialling.next_start);
                attempts.chain(next).min()
            }
        }
    }

    pub(super) fn turn(&mut self, now: Instant) {
        match &mut self.state {
            ConnectionState::Resting(until) if *until <= now && !self.ways.is_empty() => {
                self.dial(now)
            }
            ConnectionState::Resting(_) => {}
            ConnectionState::Dialling(_) => self.turn_dialling(now),
            ConnectionState::Up { stream, .. } => {
                let result = stream.turn(now);
                let frames = std::iter::from_fn(|| stream.poll_frame());
                self.events.extend(frames.map(ConnectionEvent::Frame));
                if let Err(error) = result {
                    self.end(now, error.to_string());
                }
            }
        }
    }

    fn dial(&mut self, now: Instant) {
        let (sender, answers) = channel();
        self.state = ConnectionState::Dialling(Dialling {
            sender,
            answers,
            legs: Vec::new(),
            attempts: Vec::new(),
            next_start: now,
            reasons: Vec::new(),
        });
        self.change_round();
        self.turn_dialling(now);
    }

    fn turn_dialling(&mut self, now: Instant) {
        let ConnectionState::Dialling(dialling) = &mut self.state else { return };
        dialling.take_answers(self.backoff.failures);
        for mut stream in std::mem::take(&mut dialling.attempts) {
            match stream.turn(now) {
                Ok(()) if stream.peer().is_some() => return self.on_up(now, stream),
                Ok(()) => dialling.attempts.push(stream),
                Err(error) => dialling.fail(now, &stream.way, stream.address, &error),
            }
        }
        while dialling.attempts.is_empty() || dialling.next_start <= now {
            let Some((way, address)) = dialling.poll_address() else { break };
            dialling.next_start = now + STAGGER;
            let ConnectionOptions { identity, controllers, keep_alive, .. } = &self.options;
            let (policy, route) = (controllers.clone(), way.clone());
            match ControllerStream::begin(now, identity, policy, route, address, *keep_alive) {
                Ok(stream) => dialling.attempts.push(stream),
                Err(error) => dialling.fail(now, &way, address, &error),
            }
        }
        if dialling.is_over() {
            let reason = dialling.reason();
            self.end(now, reason);
        }
    }

    fn on_up(&mut self, now: Instant, stream: ControllerStream) {
        let Some(controller) = stream.peer() else { return };
        let (address, way) = (stream.address, stream.way.to_string());
        self.state = ConnectionState::Up { stream: Box::new(stream), since: now };
        self.events.push_back(ConnectionEvent::Up { address, way, controller });
        self.turn(now);
    }
}

impl Dialling {
    fn look_up(&mut self, way: &ControllerRoute, names: &[ServerName], waker: Waker) {
        let interest = Arc::new(());
        let job = (way.clone(), names.to_vec(), Arc::downgrade(&interest));
        let sender = self.sender.clone();
        let work = move || {
            let (way, names, interest) = job;
            let addresses = way.look_up(&names, &interest);
            let _ = sender.send((way, addresses));
            waker.wake();
        };
        let spawned = std::thread::Builder::new().name("fleet-lookup".into()).spawn(work);
        let look_up = spawned.is_ok().then_some(interest);
        let failed = |error| format!("cannot start a thread for a look-up: {error}");
        self.note(spawned.err().map(failed));
        self.legs.push(Leg { way: way.clone(), look_up, waiting: VecDeque::new(), tried: 0 });
    }

    fn take_answers(&mut self, failures: u32) {
        while let Ok((way, found)) = self.answers.try_recv() {
            let share = ADDRESSES_MAX / self.legs.len().max(1);
            let of_way = |leg: &&mut Leg| leg.look_up.is_some() && leg.way.is_same(&way);
            let Some(leg) = self.legs.iter_mut().find(of_way) else { continue };
            leg.look_up = None;
            let Found { mut servers, reason, .. } = found;
            if !servers.is_empty() {
                let first = failures as usize % servers.len();
                servers.rotate_left(first);
            }
            leg.waiting.extend(servers.into_iter().take(share));
            self.note(reason.map(|reason| format!("{way}: {reason}")));
        }
    }

    fn next_leg(&self) -> Option<usize> {
        let of_leg =
            |leg: &Leg| self.attempts.iter().filter(|stream| stream.way.is_same(&leg.way)).count();
        let legs = self.legs.iter().enumerate().filter(|(_, leg)| !leg.waiting.is_empty());
        let open = legs.map(|(at, leg)| (of_leg(leg), leg.tried, at));
        open.filter(|(attempts, ..)| *attempts < ATTEMPTS_MAX).min().map(|(.., at)| at)
    }

    fn poll_address(&mut self) -> Option<(ControllerRoute, SocketAddr)> {
        let at = self.next_leg()?;
        let leg = self.legs.get_mut(at)?;
        leg.tried += 1;
        Some((leg.way.clone(), leg.waiting.pop_front()?))
    }

    fn is_over(&self) -> bool {
        let is_done = |leg: &Leg| leg.look_up.is_none() && leg.waiting.is_empty();
        self.attempts.is_empty() && self.legs.iter().all(is_done)
    }

    fn fail(
        &mut self,
        now: Instant,
        way: &ControllerRoute,
        address: SocketAddr,
        error: &StreamError,
    ) {
        let over = way.interface().map(|name| format!(" over {name}")).unwrap_or_default();
        self.note(Some(format!("{address}{over}: {error}")));
        self.next_start = now;
    }

    fn note(&mut self, reason: Option<String>) {
        if let Some(reason) = reason
            && !self.reasons.contains(&reason)
        {
            self.reasons.push(reason);
        }
    }

    fn reason(&self) -> String {
        let reason = self.reasons.join("; ");
        match reason.is_empty() {
            true => "no address".to_owned(),
            false => reason.chars().take(REASON_MAX).collect(),
        }
    }
}

fn interest_of(stream: &ControllerStream) -> PollFlags {
    if stream.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
}

/// An upper bound, in case a wake-up is missed.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests;
