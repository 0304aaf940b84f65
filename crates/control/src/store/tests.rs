//! One suite for both databases: each test runs on a SQLite file and on a real PostgreSQL.

mod databases;
mod faults;
mod log;
mod older;
pub(crate) mod postgres;
mod reports;
mod sizes;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

use roadweave_identity::Identity;
use serde_json::json;
use sqlx::AssertSqlSafe;

use self::postgres::Postgres;
use super::*;
use crate::authority::{Authority, Root};
use crate::keys;
use crate::model::{
    Device, DeviceSettings, DeviceState, Pool, PoolSettings, Proxy, ProxyRole, ProxySettings,
    ProxyState, Record, Tenant, TenantSettings, Token, TokenSettings,
};

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<Store>,
    pub(crate) url: Database,
    folder: Arc<tempfile::TempDir>,
    server: Option<Arc<Postgres>>,
}

pub(crate) fn on_both<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    let runtime = runtime();
    let run = |world: World| {
        // A test may drop its world early, which stops the server and removes the folder.
        let held = (Arc::clone(&world.folder), world.server.clone());
        runtime.block_on(test(world));
        drop(held);
    };
    run(runtime.block_on(sqlite()));
    if let Some(server) = Postgres::shared() {
        run(runtime.block_on(postgres(server)));
    }
}

/// With what `make` makes of each world.
pub(crate) fn on_both_with<T, M: Future<Output = T>, F: Future<Output = ()>>(
    make: impl Fn(World) -> M,
    test: impl Fn(T) -> F,
) {
    let (make, test) = (&make, &test);
    on_both(|world| async move { test(make(world).await).await });
}

fn in_tram<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    let with_tram = async |world: World| {
        world.tenant("tram").await;
        world
    };
    on_both_with(with_tram, test);
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) async fn sqlite() -> World {
    let folder = tempfile::tempdir().unwrap();
    let url = Database::Sqlite(folder.path().join("roadweave.db"));
    world(url, folder, None).await
}

pub(crate) async fn postgres(server: Arc<Postgres>) -> World {
    let url = Database::parse(&server.database()).unwrap();
    world(url, tempfile::tempdir().unwrap(), Some(server)).await
}

async fn world(url: Database, folder: tempfile::TempDir, server: Option<Arc<Postgres>>) -> World {
    let store = Store::open(&url, controller()).await.unwrap();
    World { store: Arc::new(store), url, folder: Arc::new(folder), server }
}

pub(crate) async fn count<R: Record>(store: &Store, tenant: &str) -> i64 {
    let sql = format!("SELECT COUNT(*) FROM {} WHERE tenant = $1", R::TABLE);
    store.scalar(AssertSqlSafe(sql), vec![tenant.into()]).await.unwrap()
}

impl World {
    #[cfg(feature = "oidc")]
    pub(crate) async fn again(&self) -> Self {
        let url = self.url.clone();
        world(url, tempfile::tempdir().unwrap(), self.server.clone()).await
    }

    /// Opens this database as a controller whose folder is empty.
    pub(crate) async fn afresh(self) -> Self {
        let store = Arc::new(Store::open(&self.url, controller()).await.unwrap());
        Self { store, ..self }
    }

    pub(crate) async fn tamper(&self, sql: &str) -> u64 {
        let mut connection = self.store.write.acquire().await.unwrap();
        sqlx::query(AssertSqlSafe(sql.to_owned()))
            .execute(&mut *connection)
            .await
            .unwrap()
            .rows_affected()
    }

    async fn tenant(&self, id: &str) {
        let settings = TenantSettings {
            prefixes: vec!["10.7.0.0/24".parse().unwrap(), "fd07::/64".parse().unwrap()],
            ..TenantSettings::default()
        };
        let tenant = Tenant { id: id.to_owned(), host: false, settings };
        self.insert(id, tenant).await.unwrap();
    }

    async fn host(&self, id: &str) {
        let settings = TenantSettings::default();
        self.insert(id, Tenant { id: id.to_owned(), host: true, settings }).await.unwrap();
    }

    async fn insert<R: Record>(&self, tenant: &str, record: R) -> Result<Stored<R>> {
        insert(&self.store, tenant, record).await
    }

