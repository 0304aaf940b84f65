//! Who has watched and comes back: nothing is left out without a word.

use std::time::Duration;

use super::flows::next_event;
use super::*;

/// Lines of a tenant from number `from` up to `to`.
async fn lines(api: &Api, tenant: &str, from: i64, to: i64) {
    let sql = format!(
        "INSERT INTO change (sequence, position, at_ms, tenant, kind, subject, version) \
         WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
         SELECT i, 1, 0, '{tenant}', 'pool', 'pool-' || i, 1 FROM n"
    );
    let mut told = api.app.outbox.listen();
    api.world.tamper(&sql).await;
    api.world.tamper(&format!("UPDATE counter SET value = {to} WHERE name = 'change'")).await;
    // Those who listen have heard of them: who comes now finds them in the table alone.
    let last = async { while told.recv().await.unwrap().sequence < to {} };
    tokio::time::timeout(Duration::from_secs(20), last).await.unwrap();
}

async fn resumed(api: &Api, last: &str) -> Body {
    api.get("/live").header("last-event-id", last).response().await.into_body()
}

fn id(event: &str) -> String {
    event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_default().to_owned()
}

/// An interface that tells changes, and the place of the last one.
async fn told(world: World) -> (Api, String) {
    let api = Api::on(world).await;
    tokio::spawn(Arc::clone(&api.app.outbox).follow(Arc::clone(&api.app.store)));
    let mut stream = api.get("/live").response().await.into_body();
    // What changes before the outbox is first read is known from the tables, and not told.
    for at in 0.. {
        let body = json!({ "id": format!("north-{at}"), "settings": {} });
        assert_eq!(api.post("/pools", body).status().await, 201);
        let event = tokio::time::timeout(Duration::from_secs(2), next_event(&mut stream)).await;
        if let Ok(event) = event {
            return (api, id(&event));
        }
    }
    unreachable!("it is tried for ever")
}

#[test]
fn who_has_missed_more_than_a_page_hears_all_of_it() {
    on_both(|world| async move {
        let (api, last) = told(world).await;
        let latest = api.app.store.latest_change().await.unwrap();
        lines(&api, "ferry", latest + 1, latest + 1_500).await;
        lines(&api, "tram", latest + 1_501, latest + 3_700).await;
        let mut stream = resumed(&api, &last).await;
        for at in 1_501..=3_700 {
            let event = next_event(&mut stream).await;
            assert!(event.contains(&format!("\"pool-{}\"", latest + at)), "{at}: {event}");
        }
        assert_eq!(
            api.post("/pools", json!({ "id": "south", "settings": {} })).status().await,
            201
        );
        let event = next_event(&mut stream).await;
        assert!(event.contains("\"south\""), "{event}");
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
            let mut stream = resumed(&api, last).await;
            let event = next_event(&mut stream).await;
            assert!(event.contains("event: lost"), "{last}: {event}");
            let place = id(&event);
            let body = json!({ "id": format!("pool-{at}"), "settings": {} });
            assert_eq!(api.post("/pools", body).status().await, 201);
            let event = next_event(&mut stream).await;
            assert!(event.contains(&format!("\"pool-{at}\"")), "{last}: {event}");
            // It is told once: the place after it is there.
            let mut stream = resumed(&api, &place).await;
            let event = next_event(&mut stream).await;
            assert!(event.contains(&format!("\"pool-{at}\"")), "{place}: {event}");
        }
    });
}
