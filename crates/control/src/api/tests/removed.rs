//! Removing proxies.

use super::walks::proxy;
use super::*;
use crate::store::tests::status;
use crate::store::{Note, ProxyStatus};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_removed_once_it_was_drained_and_is_gone() {
    let api = Api::new().await;
    api.create("/proxies", proxy(11)).await;
    let remove = async |etag: &str| api.delete("/proxies/fra-11", etag).status().await;
    assert_eq!(remove("\"1\"").await, 409, "it may have boxes");
    let drained = api.post("/proxies/fra-11/drain", json!({ "drain": true })).send().await;
    assert_eq!(drained.status, 200, "{}", drained.body);
    let is_there = async |connected| {
        let status = ProxyStatus { connected, seen_ms: now_ms(), ..status("fra-11") };
        api.app.store.keep_notes(&[Note::Status(status)], now_ms()).await.unwrap();
    };
    is_there(true).await;
    assert_eq!(remove("\"2\"").await, 409, "it is connected");
    is_there(false).await;
    assert_eq!(remove("\"1\"").await, 412, "it was changed");
    assert_eq!(remove("\"2\"").await, 204);
    assert_eq!(api.get("/proxies/fra-11").status().await, 404);
    assert_eq!(api.get("/proxy-status").send().await.body["items"], json!([]));
    api.device("bus-17", 1).await;
    assert_eq!(api.revoke("/devices/bus-17").await.body["summary"], "0 of 0");
    api.create("/proxies", proxy(11)).await;
}
