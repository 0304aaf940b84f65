//! Databases that are older than what was seen of them, or of another epoch.

use super::*;
use crate::outbox::{Health, Outbox};
use crate::rollback_guard::RollbackGuard;

fn is_older<T>(found: Result<T, StoreError>) -> bool {
    matches!(found, Err(StoreError::Older(why)) if why.contains("restore"))
}

#[test]
fn a_standby_that_lagged_is_neither_written_nor_followed() {
    in_tram(|world| async move {
        world.insert("tram", device("bus-1", 1)).await.unwrap();
        let outbox = Outbox::new();
        let mut health = outbox.health();
        tokio::spawn(Arc::clone(&outbox).follow(Arc::clone(&world.store)));
        let lag = "UPDATE counter SET value = value - 1 WHERE name = 'change'";
        assert_eq!(world.tamper(lag).await, 1);
        let is_bad = |health: &Health| matches!(health, Health::Bad(why) if why.contains("older"));
        health.wait_for(is_bad).await.unwrap();
        for seed in 2..5 {
            assert!(is_older(world.insert("tram", device("bus", seed)).await));
        }
        assert!(is_older(world.store.latest_change().await));
        world.tamper("UPDATE counter SET value = value + 1 WHERE name = 'change'").await;
        health.wait_for(|health| *health == Health::Good).await.unwrap();
        world.insert("tram", device("bus-2", 2)).await.unwrap();
    });
}

#[test]
fn what_was_seen_of_a_database_holds_at_the_next_start() {
    on_both(|world| async move {
        let folder = tempfile::tempdir().unwrap();
        let rollback_guard = || RollbackGuard::open(folder.path().join("seen.json"), 1).unwrap();
        let begun = async || {
            let store = Store::open(&world.url, controller()).await.unwrap();
            Store { rollback_guard: Arc::new(rollback_guard()), ..store }
        };
        world.tenant("tram").await;
        let store = begun().await;
        let latest = store.latest_change().await.unwrap();
        store.rollback_guard.save();
        assert_eq!(rollback_guard().change(), latest);
        world.tamper("UPDATE counter SET value = value - 1 WHERE name = 'change'").await;
        assert!(is_older(begun().await.latest_change().await));
        for epoch in [i64::MAX, 2, 0, -1] {
            let sql = format!("UPDATE counter SET value = {epoch} WHERE name = 'epoch'");
            world.tamper(&sql).await;
            assert!(is_older(begun().await.epoch().await), "{epoch}");
        }
        world.tamper("UPDATE counter SET value = 1 WHERE name = 'epoch'").await;
        assert_eq!(begun().await.epoch().await.unwrap(), 1);
    });
}

#[test]
fn no_revocation_takes_the_number_of_one_that_was_lost() {
    in_tram(|world| async move {
        let revoke = async |world: &World, seed| world.revoke("tram", seed).await;
        for seed in 1..=2 {
            revoke(&world, seed).await.unwrap();
        }
        let last = revoke(&world, 3).await.unwrap();
        assert_eq!(last.serial, 3);
        world.store.rollback_guard.record_revocations(3, &last.hash);
        assert_eq!(revoke(&world, 4).await.unwrap().serial, 4, "nothing is missing");
        world.tamper("DELETE FROM revocation WHERE serial >= 3").await;
        assert!(is_older(revoke(&world, 5).await));
        let world = world.afresh().await;
        assert_eq!(revoke(&world, 6).await.unwrap().serial, 3);
        world.store.rollback_guard.record_revocations(3, &last.hash);
        assert!(is_older(revoke(&world, 7).await));
    });
}

#[test]
fn a_backup_of_an_epoch_that_was_never_begun_leaves_room_for_others() {
    in_tram(|world| async move {
        let sql = format!("UPDATE counter SET value = {} WHERE name = 'epoch'", i64::MAX);
        world.tamper(&sql).await;
        let mut backup = Vec::new();
        backup::write(&world.store, &mut backup, NOW).await.unwrap();
        let target = sqlite().await;
        let full = |_| Err(std::io::Error::other("full"));
        let failed = backup::restore(&target.store, &mut &*backup, 5, full).await;
        assert!(failed.is_err(), "an epoch that was not noted has not begun");
        assert_eq!(count::<Tenant>(&target.store, "tram").await, 0);
        let mut begun = 0;
        let begin = |epoch| {
            begun = epoch;
            Ok(())
        };
        let (_, epoch) = backup::restore(&target.store, &mut &*backup, 5, begin).await.unwrap();
        assert_eq!(begun, epoch);
        assert_eq!(target.store.epoch().await.unwrap(), begun);
        assert!((6..2_000_000).contains(&begun), "{begun}");
        let error =
            backup::restore(&sqlite().await.store, &mut &*backup, i64::MAX, |_| Ok(())).await;
        assert!(error.is_err());
    });
}
