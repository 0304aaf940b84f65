//! A controller without root key: delegates sign, each within what it was given.

use std::collections::BTreeSet;

use roadweave_fleet::{Chain, Grant, JoinToken, Role as FleetRole, Scope, Signed, Statement};

use super::*;
use crate::model::{Delegate, Device};
use crate::store::tests::on_both;
use crate::store::{Delegated, Enrolment};

pub(super) const ROOT: u8 = 8;

/// What a delegate is given.
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

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
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

    /// Signed by whoever has this seed, below `above`.
    pub(super) fn signed(&self, by: u8, above: Option<&Chain>) -> Chain {
        let signed = Signed::sign(&self.statement(), &identity(by)).unwrap();
        above.cloned().unwrap_or_else(|| Chain::new(Vec::new())).then(signed)
    }
}

pub(super) fn body(chain: &Chain) -> Value {
    json!({ "chain": serde_json::to_string(chain).unwrap() })
}

pub(super) async fn elsewhere(world: World) -> Api {
    Api::of(world, Root::Elsewhere(identity(ROOT).public_key())).await
}

/// A box with this seed that joins by a token, signed for by the delegate at the end of `chain`.
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
    let (secret, public_key) = (token.secret.into(), key(seed));
    let enrolment = Enrolment { secret, public_key, name, delegated: Some(delegated) };
    let admit = |tenant: &str, device: &Device| api.app.authority.admit_device(tenant, device);
    let enrolled = api.app.store.enrol(&enrolment, now_ms(), admit).await;
    enrolled.map(|it| it.device.record).map_err(|error| error.to_string())
}

pub(super) async fn token(api: &Api, delegate: &str, uses: u32) -> String {
    let settings = json!({ "uses": uses, "tags": ["night"], "delegate": delegate });
    let made = api.post("/tokens", json!({ "settings": settings })).send().await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.body["join"].as_str().unwrap().to_owned()
}

