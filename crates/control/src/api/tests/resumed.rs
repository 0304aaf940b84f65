//! Resumed event streams: no change is lost silently.

use super::watch::Watch;
use super::*;

async fn lines(api: &Api, tenant: &str, from: i64, to: i64) {
    let sql = format!(
        "INSERT INTO change (sequence, position, at_ms, tenant, kind, subject, version) \
         WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
         SELECT i, 1, 0, '{tenant}', 'pool', 'pool-' || i, 1 FROM n"
    );
    let mut told = api.app.outbox.listen();
    api.world.tamper(&sql).await;
    api.world.tamper(&format!("UPDATE counter SET value = {to} WHERE name = 'change'")).await;
    // Once listeners have got them, new watchers find them in the table alone.
    let last = async { while told.recv().await.unwrap().sequence < to {} };
    tokio::time::timeout(Duration::from_secs(20), last).await.unwrap();
}

/// An interface with a running outbox, and the ID of the last event.
async fn told(world: World) -> (Api, String) {
    let api = Api::on(world).await;
    api.follow().await;
    let mut watch = Watch::new(&api).await;
    api.pool("north").await;
    watch.pool("north").await;
    let last = watch.last().to_owned();
    (api, last)
}

#[test]
fn who_has_missed_more_than_a_page_hears_all_of_it() {
    on_both(|world| async move {
        let (api, last) = told(world).await;
        let latest = api.app.store.latest_change().await.unwrap();
        lines(&api, "ferry", latest + 1, latest + 1_500).await;
        lines(&api, "tram", latest + 1_501, latest + 3_700).await;
        let mut watch = Watch::after(&api, &last).await;
        for at in 1_501..=3_700 {
            watch.pool(&format!("pool-{}", latest + at)).await;
        }
        api.pool("south").await;
        watch.pool("south").await;
    });
}

#[test]
fn who_comes_from_a_place_that_is_not_there_is_told_and_hears_what_comes() {
    on_both(|world| async move {
        let (api, last) = told(world).await;
        let latest = api.app.store.latest_change().await.unwrap();
        lines(&api, "tram", latest + 1, latest + 9).await;
        api.world.tamper(&format!("DELETE FROM change WHERE sequence < {}", latest + 5)).await;
        let ahead = last.replace(&format!("-{latest}-"), "-999999999-");
        let other = last.replacen("1-", "2-", 1);
        for (at, last) in [&*last, &*ahead, &*other, "x"].into_iter().enumerate() {
            let mut watch = Watch::after(&api, last).await;
            let event = watch.next().await;
            assert!(event.contains("event: lost"), "{last}: {event}");
            let place = watch.last().to_owned();
            let id = format!("pool-{at}");
            api.pool(&id).await;
            watch.pool(&id).await;
            // The loss is reported once: its ID is a valid place.
            Watch::after(&api, &place).await.pool(&id).await;
        }
    });
}
