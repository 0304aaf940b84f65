//! A controller for tests: a controller session behind TLS, whose store the test fills.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use roadweave_fleet::{
    Body, Chain, ControllerSession, ControllerSessionEvent, Document, Envelope, FrameDecoder, Head,
    Join, JoinToken, Kind, Member, Name, Published, PublishedTable, PublishedTrust, Revocations,
    Role, Scope, Secret, Signed, Statement, Table, Trust, TrustList, Up, Version, encode,
};
use roadweave_identity::tls::{self, HandshakeRefusal, TlsSide};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, Refusal};
use roadweave_linux::Clock;
use roadweave_linux::netns::{WAIT_MAX, wait_or_show};
use rustls::{ServerConnection, StreamOwned};

use super::stream::{ALPN, NoTime};

pub(super) const ROOT: u8 = 1;
pub(super) const CONTROLLER: u8 = 2;

pub(super) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(super) fn key(seed: u8) -> PublicKey {
    identity(seed).public_key()
}

pub(super) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(super) struct AcceptAny;
impl PeerPolicy for AcceptAny {
    fn check(&self, _: &PublicKey) -> Result<(), Refusal> {
        Ok(())
    }
}

pub(super) fn chain(key: PublicKey, named: &str, role: Role, by: u8) -> Chain {
    let statement = Statement {
        key,
        name: name(named),
        role,
        scope: Scope::Tenant(name("north")),
        tags: BTreeSet::new(),
        grant: None,
    };
    Chain::new(vec![Signed::sign(&statement, &identity(by)).expect("signed")])
}

pub(super) struct TestStore {
    pub(super) published: Arc<Published>,
    pub(super) documents: Vec<(Kind, Version, Envelope)>,
    pub(super) table: Option<Arc<PublishedTable>>,
    pub(super) members: BTreeSet<PublicKey>,
    pub(super) key: u8,
    pub(super) admits: Option<u8>,
    pub(super) said: Vec<ControllerSessionEvent>,
    pub(super) is_down: bool,
}

#[derive(Clone)]
pub(super) struct Controller {
    pub(super) address: SocketAddr,
    store: Arc<Mutex<TestStore>>,
}

