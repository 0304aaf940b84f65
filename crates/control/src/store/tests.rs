//! One suite for both databases: each test runs on a SQLite file and on a real PostgreSQL.

mod faults;
mod older;
mod room;
mod sizes;
mod told;

use std::collections::BTreeMap;
use std::sync::Arc;

use roadweave_identity::Identity;
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::postgres::Postgres;
use super::*;
use crate::authority::NotSigned;
use crate::keys;
use crate::model::{
    Device, DeviceSettings, DeviceState, Limits, Pool, PoolSettings, Proxy, ProxyRole,
    ProxySettings, ProxyState, Tenant, TenantSettings, Token, TokenSettings,
};

/// A store for a test, with what must outlive it.
pub(crate) struct World {
    pub(crate) store: Arc<Store>,
    pub(crate) url: Database,
    pub(crate) _folder: tempfile::TempDir,
    pub(crate) _server: Option<Arc<Postgres>>,
}

/// Runs `test` on each database.
pub(crate) fn on_both<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    let runtime = runtime();
    runtime.block_on(async { test(sqlite().await).await });
    if let Some(server) = Postgres::shared() {
        // A test that moves the store out of its world drops the rest of it at once, and the server
        // goes with the last who holds it.
        let held = Arc::clone(&server);
        runtime.block_on(async { test(postgres(server).await).await });
        drop(held);
    }
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
    World { store: Arc::new(store), url, _folder: folder, _server: server }
}

impl World {
    /// Opens the database of this world once more.
    #[cfg(feature = "oidc")]
    pub(crate) async fn again(&self) -> Self {
        let url = self.url.clone();
        world(url, tempfile::tempdir().unwrap(), self._server.clone()).await
    }

    /// Writes to the database behind the controller's back.
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

    async fn insert<R: Record>(&self, tenant: &str, record: R) -> Result<Stored<R>, StoreError> {
        let mut change = self.store.change(actor(), NOW).await?;
        let stored = change.insert(tenant, record).await?;
        change.commit().await?;
        Ok(stored)
    }

    /// A token with so many uses; returns its secret.
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

/// The keys of the controller.
pub(crate) fn controller() -> StoreKeys {
    StoreKeys::new(&Identity::from_seed([7; 32]))
}

#[expect(clippy::unnecessary_wraps, reason = "as one who could sign")]
fn nobody(_: &str, _: &Device) -> Result<Option<String>, NotSigned> {
    Ok(None)
}

fn actor() -> Actor {
    Actor::new("person:anna")
}

fn key(seed: u8) -> String {
    Identity::from_seed([seed; 32]).public_key().to_string()
}

fn device(id: &str, seed: u8) -> Device {
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

fn enrolment(secret: &str, seed: u8) -> Enrolment {
    Enrolment { secret: secret.to_owned(), public_key: key(seed), name: None, delegated: None }
}

const NOW: i64 = 1_800_000_000_000;

#[test]
fn a_record_is_found_as_it_was_written() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let written = world.insert("tram", device("bus-17", 1)).await.unwrap();
        let found = world.store.get::<Device>("tram", "bus-17").await.unwrap();
        assert_eq!(found, written);
        assert_eq!(world.store.find::<Device>("public_key", &key(1)).await.unwrap(), written);
        let missing = world.store.get::<Device>("tram", "bus-18").await.unwrap_err();
        assert_eq!(missing.to_string(), "there is no device \"bus-18\"");
        // Opened again, with its tables there.
        let again = Store::open(&world.url, controller()).await.unwrap();
        assert_eq!(again.get::<Device>("tram", "bus-17").await.unwrap(), written);
    });
}