    async fn devices(&self, seeds: std::ops::Range<u8>) {
        for seed in seeds {
            self.insert("tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
        }
    }

    async fn revoke(&self, tenant: &str, seed: u8) -> Result<Revocation> {
        let key = key(seed);
        let mut change = self.store.change(actor(), NOW).await?;
        let made = revocation::add(&mut change, tenant, &key, "lost").await?;
        change.commit().await?;
        Ok(made)
    }

    async fn enrol(&self, secret: &str, seed: u8) -> Result<Stored<Device>> {
        enrolment(secret, seed).admit_box(&self.store, NOW, &authority_elsewhere()).await
    }

    async fn token(&self, tenant: &str, settings: TokenSettings) -> String {
        let secret = keys::secret();
        let token = Token {
            id: keys::identifier(),
            hash: keys::hash(&secret),
            uses_left: settings.uses.into(),
            expires_ms: settings.lifetime_s.map(|it| NOW + i64::from(it) * 1000),
            settings,
        };
        self.insert(tenant, token).await.unwrap();
        secret
    }
}

async fn insert<R: Record>(store: &Store, tenant: &str, record: R) -> Result<Stored<R>> {
    let mut change = store.change(actor(), NOW).await?;
    let stored = change.insert(tenant, record).await?;
    change.commit().await?;
    Ok(stored)
}

/// What tasks that run at once return.
async fn race<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    tasks: impl IntoIterator<Item = F>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

pub(crate) fn controller() -> StoreKeys {
    StoreKeys::new(&identity(7))
}

fn authority_elsewhere() -> Authority {
    Authority::new(identity(7), Root::Elsewhere(identity(8).public_key()), Vec::new())
}

fn actor() -> Actor {
    Actor::new("person:anna")
}

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(crate) fn key(seed: u8) -> String {
    identity(seed).public_key().to_string()
}

pub(crate) fn device(id: &str, seed: u8) -> Device {
    Device {
        id: id.to_owned(),
        public_key: key(seed),
        state: DeviceState::Active,
        addresses: Vec::new(),
        token: None,
        pool: None,
        statement: None,
        delegates: Vec::new(),
        settings: DeviceSettings::default(),
    }
}

fn uses(uses: u32) -> TokenSettings {
    TokenSettings { uses, ..TokenSettings::default() }
}

pub(crate) fn enrolment(secret: &str, seed: u8) -> Enrolment {
    Enrolment { secret: secret.to_owned(), public_key: key(seed), name: None, delegated: None }
}

const NOW: i64 = 1_800_000_000_000;

#[test]
fn of_two_who_have_seen_the_same_version_one_may_write() {
    in_tram(|world| async move {
        let seen = world.insert("tram", device("bus-17", 1)).await.unwrap();
        let mut first = world.store.change(actor(), NOW).await.unwrap();
        let mut changed = seen.record.clone();
        changed.settings.title = "first".to_owned();
        let after = first.update(&seen, changed.clone()).await.unwrap();
        first.commit().await.unwrap();
        assert_eq!(after.version, 2);
        let mut second = world.store.change(actor(), NOW).await.unwrap();
        let error = second.update(&seen, changed).await.unwrap_err();
        assert!(matches!(error, StoreError::Changed { current: 2, .. }), "{error}");
    });
}

#[test]
fn a_change_without_commit_has_not_happened() {
    in_tram(|world| async move {
        let before = world.store.latest_change().await.unwrap();
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.insert("tram", device("bus-17", 1)).await.unwrap();
        drop(change);
        assert!(world.store.get::<Device>("tram", "bus-17").await.is_err());
        assert_eq!(world.store.latest_change().await.unwrap(), before);
        assert_eq!(audit::latest(&world.store, "tram", None, 10).await.unwrap().len(), 1);
    });
}

#[test]
fn names_and_keys_are_taken_once_and_no_reference_crosses_tenants() {
    in_tram(|world| async move {
        world.tenant("ferry").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        world.insert("ferry", device("bus-17", 2)).await.unwrap();
        for (tenant, it) in [("tram", device("bus-17", 3)), ("ferry", device("boat", 1))] {
            let error = world.insert(tenant, it).await.unwrap_err();
            assert!(matches!(error, StoreError::Taken(_)), "{error}");
        }
        let pool = Pool { id: "north".to_owned(), settings: PoolSettings::default() };
        world.insert("tram", pool).await.unwrap();
        let token = |id: &str| {
            let settings = TokenSettings { pool: Some("north".to_owned()), ..uses(1) };
            let (id, hash) = (id.to_owned(), keys::hash(id));
            Token { id, hash, uses_left: 1, expires_ms: None, settings }
        };
        world.insert("tram", token("own")).await.unwrap();
        let error = world.insert("ferry", token("foreign")).await.unwrap_err();
        assert!(matches!(error, StoreError::Reference(_)), "{error}");
        let pool = world.store.get::<Pool>("tram", "north").await.unwrap();
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        let error = change.remove(&pool).await.unwrap_err();
        assert!(matches!(error, StoreError::Reference(_)), "{error}");
    });
}

#[test]
fn a_row_that_was_altered_in_the_database_is_refused() {
    in_tram(|world| async move {
        world.tenant("ferry").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        let pending = Device { state: DeviceState::Pending, ..device("bus-18", 2) };
        world.insert("tram", pending).await.unwrap();
        let secret = world.token("tram", uses(1)).await;
        for sql in [
            format!("UPDATE device SET body = replace(body, '{}', '{}')", key(1), key(9)),
            "UPDATE device SET body = replace(body, 'pending', 'active'), state = 'active' \
             WHERE id = 'bus-18'"
                .to_owned(),
            format!("UPDATE device SET public_key = '{}' WHERE id = 'bus-17'", key(9)),
            "UPDATE device SET tenant = 'ferry'".to_owned(),
            "UPDATE device SET id = 'bus-19' WHERE id = 'bus-17'".to_owned(),
            "UPDATE device SET version = 2".to_owned(),
        ] {
            world.tamper("CREATE TABLE kept AS SELECT * FROM device").await;
            assert!(world.tamper(&sql).await > 0, "{sql}");
            let mut refused = 0;
            for (tenant, id) in
                [("tram", "bus-17"), ("tram", "bus-18"), ("ferry", "bus-17"), ("tram", "bus-19")]
            {
                match world.store.get::<Device>(tenant, id).await {
                    Ok(found) => assert_eq!((&*found.tenant, found.version), ("tram", 1), "{sql}"),
                    Err(StoreError::Altered { .. }) => refused += 1,
                    Err(StoreError::NotFound { .. }) => {}
                    Err(error) => panic!("{sql}: {error}"),
                }
            }
            assert!(refused > 0, "{sql}");
            world.tamper("DELETE FROM device").await;
            world.tamper("INSERT INTO device SELECT * FROM kept").await;
            world.tamper("DROP TABLE kept").await;
        }
        world.tamper("UPDATE token SET uses_left = 1000").await;
        let error = world.enrol(&secret, 5).await.unwrap_err();
        assert!(matches!(error, StoreError::Altered { .. }), "{error}");
    });
}

#[test]
fn revocations_are_numbered_without_gaps_also_in_a_race() {
    in_tram(|world| async move {
        let racers = (0..12_u8).map(|seed| {
            let world = world.clone();
            async move { world.revoke("tram", seed / 2).await.unwrap().serial }
        });
        assert!(race(racers).await.iter().all(|serial| (1..=6).contains(serial)));
        let all = revocation::list(&world.store, None, 0, 100).await.unwrap();
        let mut previous = String::new();
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.serial, at as i64 + 1);
            let signed = Authority::revoke(&one.public_key, one.serial, &previous).unwrap();
            assert_eq!((&one.entry, &one.hash), (&signed.0, &signed.1));
            previous.clone_from(&one.hash);
        }
        assert_eq!(all.len(), 6);
        let lines = outbox::after(&world.store, (0, 0)).await.unwrap();
        assert_eq!(lines.iter().filter(|line| line.kind == "revocation").count(), 6);
        assert_eq!(revocation::get(&world.store, "tram", 4).await.unwrap(), all[3]);
        assert!(revocation::get(&world.store, "ferry", 4).await.is_err());
        assert!(revocation::list(&world.store, Some("ferry"), 0, 9).await.unwrap().is_empty());
    });
}

