//! Controller sessions and agents together: each takes what the other sends, and no more is sent.

mod candidates;
mod draining;
mod faults;
mod revocations;

use super::*;
use crate::agent::{Agent, AgentEvent, Joining, PersistedState};
use crate::document::{Body, Candidate, Candidates, Configuration, Document};
use crate::frame::Outcome;
use crate::statement::Role;
use crate::table::Member;
use crate::testing::{self, at, delegate, key, name, numbered, sign, statement, token};
use crate::trust::Trust;

const ROOT: u8 = 1;
const CONTROLLER: u8 = 2;
const BOX: u8 = 5;
const PROXY: u8 = 20;

fn chain(seed: u8, role: Role, by: u8) -> Chain {
    testing::chain(&[(by, &statement(seed, role))])
}

fn role(seed: u8) -> Role {
    if seed == PROXY { Role::Proxy } else { Role::Box }
}

fn published(epoch: u64, revoked: &[u8]) -> Arc<Published> {
    let mut trust = Trust::pinned(key(ROOT), key(CONTROLLER)).list().clone();
    (trust.number, trust.epoch) = (1 + epoch, epoch);
    let mut revocations = Revocations::default();
    let mut head = Head { epoch, ..Head::EMPTY };
    let mut signed = sign(&head, CONTROLLER);
    if epoch > 0 {
        revocations.extend(&[], &signed, [key(CONTROLLER)]).expect("an epoch begins");
    }
    for seed in revoked {
        let entry = revocations.next(key(*seed));
        head = Head { epoch, serial: entry.serial, hash: entry.hash() };
        signed = sign(&head, CONTROLLER);
        revocations.extend(&[entry], &signed, [key(CONTROLLER)]).expect("taken");
    }
    let trust = vec![PublishedTrust { number: trust.number, list: sign(&trust, ROOT) }];
    Arc::new(Published { trust, revocations, head: signed })
}

fn trust_list(number: u64, root: u8, controller: u8) -> TrustList {
    TrustList { number, ..Trust::pinned(key(root), key(controller)).list().clone() }
}

fn crossed<T: serde::Serialize + for<'a> serde::Deserialize<'a>>(message: &T) -> T {
    let mut decoder = crate::FrameDecoder::default();
    decoder.push(&crate::encode(message).expect("a message"));
    decoder.poll().expect("read").expect("whole")
}

fn frames(session: &mut ControllerSession) -> Vec<Down> {
    std::iter::from_fn(|| session.poll_frame()).collect()
}

fn events(agent: &mut Agent) -> Vec<AgentEvent> {
    std::iter::from_fn(|| agent.poll_event()).collect()
}

struct TestStream {
    agent: Agent,
    session: ControllerSession,
    down: usize,
    events: Vec<AgentEvent>,
    reported: Vec<ControllerSessionEvent>,
}

impl TestStream {
    fn new(agent: Agent, seed: u8, is_member: bool, published: &Arc<Published>) -> Self {
        let session = ControllerSession::new(at(0), key(seed), is_member, published.clone());
        let mut stream = Self { agent, session, down: 0, events: vec![], reported: vec![] };
        stream.up(0);
        stream
    }

    fn of(seed: u8, published: &Arc<Published>) -> Self {
        Self::new(member(seed, published), seed, true, published)
    }

    fn desire<B: Body>(&mut self, subject: u8, number: u64, body: B) {
        let document = document((0, number), subject, body, CONTROLLER).into_envelope();
        self.session.desire(B::KIND, Version { epoch: 0, number }, document);
    }

    fn configure(&mut self, seconds: u64, number: u64, text: &str) {
        self.desire(BOX, number, configuration(text));
        self.turn(seconds);
    }

    fn up(&mut self, seconds: u64) {
        self.agent.on_stream_up(at(seconds));
        self.turn(seconds);
    }

    fn turn(&mut self, seconds: u64) {
        loop {
            let (up, down) = (self.agent.poll_frame(), self.session.poll_frame());
            if up.is_none() && down.is_none() {
                break;
            }
            if let Some(up) = up {
                self.session.handle_frame(at(seconds), crossed(&up));
            }
            if let Some(down) = down {
                self.down += 1;
                self.agent.handle_frame(at(seconds), crossed(&down));
            }
        }
        self.events.extend(events(&mut self.agent));
        self.reported.extend(std::iter::from_fn(|| self.session.poll_event()));
    }

    fn is_confirmed(&self, head: Head) -> bool {
        self.reported.contains(&ControllerSessionEvent::Revoked(head))
    }

