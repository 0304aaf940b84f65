//! The audit log, and what must not be in it.

use super::*;
use crate::store::audit::ChainFault;

#[test]
fn a_rewritten_audit_log_is_detected() {
    in_tram(|world| async move {
        world.devices(0..5).await;
        let verify = |seen| {
            let store = Arc::clone(&world.store);
            async move { audit::verify(&store, "tram", seen).await.unwrap() }
        };
        let head = verify(None).await.unwrap();
        assert_eq!(head.0, 6);
        let log = audit::latest(&world.store, "tram", None, 2).await.unwrap();
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
        // With the counter set back too, only a checkpoint shows it.
        world.tamper("DELETE FROM audit WHERE serial > 4").await;
        let back = "UPDATE counter SET value = 4, hash = \
                    (SELECT hash FROM audit WHERE serial = 4) WHERE name = 'audit/tram'";
        world.tamper(back).await;
        assert_eq!(verify(None).await.unwrap().0, 4);
        let cut = ChainFault::Cut { found: 4, expected: 6 };
        assert_eq!(verify(Some(head.clone())).await, Err(cut));
        world.devices(20..23).await;
        assert_eq!(verify(Some(head)).await, Err(ChainFault::Rewritten(6)));
    });
}

#[test]
fn a_cut_of_entries_written_here_is_detected_without_an_earlier_check() {
    on_both(|world| async move {
        let path = world.folder.path().join("heads.json");
        let open = || AuditCheckpoints::open(path.clone()).unwrap();
        let store = Store::open(&world.url, controller()).await.unwrap();
        let store = Store { audit_checkpoints: Arc::new(open()), ..store };
        world.tenant("tram").await;
        for seed in 0..5 {
            insert(&store, "tram", device(&format!("bus-{seed}"), seed)).await.unwrap();
        }
        let mut change = store.change(actor(), NOW).await.unwrap();
        change.insert("tram", device("bus-9", 9)).await.unwrap();
        drop(change);
        store.audit_checkpoints.save();
        let seen = open().of("tram");
        assert_eq!(audit::verify(&store, "tram", None).await.unwrap().ok(), seen);
        world.tamper("DELETE FROM audit WHERE serial > 1").await;
        let back = "UPDATE counter SET value = 1, hash = \
                    (SELECT hash FROM audit WHERE serial = 1) WHERE name = 'audit/tram'";
        world.tamper(back).await;
        let cut = ChainFault::Cut { found: 1, expected: 6 };
        assert_eq!(audit::verify(&store, "tram", open().of("tram")).await.unwrap(), Err(cut));
        world.insert("tram", device("bus-8", 8)).await.unwrap();
        assert!(
            audit::verify(&store, "tram", store.audit_checkpoints.of("tram"))
                .await
                .unwrap()
                .is_err()
        );
    });
}

#[test]
fn secrets_stay_out_of_the_audit_log() {
    in_tram(|world| async move {
        world.token("tram", uses(1)).await;
        let log = audit::latest(&world.store, "tram", None, 9).await.unwrap();
        let token = log.iter().find(|line| line.kind == "token").unwrap();
        assert!(token.after.get("uses_left").is_some() && token.after.get("hash").is_none());
    });
}