impl Controller {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let store = Arc::new(Mutex::new(TestStore {
            published: published(&[]),
            documents: Vec::new(),
            table: None,
            members: BTreeSet::new(),
            key: CONTROLLER,
            admits: Some(ROOT),
            said: Vec::new(),
            is_down: false,
        }));
        let controller = Self { address, store };
        let it = controller.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let it = it.clone();
                std::thread::spawn(move || it.serve(stream));
            }
        });
        controller
    }

    pub(super) fn store(&self) -> MutexGuard<'_, TestStore> {
        self.store.lock().expect("no test has panicked with it")
    }

    pub(super) fn token(&self) -> JoinToken {
        JoinToken {
            addresses: vec![self.address.to_string()],
            controller: key(CONTROLLER),
            root: key(ROOT),
            tenant: name("north"),
            secret: Secret::from_bytes([3; 16]),
            delegate: None,
        }
    }

    pub(super) fn desire<B: Body>(&self, subject: PublicKey, number: u64, body: B) {
        let version = Version { epoch: 0, number };
        let document = Document { subject, version, body };
        let signed = Signed::sign(&document, &identity(CONTROLLER)).expect("signed");
        self.store().documents.push((B::KIND, version, signed.into_envelope()));
    }

    pub(super) fn set_table(&self, subject: PublicKey, number: u64, members: Vec<Member>) {
        let version = Version { epoch: 0, number };
        let table = Table::of(members);
        let head = table.head_for(subject, version);
        let head = Signed::sign(&head, &identity(CONTROLLER)).expect("signed");
        self.store().table = Some(Arc::new(PublishedTable { version, table, head }));
    }

    pub(super) fn wait_for(&self, wanted: impl Fn(&ControllerSessionEvent) -> bool) {
        let state = || format!("{:?}", self.store().said);
        wait_or_show(WAIT_MAX, state, || self.store().said.iter().any(&wanted));
    }

    fn serve(&self, socket: TcpStream) {
        if self.store().is_down {
            return;
        }
        let clock = Clock::start();
        let refusal = Arc::new(HandshakeRefusal::default());
        let (identity, policy) = (identity(self.store().key), Arc::new(AcceptAny));
        let time = Arc::new(NoTime);
        let side = TlsSide { identity: &identity, policy, refusal, alpn: ALPN, time };
        let config = Arc::new(tls::server(side).expect("TLS"));
        let mut tls = StreamOwned::new(ServerConnection::new(config).expect("TLS"), socket);
        while tls.conn.is_handshaking() {
            if tls.conn.complete_io(&mut tls.sock).is_err() {
                return;
            }
        }
        let peer = tls.conn.peer_certificates().and_then(tls::peer_key).expect("a key");
        let (is_member, published) = {
            let store = self.store();
            (store.members.contains(&peer), store.published.clone())
        };
        let mut session = ControllerSession::new(clock.now(), peer, is_member, published);
        tls.sock.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
        self.talk(&clock, &mut session, &mut tls);
    }

    fn talk(
        &self,
        clock: &Clock,
        session: &mut ControllerSession,
        tls: &mut StreamOwned<ServerConnection, TcpStream>,
    ) {
        let (mut decoder, mut bytes) = (FrameDecoder::default(), [0; 4096]);
        loop {
            match tls.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => decoder.push(&bytes[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            while let Ok(Some(frame)) = decoder.poll::<Up>() {
                session.handle_frame(clock.now(), frame);
            }
            if self.store().is_down {
                return;
            }
            self.feed(session);
            while let Some(frame) = session.poll_frame() {
                let bytes = encode(&frame).expect("it fits");
                if tls.write_all(&bytes).and_then(|()| tls.flush()).is_err() {
                    return;
                }
            }
        }
    }

    fn feed(&self, session: &mut ControllerSession) {
        let mut store = self.store();
        while let Some(event) = session.poll_event() {
            if let ControllerSessionEvent::Join(Join { role, name, .. }) = &event {
                match store.admits {
                    Some(by) => {
                        let of = chain(session.peer(), name.as_str(), *role, by);
                        session.welcome(of, "north".parse().expect("a name"));
                        store.members.insert(session.peer());
                    }
                    None => session.refuse("the token is used up", false),
                }
            }
            store.said.push(event);
        }
        let head = store.published.revocations.head();
        if session.had().is_some_and(|had| had.revocations != head) {
            session.publish(store.published.clone());
        }
        for (kind, version, document) in &store.documents {
            session.desire(*kind, *version, document.clone());
        }
        if let Some(table) = &store.table {
            session.desire_table(table.clone(), None);
        }
    }
}

pub(super) fn published(revoked: &[u8]) -> Arc<Published> {
    let trust = Trust::pinned(key(ROOT), key(CONTROLLER)).list().clone();
    published_by(CONTROLLER, &trust, revoked)
}

pub(super) fn published_by(seed: u8, trust: &TrustList, revoked: &[u8]) -> Arc<Published> {
    let controller = identity(seed);
    let mut revocations = Revocations::default();
    let mut signed = Signed::sign(&Head::EMPTY, &controller).expect("signed");
    for of in revoked {
        let entry = revocations.next(key(*of));
        let head = Head { epoch: 0, serial: entry.serial, hash: entry.hash() };
        signed = Signed::sign(&head, &controller).expect("signed");
        revocations.extend(&[entry], &signed, [key(seed)]).expect("taken");
    }
    let number = trust.number;
    let list = Signed::sign(trust, &identity(ROOT)).expect("signed");
    let trust = vec![PublishedTrust { number, list }];
    Arc::new(Published { trust, revocations, head: signed })
}