#[test]
fn a_follower_of_the_outbox_misses_nothing() {
    in_tram(|world| async move {
        let writers = (0..4_u8).map(|writer| {
            let world = world.clone();
            async move {
                for at in 0..10_u8 {
                    let it = device(&format!("bus-{writer}-{at}"), writer * 10 + at);
                    world.insert("tram", it).await.unwrap();
                }
            }
        });
        let writing = tokio::spawn(race(writers.collect::<Vec<_>>()));
        let (mut at, mut seen) = ((1, i64::MAX), Vec::new());
        while seen.len() < 40 {
            for line in outbox::after(&world.store, at).await.unwrap() {
                assert!((line.sequence, line.position) > at);
                at = (line.sequence, line.position);
                seen.push(line.subject);
            }
            tokio::task::yield_now().await;
        }
        writing.await.unwrap();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    });
}

#[test]
fn a_repeated_request_finds_its_answer() {
    on_both(|world| async move {
        let at = |at_ms| {
            let [tenant, actor, key] = ["tram", "person:anna", "once"].map(str::to_owned);
            Once { tenant, actor, key, at_ms }
        };
        let note = |request: &'static str, now| {
            let store = Arc::clone(&world.store);
            async move { at(now).note(&store, request).await.unwrap() }
        };
        assert_eq!(note("a", NOW).await, IdempotencyState::New);
        assert_eq!(note("a", NOW).await, IdempotencyState::UnderWay);
        assert_eq!(note("b", NOW).await, IdempotencyState::OtherRequest);
        at(NOW).store_answer(&world.store, Some("the secret")).await.unwrap();
        assert_eq!(note("a", NOW).await, IdempotencyState::Answered("the secret".to_owned()));
        assert_eq!(world.tamper("UPDATE answer SET answer = 'AAAA'").await, 1);
        assert!(at(NOW).note(&world.store, "a").await.is_err());
        world.tamper("UPDATE answer SET answer = ''").await;
        assert_eq!(note("a", NOW + 59_999).await, IdempotencyState::UnderWay);
        assert_eq!(note("a", NOW + 60_001).await, IdempotencyState::New);
        let act = |noted| {
            let (store, actor) =
                (Arc::clone(&world.store), Actor { once: Some(at(noted)), ..actor() });
            async move { store.change(actor, NOW).await.unwrap().commit().await }
        };
        assert!(matches!(act(NOW).await, Err(StoreError::Refused(_))));
        act(NOW + 60_001).await.unwrap();
        at(NOW + 60_001).store_answer(&world.store, None).await.unwrap();
        assert_eq!(note("a", NOW + 200_000).await, IdempotencyState::Acted);
        at(NOW).store_answer(&world.store, Some("another's")).await.unwrap();
        at(NOW + 60_001).store_answer(&world.store, Some("done")).await.unwrap();
        act(NOW + 60_001).await.unwrap();
        assert_eq!(note("a", NOW + 200_000).await, IdempotencyState::Answered("done".to_owned()));
    });
}

