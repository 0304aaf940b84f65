//! A controller without root key: delegates sign, each within its grant.

use std::collections::BTreeSet;

use roadweave_fleet::{Chain, Grant, JoinToken, Role as FleetRole, Scope, Signed, Statement};

use super::*;
use crate::model::{Delegate, Device};
use crate::store::tests::{enrolment, on_both_with};
use crate::store::{Delegated, Enrolment};

pub(super) const ROOT: u8 = 8;

#[derive(Clone)]
pub(super) struct Given {
    pub(super) seed: u8,
    pub(super) scope: Scope,
    pub(super) roles: Vec<FleetRole>,
    pub(super) tags: Vec<&'static str>,
    pub(super) uses: u32,
}

pub(super) fn given(seed: u8) -> Given {
    let scope = Scope::Tenant("tram".parse().unwrap());
    Given { seed, scope, roles: vec![FleetRole::Box], tags: vec!["night"], uses: 2 }
}

impl Given {
    fn statement(&self) -> Statement {
        Statement {
            key: identity(self.seed).public_key(),
            name: format!("delegate-{}", self.seed).parse().unwrap(),
            role: FleetRole::Delegate,
            scope: self.scope.clone(),
            tags: BTreeSet::new(),
            grant: Some(Grant {
                roles: self.roles.iter().copied().collect(),
                tags: self.tags.iter().map(|tag| tag.parse().unwrap()).collect(),
                uses: Some(self.uses),
            }),
        }
    }

    pub(super) fn signed(&self, by: u8, above: Option<&Chain>) -> Chain {
        let signed = Signed::sign(&self.statement(), &identity(by)).unwrap();
        above.cloned().unwrap_or_else(|| Chain::new(Vec::new())).then(signed)
    }
}

pub(super) fn signer(uses: u32) -> Chain {
    let roles = vec![FleetRole::Box, FleetRole::Delegate];
    Given { roles, uses, ..given(31) }.signed(ROOT, None)
}

pub(super) async fn delegates(api: &Api, chains: &[&Chain]) {
    for chain in chains {
        api.create("/delegates", body(chain)).await;
    }
}

pub(super) fn body(chain: &Chain) -> Value {
    json!({ "chain": serde_json::to_string(chain).unwrap() })
}

pub(super) async fn elsewhere(world: World) -> Api {
    Api::made(world, Root::Elsewhere(identity(ROOT).public_key()), None).await
}

pub(super) async fn join(
    api: &Api,
    join: &str,
    seed: u8,
    by: u8,
    chain: &Chain,
) -> Result<Device, String> {
    let token: JoinToken = join.parse().unwrap();
    let statement = Statement {
        key: identity(seed).public_key(),
        name: format!("bus-{seed}").parse().unwrap(),
        role: FleetRole::Box,
        scope: Scope::Tenant(token.tenant.clone()),
        tags: ["night".parse().unwrap()].into(),
        grant: None,
    };
    let chain = chain.clone().then(Signed::sign(&statement, &identity(by)).unwrap());
    let admitted = api.app.authority.follow(&chain).map_err(|why| why.to_string())?;
    let name = Some(statement.name.to_string());
    let delegated = Delegated {
        tenant: token.tenant.to_string(),
        keys: admitted.issuers.iter().map(|issuer| issuer.key.to_string()).collect(),
        tags: ["night".to_owned()].into(),
        chain: serde_json::to_string(&chain).unwrap(),
    };
    let delegated = Some(delegated);
    let enrolment = Enrolment { name, delegated, ..enrolment(&String::from(token.secret), seed) };
    let enrolled = enrolment.admit_box(&api.app.store, now_ms(), &api.app.authority).await;
    enrolled.map(|it| it.record).map_err(|error| error.to_string())
}

