//! Delegates that are gone with all they signed for, and keys that stand for one thing alone.

use roadweave_fleet::Role as FleetRole;

use super::delegates::{Given, ROOT, body, elsewhere, given, join, token};
use super::*;
use crate::authority::Authority as Signer;
use crate::model::{Delegate, DelegateState, Device, DeviceSettings, DeviceState};
use crate::store::tests::on_both;

impl Api {
    async fn delegates(&self, chains: &[&roadweave_fleet::Chain]) {
        for chain in chains {
            let put_in = self.post("/delegates", body(chain)).send().await;
            assert_eq!(put_in.status, 201, "{}", put_in.body);
        }
    }

    async fn refuses(&self, path: &str, body: Value, status: u16, part: &str) {
        let answer = self.post(path, body).send().await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(part), "{path}: {detail}");
    }
}

fn device(id: &str, public_key: String, delegates: Vec<String>) -> Device {
    let (state, settings) = (DeviceState::Active, DeviceSettings::default());
    let (id, addresses) = (id.to_owned(), Vec::new());
    Device {
        id,
        public_key,
        state,
        addresses,
        token: None,
        pool: None,
        statement: None,
        delegates,
        settings,
    }
}

#[test]
fn a_key_stands_for_one_thing_alone_whoever_brings_it() {
    on_both(|world| async move {
        let api = Api::on(world).await;
        let new = |seed| json!({ "id": "bus-1", "public_key": key(seed) });
        assert_eq!(api.post("/devices", new(1)).status().await, 201);
        let taken = "the key belongs already to a box, proxy, anchor or delegate";
        // As a proxy, of another tenant, and the other way round.
        let ferry = |path| api.ask("POST", path).key("ferry-owner");
        let proxy = ferry("/tenants/ferry/proxies").json(super::walks::proxy(1)).send().await;
        assert_eq!((proxy.status, proxy.body["detail"].as_str()), (409, Some(taken)));
        let proxy = ferry("/tenants/ferry/proxies").json(super::walks::proxy(2));
        assert_eq!(proxy.status().await, 201);
        let new = |id: &str, seed| json!({ "id": id, "public_key": key(seed) });
        api.refuses("/devices", new("bus-2", 2), 409, taken).await;
        // What the fleet hangs on is nobody's to put in, and so to revoke.
        for seed in [7, ROOT] {
            api.refuses("/devices", new("bus-2", seed), 409, "the controller's").await;
            api.refuses("/proxies", super::walks::proxy(seed), 409, "the controller's").await;
        }
        assert_eq!(api.post("/devices", new("bus-2", 3)).status().await, 201);
    });
}

#[test]
fn a_delegates_key_does_not_join_and_a_boxs_does_not_sign() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        let (one, other) = (given(30).signed(ROOT, None), given(33).signed(ROOT, None));
        api.delegates(&[&one, &other]).await;
        let text = token(&api, "delegate-33", 2).await;
        // Who has seen the token of the one asks the other to sign for its key, to revoke that.
        let error = join(&api, &text, 30, 33, &other).await.unwrap_err();
        assert!(error.contains("belongs already"), "{error}");
        join(&api, &text, 31, 33, &other).await.unwrap();
        let boxs = given(31).signed(ROOT, None);
        api.refuses("/delegates", body(&boxs), 409, "belongs already").await;
        api.refuses("/delegates", body(&given(7).signed(ROOT, None)), 409, "controller's").await;
        let left = api.get("/delegates/delegate-33").send().await.body["used"].clone();
        assert_eq!(left, 1, "what was refused costs nothing");
    });
}