    fn surplus(&self) -> Option<(&[Revocation], &Signed<Head>)> {
        self.reported.iter().find_map(|event| match event {
            ControllerSessionEvent::Surplus(entries, head) => Some((&entries[..], head)),
            _ => None,
        })
    }

    fn warnings(&self) -> Vec<&String> {
        let events = self.events.iter();
        let warnings = events.filter_map(|event| match event {
            AgentEvent::Warning(text) => Some(text),
            _ => None,
        });
        warnings.collect()
    }
}

fn joined(seed: u8, chain: Chain, published: &Arc<Published>) -> TestStream {
    let how = Joining { token: token(), name: name("x"), chain: None };
    let agent = Agent::joining(at(0), key(seed), role(seed), "1.0", how);
    let mut stream = TestStream::new(agent, seed, false, published);
    assert!(matches!(stream.reported[..], [ControllerSessionEvent::Join { .. }]));
    stream.session.welcome(chain, name("north"));
    stream.turn(0);
    stream
}

fn member(seed: u8, published: &Arc<Published>) -> Agent {
    let stream = joined(seed, chain(seed, role(seed), ROOT), published);
    assert!(stream.agent.is_member(), "{:?}", stream.events);
    restart(&stream.agent, seed)
}

fn restart(agent: &Agent, seed: u8) -> Agent {
    let text = serde_json::to_string(agent.persisted()).expect("JSON");
    let persisted: PersistedState = serde_json::from_str(&text).expect("kept");
    Agent::restore(at(0), key(seed), role(seed), "1.0", persisted)
}

fn document<B: Body>(
    (epoch, number): (u64, u64),
    subject: u8,
    body: B,
    by: u8,
) -> Signed<Document<B>> {
    let version = Version { epoch, number };
    sign(&Document { subject: key(subject), version, body }, by)
}

fn configuration(text: &str) -> Configuration {
    Configuration { text: text.into(), approval: None }
}

fn table_of(number: u64, members: impl IntoIterator<Item = Member>) -> Arc<PublishedTable> {
    let (table, version) = (Table::of(members), Version { epoch: 0, number });
    let head = sign(&table.head_for(key(PROXY), version), CONTROLLER);
    Arc::new(PublishedTable { version, table, head })
}

fn table(number: u64, seeds: &[u8]) -> Arc<PublishedTable> {
    table_of(number, seeds.iter().map(|seed| testing::member(*seed, chain(*seed, Role::Box, ROOT))))
}

fn admitted(agent: &Agent) -> Vec<PublicKey> {
    agent.admission().admitted.iter().map(|(_, member)| member.key).collect()
}

fn candidate(chain: Chain) -> Candidate {
    let (site, addresses) = (name("fra"), vec!["192.0.2.1:443".into()]);
    Candidate { chain, site, addresses, to_anchor_us: 900, last_resort: false }
}