#[test]
fn of_two_who_have_seen_the_same_version_one_may_write() {
    on_both(|world| async move {
        world.tenant("tram").await;
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
    on_both(|world| async move {
        world.tenant("tram").await;
        let before = world.store.latest_change().await.unwrap();
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.insert("tram", device("bus-17", 1)).await.unwrap();
        drop(change);
        assert!(world.store.get::<Device>("tram", "bus-17").await.is_err());
        assert_eq!(world.store.latest_change().await.unwrap(), before);
        assert_eq!(world.store.audit("tram", None, 10).await.unwrap().len(), 1);
    });
}

#[test]
fn names_and_keys_are_taken_once_and_no_reference_crosses_tenants() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.tenant("ferry").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        // The same name in another tenant is another box; the same key is not.
        world.insert("ferry", device("bus-17", 2)).await.unwrap();
        for (tenant, it) in [("tram", device("bus-17", 3)), ("ferry", device("boat", 1))] {
            let error = world.insert(tenant, it).await.unwrap_err();
            assert!(matches!(error, StoreError::Taken(_)), "{error}");
        }
        let pool = Pool { id: "north".to_owned(), settings: PoolSettings::default() };
        world.insert("tram", pool).await.unwrap();
        let settings = TokenSettings { pool: Some("north".to_owned()), ..uses(1) };
        let token = |id: &str| Token {
            id: id.to_owned(),
            hash: keys::hash(id),
            uses_left: 1,
            expires_ms: None,
            settings: settings.clone(),
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
fn lists_have_pages_and_filters() {
    on_both(|world| async move {
        world.tenant("tram").await;
        for seed in 0..5 {
            let mut it = device(&format!("bus-{seed}"), seed);
            if seed % 2 == 0 {
                it.settings.tags = vec!["night".to_owned(), "new".to_owned()];
            }
            world.insert("tram", it).await.unwrap();
        }
        let page = |after: &str, word| {
            let store = &world.store;
            let filter = Filter { after: after.to_owned(), limit: 2, word, ..Filter::default() };
            async move {
                let page = store.list::<Device>("tram", &filter).await.unwrap();
                let names: Vec<String> = page.items.into_iter().map(|it| it.record.id).collect();
                (names.join(" "), page.next)
            }
        };
        assert_eq!(page("", None).await, ("bus-0 bus-1".into(), Some("bus-1".into())));
        assert_eq!(page("bus-1", None).await, ("bus-2 bus-3".into(), Some("bus-3".into())));
        assert_eq!(page("bus-3", None).await, ("bus-4".into(), None));
        let night = Some(("tags", "night".to_owned()));
        assert_eq!(page("", night.clone()).await, ("bus-0 bus-2".into(), Some("bus-2".into())));
        assert_eq!(page("bus-2", night).await, ("bus-4".into(), None));
        // A word is no pattern.
        assert_eq!(page("", Some(("tags", "n%".to_owned()))).await.0, "");
        let equal = vec![("state", "revoked".to_owned())];
        let filter = Filter { equal, limit: 9, ..Filter::default() };
        assert!(world.store.list::<Device>("tram", &filter).await.unwrap().items.is_empty());
    });
}

#[test]
fn a_row_that_was_altered_in_the_database_is_refused() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.tenant("ferry").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        let mut pending = device("bus-18", 2);
        pending.state = DeviceState::Pending;
        world.insert("tram", pending).await.unwrap();
        let secret = world.token("tram", uses(1)).await;
        let altered = |error: StoreError| assert!(matches!(error, StoreError::Altered { .. }));
        // Another key, in the JSON and in the column; a state; the column alone; another tenant.
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
        // More uses than the token was made with.
        world.tamper("UPDATE token SET uses_left = 1000").await;
        altered(world.store.enrol(&enrolment(&secret, 5), NOW, nobody).await.unwrap_err());
    });
}

#[test]
fn sixteen_racers_on_a_token_with_three_uses_let_in_three() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let secret = world.token("tram", uses(3)).await;
        let racers = (1..=16).map(|seed| {
            let (store, it) = (Arc::clone(&world.store), enrolment(&secret, seed));
            tokio::spawn(async move { store.enrol(&it, NOW, nobody).await })
        });
        let racers: Vec<_> = racers.collect();
        let (mut admitted, mut refused) = (Vec::new(), 0);
        for racer in racers {
            match racer.await.unwrap() {
                Ok(enrolled) => admitted.push(enrolled.device.record),
                Err(StoreError::Refused(why)) if why == "the token is used up" => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((admitted.len(), refused), (3, 13));
        let mut addresses: Vec<_> =
            admitted.iter().flat_map(|it| &it.addresses).map(ToString::to_string).collect();
        addresses.sort();
        let expected = ["10.7.0.2", "10.7.0.3", "10.7.0.4", "fd07::2", "fd07::3", "fd07::4"];
        assert_eq!(addresses, expected);
        // Those who are in may repeat it; it costs nothing and changes nothing.
        for it in &admitted {
            let secret = secret.clone();
            let again = Enrolment {
                secret,
                public_key: it.public_key.clone(),
                name: None,
                delegated: None,
            };
            let again = world.store.enrol(&again, NOW, nobody).await.unwrap();
            assert!(again.again && again.device.record == *it);
        }
        assert_eq!(world.store.count::<Device>("tram").await.unwrap(), 3);
    });
}

