//! Boxes, proxies, browsers and strangers at the port, over real sockets.

mod elsewhere;
mod room;

use roadweave_fleet::{
    Chain, Down, Head, HeldVersions, Join, JoinToken, Name, Role, Secret, Signed, Trust, TrustList,
};
use roadweave_identity::tls::{Pinned, client};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;

use super::*;
use crate::api;
use crate::authority::Root;
use crate::certificate;
use crate::connection_limits::ConnectionLimits;
use crate::model::{ApiKey, Device, Record, Tenant, TenantSettings, Token, TokenSettings};
use crate::plan::Planner;
use crate::serve::{self, Service};
pub(crate) use crate::store::tests::identity;
use crate::store::tests::{World, on_both_with, proxy, sqlite};
use crate::store::{Actor, Change, outbox, proxy_status, revocation};
use crate::{clock, keys};

type Lists = Vec<Signed<TrustList>>;

pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    certificate: CertificateDer<'static>,
    pub(crate) app: Arc<App>,
    stop: watch::Sender<bool>,
    pub(crate) planner: tokio::task::JoinHandle<()>,
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) world: World,
}

pub(crate) struct TestClient {
    pub(crate) tls: tokio_rustls::client::TlsStream<TcpStream>,
    decoder: FrameDecoder,
}

impl Port {
    pub(crate) async fn new(world: World) -> Self {
        Self::trusted(world, Vec::new()).await
    }

    pub(crate) async fn trusted(world: World, lists: Lists) -> Self {
        Self::on(world, Root::Held(identity(8)), lists).await.unwrap().with_tenant().await
    }

    async fn limited(limits: ConnectionLimits) -> Self {
        let (world, root) = (sqlite().await, Root::Held(identity(8)));
        Self::within(limits, world, root, Vec::new()).await.unwrap().with_tenant().await
    }

    async fn elsewhere(world: World) -> Self {
        let root = Root::Elsewhere(identity(8).public_key());
        let lists = vec![trust_list(Vec::new())];
        Self::on(world, root, lists).await.unwrap().with_tenant().await
    }

    async fn with_tenant(self) -> Self {
        let prefixes = vec!["10.7.0.0/24".parse().unwrap()];
        let settings = TenantSettings { prefixes, ..TenantSettings::default() };
        self.insert(Tenant { id: "tram".to_owned(), host: true, settings }).await;
        self
    }

    pub(crate) async fn again(self) -> Result<Self, PublishError> {
        self.stop.send_replace(true);
        self.planner.abort();
        Self::on(self.world, Root::Held(identity(8)), Vec::new()).await
    }

    /// As [`Port::again`], with an empty folder.
    pub(crate) async fn afresh(self) -> Result<Self, PublishError> {
        self.stop.send_replace(true);
        self.planner.abort();
        Self::on(self.world.afresh().await, Root::Held(identity(8)), Vec::new()).await
    }

    async fn on(world: World, root: Root, lists: Lists) -> Result<Self, PublishError> {
        Self::within(ConnectionLimits::default(), world, root, lists).await
    }

    async fn within(
        limits: ConnectionLimits,
        world: World,
        root: Root,
        lists: Lists,
    ) -> Result<Self, PublishError> {
        let addresses = vec!["127.0.0.1:1".to_owned()];
        let authority = Authority::new(identity(7), root, addresses).with_lists(lists);
        let app = Arc::new(App::new(Arc::clone(&world.store), authority));
        let streams = Streams::new(&app).await?;
        tokio::spawn(Arc::clone(&app.outbox).follow(Arc::clone(&app.store)));
        tokio::spawn(Arc::clone(&streams).run());
        let mailboxes = streams.mailboxes();
        let planner = tokio::spawn(Planner::new(Arc::clone(&app), mailboxes.clone()).run());
        let made = certificate::self_signed(&["localhost".to_owned()]);
        let certificate = CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
        let tls = serve::web_tls(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
        let (web, web_tls) = (api::router(&app), Arc::new(tls));
        let metrics = Arc::clone(&app.metrics);
        let service = Service { web, web_tls, streams, metrics, limits };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve::serve(listener, Arc::new(service), stopped));
        Ok(Self { address, certificate, app, stop, planner, mailboxes, world })
    }

