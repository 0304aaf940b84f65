//! More rows than a statement should touch, and what a tenant may have and takes from others.

use super::*;

async fn samples(world: &World, count: i64) {
    world.tenant("tram").await;
    world.devices(1..4).await;
    let rows = format!(
        "INSERT INTO sample (tenant, device, step_ms, at_ms, figures) \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         SELECT tenant, id, 10000, i, '{{}}' FROM n CROSS JOIN device"
    );
    assert_eq!(world.tamper(&rows).await, 3 * count.unsigned_abs());
}

async fn left(world: &World) -> usize {
    let mut left = 0;
    for seed in 1..=3 {
        let (of, all) = (("tram", &*format!("bus-{seed}")), (0, i64::MAX));
        left += report::samples(&world.store, of, STEPS_MS[0], all, 100_000).await.unwrap().len();
    }
    left
}

#[test]
fn a_backup_of_more_than_a_page_has_each_row_once() {
    on_both(|world| async move {
        samples(&world, 1_200).await;
        let (mut backup, target) = (Vec::new(), sqlite().await);
        backup::write(&world.store, &mut backup, NOW).await.unwrap();
        backup::restore(&target.store, &mut &*backup, 0, |_| Ok(())).await.unwrap();
        assert_eq!(left(&target).await, 3_600);
    });
}

#[test]
fn what_is_too_old_goes_however_much_it_is() {
    on_both(|world| async move {
        samples(&world, 3_000).await;
        if matches!(world.url, Database::Postgres(_)) {
            let slow = "CREATE FUNCTION slow() RETURNS trigger AS \
                        'BEGIN PERFORM pg_sleep(0.01); RETURN OLD; END' LANGUAGE plpgsql";
            world.tamper(slow).await;
            let each = "CREATE TRIGGER slow BEFORE DELETE ON sample FOR EACH ROW \
                        WHEN (OLD.at_ms % 10 = 0) EXECUTE FUNCTION slow()";
            world.tamper(each).await;
        }
        let day = 86_400_000;
        outbox::prune(&world.store, 2 * day + 2_991).await.unwrap();
        assert_eq!(left(&world).await, 3 * 10);
    });
}

#[test]
fn who_was_revoked_takes_nobodys_place() {
    on_both(|world| async move {
        let mut settings = TenantSettings::default();
        settings.limits.devices_max = 1;
        let tenant = Tenant { id: "tram".to_owned(), host: false, settings };
        world.insert("tram", tenant).await.unwrap();
        let gone = Device { state: DeviceState::Revoked, ..device("bus-1", 1) };
        world.insert("tram", gone).await.unwrap();
        let secret = world.token("tram", uses(3)).await;
        assert!(world.enrol(&secret, 2).await.is_ok());
        let error = world.enrol(&secret, 3).await.unwrap_err();
        assert!(error.to_string().contains("limit of boxes"), "{error}");
        for (id, seed, state) in
            [("fra-1", 20, ProxyState::Revoked), ("fra-2", 21, ProxyState::Draining)]
        {
            world.insert("tram", Proxy { state, ..proxy(id, seed) }).await.unwrap();
        }
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        assert_eq!(change.count::<Proxy>("tram").await.unwrap(), 1);
    });
}

#[test]
fn no_tenant_revokes_until_others_cannot() {
    on_both(|world| async move {
        for id in ["tram", "ferry"] {
            world.tenant(id).await;
        }
        world.host("host").await;
        let most = (65_536 - 4_096) / 2;
        let fill = format!(
            "WITH RECURSIVE made (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM made WHERE n < {most}) \
             INSERT INTO revocation (tenant, serial, at_ms, public_key, reason, entry, hash) \
             SELECT 'tram', n, 0, 'key ' || n, '', '', '' FROM made"
        );
        assert_eq!(world.tamper(&fill).await, most);
        let refused = world.revoke("tram", 1).await.unwrap_err();
        assert!(refused.to_string().contains("its limit"), "{refused}");
        let next = i64::try_from(most).unwrap() + 1;
        assert_eq!(world.revoke("ferry", 2).await.unwrap().serial, next);
        assert_eq!(world.revoke("host", 3).await.unwrap().serial, next + 1);
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        let again = revocation::append(&mut change, "tram", &key(4), "lost").await.unwrap();
        assert_eq!(again.serial, next + 2);
    });
}