#[test]
fn the_same_key_in_a_race_costs_one_use() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let secret = world.token("tram", uses(3)).await;
        let racers = (0..8).map(|_| {
            let (store, it) = (Arc::clone(&world.store), enrolment(&secret, 1));
            tokio::spawn(async move { store.enrol(&it, NOW, nobody).await.unwrap().again })
        });
        let racers: Vec<_> = racers.collect();
        let mut first = 0;
        for racer in racers {
            first += u32::from(!racer.await.unwrap());
        }
        let token = world.store.find::<Token>("hash", &keys::hash(&secret)).await.unwrap();
        assert_eq!((first, token.record.uses_left), (1, 2));
    });
}

#[test]
fn a_token_lets_in_nobody_it_should_not() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.tenant("ferry").await;
        let refused = |secret: String, seed: u8, now: i64, why: &'static str| {
            let store = Arc::clone(&world.store);
            async move {
                let error = store.enrol(&enrolment(&secret, seed), now, nobody).await.unwrap_err();
                assert_eq!(error.to_string(), why);
            }
        };
        refused("nonsense".into(), 1, NOW, "the token is not known here").await;
        let short = world.token("tram", TokenSettings { lifetime_s: Some(1), ..uses(1) }).await;
        refused(short.clone(), 1, NOW + 1000, "the token has expired").await;
        // An expired token has lost no use.
        world.store.enrol(&enrolment(&short, 1), NOW + 999, nobody).await.unwrap();
        let other = world.token("ferry", uses(2)).await;
        refused(other.clone(), 1, NOW, "the key belongs to another box").await;
        // A key that was revoked does not come back, neither by repetition nor by a new token.
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.revoke("ferry", &key(2), "stolen", signer).await.unwrap();
        change.commit().await.unwrap();
        refused(other, 2, NOW, "the key was revoked").await;
        // As many as the tenant may have.
        let tenant = world.store.get::<Tenant>("ferry", "ferry").await.unwrap();
        let mut full = tenant.record.clone();
        full.settings.limits = Limits { devices_max: 1, rate_mbps: None };
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.update(&tenant, full).await.unwrap();
        change.commit().await.unwrap();
        let last = world.token("ferry", uses(9)).await;
        world.store.enrol(&enrolment(&last, 3), NOW, nobody).await.unwrap();
        refused(last, 4, NOW, "the tenant has as many boxes as it may").await;
    });
}

fn signer(serial: i64, previous: &str) -> Result<(String, String), NotSigned> {
    Ok((format!("entry {serial} after {previous}"), keys::hash(&format!("{serial}{previous}"))))
}

#[test]
fn revocations_are_numbered_without_gaps_also_in_a_race() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let racers = (0..12_u8).map(|seed| {
            let store = Arc::clone(&world.store);
            tokio::spawn(async move {
                let mut change = store.change(actor(), NOW).await.unwrap();
                // Two of each key: one revocation.
                let made = change.revoke("tram", &key(seed / 2), "sold", signer).await.unwrap();
                change.commit().await.unwrap();
                made.serial
            })
        });
        let racers: Vec<_> = racers.collect();
        for racer in racers {
            assert!((1..=6).contains(&racer.await.unwrap()));
        }
        let all = world.store.revocations(None, 0, 100).await.unwrap();
        let mut previous = String::new();
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.serial, at as i64 + 1);
            assert_eq!(one.hash, signer(one.serial, &previous).unwrap().1);
            previous.clone_from(&one.hash);
        }
        assert_eq!(all.len(), 6);
        let lines = world.store.changes_after((0, 0)).await.unwrap();
        let told = lines.iter().filter(|line| line.kind == "revocation").count();
        assert_eq!(told, 6);
        assert_eq!(world.store.revocation("tram", 4).await.unwrap(), all[3]);
        assert!(world.store.revocation("ferry", 4).await.is_err());
        assert!(world.store.revocations(Some("ferry"), 0, 9).await.unwrap().is_empty());
        assert!(world.store.revocation("tram", 7).await.is_err());
    });
}

