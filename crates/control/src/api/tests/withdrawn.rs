//! Revoked delegates and all below them; keys that belong to one record alone; removed proxies.

use super::delegates::{ROOT, body, delegates, elsewhere, given, join, signer, token};
use super::walks::proxy;
use super::*;
use crate::model::{Delegate, DelegateState, Device, DeviceState};
use crate::store::tests::{device, status};
use crate::store::{Note, ProxyStatus, note, revocation};

#[test]
fn a_key_stands_for_one_thing_alone() {
    on_both_with(Api::on, |api| async move {
        api.device("bus-1", 1).await;
        let taken = "the key already belongs to a box, proxy, anchor or delegate";
        let other = api.post_in("ferry", "/proxies", proxy(1)).send().await;
        assert_eq!((other.status, other.body["detail"].as_str()), (409, Some(taken)));
        assert_eq!(api.post_in("ferry", "/proxies", proxy(2)).status().await, 201);
        let new = |seed| json!({ "id": "bus-2", "public_key": key(seed) });
        api.refuses("/devices", new(2), 409, taken).await;
        for seed in [7, ROOT] {
            api.refuses("/devices", new(seed), 409, "the controller's").await;
            api.refuses("/proxies", proxy(seed), 409, "the controller's").await;
        }
        api.device("bus-2", 3).await;
    });
}

#[test]
fn a_delegates_key_does_not_join_and_a_boxs_does_not_sign() {
    on_both_with(elsewhere, |api| async move {
        let (one, other) = (given(30).signed(ROOT, None), given(33).signed(ROOT, None));
        delegates(&api, &[&one, &other]).await;
        let text = token(&api, "delegate-33", 2).await;
        let error = join(&api, &text, 30, 33, &other).await.unwrap_err();
        assert!(error.contains("already belongs"), "{error}");
        join(&api, &text, 31, 33, &other).await.unwrap();
        let boxs = given(31).signed(ROOT, None);
        api.refuses("/delegates", body(&boxs), 409, "already belongs").await;
        api.refuses("/delegates", body(&given(7).signed(ROOT, None)), 409, "controller's").await;
        let left = api.get("/delegates/delegate-33").send().await.body["used"].clone();
        assert_eq!(left, 1, "what was refused costs nothing");
    });
}

#[test]
fn however_many_are_below_a_delegate_one_entry_cuts_them_off() {
    on_both_with(elsewhere, |api| async move {
        delegates(&api, &[&given(30).signed(ROOT, None), &given(33).signed(ROOT, None)]).await;
        let mut change = api.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        for number in 0..250_u8 {
            let mut seed = [200; 32];
            seed[0] = number;
            let public_key = Identity::from_seed(seed).public_key().to_string();
            let by = key(if number == 249 { 33 } else { 30 });
            let (delegates, device) = (vec![by], device(&format!("bus-{number}"), 0));
            change.insert("tram", Device { public_key, delegates, ..device }).await.unwrap();
        }
        change.commit().await.unwrap();
        let altered = "UPDATE device SET seal = 'none' WHERE id = 'bus-7'";
        assert_eq!(api.world.tamper(altered).await, 1);
        let revoked = api.revoke("/delegates/delegate-30").await;
        assert_eq!(revoked.body["revocation"]["public_key"], key(30));
        let all = revocation::list(&api.app.store, None, 0, 1000).await.unwrap();
        assert_eq!(all.len(), 1, "an entry for each eats the room for all");
        let all = api.app.store.all::<Device>(1000).await.unwrap();
        assert_eq!(all.iter().filter(|it| it.record.state == DeviceState::Active).count(), 1);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_keys_than_members_hold_are_not_revoked() {
    let api = Api::new().await;
    api.device("bus-1", 1).await;
    let full = "INSERT INTO revocation VALUES ('tram', 65536, 0, 'x', 'x', '{}', '')";
    api.world.tamper(full).await;
    let reason = json!({ "reason": "lost" });
    api.refuses("/devices/bus-1/revoke", reason, 409, "cannot revoke more keys").await;
    let state = api.get("/devices/bus-1").send().await.body["state"].clone();
    assert_eq!(state, "active");
}

#[test]
fn a_delegate_whose_key_was_revoked_stays_so_whatever_its_row_says() {
    on_both_with(elsewhere, |api| async move {
        let signer = signer(2);
        let [below, later] = [30, 32].map(|seed| given(seed).signed(31, Some(&signer)));
        delegates(&api, &[&signer, &below]).await;
        let text = token(&api, "delegate-30", 1).await;
        let mut change = api.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        revocation::add(&mut change, "tram", &key(31), "lost").await.unwrap();
        change.commit().await.unwrap();
        let error = join(&api, &text, 1, 30, &below).await.unwrap_err();
        assert!(error.contains("delegate-31 was revoked"), "{error}");
        let settings = json!({ "tags": ["night"], "delegate": "delegate-30" });
        api.refuses("/tokens", json!({ "settings": settings }), 422, "was revoked").await;
        api.refuses("/delegates", body(&later), 409, "above it was revoked").await;
        let by_key = json!({ "public_key": key(31), "reason": "lost" });
        assert_eq!(api.post("/revocations", by_key).status().await, 200);
        for id in ["delegate-30", "delegate-31"] {
            let found = api.app.store.get::<Delegate>("tram", id).await.unwrap();
            assert_eq!(found.record.state, DelegateState::Revoked, "{id}");
        }
    });
}

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
        note::store(&api.app.store, &[Note::Status(status)], now_ms()).await.unwrap();
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
