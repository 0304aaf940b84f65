//! Resumed event streams: no change is lost silently.

use super::*;

async fn lines(api: &Api, tenant: &str, from: i64, to: i64) {
    let sql = format!(
        "INSERT INTO change (sequence, position, at_ms, tenant, kind, subject, version) \
         WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
         SELECT i, 1, 0, '{tenant}', 'pool', 'pool-' || i, 1 FROM n"
    );
    let mut changes = api.app.outbox.listen();
    api.world.tamper(&sql).await;
    api.world.tamper(&format!("UPDATE counter SET value = {to} WHERE name = 'change'")).await;
    let last = async { while changes.recv().await.unwrap().sequence < to {} };
    tokio::time::timeout(Duration::from_secs(20), last).await.unwrap();
}

async fn watched(world: World) -> (Api, String) {
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
    on_both_with(watched, |(api, last)| async move {
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
fn an_unknown_position_is_reported_as_lost_and_new_events_follow() {
    on_both_with(watched, |(api, last)| async move {
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
            Watch::after(&api, &place).await.pool(&id).await;
        }
    });
}

/// Watches the tenant `tram`. Resumes at the last event after the end of the stream.
pub(super) struct Watch<'a> {
    api: &'a Api,
    last: Option<String>,
    stream: Body,
}

impl<'a> Watch<'a> {
    pub(super) async fn new(api: &'a Api) -> Self {
        Self::from(api, None).await
    }

    pub(super) async fn after(api: &'a Api, last: &str) -> Self {
        Self::from(api, Some(last.to_owned())).await
    }

    async fn from(api: &'a Api, last: Option<String>) -> Self {
        let stream = listen(api, last.as_deref()).await;
        Self { api, last, stream }
    }

    pub(super) fn last(&self) -> &str {
        self.last.as_deref().unwrap()
    }

    pub(super) fn cut(&mut self) {
        self.stream = Body::empty();
    }

    pub(super) async fn pool(&mut self, id: &str) {
        let event = self.next().await;
        let is_change = event.contains("event: change");
        assert!(is_change && event.contains(&format!("\"{id}\"")), "{id}: {event}");
    }

    pub(super) async fn next(&mut self) -> String {
        let next = async {
            loop {
                let event = self.wait().await;
                if !event.contains("event: state") && !event.starts_with(':') {
                    return event;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), next).await.unwrap()
    }

    pub(super) async fn any(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(60), self.wait()).await.unwrap()
    }

    async fn wait(&mut self) -> String {
        loop {
            if let Some(frame) = self.stream.frame().await {
                let frame = frame.unwrap().into_data().unwrap();
                let event = String::from_utf8(frame.to_vec()).unwrap();
                let id = event.lines().find_map(|line| line.strip_prefix("id: "));
                self.last = id.map(str::to_owned).or(self.last.take());
                return event;
            }
            self.stream = listen(self.api, self.last.as_deref()).await;
        }
    }
}

async fn listen(api: &Api, last: Option<&str>) -> Body {
    loop {
        let ask = api.get("/live");
        let ask = match last {
            Some(last) => ask.header("last-event-id", last),
            None => ask,
        };
        let response = ask.response().await;
        if response.status() == StatusCode::OK {
            return response.into_body();
        }
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