#[test]
fn whoever_follows_the_outbox_misses_nothing() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let writers = (0..4_u8).map(|writer| {
            let store = Arc::clone(&world.store);
            tokio::spawn(async move {
                for at in 0..10_u8 {
                    let mut change = store.change(actor(), NOW).await.unwrap();
                    let it = device(&format!("bus-{writer}-{at}"), writer * 10 + at);
                    change.insert("tram", it).await.unwrap();
                    change.commit().await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let (mut at, mut seen) = ((1, i64::MAX), Vec::new());
        while seen.len() < 40 {
            for line in world.store.changes_after(at).await.unwrap() {
                assert!((line.sequence, line.position) > at);
                at = (line.sequence, line.position);
                seen.push(line.subject);
            }
            tokio::task::yield_now().await;
        }
        for writer in writers {
            writer.await.unwrap();
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    });
}

#[test]
fn nobody_rewrites_the_audit_log_unseen() {
    on_both(|world| async move {
        world.tenant("tram").await;
        for seed in 0..5 {
            world.insert("tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
        }
        let verify = |seen| {
            let store = Arc::clone(&world.store);
            async move { store.verify_audit("tram", seen).await.unwrap() }
        };
        let head = verify(None).await.unwrap();
        assert_eq!(head.0, 6);
        let log = world.store.audit("tram", None, 2).await.unwrap();
        assert_eq!((log[0].serial, &*log[0].subject), (6, "bus-4"));
        assert_eq!(log[0].actor, "person:anna");
        assert_eq!(log[0].after["id"], "bus-4");
        world.tamper("CREATE TABLE kept AS SELECT * FROM audit").await;
        world.tamper("CREATE TABLE kept_counter AS SELECT * FROM counter").await;
        for (sql, fault) in [
            ("UPDATE audit SET actor = 'person:eve' WHERE serial = 3", ChainFault::Rewritten(3)),
            ("DELETE FROM audit WHERE serial = 3", ChainFault::Rewritten(3)),
            ("UPDATE audit SET after_json = '{}' WHERE serial = 6", ChainFault::Rewritten(6)),
            ("DELETE FROM audit WHERE serial > 4", ChainFault::Cut { found: 4, expected: 6 }),
        ] {
            assert!(world.tamper(sql).await > 0, "{sql}");
            assert_eq!(verify(None).await, Err(fault), "{sql}");
            world.tamper("DELETE FROM audit").await;
            world.tamper("INSERT INTO audit SELECT * FROM kept").await;
        }
        // With the counter taken back too, only who has seen the end can tell.
        world.tamper("DELETE FROM audit WHERE serial > 4").await;
        let back = "UPDATE counter SET value = 4, hash = \
                    (SELECT hash FROM audit WHERE serial = 4) WHERE name = 'audit/tram'";
        world.tamper(back).await;
        assert_eq!(verify(None).await.unwrap().0, 4);
        let cut = ChainFault::Cut { found: 4, expected: 6 };
        assert_eq!(verify(Some(head.clone())).await, Err(cut));
        // And what is written after that has another link at the number that was seen.
        for seed in 20..23 {
            world.insert("tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
        }
        assert_eq!(verify(Some(head)).await, Err(ChainFault::Rewritten(6)));
    });
}

#[test]
fn a_cut_of_what_was_written_here_is_seen_though_nobody_has_looked_since() {
    on_both(|world| async move {
        let path = world._folder.path().join("heads.json");
        let open = || Heads::open(path.clone()).unwrap();
        let store = Store::open(&world.url, controller()).await.unwrap().noting(open());
        world.tenant("tram").await;
        for seed in 0..5 {
            let mut change = store.change(actor(), NOW).await.unwrap();
            change.insert("tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
            change.commit().await.unwrap();
        }
        let mut change = store.change(actor(), NOW).await.unwrap();
        change.insert("tram", device("bus-9", 9)).await.unwrap();
        drop(change);
        store.heads().keep();
        let seen = open().of("tram");
        assert_eq!(store.verify_audit("tram", None).await.unwrap().ok(), seen);
        world.tamper("DELETE FROM audit WHERE serial > 1").await;
        let back = "UPDATE counter SET value = 1, hash = \
                    (SELECT hash FROM audit WHERE serial = 1) WHERE name = 'audit/tram'";
        world.tamper(back).await;
        let cut = ChainFault::Cut { found: 1, expected: 6 };
        assert_eq!(store.verify_audit("tram", open().of("tram")).await.unwrap(), Err(cut));
        // Nor does what is written after the cut hide it.
        world.insert("tram", device("bus-8", 8)).await.unwrap();
        assert!(store.verify_audit("tram", store.heads().of("tram")).await.unwrap().is_err());
    });
}

#[test]
fn secrets_stay_out_of_the_audit_log() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.token("tram", uses(1)).await;
        let log = world.store.audit("tram", None, 9).await.unwrap();
        let token = log.iter().find(|line| line.kind == "token").unwrap();
        assert!(token.after.get("uses_left").is_some() && token.after.get("hash").is_none());
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
            async move { store.note_request(&at(now), request).await.unwrap() }
        };
        assert_eq!(note("a", NOW).await, KeptAnswer::New);
        assert_eq!(note("a", NOW).await, KeptAnswer::UnderWay);
        assert_eq!(note("b", NOW).await, KeptAnswer::OtherRequest);
        world.store.keep_answer(&at(NOW), Some("the secret")).await.unwrap();
        assert_eq!(note("a", NOW).await, KeptAnswer::Answered("the secret".to_owned()));
        // The database alone does not tell it, nor lets another be put there.
        assert_eq!(world.tamper("UPDATE answer SET answer = 'AAAA'").await, 1);
        assert!(world.store.note_request(&at(NOW), "a").await.is_err());
        // One that never ended is free again after a minute.
        world.tamper("UPDATE answer SET answer = ''").await;
        assert_eq!(note("a", NOW + 59_999).await, KeptAnswer::UnderWay);
        assert_eq!(note("a", NOW + 60_001).await, KeptAnswer::New);
        // The one before, which takes so long, does nothing any more; this one does it once, though
        // its answer is lost.
        let act = |noted| {
            let (store, actor) = (Arc::clone(&world.store), actor().once(Some(at(noted))));
            async move { store.change(actor, NOW).await.unwrap().commit().await }
        };
        assert!(matches!(act(NOW).await, Err(StoreError::Refused(_))));
        act(NOW + 60_001).await.unwrap();
        world.store.keep_answer(&at(NOW + 60_001), None).await.unwrap();
        assert_eq!(note("a", NOW + 200_000).await, KeptAnswer::Acted);
        // What goes on after the answer leaves it as it is.
        world.store.keep_answer(&at(NOW), Some("another's")).await.unwrap();
        world.store.keep_answer(&at(NOW + 60_001), Some("done")).await.unwrap();
        act(NOW + 60_001).await.unwrap();
        assert_eq!(note("a", NOW + 200_000).await, KeptAnswer::Answered("done".to_owned()));
    });
}

#[test]
fn samples_become_means() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        let sample = |device: &str, at_ms: i64, rate: f64| {
            let figures = BTreeMap::from([("rate".to_owned(), rate)]);
            ("tram".to_owned(), Sample { device: device.to_owned(), at_ms, figures })
        };
        let minute = NOW - NOW % 60_000;
        let fine = [
            sample("bus-17", minute + 1_234, 10.0),
            sample("bus-17", minute + 10_000, 20.0),
            sample("bus-17", minute + 60_000, 99.0),
            sample("nobody", minute, 1.0),
        ];
        world.store.keep_samples(&fine).await.unwrap();
        world.store.roll_up(minute + 61_000).await.unwrap();
        world.store.roll_up(minute + 61_000).await.unwrap();
        let read = |step| {
            let (store, all) = (Arc::clone(&world.store), (0, i64::MAX));
            async move {
                let found = store.samples(("tram", "bus-17"), step, all, 99).await.unwrap();
                found.iter().map(|it| (it.at_ms - minute, it.figures["rate"])).collect::<Vec<_>>()
            }
        };
        assert_eq!(read(10_000).await, [(0, 10.0), (10_000, 20.0), (60_000, 99.0)]);
        assert_eq!(read(60_000).await, [(0, 15.0)]);
        world.store.prune(NOW + 3 * 86_400_000).await.unwrap();
        assert!(read(10_000).await.is_empty());
        assert_eq!(read(60_000).await, [(0, 15.0)]);
    });
}