#[test]
fn however_many_are_below_a_delegate_one_entry_cuts_them_off() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        api.delegates(&[&given(30).signed(ROOT, None), &given(33).signed(ROOT, None)]).await;
        let mut change = api.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        for number in 0..250_u8 {
            let mut seed = [200; 32];
            seed[0] = number;
            let public_key = Identity::from_seed(seed).public_key().to_string();
            let by = key(if number == 249 { 33 } else { 30 });
            let made = device(&format!("bus-{number}"), public_key, vec![by]);
            change.insert("tram", made).await.unwrap();
        }
        change.commit().await.unwrap();
        // A row that was altered stands in nobody's way.
        let altered = "UPDATE device SET seal = 'none' WHERE id = 'bus-7'";
        assert_eq!(api.world.tamper(altered).await, 1);
        let reason = json!({ "reason": "lost" });
        let revoked = api.post("/delegates/delegate-30/revoke", reason).send().await;
        assert_eq!(revoked.status, 200, "{}", revoked.body);
        assert_eq!(revoked.body["revocation"]["public_key"], key(30));
        let all = api.app.store.revocations(None, 0, 1000).await.unwrap();
        assert_eq!(all.len(), 1, "an entry for each eats the room for all");
        let mut active = 0;
        for device in api.app.store.all::<Device>(1000).await.unwrap() {
            active += usize::from(device.record.state == DeviceState::Active);
        }
        assert_eq!(active, 1);
    });
}

#[test]
fn more_than_anybody_holds_is_not_revoked() {
    runtime().block_on(async {
        let api = Api::new().await;
        let device = json!({ "id": "bus-1", "public_key": key(1) });
        assert_eq!(api.post("/devices", device).status().await, 201);
        let full = "INSERT INTO revocation VALUES ('tram', 65536, 0, 'x', 'x', '{}', '')";
        api.world.tamper(full).await;
        let reason = json!({ "reason": "lost" });
        api.refuses("/devices/bus-1/revoke", reason, 409, "no more keys can be revoked").await;
        let state = api.get("/devices/bus-1").send().await.body["state"].clone();
        assert_eq!(state, "active");
    });
}

#[test]
fn a_delegate_whose_key_was_revoked_stays_so_whatever_its_row_says() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        let signer = Given { roles: vec![FleetRole::Box, FleetRole::Delegate], ..given(31) };
        let signer = signer.signed(ROOT, None);
        let [below, later] = [30, 32].map(|seed| given(seed).signed(31, Some(&signer)));
        api.delegates(&[&signer, &below]).await;
        let text = token(&api, "delegate-30", 1).await;
        // As after a backup that is older than the revocation: the key alone is known.
        let mut change = api.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        let sign = |serial, previous: &str| Signer::revoke(&key(31), serial, previous);
        change.revoke("tram", &key(31), "lost", sign).await.unwrap();
        change.commit().await.unwrap();
        let error = join(&api, &text, 1, 30, &below).await.unwrap_err();
        assert!(error.contains("delegate-31 was revoked"), "{error}");
        let settings = json!({ "tags": ["night"], "delegate": "delegate-30" });
        api.refuses("/tokens", json!({ "settings": settings }), 422, "was revoked").await;
        api.refuses("/delegates", body(&later), 409, "above it was revoked").await;
        // Who revokes by key marks the delegate, and those below.
        let by_key = json!({ "public_key": key(31), "reason": "lost" });
        assert_eq!(api.post("/revocations", by_key).status().await, 200);
        for id in ["delegate-30", "delegate-31"] {
            let found = api.app.store.get::<Delegate>("tram", id).await.unwrap();
            assert_eq!(found.record.state, DelegateState::Revoked, "{id}");
        }
    });
}

#[test]
fn a_signers_key_goes_into_no_token() {
    runtime().block_on(async {
        let api = elsewhere(sqlite().await).await;
        let signer = Given { roles: vec![FleetRole::Box, FleetRole::Delegate], ..given(31) };
        api.delegates(&[&signer.signed(ROOT, None)]).await;
        let settings = json!({ "tags": ["night"], "delegate": "delegate-31" });
        api.refuses("/tokens", json!({ "settings": settings }), 422, "is a signer").await;
    });
}

#[test]
fn tags_are_of_boxes_whatever_else_their_delegate_lets_in() {
    runtime().block_on(async {
        let api = elsewhere(sqlite().await).await;
        let both = Given { roles: vec![FleetRole::Box, FleetRole::Proxy], ..given(30) };
        api.delegates(&[&both.signed(ROOT, None)]).await;
        let settings = json!({ "role": "proxy", "delegate": "delegate-30" });
        let made = api.post("/tokens", json!({ "settings": settings })).send().await;
        assert_eq!(made.status, 201, "{}", made.body);
        let tagged = json!({ "role": "proxy", "tags": ["night"], "delegate": "delegate-30" });
        api.refuses("/tokens", json!({ "settings": tagged }), 422, "tags are of boxes").await;
    });
}
