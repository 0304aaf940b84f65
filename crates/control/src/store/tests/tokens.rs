//! Whom tokens let in, and how often.

use super::*;

#[test]
fn sixteen_racers_on_a_token_with_three_uses_let_in_three() {
    in_tram(|world| async move {
        let secret = world.token("tram", uses(3)).await;
        let racers = (1..=16).map(|seed| {
            let (world, secret) = (world.clone(), secret.clone());
            async move { world.enrol(&secret, seed).await }
        });
        let (mut admitted, mut refused) = (Vec::new(), 0);
        for enrolled in race(racers).await {
            match enrolled {
                Ok(enrolled) => admitted.push(enrolled.record),
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
        for it in &admitted {
            let public_key = it.public_key.clone();
            let again = Enrolment { public_key, ..enrolment(&secret, 1) };
            let again = again.admit_box(&world.store, NOW, &authority_elsewhere()).await.unwrap();
            assert_eq!((again.version, &again.record), (1, it));
        }
        assert_eq!(count::<Device>(&world.store, "tram").await, 3);
    });
}

#[test]
fn the_same_key_in_a_race_costs_one_use() {
    in_tram(|world| async move {
        let secret = world.token("tram", uses(3)).await;
        let racers = (0..8).map(|_| {
            let (world, secret) = (world.clone(), secret.clone());
            async move { world.enrol(&secret, 1).await.unwrap().version }
        });
        assert_eq!(race(racers).await, [1; 8]);
        let token = world.store.find::<Token>("hash", &keys::hash(&secret)).await.unwrap();
        assert_eq!(token.record.uses_left, 2);
    });
}

#[test]
fn a_token_admits_only_what_it_allows() {
    in_tram(|world| async move {
        world.tenant("ferry").await;
        let refused = |secret: String, seed: u8, now: i64, why: &'static str| {
            let store = Arc::clone(&world.store);
            async move {
                let it = enrolment(&secret, seed);
                let error = it.admit_box(&store, now, &authority_elsewhere()).await.unwrap_err();
                assert_eq!(error.to_string(), why);
            }
        };
        refused("nonsense".into(), 1, NOW, "the token is unknown").await;
        let short = world.token("tram", TokenSettings { lifetime_s: Some(1), ..uses(1) }).await;
        refused(short.clone(), 1, NOW + 1000, "the token has expired").await;
        let in_time = enrolment(&short, 1);
        in_time.admit_box(&world.store, NOW + 999, &authority_elsewhere()).await.unwrap();
        let other = world.token("ferry", uses(2)).await;
        refused(other.clone(), 1, NOW, "the key belongs to another box").await;
        world.revoke("ferry", 2).await.unwrap();
        refused(other, 2, NOW, "the key was revoked").await;
        let tenant = world.store.get::<Tenant>("ferry", "ferry").await.unwrap();
        let mut full = tenant.record.clone();
        full.settings.limits.devices_max = 1;
        let mut change = world.store.change(actor(), NOW).await.unwrap();
        change.update(&tenant, full).await.unwrap();
        change.commit().await.unwrap();
        let last = world.token("ferry", uses(9)).await;
        world.enrol(&last, 3).await.unwrap();
        refused(last, 4, NOW, "the tenant has reached its limit of boxes").await;
    });
}