#[test]
fn sessions_and_reports_are_of_boxes_that_are_there() {
    on_both(|world| async move {
        world.tenant("tram").await;
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let report = |device: &str, at_ms| Note::Report {
            tenant: "tram".to_owned(),
            report: Report {
                device: device.to_owned(),
                at_ms,
                report: json!({ "software": "1.0" }),
            },
            stream: "1".to_owned(),
            connected: true,
        };
        let all = [report("bus-17", 1), report("nobody", 1), report("bus-17", 2)];
        world.store.keep_notes(&all, NOW).await.unwrap();
        assert_eq!(world.store.report("tram", "bus-17").await.unwrap().at_ms, 2);
        let nobody = world.store.report("tram", "nobody").await.unwrap_err();
        assert!(matches!(nobody, StoreError::NotFound { .. }));
        let all = [on("bus-17", Some(20)), on("bus-17", None), on("nobody", Some(20))];
        world.store.keep_notes(&all, NOW).await.unwrap();
        let session = BoxSession {
            device: "bus-17".to_owned(),
            attachment: 1,
            proxy: "fra-1".to_owned(),
            from_ms: NOW,
            to_ms: Some(NOW),
            reason: Some("left".to_owned()),
        };
        assert_eq!(world.store.sessions("tram", "bus-17", 9).await.unwrap(), [session]);
        assert!(world.store.sessions("tram", "nobody", 9).await.unwrap().is_empty());
    });
}