pub(crate) fn report(device: &str, stream: &str, connected: bool, at_ms: i64) -> Note {
    let (tenant, stream, device) = ("tram".to_owned(), stream.to_owned(), device.to_owned());
    let report = Report { device, at_ms, report: json!({ "connected": connected }) };
    Note::Report { tenant, report, stream, connected }
}

fn on(device: &str, proxy: Option<u8>) -> Note {
    let (tenant, device, proxy) = ("tram".to_owned(), device.to_owned(), proxy.map(key));
    Note::On { tenant, device, proxy }
}

pub(crate) fn proxy(id: &str, seed: u8) -> Proxy {
    let settings = ProxySettings {
        title: String::new(),
        role: ProxyRole::Proxy,
        public_key: key(seed),
        addresses: vec!["192.0.2.7:4433".parse().unwrap()],
        pool: None,
        devices_max: None,
    };
    let (id, state, delegates) = (id.to_owned(), ProxyState::Active, Vec::new());
    Proxy { id, state, statement: None, delegates, settings }
}

pub(crate) fn status(proxy: &str) -> ProxyStatus {
    ProxyStatus {
        tenant: "tram".to_owned(),
        proxy: proxy.to_owned(),
        connected: true,
        seen_ms: NOW,
        serial: 0,
        hash: String::new(),
        stream: String::new(),
        load: None,
        sessions: 0,
        software: String::new(),
        witnessed_ms: 0,
        anchors: BTreeMap::new(),
    }
}
