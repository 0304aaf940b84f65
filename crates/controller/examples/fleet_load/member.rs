//! A box or a proxy: the fleet's own agent on a stream, as a device drives it, without the tunnel.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roadweave_fleet::{
    Agent, AgentEvent, Down, FrameDecoder, JoinToken, Joining, Kind, Role, Sample, Up, encode,
};
use roadweave_identity::tls::{Pinned, Side, client};
use roadweave_identity::{Identity, PublicKey};
use roadweave_types::Instant as Moment;
use rustls::pki_types::ServerName;
use rustls::time_provider::DefaultTimeProvider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsConnector;

/// What all members say of themselves; times are nanoseconds since its making.
pub struct Board {
    made: Instant,
    /// Since when each has its stream, with all that it was to hear; 0 if it has not.
    streams: Vec<AtomicU64>,
    has_documents: Vec<AtomicBool>,
    /// The text that is awaited, and since when each has it.
    text: Mutex<String>,
    texts: Vec<AtomicU64>,
    /// When each proxy had a revocation in force.
    revocations: Mutex<Vec<Instant>>,
    /// The proxies, for boxes to be on.
    proxies: Mutex<Vec<PublicKey>>,
}

impl Board {
    pub fn new(members: usize) -> Self {
        let times = || (0..members).map(|_| AtomicU64::new(0)).collect();
        Self {
            made: Instant::now(),
            streams: times(),
            has_documents: (0..members).map(|_| AtomicBool::new(false)).collect(),
            text: Mutex::default(),
            texts: times(),
            revocations: Mutex::default(),
            proxies: Mutex::default(),
        }
    }