/// A box says which proxy it is on.
fn on(device: &str, proxy: Option<u8>) -> Note {
    let (tenant, device, proxy) = ("tram".to_owned(), device.to_owned(), proxy.map(key));
    Note::On { tenant, device, proxy }
}

fn proxy(id: &str, seed: u8) -> Proxy {
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

#[test]
fn a_backup_is_restored_whole_or_not_at_all_into_either_database() {
    on_both(|world| async move {
        world.tenant("tram").await;
        let secret = world.token("tram", uses(2)).await;
        world.store.enrol(&enrolment(&secret, 1), NOW, nobody).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let found = world.store.find::<Device>("public_key", &key(1)).await.unwrap();
        let device = found.record.id;
        world.store.keep_notes(&[on(&device, Some(20))], NOW).await.unwrap();
        let sessions = world.store.sessions("tram", &device, 9).await.unwrap();
        assert_eq!(sessions.len(), 1);
        let mut backup = Vec::new();
        world.store.backup(&mut backup, NOW).await.unwrap();
        let error = world.store.restore(&mut &*backup, 0, |_| Ok(())).await.unwrap_err();
        assert!(matches!(error, BackupError::NotEmpty(1)), "{error}");

        let mut targets = vec![sqlite().await];
        if let Some(server) = Postgres::shared() {
            targets.push(postgres(server).await);
        }
        for target in &targets {
            let lines: Vec<&[u8]> = backup.split_inclusive(|byte| *byte == b'\n').collect();
            let cut = lines[..lines.len() - 1].concat();
            let without = [&lines[..3], &lines[4..]].concat().concat();
            let text = String::from_utf8(backup.clone()).unwrap();
            let altered = text.replace("10.7.0.2", "10.7.0.9").into_bytes();
            for bad in [cut, without, altered, b"{}".to_vec(), Vec::new(), vec![0xff; 9]] {
                assert!(target.store.restore(&mut &*bad, 0, |_| Ok(())).await.is_err());
                assert_eq!(target.store.count::<Tenant>("tram").await.unwrap(), 0);
            }
            let summary = target.store.restore(&mut &*backup, 5, |_| Ok(())).await.unwrap();
            assert_eq!((summary.epoch, summary.at_ms), (6, NOW));
            assert_eq!(target.store.epoch().await.unwrap(), 6);
            let before = world.store.get::<Tenant>("tram", "tram").await.unwrap();
            assert_eq!(target.store.get::<Tenant>("tram", "tram").await.unwrap(), before);
            let found = target.store.sessions("tram", &device, 9).await.unwrap();
            assert_eq!(found, sessions);
            assert_eq!(
                target.store.verify_audit("tram", None).await.unwrap(),
                world.store.verify_audit("tram", None).await.unwrap()
            );
            // It goes on where it was.
            assert!(!target.store.enrol(&enrolment(&secret, 2), NOW, nobody).await.unwrap().again);
            assert!(target.store.enrol(&enrolment(&secret, 3), NOW, nobody).await.is_err());
        }
    });
}

#[test]
fn a_database_of_a_newer_version_is_not_touched() {
    on_both(|world| async move {
        let sql = "UPDATE _sqlx_migrations SET version = 99 WHERE version = 1";
        world.tamper(sql).await;
        let error = Store::open(&world.url, controller()).await.unwrap_err();
        assert!(matches!(error, StoreError::Migration(_)), "{error}");
        assert!(error.to_string().contains("99"), "{error}");
    });
}

#[test]
fn a_postgresql_that_goes_away_is_said_at_once_and_comes_back() {
    let Some(server) = Postgres::start() else { return };
    let server = Arc::new(server);
    runtime().block_on(async {
        let world = postgres(Arc::clone(&server)).await;
        world.tenant("tram").await;
        server.down();
        for _ in 0..3 {
            let begun = std::time::Instant::now();
            let error = world.store.ping().await.unwrap_err();
            assert!(error.is_passing(), "{error:?}");
            assert!(begun.elapsed() < Duration::from_secs(8));
        }
        let error = world.store.change(actor(), NOW).await.err().unwrap();
        assert!(error.is_passing(), "{error:?}");
        server.up();
        world.insert("tram", device("bus-17", 1)).await.unwrap();
        let missing = Database::parse(&server.database().replace("/test", "/none")).unwrap();
        let error = Store::open(&missing, controller()).await.unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
    });
}

#[test]
fn a_full_disk_is_called_that_and_ends() {
    runtime().block_on(async {
        let world = sqlite().await;
        world.tenant("tram").await;
        let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
            .fetch_one(&mut *world.store.write.acquire().await.unwrap())
            .await
            .unwrap();
        world.tamper(&format!("PRAGMA max_page_count = {}", pages + 4)).await;
        let mut full = None;
        for seed in 0..200 {
            if let Err(error) = world.insert("tram", device(&format!("bus-{seed}"), seed)).await {
                full = Some(error);
                break;
            }
        }
        assert!(matches!(full, Some(StoreError::Full)), "{full:?}");
        world.store.get::<Device>("tram", "bus-0").await.unwrap();
        world.tamper("PRAGMA max_page_count = 100000").await;
        world.insert("tram", device("bus-after", 201)).await.unwrap();
    });
}

#[test]
fn addresses_of_databases_are_understood_and_shown_without_password() {
    let shown = |text: &str| Database::parse(text).map(|it| it.shown());
    assert_eq!(shown("/var/lib/x.db"), Ok("/var/lib/x.db".to_owned()));
    assert_eq!(shown("sqlite:///var/lib/x.db"), Ok("/var/lib/x.db".to_owned()));
    let url = "postgres://anna:pa:ss@db/fleet";
    assert_eq!(shown(url), Ok("postgres://anna@db/fleet".to_owned()));
    assert!(!format!("{:?}", Database::parse(url).unwrap()).contains("pa:ss"));
    assert!(shown("mysql://x").is_err() && shown("").is_err());
}