    pub(crate) async fn insert<R: Record>(&self, record: R) {
        let mut change = self.change().await;
        change.insert("tram", record).await.unwrap();
        self.commit(change).await;
    }

    pub(crate) async fn update<R: Record>(&self, id: &str, edit: impl FnOnce(&mut R)) {
        let mut change = self.change().await;
        let before = change.get::<R>("tram", id).await.unwrap();
        let mut record = before.record.clone();
        edit(&mut record);
        change.update(&before, record).await.unwrap();
        self.commit(change).await;
    }

    pub(crate) async fn revoke(&self, seed: u8) {
        let key = identity(seed).public_key().to_string();
        let mut change = self.change().await;
        revocation::add(&mut change, "tram", &key, "lost").await.unwrap();
        self.commit(change).await;
    }

    pub(crate) async fn change(&self) -> Change<'_> {
        self.app.store.change(Actor::new("test"), clock::now_ms()).await.unwrap()
    }

    pub(crate) async fn commit(&self, change: Change<'_>) {
        change.commit().await.unwrap();
        self.app.outbox.hint();
    }

    pub(crate) async fn owner(&self) {
        let settings = serde_json::from_value(json!({ "role": "owner" })).unwrap();
        self.insert(ApiKey { id: "owner".to_owned(), hash: keys::hash("owner"), settings }).await;
    }

    pub(crate) async fn token(&self, uses: u32, approval: bool) -> JoinToken {
        self.token_of(TokenSettings { uses, approval, ..TokenSettings::default() }).await
    }

    pub(crate) async fn token_of(&self, settings: TokenSettings) -> JoinToken {
        let mut bytes = [0; 16];
        keys::fill(&mut bytes);
        let secret = Secret::from_bytes(bytes);
        let (id, hash) = (keys::identifier(), keys::hash(&String::from(secret)));
        let uses_left = settings.uses.into();
        self.insert(Token { id, hash, uses_left, expires_ms: None, settings }).await;
        self.app.authority.join_token("tram", secret, None).unwrap().parse().unwrap()
    }

    pub(crate) async fn proxy(&self, id: &str, seed: u8) {
        self.insert(proxy(id, seed)).await;
    }

    pub(crate) async fn client(&self, seed: u8) -> io::Result<TestClient> {
        let side = TlsSide {
            identity: &identity(seed),
            policy: Arc::new(Pinned(identity(7).public_key())),
            refusal: Arc::default(),
            alpn: ALPN,
            time: Arc::new(DefaultTimeProvider),
        };
        let connector = TlsConnector::from(Arc::new(client(side).unwrap()));
        let name = ServerName::try_from("roadweave.invalid").unwrap();
        let stream = TcpStream::connect(self.address).await?;
        let tls = connector.connect(name, stream).await?;
        Ok(TestClient { tls, decoder: FrameDecoder::default() })
    }

    pub(crate) async fn joined(&self, seed: u8, token: &JoinToken) -> TestClient {
        let mut client = self.client(seed).await.unwrap();
        client.join(token).await;
        assert!(matches!(client.receive().await, Some(Down::Welcome { .. })));
        client
    }
}

impl TestClient {
    pub(crate) async fn send(&mut self, frame: &Up) {
        self.tls.write_all(&encode(frame).unwrap()).await.unwrap();
        self.tls.flush().await.unwrap();
    }

    async fn join(&mut self, token: &JoinToken) {
        self.join_by(token, None).await;
    }

    async fn join_by(&mut self, token: &JoinToken, chain: Option<Chain>) {
        let (secret, tenant) = (token.secret, token.tenant.clone());
        let addresses = Vec::new();
        let name: Name = "Bus-17".parse().unwrap();
        self.send(&Up::Join(Join { secret, tenant, role: Role::Box, name, chain, addresses }))
            .await;
    }

    pub(crate) async fn receive(&mut self) -> Option<Down> {
        tokio::time::timeout(Duration::from_secs(10), self.next()).await.unwrap()
    }

    pub(crate) async fn next(&mut self) -> Option<Down> {
        let mut buffer = vec![0; 4096];
        loop {
            if let Some(frame) = self.decoder.poll().unwrap() {
                return Some(frame);
            }
            match self.tls.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.decoder.push(&buffer[..length]),
            }
        }
    }
}