#[test]
fn a_delegate_is_put_in_that_the_root_has_signed_for_this_tenant() {
    runtime().block_on(async {
        let api = elsewhere(sqlite().await).await;
        let refused = async |chain: &Chain, status: u16, part: &str| {
            let answer = api.post("/delegates", body(chain)).send().await;
            assert_eq!(answer.status, status, "{}", answer.body);
            let detail = answer.body["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(part), "{part}: {detail}");
        };
        refused(&given(30).signed(9, None), 422, "not signed by a key that counts").await;
        let ferry = Given { scope: Scope::Tenant("ferry".parse().unwrap()), ..given(30) };
        refused(&ferry.signed(ROOT, None), 422, "for the tenant \"ferry\"").await;
        let all = Given { scope: Scope::All, ..given(30) };
        refused(&all.signed(ROOT, None), 403, "for all tenants").await;
        // What it leads to must sign, and not connect.
        let one = Statement { role: FleetRole::Box, grant: None, ..given(30).statement() };
        let one = Chain::new(vec![Signed::sign(&one, &identity(ROOT)).unwrap()]);
        refused(&one, 422, "leads to no delegate").await;
        let signer = Given { roles: vec![FleetRole::Box, FleetRole::Delegate], ..given(31) };
        let signer = signer.signed(ROOT, None);
        refused(&given(30).signed(31, Some(&signer)), 409, "put in the delegate first").await;
        let greedy = Given { uses: 3, ..given(30) }.signed(31, Some(&signer));
        refused(&greedy, 422, "beyond what").await;
        assert_eq!(api.post("/delegates", body(&signer)).status().await, 201);
        let made = api.post("/delegates", body(&given(30).signed(31, Some(&signer)))).send().await;
        assert_eq!((made.status, &made.body["id"]), (201, &json!("delegate-30")));
        refused(&given(30).signed(ROOT, None), 409, "already").await;
        // The host has those for all.
        let home = "/tenants/home/delegates";
        let proxies = Given { roles: vec![FleetRole::Proxy], tags: vec![], ..all.clone() };
        let shared =
            api.ask("POST", home).key("home-owner").json(body(&proxies.signed(ROOT, None)));
        assert_eq!(shared.status().await, 409, "its key is that of another");
        let proxies = Given { seed: 32, ..proxies }.signed(ROOT, None);
        let shared = api.ask("POST", home).key("home-owner").json(body(&proxies));
        assert_eq!(shared.status().await, 201);
    });
}

#[test]
fn a_token_keeps_within_its_delegate() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        assert_eq!(api.post("/delegates", body(&given(30).signed(ROOT, None))).status().await, 201);
        let refused = async |settings: Value, part: &str| {
            let answer = api.post("/tokens", json!({ "settings": settings })).send().await;
            assert!([404, 409, 422].contains(&answer.status), "{settings}: {}", answer.body);
            let detail = answer.body["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(part), "{settings}: {detail}");
        };
        let night = json!(["night"]);
        let of = "delegate-30";
        refused(json!({ "tags": night }), "the root key is elsewhere").await;
        refused(json!({ "tags": night, "delegate": "nobody" }), "nobody").await;
        refused(json!({ "uses": 3, "tags": night, "delegate": of }), "uses: ").await;
        refused(json!({ "tags": ["night", "vip"], "delegate": of }), "tags: ").await;
        refused(json!({ "tags": [], "delegate": of }), "tags: ").await;
        refused(json!({ "role": "proxy", "delegate": of }), "role: ").await;
        let settings = json!({ "tags": night, "delegate": of });
        let foreign = api.ask("POST", "/tenants/ferry/tokens").key("ferry-owner");
        assert_eq!(foreign.json(json!({ "settings": settings })).status().await, 404);
        // What one token may still let in the next cannot promise again.
        token(&api, of, 1).await;
        refused(json!({ "uses": 2, "tags": night, "delegate": of }), "1 are taken").await;
        token(&api, of, 1).await;
        refused(settings, "2 are taken").await;
        // Nobody here can sign for a key alone.
        let device = json!({ "id": "bus-1", "public_key": key(1) });
        assert_eq!(api.post("/devices", device).status().await, 409);
        assert_eq!(api.post("/proxies", super::walks::proxy(9)).status().await, 409);
    });
}

#[test]
fn a_delegate_signs_for_as_many_as_it_may_however_many_others_it_makes() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        let signer = Given { roles: vec![FleetRole::Box, FleetRole::Delegate], ..given(31) };
        let signer = signer.signed(ROOT, None);
        let below = [30, 32].map(|seed| given(seed).signed(31, Some(&signer)));
        for chain in [&signer, &below[0], &below[1]] {
            assert_eq!(api.post("/delegates", body(chain)).status().await, 201);
        }
        let first = token(&api, "delegate-30", 2).await;
        let second = token(&api, "delegate-32", 2).await;
        // Another delegate's word does not go with this token, nor that of a signer above it.
        let wrong = join(&api, &first, 1, 32, &below[1]).await.unwrap_err();
        assert!(wrong.contains("for the delegate delegate-30"), "{wrong}");
        let above = join(&api, &first, 1, 31, &signer).await.unwrap_err();
        assert!(above.contains("for the delegate delegate-30"), "{above}");
        let one = join(&api, &first, 1, 30, &below[0]).await.unwrap();
        assert_eq!(one.delegates, [key(31), key(30)]);
        join(&api, &second, 2, 32, &below[1]).await.unwrap();
        // The same key again costs nothing; a third is beyond the signer, whose two are taken.
        join(&api, &first, 1, 30, &below[0]).await.unwrap();
        for (text, by, chain) in [(&first, 30, &below[0]), (&second, 32, &below[1])] {
            let error = join(&api, text, 3, by, chain).await.unwrap_err();
            assert!(error.contains("delegate-31 has signed for as many"), "{error}");
        }
        let used = api.get("/delegates/delegate-31").send().await.body["used"].clone();
        assert_eq!(used, 2);
        // A token without its delegate lets nobody in, and costs no use.
        let token: JoinToken = first.parse().unwrap();
        let (secret, public_key) = (token.secret.into(), key(4));
        let bare = Enrolment { secret, public_key, name: None, delegated: None };
        let admit = |tenant: &str, device: &Device| api.app.authority.admit_device(tenant, device);
        let error = api.app.store.enrol(&bare, now_ms(), admit).await.unwrap_err().to_string();
        assert!(error.contains("lacks its delegate"), "{error}");
        let left = api.get("/tokens").send().await.body["items"].clone();
        let left = left.as_array().unwrap().iter().map(|it| it["uses_left"].as_i64().unwrap());
        assert_eq!(left.sum::<i64>(), 2);
    });
}