    fn note(&self, times: &[AtomicU64], number: usize) {
        let now = u64::try_from(self.made.elapsed().as_nanos()).unwrap();
        // The first counts.
        let _ = times[number].compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn times(
        &self,
        of: &[AtomicU64],
        begun: Instant,
        at_least: usize,
        span: Duration,
    ) -> Vec<Duration> {
        let end = Instant::now() + span;
        loop {
            let set = of.iter().map(|it| it.load(Ordering::Relaxed)).filter(|at| *at > 0);
            let since = |at: u64| (self.made + Duration::from_nanos(at)).duration_since(begun);
            let all: Vec<Duration> = set.map(since).collect();
            if all.len() >= at_least {
                return all;
            }
            assert!(Instant::now() < end, "{} of {at_least} after {span:?}", all.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until every box has candidates and every proxy a table; how long that took.
    pub async fn all_have_documents(&self) -> Duration {
        let begun = Instant::now();
        while !self.has_documents.iter().all(|it| it.load(Ordering::Relaxed)) {
            let missing = self.has_documents.iter().filter(|it| !it.load(Ordering::Relaxed));
            assert!(begun.elapsed() < Duration::from_secs(60), "{} without", missing.count());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        begun.elapsed()
    }

    /// From now on `text` is awaited.
    pub fn await_text(&self, text: &str) -> Instant {
        self.texts.iter().for_each(|it| it.store(0, Ordering::Relaxed));
        text.clone_into(&mut self.text.lock().unwrap());
        Instant::now()
    }

    pub async fn texts_since(&self, begun: Instant, boxes: usize) -> Vec<Duration> {
        self.times(&self.texts, begun, boxes, Duration::from_secs(30)).await
    }

    pub fn await_revocation(&self) -> Instant {
        self.revocations.lock().unwrap().clear();
        Instant::now()
    }

    pub fn revocations_since(&self, begun: Instant) -> Vec<Duration> {
        let all = self.revocations.lock().unwrap();
        all.iter().map(|at| at.duration_since(begun)).collect()
    }

    pub fn await_streams(&self) {
        self.streams.iter().for_each(|it| it.store(0, Ordering::Relaxed));
    }

    pub async fn streams_since(&self, begun: Instant, members: usize) -> Vec<Duration> {
        self.times(&self.streams, begun, members, Duration::from_secs(60)).await
    }
}

/// One of them.
pub struct Member {
    number: usize,
    role: Role,
    identity: Identity,
    agent: Agent,
    port: u16,
    controller: PublicKey,
    board: Arc<Board>,
    made: Instant,
    /// The boxes that a proxy sends figures of.
    boxes: Vec<PublicKey>,
}

impl Member {
    pub fn new(number: usize, role: Role, token: JoinToken, port: u16, board: Arc<Board>) -> Self {
        let identity = identity(number);
        let (key, controller) = (identity.public_key(), token.controller);
        let name = if role == Role::Box { "box" } else { "proxy" };
        let name = format!("{name}-{number}").parse().unwrap();
        let how = Joining { token, name, chain: None };
        let agent = Agent::joining(Moment::ZERO, key, role, "load", how);
        let (made, boxes) = (Instant::now(), Vec::new());
        if role != Role::Box {
            board.proxies.lock().unwrap().push(key);
        }
        Self { number, role, identity, agent, port, controller, board, made, boxes }
    }

    /// Lives from now on; tells when it has joined.
    pub fn start(mut self, permits: Arc<Semaphore>) -> oneshot::Receiver<()> {
        let (joined, tells) = oneshot::channel();
        tokio::spawn(async move {
            let permit = permits.acquire_owned().await.unwrap();
            let mut on_joined = Some((joined, permit));
            for round in 0_u64.. {
                let _ = self.stream(&mut on_joined).await;
                self.agent.on_stream_down(self.now());
                // As a device does: at once spread a little, then slower.
                let spread = (self.number as u64 * 7_919 + round * 104_729) % 700;
                tokio::time::sleep(Duration::from_millis(100 + spread)).await;
            }
        });
        tells
    }

    fn now(&self) -> Moment {
        Moment::from_nanos(u64::try_from(self.made.elapsed().as_nanos()).unwrap())
    }

    async fn stream(
        &mut self,
        on_joined: &mut Option<(oneshot::Sender<()>, tokio::sync::OwnedSemaphorePermit)>,
    ) -> std::io::Result<()> {
        let side = Side {
            identity: &self.identity,
            policy: Arc::new(Pinned(self.controller)),
            refusal: Arc::default(),
            alpn: b"roadweave-control/1",
            time: Arc::new(DefaultTimeProvider),
        };
        let connector = TlsConnector::from(Arc::new(client(side).unwrap()));
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("roadweave.invalid").unwrap();
        let mut tls = connector.connect(name, stream).await?;
        self.agent.on_stream_up(self.now());
        let mut decoder = FrameDecoder::default();
        let mut buffer = vec![0; 8_192];
        let (mut heard, mut asked) = (tokio::time::Instant::now(), true);
        let mut figures = tokio::time::interval(Duration::from_secs(10));
        // After all that it says first: the answer tells that all of that was taken.
        self.send(&mut tls).await?;
        tls.write_all(&encode(&Up::Alive).unwrap()).await?;
        loop {
            self.send(&mut tls).await?;
            let silence = if self.role == Role::Box { 50 } else { 15 };
            tokio::select! {
                read = tls.read(&mut buffer) => {
                    let length = read?;
                    if length == 0 {
                        return Ok(());
                    }
                    (heard, asked) = (tokio::time::Instant::now(), false);
                    decoder.push(&buffer[..length]);
                    while let Some(frame) = decoder.poll::<Down>().unwrap() {
                        if frame == Down::Alive && self.agent.is_member() {
                            self.board.note(&self.board.streams, self.number);
                        }
                        self.agent.handle_frame(self.now(), frame);
                        self.on_events();
                    }
                    if self.agent.is_member() {
                        on_joined.take().map(|(joined, _)| joined.send(()));
                    }
                }
                () = tokio::time::sleep_until(heard + Duration::from_secs(silence)) => {
                    if std::mem::replace(&mut asked, true) {
                        return Ok(());
                    }
                    heard = tokio::time::Instant::now();
                    tls.write_all(&encode(&Up::Alive).unwrap()).await?;
                }
                _ = figures.tick() => self.figures(),
            }
        }
    }

    async fn send(
        &mut self,
        tls: &mut tokio_rustls::client::TlsStream<TcpStream>,
    ) -> std::io::Result<()> {
        while let Some(frame) = self.agent.poll_frame() {
            tls.write_all(&encode(&frame).unwrap()).await?;
        }
        tls.flush().await
    }

    fn on_events(&mut self) {
        while let Some(event) = self.agent.poll_event() {
            match event {
                AgentEvent::Configure { text: Some(text), .. }
                    if text.contains(&*self.board.text.lock().unwrap()) =>
                {
                    self.board.note(&self.board.texts, self.number);
                }
                AgentEvent::Candidates(servers) => {
                    self.board.has_documents[self.number].store(true, Ordering::Relaxed);
                    let on = servers.first().map(|server| server.key);
                    self.agent.set_proxy(on);
                    self.agent.on_session(self.now(), true);
                }
                AgentEvent::Table if self.role != Role::Box => {
                    let has_table = self.agent.kept().taken().contains_key(&Kind::Table);
                    self.board.has_documents[self.number].store(has_table, Ordering::Relaxed);
                    self.take_boxes();
                }
                AgentEvent::Revoked(keys) => {
                    // Live sessions of those keys end here.
                    self.agent.on_revoked();
                    if self.role != Role::Box && !keys.is_empty() {
                        self.board.revocations.lock().unwrap().push(Instant::now());
                    }
                }
                _ => {}
            }
        }
    }

    /// The boxes on it: an even share of all.
    fn take_boxes(&mut self) {
        let proxies = self.board.proxies.lock().unwrap();
        let (own, all) = (self.identity.public_key(), proxies.len());
        let Some(at) = proxies.iter().position(|key| *key == own) else { return };
        let admission = self.agent.admission();
        let share = admission.admitted.iter().skip(at).step_by(all);
        self.boxes = share.map(|(_, member)| member.key).collect();
    }

    fn figures(&mut self) {
        if self.role == Role::Box {
            return;
        }
        let sessions = u32::try_from(self.boxes.len()).unwrap();
        self.agent.on_sessions(sessions);
        let sample = |device: Option<PublicKey>, uplink: Option<&str>| Sample {
            device,
            uplink: uplink.map(str::to_owned),
            over_ms: 10_000,
            rtt_us: Some(40_000),
            loss_ppm: Some(1_000),
            up_bytes: 1_000_000,
            down_bytes: 2_000_000,
            load: device.is_none().then_some(300),
            sessions: device.is_none().then_some(sessions),
        };
        let of_boxes = self
            .boxes
            .iter()
            .flat_map(|key| ["lte", "wlan"].map(|uplink| sample(Some(*key), Some(uplink))));
        let all: Vec<Sample> = of_boxes.chain([sample(None, None)]).collect();
        for part in all.chunks(180) {
            self.agent.send_samples(part.to_vec());
        }
    }
}

fn identity(number: usize) -> Identity {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    Identity::from_seed(seed)
}