pub(crate) fn trust_list(approvers: Vec<PublicKey>) -> Signed<TrustList> {
    let list = TrustList {
        number: 1,
        epoch: 1,
        roots: vec![identity(8).public_key()],
        spares: Vec::new(),
        controllers: vec![identity(7).public_key()],
        approvers,
    };
    Signed::sign(&list, &identity(8)).unwrap()
}

pub(crate) async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect(what);
}

#[test]
fn a_box_joins_by_a_token_and_is_known_from_then_on() {
    on_both_with(Port::new, |port| async move {
        let token = port.token(1, false).await;
        let mut client = port.client(1).await.unwrap();
        client.join(&token).await;
        let Some(Down::Welcome { chain, tenant }) = client.receive().await else { panic!() };
        assert_eq!(tenant.as_str(), "tram");
        let trust = Trust::pinned(token.root, token.controller);
        let admitted = chain.verify(&trust).unwrap();
        assert_eq!(admitted.statement.key, identity(1).public_key());
        let found = port.app.store.get::<Device>("tram", "bus-17").await.unwrap();
        assert_eq!(found.record.addresses.len(), 1);
        let mut again = port.joined(1, &token).await;
        let mut other = port.client(2).await.unwrap();
        other.join(&token).await;
        let refused = other.receive().await;
        assert!(matches!(refused, Some(Down::Refused { retry: false, .. })), "{refused:?}");
        assert_eq!(other.receive().await, None);
        again.send(&Up::Have(HeldVersions::default())).await;
        assert!(matches!(again.receive().await, Some(Down::Trust { .. })));
        assert!(matches!(again.receive().await, Some(Down::Revoke { head: Some(_), .. })));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_that_waits_for_approval_is_to_ask_again() {
    let port = Port::new(sqlite().await).await;
    let token = port.token(1, true).await;
    let mut client = port.client(1).await.unwrap();
    client.join(&token).await;
    assert!(matches!(client.receive().await, Some(Down::Refused { retry: true, .. })));
}

#[test]
fn a_revocation_reaches_proxies_and_ends_streams_and_says_so() {
    on_both_with(Port::new, |port| async move {
        let token = port.token(1, false).await;
        let mut device = port.joined(1, &token).await;
        port.proxy("fra-1", 20).await;
        port.proxy("fra-2", 21).await;
        let mut proxy = port.client(20).await.unwrap();
        let have = HeldVersions {
            trust: 1,
            revocations: Head { epoch: 1, ..Head::EMPTY },
            ..HeldVersions::default()
        };
        proxy.send(&Up::Have(have)).await;
        proxy.send(&Up::Alive).await;
        while proxy.receive().await.expect("a stream") != Down::Alive {}
        let confirming = tokio::spawn(async move {
            loop {
                if let Some(Down::Revoke { entries, .. }) = proxy.receive().await {
                    let last = entries.last().unwrap();
                    let head = Head { epoch: 1, serial: last.serial, hash: last.hash() };
                    proxy.send(&Up::Revoked { head }).await;
                    return (entries, proxy);
                }
            }
        });
        port.owner().await;
        let begun = std::time::Instant::now();
        let path = "POST /api/v1/tenants/tram/devices/bus-17/revoke";
        let answer = web(&port, path, "owner", r#"{"reason":"stolen"}"#).await;
        assert!(answer.contains("1 of 2; fra-2 has never connected"), "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let (entries, _proxy) = confirming.await.unwrap();
        assert_eq!(entries[0].key, identity(1).public_key());
        let end = device.receive().await;
        assert!(matches!(end, Some(Down::Refused { retry: false, .. })), "{end:?}");
        assert_eq!(device.receive().await, None);
        let refused = match port.client(1).await {
            Err(error) => error,
            Ok(mut client) => client.tls.read(&mut [0]).await.unwrap_err(),
        };
        assert!(refused.to_string().contains("CertificateRevoked"), "{refused}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_proxy_says_of_itself_is_shown() {
    let port = Port::new(sqlite().await).await;
    port.proxy("fra-1", 20).await;
    let mut proxy = port.client(20).await.unwrap();
    proxy.send(&Up::Have(HeldVersions { sessions: 1, ..HeldVersions::default() })).await;
    let figures = json!({
        "over_ms": 10_000, "up_bytes": 1, "down_bytes": 2, "load": 300, "sessions": 41,
    });
    let samples = vec![serde_json::from_value(figures).unwrap()];
    proxy.send(&Up::Samples { samples }).await;
    eventually("its figures are kept", async || {
        let all = proxy_status::all(&port.app.store, Some("tram")).await.unwrap();
        all.first().is_some_and(|it| (it.sessions, it.load) == (41, Some(300)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_stream_that_was_followed_by_another_changes_nothing() {
    let port = Port::new(sqlite().await).await;
    port.proxy("fra-1", 20).await;
    let count_changes = async || {
        let all = outbox::after(&port.app.store, (0, 0)).await.unwrap();
        all.iter().filter(|line| line.kind == "proxy-status").count()
    };
    let is = async |sessions: i64, connected: bool| {
        eventually("its status is kept", async || {
            let all = proxy_status::all(&port.app.store, Some("tram")).await.unwrap();
            all.first().is_some_and(|it| (it.sessions, it.connected) == (sessions, connected))
        })
        .await;
    };
    let have = |sessions| Up::Have(HeldVersions { sessions, ..HeldVersions::default() });
    let mut former = port.client(20).await.unwrap();
    former.send(&have(1)).await;
    is(1, true).await;
    let mut other = port.client(20).await.unwrap();
    other.send(&have(2)).await;
    is(2, true).await;
    let before = count_changes().await;
    drop(former);
    let is_one = async || port.app.metrics.text().contains("roadweave_controller_streams 1");
    eventually("the former stream ends", is_one).await;
    other.send(&have(3)).await;
    is(3, true).await;
    assert_eq!(count_changes().await, before, "it was there all the time");
    drop(other);
    is(3, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_nothing_but_an_end() {
    let port = Port::new(sqlite().await).await;
    let mut stranger = port.client(9).await.unwrap();
    stranger.send(&Up::Have(HeldVersions::default())).await;
    assert!(matches!(stranger.receive().await, Some(Down::Refused { .. })));
    assert_eq!(stranger.receive().await, None);
    let mut stranger = port.client(9).await.unwrap();
    stranger.send(&Up::Alive).await;
    assert_eq!(stranger.receive().await, Some(Down::Alive));
    stranger.tls.write_all(&[0xff; 64]).await.unwrap();
    assert_eq!(stranger.receive().await, None);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], &[22, 3, 1, 255, 255, 1]] {
        let mut plain = TcpStream::connect(port.address).await.unwrap();
        plain.write_all(garbage).await.unwrap();
        plain.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(8), plain.read_to_end(&mut rest));
        assert!(ended.await.is_ok());
        assert!(rest.len() < 64, "{rest:?}");
    }
    let text = port.app.metrics.text();
    assert!(text.contains(r#"refused_total{reason="handshake"} 3"#), "{text}");
    assert!(text.contains("roadweave_controller_streams 0"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_use_the_same_port_and_a_stop_lets_them_end() {
    let port = Port::new(sqlite().await).await;
    let answer = web(&port, "GET /healthz", "", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("alive\n"), "{answer}");
    port.stop.send_replace(true);
    loop {
        let Ok(mut stream) = TcpStream::connect(port.address).await else { break };
        let mut rest = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(8), stream.read_to_end(&mut rest));
        assert!(!end.await.is_ok_and(|end| end.is_ok_and(|length| length > 0)));
    }
}

pub(crate) async fn ask(
    port: &Port,
    what: &str,
    fields: &str,
    body: &str,
) -> impl AsyncBufRead + Unpin {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(port.certificate.clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(port.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let mut tls = tokio::io::BufReader::new(tls);
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: localhost\r\n{fields}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    tls.write_all(request.as_bytes()).await.unwrap();
    tls
}

pub(crate) async fn web(port: &Port, what: &str, key: &str, body: &str) -> String {
    let fields = format!("authorization: Bearer {key}\r\nconnection: close\r\n");
    let mut tls = ask(port, what, &fields, body).await;
    let mut answer = String::new();
    while tls.read_line(&mut answer).await.unwrap_or(0) > 0 {}
    answer
}
