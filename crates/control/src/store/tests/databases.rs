//! Both databases: copied, newer, away, full, and how their addresses are written.

use super::*;

#[test]
fn a_backup_is_restored_whole_or_not_at_all_into_either_database() {
    in_tram(|world| async move {
        let secret = world.token("tram", uses(2)).await;
        world.enrol(&secret, 1).await.unwrap();
        world.insert("tram", proxy("fra-1", 20)).await.unwrap();
        let found = world.store.find::<Device>("public_key", &key(1)).await.unwrap();
        let device = found.record.id;
        note::store(&world.store, &[on(&device, Some(20))], NOW).await.unwrap();
        let sessions = report::sessions(&world.store, "tram", &device, 9).await.unwrap();
        assert_eq!(sessions.len(), 1);
        let mut backup = Vec::new();
        backup::write(&world.store, &mut backup, NOW).await.unwrap();
        let error = backup::restore(&world.store, &mut &*backup, 0, |_| Ok(())).await.unwrap_err();
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
                assert!(backup::restore(&target.store, &mut &*bad, 0, |_| Ok(())).await.is_err());
                assert_eq!(count::<Tenant>(&target.store, "tram").await, 0);
            }
            let (_, epoch) =
                backup::restore(&target.store, &mut &*backup, 5, |_| Ok(())).await.unwrap();
            assert_eq!(epoch, 6);
            assert_eq!(target.store.epoch().await.unwrap(), 6);
            let before = world.store.get::<Tenant>("tram", "tram").await.unwrap();
            assert_eq!(target.store.get::<Tenant>("tram", "tram").await.unwrap(), before);
            let found = report::sessions(&target.store, "tram", &device, 9).await.unwrap();
            assert_eq!(found, sessions);
            assert_eq!(
                audit::verify(&target.store, "tram", None).await.unwrap(),
                audit::verify(&world.store, "tram", None).await.unwrap()
            );
            target.enrol(&secret, 2).await.unwrap();
            assert!(target.enrol(&secret, 3).await.is_err());
        }
    });
}

#[test]
fn a_database_of_a_newer_version_is_not_touched() {
    on_both(|world| async move {
        let sql = "UPDATE _sqlx_migrations SET version = 99 WHERE version = 1";
        world.tamper(sql).await;
        let error = Store::open(&world.url, controller()).await.err().unwrap();
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
        let error = Store::open(&missing, controller()).await.err().unwrap();
        assert!(error.to_string().contains("does not exist"), "{error}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_called_that_and_ends() {
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
