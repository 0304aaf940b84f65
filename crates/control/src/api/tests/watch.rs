//! A client of the event stream.

use super::*;

/// Watches the tenant `tram`. It reconnects after the end of the stream, which a slow database
/// causes, and resumes at the last event.
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

    /// The ID of the last event.
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

    /// The next event that is neither a state nor a keep-alive.
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
