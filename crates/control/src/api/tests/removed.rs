//! Proxies that are taken out of the lists.

use super::walks::proxy;
use super::*;
use crate::clock::now_ms;
use crate::store::{Note, ProxyStatus};

#[test]
fn a_proxy_is_removed_once_it_was_drained_and_is_gone() {
    runtime().block_on(async {
        let api = Api::new().await;
        let made = api.post("/proxies", proxy(11)).send().await;
        assert_eq!(made.status, 201, "{}", made.body);
        let remove = async |etag: &str| {
            let path = "/tenants/tram/proxies/fra-11";
            api.ask("DELETE", path).key("tram-owner").header("if-match", etag).status().await
        };
        assert_eq!(remove("\"1\"").await, 409, "it may have boxes");
        let drained = api.post("/proxies/fra-11/drain", json!({ "drain": true })).send().await;
        assert_eq!(drained.status, 200, "{}", drained.body);
        let is_there = async |connected, silent_ms| {
            let status = ProxyStatus {
                tenant: "tram".to_owned(),
                proxy: "fra-11".to_owned(),
                connected,
                seen_ms: now_ms() - silent_ms,
                serial: 0,
                hash: String::new(),
                stream: "a".to_owned(),
                load: None,
                sessions: 0,
                software: String::new(),
                witnessed_ms: 0,
                anchors: Default::default(),
            };
            api.app.store.keep_notes(&[Note::Status(status)], now_ms()).await.unwrap();
        };
        is_there(true, 0).await;
        assert_eq!(remove("\"2\"").await, 409, "it is connected");
        is_there(false, 0).await;
        assert_eq!(remove("\"1\"").await, 412, "it was changed");
        assert_eq!(remove("\"2\"").await, 204);
        assert_eq!(api.get("/proxies/fra-11").status().await, 404);
        assert_eq!(api.get("/proxy-status").send().await.body["items"], json!([]));
        // It is none of those who have to confirm any more.
        let body = json!({ "id": "bus-17", "public_key": key(1) });
        assert_eq!(api.post("/devices", body).status().await, 201);
        let revoked = api.post("/devices/bus-17/revoke", json!({ "reason": "lost" })).send().await;
        assert_eq!(revoked.body["summary"], "0 of 0");
        let again = api.post("/proxies", proxy(11)).send().await;
        assert_eq!(again.status, 201, "its key may join again: {}", again.body);
    });
}
