//! What a tenant may have, and what it takes from others.

use super::*;

#[test]
fn who_was_revoked_takes_nobodys_place() {
    on_both(|world| async move {
        let limits = Limits { devices_max: 1, ..Limits::default() };
        let settings = TenantSettings { limits, ..TenantSettings::default() };
        let tenant = Tenant { id: "tram".to_owned(), host: false, settings };
        world.insert("tram", tenant).await.unwrap();
        let gone = Device { state: DeviceState::Revoked, ..device("bus-1", 1) };
        world.insert("tram", gone).await.unwrap();
        let secret = world.token("tram", uses(3)).await;
        assert!(world.enrol(&secret, 2).await.is_ok());
        let error = world.enrol(&secret, 3).await.unwrap_err();
        assert!(error.to_string().contains("as many boxes"), "{error}");
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
        // Half of the room without the host's reserve.
        let most = (65_536 - 4_096) / 2;
        let fill = format!(
            "WITH RECURSIVE made (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM made WHERE n < {most}) \
             INSERT INTO revocation (tenant, serial, at_ms, public_key, reason, entry, hash) \
             SELECT 'tram', n, 0, 'key ' || n, '', '', '' FROM made"
        );
        assert_eq!(world.tamper(&fill).await, most);
        let refused = world.revoke("tram", 1).await.unwrap_err();
        assert!(refused.to_string().contains("its share"), "{refused}");
        let next = i64::try_from(most).unwrap() + 1;
        assert_eq!(world.revoke("ferry", 2).await.unwrap().serial, next);
        assert_eq!(world.revoke("host", 3).await.unwrap().serial, next + 1);
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        let again = change.revoke_again("tram", &key(4), "lost").await.unwrap();
        assert_eq!(again.serial, next + 2);
    });
}