fn texts(events: &[AgentEvent]) -> Vec<Option<&str>> {
    let texts = events.iter().filter_map(|event| match event {
        AgentEvent::Configure { text, .. } => Some(text.as_deref()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_stranger_may_ask_to_join_and_nothing_else() {
    let published = published(0, &[]);
    let mut session = ControllerSession::new(at(0), key(BOX), false, published);
    session.handle_frame(at(0), Up::Have(HeldVersions::default()));
    assert!(matches!(session.poll_event(), Some(ControllerSessionEvent::End(_))));
    assert!(matches!(session.poll_frame(), Some(Down::Refused { retry: false, .. })));
    session.handle_frame(at(0), Up::Revoked { head: Head::EMPTY });
    assert_eq!(session.poll_event(), None);
}

#[test]
fn a_welcome_of_a_controller_that_cannot_sign_does_not_count() {
    let published = published(0, &[]);
    for wrong in [
        chain(BOX, Role::Box, CONTROLLER),
        chain(6, Role::Box, ROOT),
        chain(BOX, Role::Proxy, ROOT),
    ] {
        let stream = joined(BOX, wrong, &published);
        assert!(!stream.agent.is_member());
        assert_eq!(stream.warnings().len(), 1);
    }
}

#[test]
fn only_what_is_missing_is_sent() {
    let published = published(0, &[30, 31]);
    let mut stream = TestStream::of(BOX, &published);
    stream.configure(1, 1, "a = 1");
    let down = stream.down;
    let again = restart(&stream.agent, BOX);
    let mut stream = TestStream::new(again, BOX, true, &published);
    stream.configure(1, 1, "a = 1");
    assert_eq!((down, stream.down), (1, 0), "{:?}", stream.events);
    assert!(stream.warnings().is_empty());
}

#[test]
fn a_configuration_is_in_force_at_once_confirmed_and_survives() {
    let mut stream = TestStream::of(BOX, &published(0, &[]));
    stream.configure(1, 1, "a = 1");
    assert_eq!(texts(&stream.events), [None, Some("a = 1")]);
    stream.agent.on_session(at(2), true);
    stream.agent.handle_timeout(at(91));
    assert_eq!(stream.agent.persisted().on_trial(), Some(Version { epoch: 0, number: 1 }));
    stream.agent.handle_timeout(at(92));
    stream.turn(92);
    assert_eq!(stream.agent.persisted().on_trial(), None);
    let outcomes = stream.reported.iter().filter_map(|event| match event {
        ControllerSessionEvent::Report(report) => Some(&report.outcome),
        _ => None,
    });
    assert!(outcomes.eq([&Outcome::InForce, &Outcome::Confirmed]), "{:?}", stream.reported);
    assert_eq!(texts(&events(&mut restart(&stream.agent, BOX))), [Some("a = 1")]);
}

#[test]
fn a_configuration_that_cuts_a_box_off_is_taken_back_and_reported() {
    let published = published(0, &[]);
    let mut stream = TestStream::of(BOX, &published);
    for (number, text) in [(1, "good"), (2, "bad")] {
        let since = number * 1_000;
        stream.agent.on_session(at(since), true);
        stream.configure(since, number, text);
        if text == "bad" {
            stream.agent.on_session(at(since), false);
            stream.agent.on_stream_down(at(since));
        }
        stream.agent.handle_timeout(at(since + 20));
        stream.turn(since + 20);
        stream.agent.handle_timeout(at(since + 90));
        stream.turn(since + 90);
    }
    assert_eq!(texts(&stream.events), [None, Some("good"), Some("bad"), Some("good")]);
    stream.agent.on_session(at(2_095), true);
    stream.agent.on_session(at(2_100), false);
    stream.agent.handle_timeout(at(2_190));
    stream.turn(2_190);
    assert_eq!(texts(&stream.events)[4..], [Some("bad"), Some("good")]);
    assert!(stream.agent.persisted().on_trial().is_some());
    stream.agent.on_session(at(2_195), true);
    stream.session = ControllerSession::new(at(2_196), key(BOX), true, published.clone());
    stream.reported.clear();
    stream.up(2_196);
    let taken_back = |event: &ControllerSessionEvent| {
        matches!(
            event,
            ControllerSessionEvent::Report(Report { outcome: Outcome::TakenBack { .. }, .. })
        )
    };
    assert!(stream.reported.iter().any(taken_back), "{:?}", stream.reported);
    stream.configure(2_197, 2, "bad");
    assert_eq!(texts(&stream.events).last(), Some(&Some("good")));
    assert_eq!(stream.agent.persisted().on_trial(), None);
}

#[test]
fn a_member_that_holds_something_newer_is_reported() {
    let published = published(0, &[]);
    let mut stream = TestStream::of(BOX, &published);
    for number in [2, 1] {
        stream.session = ControllerSession::new(at(1), key(BOX), true, published.clone());
        stream.desire(BOX, number, configuration("a = 1"));
        stream.up(1);
    }
    let held = Version { epoch: 0, number: 2 };
    let ahead = ControllerSessionEvent::Ahead { kind: Kind::Configuration, held };
    assert_eq!(stream.reported.iter().filter(|event| **event == ahead).count(), 1);
}

#[test]
fn a_controller_that_retires_takes_nothing_with_it() {
    let before = published(0, &[30]);
    let mut stream = TestStream::of(BOX, &before);
    stream.configure(1, 1, "a = 1");
    let list = sign(&trust_list(2, ROOT, 3), ROOT);
    stream.reported.clear();
    stream.agent.handle_frame(at(2), Down::Trust { list });
    stream.turn(2);
    assert_eq!(texts(&stream.events).last(), Some(&Some("a = 1")), "it stays in force");
    let have = stream.reported.iter().find_map(|event| match event {
        ControllerSessionEvent::Have(have) => Some(have.clone()),
        _ => None,
    });
    let have = have.expect("what it has");
    assert!(have.documents.is_empty() && have.revocations == Head::EMPTY, "{have:?}");
}

#[test]
fn a_table_of_thousands_crosses_in_parts_and_then_by_what_differs() {
    let published = published(0, &[]);
    let mut stream = TestStream::of(PROXY, &published);
    let one = testing::member(BOX, chain(BOX, Role::Box, ROOT));
    let of = |number| Member { key: numbered(number), ..one.clone() };
    let first = table_of(1, (0..1_000).map(of));
    stream.session.desire_table(first.clone(), None);
    stream.turn(1);
    assert!(stream.down > 5 && stream.warnings().is_empty(), "{:?}", stream.warnings());
    assert_eq!(stream.agent.persisted().taken()[&Kind::Table].number, 1);
    let second = table_of(2, (1..1_001).map(of));
    assert_eq!(stream.session.table_version(), Some(first.version));
    let before = stream.down;
    stream.session.desire_table(second.clone(), Some(&first));
    stream.turn(2);
    assert_eq!(stream.agent.persisted().taken()[&Kind::Table].number, 2);
    assert!(stream.down - before <= 2);
    let mut stream = TestStream::of(PROXY, &published);
    stream.session.desire_table(second, Some(&first));
    stream.turn(3);
    assert_eq!(stream.agent.persisted().taken()[&Kind::Table].number, 2);
    assert_eq!(stream.agent.admission().refused.len(), 1_000, "the chain is another's");
}

#[test]
fn a_peer_that_was_away_hears_of_every_rotation_of_the_root() {
    let sign = |number, root: u8, by: u8| PublishedTrust {
        number,
        list: sign(&trust_list(number, root, CONTROLLER), by),
    };
    // Root 1 has named root 40, and that root 41.
    let trust = vec![sign(1, ROOT, ROOT), sign(2, 40, ROOT), sign(3, 41, 40)];
    let before = published(0, &[]);
    let rotated = Published { trust, ..Published::clone(&before) };
    let mut stream = TestStream::new(member(BOX, &before), BOX, true, &Arc::new(rotated.clone()));
    stream.turn(1);
    let trust = stream.agent.persisted().trust();
    assert_eq!(trust.roots().collect::<Vec<_>>(), [key(41)], "{:?}", stream.warnings());
    assert_eq!((trust.list().number, stream.warnings().len()), (3, 0));
    let mut session = ControllerSession::new(at(0), key(BOX), true, Arc::new(rotated));
    session.handle_frame(at(0), Up::Have(HeldVersions { trust: 2, ..HeldVersions::default() }));
    let is_trust = |frame: &&Down| matches!(frame, Down::Trust { .. });
    assert_eq!(frames(&mut session).iter().filter(is_trust).count(), 1);
}

#[test]
fn a_sign_of_life_comes_after_what_is_missing_and_to_strangers_too() {
    let published = published(0, &[7]);
    let mut session = ControllerSession::new(at(0), key(BOX), true, published.clone());
    session.handle_frame(at(0), Up::Have(HeldVersions::default()));
    session.handle_frame(at(0), Up::Alive);
    let frames = frames(&mut session);
    let alive = frames.iter().position(|frame| *frame == Down::Alive);
    let revoke = frames.iter().position(|frame| matches!(frame, Down::Revoke { .. }));
    assert!(revoke < alive && alive == Some(frames.len() - 1), "{frames:?}");
    let mut session = ControllerSession::new(at(0), key(BOX), false, published);
    session.handle_frame(at(0), Up::Alive);
    assert_eq!((session.poll_frame(), session.poll_event()), (Some(Down::Alive), None));
}

#[test]
fn who_floods_is_cut_off() {
    let published = published(0, &[]);
    let mut session = ControllerSession::new(at(0), key(BOX), true, published);
    for _ in 0..2 * BURST {
        session.handle_frame(at(0), Up::Event { text: "x".into() });
    }
    let events: Vec<ControllerSessionEvent> = std::iter::from_fn(|| session.poll_event()).collect();
    assert!(matches!(events.last(), Some(ControllerSessionEvent::End(_))));
    assert_eq!(events.len(), BURST as usize + 1);
}

#[test]
fn a_box_says_which_proxy_it_is_on() {
    let mut stream = TestStream::of(BOX, &published(0, &[]));
    let reported = |stream: &TestStream| stream.session.had().and_then(|had| had.proxy);
    assert_eq!(reported(&stream), None);
    stream.agent.set_proxy(Some(key(PROXY)));
    stream.turn(1);
    assert_eq!(reported(&stream), Some(key(PROXY)));
    let heard = stream.reported.len();
    stream.agent.set_proxy(Some(key(PROXY)));
    stream.turn(2);
    assert_eq!(stream.reported.len(), heard, "what is known already is not said again");
}
