//! Messages and signed documents of a fleet: refused, or equal after being written and read again;
//! both ends continue.

use roadweave_fleet::{
    Agent, Anchors, Candidates, Configuration, ControllerSession, Document, Down, FrameDecoder,
    Head, JoinToken, PersistedState, Published, PublishedTrust, Revocations, Role, Rollout, Secret,
    Signed, Statement, Table, Trust, TrustList, Up, encode,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::Instant;

/// Reads the bytes as messages of both directions, and passes them to agent and controller session.
pub fn frames(data: &[u8]) {
    let mut decoder = FrameDecoder::default();
    decoder.push(data);
    let mut agent = agent();
    while let Ok(Some(frame)) = decoder.poll::<Down>() {
        same(&frame);
        agent.handle_frame(Instant::ZERO, frame);
        while agent.poll_event().is_some() || agent.poll_frame().is_some() {}
    }
    let persisted = serde_json::to_string(agent.persisted()).expect("JSON");
    serde_json::from_str::<PersistedState>(&persisted).expect("what is kept can be read again");
    let mut decoder = FrameDecoder::default();
    decoder.push(data);
    let mut session = session();
    while let Ok(Some(frame)) = decoder.poll::<Up>() {
        same(&frame);
        session.handle_frame(Instant::ZERO, frame);
        while session.poll_event().is_some() || session.poll_frame().is_some() {}
    }
}

pub fn documents(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
    if let Ok(persisted) = serde_json::from_str::<PersistedState>(text) {
        let mut agent = Agent::restore(Instant::ZERO, key(3), Role::Proxy, "1", persisted);
        while agent.poll_event().is_some() {}
        agent.admission();
    }
    let trust = Trust::pinned(key(1), key(2));
    if let Ok(signed) = serde_json::from_str::<Signed<Document<Configuration>>>(text) {
        let _ = Document::open(&signed, &trust, key(3), None);
    }
    if let Ok(signed) = serde_json::from_str::<Signed<Document<Candidates>>>(text) {
        let _ = Document::open(&signed, &trust, key(3), None);
    }
    if let Ok(signed) = serde_json::from_str::<Signed<Document<Anchors>>>(text) {
        let _ = Document::open(&signed, &trust, key(3), None);
    }
    if let Ok(mut table) = serde_json::from_str::<Table>(text) {
        let _ = table.check(&trust, key(3));
        table.admission(&trust);
    }
    if let Ok(revocations) = serde_json::from_str::<Revocations>(text) {
        let held = revocations.entries(0).len() as u64;
        assert_eq!(revocations.head().serial, held);
    }
    if let Ok(mut rollout) = serde_json::from_str::<Rollout>(text) {
        rollout.poll(Instant::ZERO);
        let is_done = *rollout.state() == roadweave_fleet::RolloutState::Done;
        assert!(!is_done || rollout.boxes().all(|key| rollout.is_offered(&key)));
    }
}

pub fn frame_seeds() -> Vec<Vec<u8>> {
    let head = Signed::sign(&Head::EMPTY, &identity(2)).expect("signed");
    let statement = statement();
    let chain = roadweave_fleet::Chain::new(vec![statement]);
    let tenant = "north".parse().expect("a name");
    let down = [
        Down::Trust { list: list() },
        Down::Revoke { entries: vec![Revocations::default().next(key(9))], head: Some(head) },
        Down::Welcome { chain, tenant },
        Down::Watch { lease_ms: 30_000 },
        Down::Drain,
        Down::Alive,
    ];
    let up = [Up::Revoked { head: Head::EMPTY }, Up::Event { text: "x".into() }, Up::Alive];
    let down = down.iter().map(|frame| encode(frame).expect("a message"));
    down.chain(up.iter().map(|frame| encode(frame).expect("a message"))).collect()
}

pub fn document_seeds() -> Vec<Vec<u8>> {
    let persisted = serde_json::to_vec(&PersistedState::of_token(&token())).expect("JSON");
    let revocations = serde_json::to_vec(&Revocations::default()).expect("JSON");
    let table = serde_json::to_vec(&Table::default()).expect("JSON");
    vec![token().to_string().into_bytes(), persisted, revocations, table]
}

fn same<T: serde::Serialize + for<'a> serde::Deserialize<'a> + PartialEq>(frame: &T) {
    // Numbers and escapes may need more space than before.
    let Ok(bytes) = encode(frame) else { return };
    let mut decoder = FrameDecoder::default();
    decoder.push(&bytes);
    let again = decoder.poll::<T>();
    assert!(matches!(&again, Ok(Some(again)) if again == frame));
}

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

fn token() -> JoinToken {
    JoinToken {
        addresses: vec!["fleet.example.org:4400".into()],
        controller: key(2),
        root: key(1),
        tenant: "north".parse().expect("a name"),
        secret: Secret::from_bytes([5; 16]),
        delegate: None,
    }
}

fn statement() -> Signed<Statement> {
    let scope = roadweave_fleet::Scope::Tenant("north".parse().expect("a name"));
    let name = "bus-17".parse().expect("a name");
    let (role, tags, grant) = (Role::Proxy, Default::default(), None);
    let statement = Statement { key: key(3), name, role, scope, tags, grant };
    Signed::sign(&statement, &identity(1)).expect("signed")
}

fn list() -> Signed<TrustList> {
    let list = TrustList { number: 1, ..Trust::pinned(key(1), key(2)).list().clone() };
    Signed::sign(&list, &identity(1)).expect("signed")
}

fn agent() -> Agent {
    let persisted = PersistedState::of_token(&token());
    let mut agent = Agent::restore(Instant::ZERO, key(3), Role::Proxy, "1", persisted);
    agent.on_stream_up(Instant::ZERO);
    agent
}

fn session() -> ControllerSession {
    let head = Signed::sign(&Head::EMPTY, &identity(2)).expect("signed");
    let trust = vec![PublishedTrust { number: 1, list: list() }];
    let published = Published { trust, revocations: Revocations::default(), head };
    ControllerSession::new(Instant::ZERO, key(3), true, std::sync::Arc::new(published))
}
