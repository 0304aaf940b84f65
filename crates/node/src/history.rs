//! The readings of an instance in the last minute, and its events, for a terminal or a page.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use roadweave_proto::PathStatus;
use roadweave_tunnel::{PathStatusReport, SessionStatus};

use crate::modem::ModemFacts;
use crate::status::{ClientStatus, RoleStatus, Status};

const SAMPLES: usize = 120;
const EVENTS: usize = 100;
const LATELY: Duration = Duration::from_secs(60);

/// The recent history of an instance.
#[derive(Debug, Default)]
pub struct History {
    /// The newest status; the last known one while the instance does not answer.
    pub status: Option<Status>,
    /// When `status` was read.
    pub read_at: Option<Instant>,
    /// Why the instance does not answer now.
    pub away: Option<String>,
    /// Inner packets into the tunnel and out of it, bits a second.
    pub goodput: Option<[f64; 2]>,
    /// By uplink.
    pub links: BTreeMap<String, Link>,
    /// By the client's key, at a server: bits a second sent and received.
    pub clients: BTreeMap<String, [f64; 2]>,
    /// The newest first; names that others chose are not escaped.
    pub events: VecDeque<(Instant, String)>,
    /// The number of events so far.
    pub events_added: u64,
    delays: VecDeque<(Instant, Option<f64>)>,
    interval: Duration,
}

/// One uplink, with the readings of the last minute, the newest last.
#[derive(Debug, Default)]
pub struct Link {
    /// The status of its path, if it has one.
    pub status: Option<PathStatus>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether a captive portal of its network requires a login.
    pub has_portal: bool,
    /// The report of its modem, if there is one.
    pub modem: Option<ModemFacts>,
    /// Bits a second, sent and received.
    pub rates: [f64; 2],
    /// The smoothed round trip, ms.
    pub round_trip_ms: f64,
    /// The recent share of lost packets, 0 to 1.
    pub loss: f64,
    /// Bytes that are left of the day or of the month, where there is a cap.
    pub left_bytes: Option<u64>,
    /// Of each reading: both directions together.
    pub kbps: VecDeque<u64>,
    /// Of each reading.
    pub round_trips_ms: VecDeque<u64>,
    /// Of each reading.
    pub loss_permille: VecDeque<u64>,
}

impl History {
    /// An empty history; the status is read every `interval`.
    pub fn new(interval: Duration) -> Self {
        Self { interval, ..Self::default() }
    }

    /// Adds a status.
    pub fn take(&mut self, now: Instant, status: Status) {
        self.read_at = Some(now);
        if self.away.take().is_some() {
            self.add_event(now, "it answers again".to_owned());
        }
        // A smaller uptime means that the instance restarted and its counters were reset.
        let before = self.status.take();
        let before = before.filter(|before| before.uptime_seconds < status.uptime_seconds);
        let seconds = before.as_ref().map(|before| status.uptime_seconds - before.uptime_seconds);
        self.goodput = before.as_ref().zip(seconds).map(|(before, seconds)| {
            let bytes = |of: &Status| [of.device.bytes_read, of.device.bytes_written];
            rates(bytes(before), bytes(&status), seconds)
        });
        match &status.role {
            RoleStatus::Client(client) => self.take_client(now, client, before.as_ref(), seconds),
            _ => self.take_sessions(now, &status, before.as_ref(), seconds),
        }
        self.status = Some(status);
    }

    /// Notes that the instance does not answer, and why.
    pub fn miss(&mut self, now: Instant, why: String) {
        if self.away.is_none() {
            self.add_event(now, why.clone());
        }
        self.away = Some(why);
        self.goodput = None;
        self.links.values_mut().for_each(|link| link.rates = [0.0; 2]);
        self.clients.clear();
        self.sample(now, None);
    }

    fn take_sessions(
        &mut self,
        now: Instant,
        status: &Status,
        before: Option<&Status>,
        seconds: Option<f64>,
    ) {
        let old = before.map(|before| bytes_of(before.role.sessions())).unwrap_or_default();
        let new = bytes_of(status.role.sessions());
        if let Some(before) = before {
            let (was, is) = (before.role.sessions(), status.role.sessions());
            let came = is.iter().filter(|session| !old.contains_key(&session.public_key));
            let went = was.iter().filter(|session| !new.contains_key(&session.public_key));
            let came = came.map(|session| format!("{} has a session", session.peer));
            let went = went.map(|session| gone(status, session));
            came.chain(went).take(EVENTS).for_each(|event| self.add_event(now, event));
        }
        let rates = new.into_iter().filter_map(|(key, new)| {
            let (old, seconds) = (old.get(&key)?, seconds?);
            Some((key, rates(*old, new, seconds)))
        });
        self.clients = rates.collect();
    }

