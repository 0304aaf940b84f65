//! Boxes and proxies of a fleet: an agent each, and a model of its sessions.

use std::collections::BTreeSet;

use roadweave_fleet::{
    Agent, AgentEvent, Down, Kind, PersistedState, Role, Up, VerifiedServer, Version,
};
use roadweave_proto::Instant;

use super::{FleetEvent, FleetWorld};

pub(super) struct FleetMember {
    pub agent: Agent,
    /// The replica at the other end, and the number of the stream.
    pub stream: Option<(usize, u64)>,
    pub attempt: u64,
    pub tries: u32,
    pub timeout: Option<Instant>,
    pub connected_since: Instant,
    pub up_until: Instant,
    pub down_until: Instant,
    /// Streams opened, messages with their bytes, and time with a stream in ms.
    pub opened: u64,
    pub messages: u64,
    pub bytes: u64,
    pub connected_ms: u64,
}

#[derive(Default)]
pub(super) struct Ride {
    pub on: Option<usize>,
    /// Candidate proxies, and whether each is a last resort.
    pub candidates: Vec<(usize, bool)>,
    pub is_in_garage: bool,
    pub is_cut_off: bool,
    pub is_revoked: bool,
    pub is_forgotten: bool,
    pub in_tables_from: Option<Version>,
    pub round: u64,
    pub lacking: Option<(Shortfall, Instant)>,
}