pub(super) async fn token(api: &Api, delegate: &str, uses: u32) -> String {
    let settings = json!({ "uses": uses, "tags": ["night"], "delegate": delegate });
    let made = api.create("/tokens", json!({ "settings": settings })).await;
    made["join"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegate_is_put_in_that_the_root_has_signed_for_this_tenant() {
    let api = elsewhere(sqlite().await).await;
    let refused = async |chain: &Chain, status: u16, part: &str| {
        api.refuses("/delegates", body(chain), status, part).await;
    };
    refused(&given(30).signed(9, None), 422, "not signed by a trusted key").await;
    let ferry = Given { scope: Scope::Tenant("ferry".parse().unwrap()), ..given(30) };
    refused(&ferry.signed(ROOT, None), 422, "for the tenant \"ferry\"").await;
    let all = Given { scope: Scope::All, ..given(30) };
    refused(&all.signed(ROOT, None), 403, "for all tenants").await;
    let one = Statement { role: FleetRole::Box, grant: None, ..given(30).statement() };
    let one = Chain::new(vec![Signed::sign(&one, &identity(ROOT)).unwrap()]);
    refused(&one, 422, "does not lead to a delegate").await;
    let signer = signer(2);
    refused(&given(30).signed(31, Some(&signer)), 409, "first add the delegate").await;
    let greedy = Given { uses: 3, ..given(30) }.signed(31, Some(&signer));
    refused(&greedy, 422, "beyond what").await;
    delegates(&api, &[&signer]).await;
    let made = api.create("/delegates", body(&given(30).signed(31, Some(&signer)))).await;
    assert_eq!(made["id"], "delegate-30");
    refused(&given(30).signed(ROOT, None), 409, "already").await;
    for (seed, status) in [(30, 409), (32, 201)] {
        let (roles, tags) = (vec![FleetRole::Proxy], vec![]);
        let shared = Given { seed, roles, tags, ..all.clone() }.signed(ROOT, None);
        let made = api.post_in("home", "/delegates", body(&shared));
        assert_eq!(made.status().await, status, "{seed}");
    }
}

#[test]
fn a_token_keeps_within_its_delegate() {
    on_both_with(elsewhere, |api| async move {
        let both = Given { roles: vec![FleetRole::Box, FleetRole::Proxy], ..given(32) };
        delegates(&api, &[&given(30).signed(ROOT, None), &signer(2), &both.signed(ROOT, None)])
            .await;
        let refused = async |settings: Value, status: u16, part: &str| {
            api.refuses("/tokens", json!({ "settings": settings }), status, part).await;
        };
        let night = json!(["night"]);
        let of = "delegate-30";
        for (settings, status, part) in [
            (json!({ "tags": night }), 409, "the root key is elsewhere"),
            (json!({ "tags": night, "delegate": "nobody" }), 404, "nobody"),
            (json!({ "uses": 3, "tags": night, "delegate": of }), 422, "uses: "),
            (json!({ "tags": ["night", "vip"], "delegate": of }), 422, "tags: "),
            (json!({ "tags": [], "delegate": of }), 422, "tags: "),
            (json!({ "role": "proxy", "delegate": of }), 422, "role: "),
            (json!({ "tags": night, "delegate": "delegate-31" }), 422, "is a signer"),
            (
                json!({ "role": "proxy", "tags": night, "delegate": "delegate-32" }),
                422,
                "only boxes have approval and tags",
            ),
        ] {
            refused(settings, status, part).await;
        }
        let proxies = json!({ "settings": { "role": "proxy", "delegate": "delegate-32" } });
        api.create("/tokens", proxies).await;
        let settings = json!({ "tags": night, "delegate": of });
        let foreign = api.post_in("ferry", "/tokens", json!({ "settings": settings }));
        assert_eq!(foreign.status().await, 404);
        token(&api, of, 1).await;
        refused(json!({ "uses": 2, "tags": night, "delegate": of }), 422, "1 are used").await;
        token(&api, of, 1).await;
        refused(settings, 422, "2 are used").await;
        let device = json!({ "id": "bus-1", "public_key": key(1) });
        assert_eq!(api.post("/devices", device).status().await, 409);
        assert_eq!(api.post("/proxies", super::walks::proxy(9)).status().await, 409);
    });
}

#[test]
fn a_delegate_signs_for_as_many_as_it_may_however_many_others_it_makes() {
    on_both_with(elsewhere, |api| async move {
        let signer = signer(2);
        let below = [30, 32].map(|seed| given(seed).signed(31, Some(&signer)));
        delegates(&api, &[&signer, &below[0], &below[1]]).await;
        let first = token(&api, "delegate-30", 2).await;
        let second = token(&api, "delegate-32", 2).await;
        for (by, chain) in [(32, &below[1]), (31, &signer)] {
            let wrong = join(&api, &first, 1, by, chain).await.unwrap_err();
            assert!(wrong.contains("for the delegate delegate-30"), "{wrong}");
        }
        let one = join(&api, &first, 1, 30, &below[0]).await.unwrap();
        assert_eq!(one.delegates, [key(31), key(30)]);
        join(&api, &second, 2, 32, &below[1]).await.unwrap();
        join(&api, &first, 1, 30, &below[0]).await.unwrap();
        for (text, by, chain) in [(&first, 30, &below[0]), (&second, 32, &below[1])] {
            let error = join(&api, text, 3, by, chain).await.unwrap_err();
            assert!(error.contains("delegate-31 has reached its limit"), "{error}");
        }
        let used = api.get("/delegates/delegate-31").send().await.body["used"].clone();
        assert_eq!(used, 2);
        let token: JoinToken = first.parse().unwrap();
        let bare = enrolment(&String::from(token.secret), 4);
        let App { store, authority, .. } = &*api.app;
        let error = bare.admit_box(store, now_ms(), authority).await.unwrap_err().to_string();
        assert!(error.contains("lacks its delegate"), "{error}");
        let left = api.get("/tokens").send().await.body["items"].clone();
        let left = left.as_array().unwrap().iter().map(|it| it["uses_left"].as_i64().unwrap());
        assert_eq!(left.sum::<i64>(), 2);
    });
}

#[test]
fn who_revokes_a_delegate_revokes_what_it_signed() {
    on_both_with(elsewhere, |api| async move {
        let signer = signer(9);
        let below = given(30).signed(31, Some(&signer));
        let other = given(33).signed(ROOT, None);
        delegates(&api, &[&signer, &below, &other]).await;
        let by_below = token(&api, "delegate-30", 2).await;
        let by_other = token(&api, "delegate-33", 1).await;
        let gone = join(&api, &by_below, 1, 30, &below).await.unwrap();
        let stays = join(&api, &by_other, 2, 33, &other).await.unwrap();
        api.revoke("/delegates/delegate-31").await;
        let state = async |path: String| api.get(&path).send().await.body["state"].clone();
        assert_eq!(state(format!("/devices/{}", gone.id)).await, "revoked");
        assert_eq!(state(format!("/devices/{}", stays.id)).await, "active");
        assert_eq!(state("/delegates/delegate-30".to_owned()).await, "revoked");
        assert_eq!(state("/delegates/delegate-33".to_owned()).await, "active");
        let keys = api.get("/revocations").send().await.body["items"].clone();
        let keys = keys.as_array().unwrap().iter().map(|it| it["public_key"].clone());
        assert_eq!(keys.collect::<Vec<_>>(), [key(31)]);
        for seed in [1, 3] {
            let error = join(&api, &by_below, seed, 30, &below).await.unwrap_err();
            assert!(error.contains("was revoked"), "{error}");
        }
        let settings = json!({ "tags": ["night"], "delegate": "delegate-30" });
        api.refuses("/tokens", json!({ "settings": settings }), 422, "").await;
        api.refuses("/delegates", body(&signer), 409, "").await;
        api.revoke("/delegates/delegate-31").await;
        assert_eq!(api.get("/audit-check").send().await.body["good"], true);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_that_waits_keeps_what_its_delegate_has_said() {
    let api = elsewhere(sqlite().await).await;
    let chain = given(30).signed(ROOT, None);
    delegates(&api, &[&chain]).await;
    let settings = json!({ "tags": ["night"], "delegate": "delegate-30", "approval": true });
    let made = api.create("/tokens", json!({ "settings": settings })).await;
    let device = join(&api, made["join"].as_str().unwrap(), 1, 30, &chain).await.unwrap();
    assert!(device.statement.is_some());
    let path = format!("/devices/{}/approve", device.id);
    let approved = api.post(&path, json!({})).send().await;
    assert_eq!(approved.body["state"], "active");
    assert_eq!(approved.body["statement"].as_str(), device.statement.as_deref());
    let delegate = api.app.store.get::<Delegate>("tram", "delegate-30").await.unwrap();
    assert_eq!(delegate.record.used, 1);
}