#[test]
fn who_revokes_a_delegate_revokes_what_it_signed() {
    on_both(|world| async move {
        let api = elsewhere(world).await;
        let signer =
            Given { roles: vec![FleetRole::Box, FleetRole::Delegate], uses: 9, ..given(31) };
        let signer = signer.signed(ROOT, None);
        let below = given(30).signed(31, Some(&signer));
        let other = given(33).signed(ROOT, None);
        for chain in [&signer, &below, &other] {
            assert_eq!(api.post("/delegates", body(chain)).status().await, 201);
        }
        let by_below = token(&api, "delegate-30", 2).await;
        let by_other = token(&api, "delegate-33", 1).await;
        let gone = join(&api, &by_below, 1, 30, &below).await.unwrap();
        let stays = join(&api, &by_other, 2, 33, &other).await.unwrap();
        let revoked = api.post("/delegates/delegate-31/revoke", json!({ "reason": "lost" }));
        assert_eq!(revoked.status().await, 200);
        let state = async |path: String| api.get(&path).send().await.body["state"].clone();
        assert_eq!(state(format!("/devices/{}", gone.id)).await, "revoked");
        assert_eq!(state(format!("/devices/{}", stays.id)).await, "active");
        assert_eq!(state("/delegates/delegate-30".to_owned()).await, "revoked");
        assert_eq!(state("/delegates/delegate-33".to_owned()).await, "active");
        let keys = api.get("/revocations").send().await.body["items"].clone();
        let keys = keys.as_array().unwrap().iter().map(|it| it["public_key"].clone());
        assert_eq!(keys.collect::<Vec<_>>(), [key(31)]);
        // The token is left, and lets nobody in any more, old or new; nothing brings it back.
        for seed in [1, 3] {
            let error = join(&api, &by_below, seed, 30, &below).await.unwrap_err();
            assert!(error.contains("was revoked"), "{error}");
        }
        let settings = json!({ "tags": ["night"], "delegate": "delegate-30" });
        let more = api.post("/tokens", json!({ "settings": settings }));
        assert_eq!(more.status().await, 422);
        assert_eq!(api.post("/delegates", body(&signer)).status().await, 409);
        let again = api.post("/delegates/delegate-31/revoke", json!({ "reason": "lost" }));
        assert_eq!(again.status().await, 200);
        assert_eq!(api.get("/audit-check").send().await.body["good"], true);
    });
}

#[test]
fn a_box_that_waits_keeps_what_its_delegate_has_said() {
    runtime().block_on(async {
        let api = elsewhere(sqlite().await).await;
        let chain = given(30).signed(ROOT, None);
        assert_eq!(api.post("/delegates", body(&chain)).status().await, 201);
        let settings = json!({ "tags": ["night"], "delegate": "delegate-30", "approval": true });
        let made = api.post("/tokens", json!({ "settings": settings })).send().await;
        let device = join(&api, made.body["join"].as_str().unwrap(), 1, 30, &chain).await.unwrap();
        assert!(device.statement.is_some());
        let path = format!("/devices/{}/approve", device.id);
        let approved = api.post(&path, json!({})).send().await;
        assert_eq!(approved.body["state"], "active");
        assert_eq!(approved.body["statement"].as_str(), device.statement.as_deref());
        let delegate = api.app.store.get::<Delegate>("tram", "delegate-30").await.unwrap();
        assert_eq!(delegate.record.used, 1);
    });
}