impl Ride {
    pub(super) fn knows(&self, proxy: usize) -> bool {
        self.candidates.iter().any(|(known, _)| *known == proxy)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortfall {
    Proxy,
    LiveProxy,
}

#[derive(Default)]
pub(super) struct ProxyModel {
    pub is_killed: bool,
    pub is_frozen: bool,
    pub is_draining: bool,
    pub is_partitioned: bool,
    pub boxes: BTreeSet<usize>,
    pub table: Option<Version>,
    pub backlog: Vec<(u64, Vec<Down>)>,
}

impl ProxyModel {
    pub fn is_running(&self) -> bool {
        !self.is_killed && !self.is_frozen
    }
}

const SOFTWARE: &str = "1.0.0";

impl FleetWorld {
    pub(super) fn people(&mut self) {
        for who in 0..self.roster.boxes + self.roster.proxies {
            let agent = self.newcomer(who);
            self.members.push(FleetMember {
                agent,
                stream: None,
                attempt: 0,
                tries: 0,
                timeout: None,
                connected_since: Instant::ZERO,
                up_until: Instant::ZERO,
                down_until: Instant::ZERO,
                opened: 0,
                messages: 0,
                bytes: 0,
                connected_ms: 0,
            });
            match self.roster.is_box(who) {
                true => self.rides.push(Ride::default()),
                false => self.proxies.push(ProxyModel::default()),
            }
        }
        for who in 0..self.members.len() {
            if !self.roster.is_box(who) || who < self.config.boxes {
                self.enrol(who);
                let soon = self.between(0, 10_000);
                self.connect_after(who, soon);
            }
        }
    }

    pub(super) fn newcomer(&self, who: usize) -> Agent {
        let role = if self.roster.is_box(who) { Role::Box } else { Role::Proxy };
        let how = self.roster.joining(who);
        Agent::joining(self.now, self.roster.key(who), role, SOFTWARE, how)
    }

    fn enrol(&mut self, who: usize) {
        let (chain, tenant) = (self.roster.chain(who), self.roster.tenant(who).clone());
        let agent = &mut self.members[who].agent;
        agent.on_stream_up(Instant::ZERO);
        agent.handle_frame(Instant::ZERO, Down::Welcome { chain, tenant });
        agent.on_stream_down(Instant::ZERO);
        while agent.poll_frame().is_some() {}
        while agent.poll_event().is_some() {}
        if self.roster.is_box(who) {
            self.rides[who].in_tables_from = Some(Version::default());
        }
    }

    pub(super) fn restart(&mut self, who: usize) {
        let persisted = self.members[who].agent.persisted();
        let persisted: PersistedState = match self.config.is_thorough {
            true => {
                let text = serde_json::to_string(persisted).expect("it is written as JSON");
                serde_json::from_str(&text).expect("it reads what it has written")
            }
            false => persisted.clone(),
        };
        let role = if self.roster.is_box(who) { Role::Box } else { Role::Proxy };
        let agent = Agent::restore(self.now, self.roster.key(who), role, SOFTWARE, persisted);
        self.members[who].agent = agent;
        self.flush(who);
    }

    pub(super) fn flush(&mut self, who: usize) {
        while let Some(event) = self.members[who].agent.poll_event() {
            self.handle_agent_event(who, event);
        }
        let member = &mut self.members[who];
        let frames: Vec<Up> = std::iter::from_fn(|| member.agent.poll_frame()).collect();
        if let Some(at) = member.agent.poll_timeout()
            && member.timeout.is_none_or(|set| at < set)
        {
            member.timeout = Some(at);
            self.at(at, FleetEvent::Timeout { who });
        }
        self.send_up(who, frames);
    }

    fn handle_agent_event(&mut self, who: usize, event: AgentEvent) {
        let is_box = self.roster.is_box(who);
        match event {
            AgentEvent::Candidates(servers) => {
                let of = |it: &VerifiedServer| Some((self.roster.proxy(&it.key)?, it.last_resort));
                let candidates = servers.iter().filter_map(of).collect();
                self.on_candidates(who, candidates);
            }
            AgentEvent::Configure { text, .. } if is_box => {
                self.on_configure(who, &text.unwrap_or_default());
            }
            AgentEvent::Revoked(keys) if !is_box => {
                let proxy = who - self.roster.boxes;
                for key in keys {
                    self.end_session(proxy, &key);
                }
                self.members[who].agent.on_revoked();
            }
            // A box has no sessions; its candidates are updated separately.
            AgentEvent::Revoked(_) => self.members[who].agent.on_revoked(),
            AgentEvent::Table => self.on_table(who),
            AgentEvent::Drain(drained) => self.on_drain(who - self.roster.boxes, drained),
            AgentEvent::Refused { .. } => {
                let later = self.between(5_000, 15_000);
                self.drop_stream(who, Some(later));
            }
            AgentEvent::Warning(text) => {
                // Expected warnings: revocations of a restored controller are older, and a table
                // arrives twice if a proxy has reported its state twice.
                let meant = ["revocations end at", "missing in the revocations", "is held"];
                let is_meant = meant.iter().any(|meant| text.contains(meant));
                if self.config.is_thorough && !is_meant {
                    let name = if is_box { "box" } else { "proxy" };
                    let at = Self::hours(self.now);
                    self.figures.warn(&format!("{at:.3} h, {name} {who}: {text}"));
                }
                self.figures.warnings += 1;
            }
            AgentEvent::Joined { .. }
            | AgentEvent::Configure { .. }
            | AgentEvent::Anchors(_)
            | AgentEvent::Watch(_)
            | AgentEvent::Persist
            | AgentEvent::Seek => {}
        }
    }

    fn on_table(&mut self, who: usize) {
        let proxy = who - self.roster.boxes;
        let agent = &self.members[who].agent;
        self.proxies[proxy].table = agent.persisted().taken().get(&Kind::Table).copied();
        if self.config.is_thorough {
            let admission = agent.admission();
            let is_withdrawn =
                |why: &roadweave_fleet::Refused| why.to_string().contains("is revoked");
            let wrong = admission.refused.iter().filter(|(_, why)| !is_withdrawn(why)).count();
            self.figures.wrongly_refused += wrong as u64;
        }
        let is_forgotten = |who: &&usize| self.rides[**who].is_forgotten;
        let gone: Vec<usize> =
            self.proxies[proxy].boxes.iter().filter(is_forgotten).copied().collect();
        for who in gone {
            if !self.accepts(proxy, who) {
                self.set_proxy(who, None);
                self.choose_after(who, std::time::Duration::from_secs(5));
            }
        }
    }
}