    fn take_client(
        &mut self,
        now: Instant,
        client: &ClientStatus,
        before: Option<&Status>,
        seconds: Option<f64>,
    ) {
        let was = before.and_then(|before| match &before.role {
            RoleStatus::Client(was) => Some(was),
            _ => None,
        });
        match (was.is_some_and(|was| !was.sessions.is_empty()), client.sessions.first()) {
            (true, None) => {
                let why = client.no_session.clone().unwrap_or_default();
                self.add_event(now, format!("the session is over: {why}"));
            }
            (false, Some(session)) => self.add_event(now, format!("session with {}", session.peer)),
            _ => {}
        }
        let (old, new) = (was.map(bytes_over).unwrap_or_default(), bytes_over(client));
        let names = client.uplinks.iter().map(|uplink| uplink.name.clone());
        let known: Vec<String> = names.chain(client.paused.iter().cloned()).collect();
        let mut events = Vec::new();
        self.links.retain(|name, _| {
            let is_here = known.contains(name) || new.contains_key(name);
            if !is_here {
                events.push(format!("{name} is gone"));
            }
            is_here
        });
        for name in known.into_iter().chain(new.keys().cloned()) {
            self.links.entry(name).or_default();
        }
        let mut best: Option<f64> = None;
        for (name, link) in &mut self.links {
            let paths = client.paths().filter(|path| path.uplink.as_ref() == Some(name));
            let path = paths.max_by_key(|path| path.status == PathStatus::Usable);
            let status = path.map(|path| path.status);
            if link.status != status && before.is_some() {
                let word = status.map_or("without a path", PathStatus::name);
                events.push(format!("{name} is {word}"));
            }
            link.status = status;
            link.is_paused = client.paused.contains(name);
            let mut uplinks = client.uplinks.iter().filter(|uplink| uplink.name == *name);
            let has_portal = uplinks.any(|uplink| uplink.portal.is_some());
            if link.has_portal != has_portal && before.is_some() {
                events.push(match has_portal {
                    true => format!("{name} is behind a portal: log in to its network"),
                    false => format!("{name} is no longer behind a portal"),
                });
            }
            link.has_portal = has_portal;
            link.modem = client.modems.get(name).cloned();
            let both = old.get(name).zip(new.get(name)).zip(seconds);
            link.rates = both.map_or([0.0; 2], |((old, new), seconds)| rates(*old, *new, seconds));
            link.round_trip_ms = path.map_or(0.0, |path| path.smoothed_rtt_ms);
            link.loss = path.map_or(0.0, |path| path.loss.into());
            link.left_bytes = path.and_then(PathStatusReport::nearest_cap).map(|(left, _)| left);
            push(&mut link.kbps, ((link.rates[0] + link.rates[1]) / 1e3) as u64);
            push(&mut link.round_trips_ms, link.round_trip_ms as u64);
            push(&mut link.loss_permille, (link.loss * 1e3) as u64);
            if status == Some(PathStatus::Usable) {
                best = Some(best.map_or(link.round_trip_ms, |best| best.min(link.round_trip_ms)));
            }
        }
        events.into_iter().for_each(|event| self.add_event(now, event));
        self.sample(now, best);
    }

    fn sample(&mut self, now: Instant, delay: Option<f64>) {
        self.delays.push_back((now, delay));
        while self.delays.front().is_some_and(|(at, _)| now.duration_since(*at) > LATELY) {
            self.delays.pop_front();
        }
    }

    /// The 99th percentile of the best path's round trip in the last minute, ms.
    pub fn delay_p99_ms(&self) -> Option<f64> {
        let mut all: Vec<f64> = self.delays.iter().filter_map(|(_, delay)| *delay).collect();
        all.sort_by(f64::total_cmp);
        all.get((all.len() * 99).div_ceil(100).max(1) - 1).copied()
    }

    /// How often in the last minute no path was usable, and for about how long together.
    pub fn stalls(&self) -> (usize, Duration) {
        let (mut count, mut stands) = (0, false);
        for (_, delay) in &self.delays {
            count += usize::from(delay.is_none() && !stands);
            stands = delay.is_none();
        }
        let next = self.delays.iter().skip(1).map(|(at, _)| *at);
        let next = next.chain(self.delays.back().map(|(at, _)| *at + self.interval));
        let all = self.delays.iter().zip(next).filter(|((_, delay), _)| delay.is_none());
        (count, all.map(|((at, _), next)| next.saturating_duration_since(*at)).sum())
    }

    /// Adds an event.
    pub fn add_event(&mut self, now: Instant, event: String) {
        self.events_added += 1;
        self.events.push_front((now, event));
        self.events.truncate(EVENTS);
    }
}

fn gone(status: &Status, SessionStatus { peer, public_key, .. }: &SessionStatus) -> String {
    let absent = match &status.role {
        RoleStatus::Server(server) => &server.absent[..],
        _ => &[],
    };
    match absent.iter().find(|absent| absent.public_key == *public_key) {
        Some(absent) => format!("{peer} left: {}", absent.reason),
        None => format!("{peer} left"),
    }
}

fn bytes_of(sessions: &[SessionStatus]) -> BTreeMap<String, [u64; 2]> {
    let of = |session: &SessionStatus| {
        let bytes = session.paths.iter().map(|path| path.counters.bytes());
        (session.public_key.clone(), bytes.fold([0; 2], sum))
    };
    sessions.iter().map(of).collect()
}

fn bytes_over(client: &ClientStatus) -> BTreeMap<String, [u64; 2]> {
    let mut bytes = BTreeMap::<String, [u64; 2]>::new();
    for path in client.paths() {
        let of_uplink = bytes.entry(path.uplink.clone().unwrap_or_default()).or_default();
        *of_uplink = sum(*of_uplink, path.counters.bytes());
    }
    bytes
}

fn sum(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|at| one[at].saturating_add(other[at]))
}

fn rates(before: [u64; 2], after: [u64; 2], seconds: f64) -> [f64; 2] {
    [0, 1].map(|at| after[at].saturating_sub(before[at]) as f64 * 8.0 / seconds)
}

fn push(samples: &mut VecDeque<u64>, sample: u64) {
    samples.push_back(sample);
    while samples.len() > SAMPLES {
        samples.pop_front();
    }
}
