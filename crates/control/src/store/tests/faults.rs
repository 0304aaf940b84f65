//! What may go wrong with a database, and with those who share one.

use std::time::Instant;

use super::*;
use crate::outbox::Outbox;
use crate::store::tests::postgres::Wire;
use sqlx::Connection as _;

const LATER: i64 = 4_070_908_800_000;
const LEASE: i64 = 15_000;

#[test]
fn one_replica_plans_at_a_time_whatever_a_clock_said_once() {
    on_both(|world| async move {
        let lead = |replica: &'static str, now: i64| {
            let store = Arc::clone(&world.store);
            async move { document::lead(&store, replica, now, now + LEASE).await.unwrap() }
        };
        assert!(lead("a", NOW).await);
        assert!(!lead("b", NOW + LEASE - 1).await, "it is held");
        assert!(lead("a", NOW + LEASE - 1).await, "and kept");
        assert!(lead("b", NOW + 3 * LEASE).await);
        assert!(!lead("a", NOW + 3 * LEASE + 1).await);
        assert!(lead("c", LATER).await);
        assert!(lead("d", NOW + 4 * LEASE).await);
        assert!(!lead("a", NOW + 4 * LEASE + 1).await);
    });
}

#[test]
fn two_controllers_on_one_database_write_one_after_the_other() {
    in_tram(|world| async move {
        let other = Arc::new(Store::open(&world.url, controller()).await.unwrap());
        let writers = [Arc::clone(&world.store), other].into_iter().zip(0_u8..);
        let writers = writers.map(|(store, writer)| async move {
            for at in 0..15 {
                let it = device(&format!("bus-{writer}-{at}"), 15 * writer + at);
                insert(&store, "tram", it).await.unwrap();
            }
        });
        race(writers).await;
        assert_eq!(count::<Device>(&world.store, "tram").await, 30);
        let lines = outbox::after(&world.store, (0, 0)).await.unwrap();
        let numbers: Vec<i64> = lines.iter().map(|line| line.sequence).collect();
        assert_eq!(numbers, (numbers[0]..numbers[0] + 31).collect::<Vec<_>>());
        assert_eq!(audit::verify(&world.store, "tram", None).await.unwrap().unwrap().0, 31);
    });
}

#[test]
fn a_database_that_another_holds_is_said_within_seconds_and_can_be_read() {
    in_tram(|world| async move {
        let other = Store::open(&world.url, controller()).await.unwrap();
        let held = other.change(actor(), NOW).await.unwrap();
        let begun = Instant::now();
        let error = world.store.change(actor(), NOW).await.err().unwrap();
        assert!(error.is_passing(), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        world.store.get::<Tenant>("tram", "tram").await.unwrap();
        held.transaction.rollback().await.unwrap();
        world.insert("tram", device("bus-17", 1)).await.unwrap();
    });
}

#[test]
fn an_interrupted_migration_is_finished_and_a_failed_one_is_reported() {
    in_tram(|world| async move {
        for sql in [
            "DROP TABLE document",
            "DROP TABLE progress",
            "ALTER TABLE proxy_status DROP COLUMN witnessed_ms",
            "DELETE FROM counter WHERE name = 'planner'",
            "DELETE FROM _sqlx_migrations WHERE version = 2",
        ] {
            world.tamper(sql).await;
        }
        assert!(
            !document::lead(&world.store, "a", NOW, NOW + LEASE).await.unwrap(),
            "there is no lease"
        );
        let again = Store::open(&world.url, controller()).await.unwrap();
        assert!(document::lead(&again, "a", NOW, NOW + LEASE).await.unwrap());
        assert!(document::all(&again, roadweave_fleet::Kind::Table).await.unwrap().is_empty());
        again.get::<Tenant>("tram", "tram").await.unwrap();
        world.tamper("UPDATE _sqlx_migrations SET success = false WHERE version = 2").await;
        let error = Store::open(&world.url, controller()).await.err().unwrap();
        assert!(matches!(error, StoreError::Migration(_)), "{error}");
    });
}

#[test]
fn a_change_whose_notice_is_lost_is_heard_all_the_same() {
    in_tram(|world| async move {
        let outbox = Outbox::new();
        let mut changes = outbox.listen();
        let following = tokio::spawn(Arc::clone(&outbox).follow(Arc::clone(&world.store)));
        tokio::time::sleep(Duration::from_millis(600)).await;
        let line = "INSERT INTO change (sequence, position, at_ms, tenant, kind, subject, version) \
                    VALUES (1000, 1, 0, 'tram', 'device', 'bus-17', 1)";
        world.tamper(line).await;
        let heard = tokio::time::timeout(Duration::from_secs(20), changes.recv()).await;
        assert_eq!(heard.unwrap().unwrap().subject, "bus-17");
        following.abort();
    });
}

#[test]
fn a_postgresql_that_vanishes_blocks_no_request() {
    let Some(server) = Postgres::shared() else { return };
    runtime().block_on(async {
        let direct = postgres(Arc::clone(&server)).await;
        direct.tenant("tram").await;
        let Database::Postgres(address) = &direct.url else { panic!() };
        let wire = Wire::to(&server);
        let over = Database::parse(&wire.address(&server, address)).unwrap();
        let store = Arc::new(Store::open(&over, controller()).await.unwrap());
        let outbox = Outbox::new();
        let mut changes = outbox.listen();
        tokio::spawn(Arc::clone(&outbox).follow(Arc::clone(&store)));
        for seed in 100.. {
            direct.insert("tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
            if tokio::time::timeout(Duration::from_secs(2), changes.recv()).await.is_ok() {
                break;
            }
        }
        let mut heard = async |what: &str| {
            let hear = async { while changes.recv().await.unwrap().subject != what {} };
            let begun = Instant::now();
            assert!(tokio::time::timeout(Duration::from_secs(40), hear).await.is_ok(), "{what}");
            begun.elapsed()
        };
        let mut connection = direct.store.write.acquire().await.unwrap();
        let mut locking = connection.begin().await.unwrap();
        let lock = "LOCK TABLE change IN ACCESS EXCLUSIVE MODE";
        sqlx::query(lock).execute(&mut *locking).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        wire.cut();
        locking.rollback().await.unwrap();
        let begun = Instant::now();
        let error = store.ping().await.err();
        assert!(error.as_ref().is_none_or(StoreError::is_passing), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        direct.insert("tram", device("bus-2", 2)).await.unwrap();
        let after = heard("bus-2").await;
        println!("after a silent cut the outbox was read again after {after:?}");
        for seed in 3..20 {
            insert(&store, "tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
        }
    });
}

#[test]
fn a_deleted_token_admits_no_key_and_removes_none() {
    in_tram(|world| async move {
        let secret = world.token("tram", uses(5)).await;
        let before = world.enrol(&secret, 1).await.unwrap();
        let token = world.store.find::<Token>("hash", &keys::hash(&secret)).await.unwrap();
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.remove(&token).await.unwrap();
        change.commit().await.unwrap();
        let refused = world.enrol(&secret, 2).await.unwrap_err();
        assert_eq!(refused.to_string(), "the token is unknown");
        let found = world.store.get::<Device>("tram", &before.record.id).await.unwrap();
        assert_eq!(found, before);
    });
}
