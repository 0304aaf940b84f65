//! Where a root names people without whom no configuration counts.

use roadweave_fleet::{Approval, Digest, Signed, Target, TrustList, Waiting};
use roadweave_identity::Identity;
use serde_json::{Value, json};

use super::*;
use crate::streams::tests::web;

const APPROVER: u8 = 40;

async fn with_approver(world: crate::store::tests::World) -> Port {
    let list = TrustList {
        number: 1,
        epoch: 1,
        roots: vec![identity(8).public_key()],
        spares: Vec::new(),
        controllers: vec![identity(7).public_key()],
        approvers: vec![identity(APPROVER).public_key()],
    };
    let port = Port::trusted(world, vec![Signed::sign(&list, &identity(8)).unwrap()]).await;
    let secret = "owner".to_owned();
    let settings = serde_json::from_value(json!({ "role": "owner" })).unwrap();
    let hash = crate::keys::hash(&secret);
    port.insert(crate::model::ApiKey { id: secret, hash, settings }).await;
    port
}

/// What waits for a person, as a machine with a key gets it.
async fn waiting(port: &Port, config: &str) -> Waiting {
    let path = format!("GET /api/v1/tenants/tram/configs/{config}/approval");
    let answer = web(port, &path, "owner", "").await;
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// Puts an approval in; its status, and what it says.
async fn approve(port: &Port, config: &str, signed: &Signed<Approval>) -> (u16, String) {
    let path = format!("POST /api/v1/tenants/tram/configs/{config}/approval");
    let body = json!({ "signature": serde_json::to_string(signed).unwrap() }).to_string();
    let answer = web(port, &path, "owner", &body).await;
    (answer[9..12].parse().unwrap(), answer)
}

fn sign(approval: &Approval, by: &Identity) -> Signed<Approval> {
    Signed::sign(approval, by).unwrap()
}

#[test]
fn a_roll_out_waits_until_the_right_person_has_approved_this_configuration() {
    on_both(|world| async move {
        let port = with_approver(world).await;
        let of_box = token(&port, TokenRole::Box, 1, None).await;
        let mut device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[100]).await;
        device.rest(Duration::from_secs(1)).await;
        assert_eq!(device.text(), None);
        let found = rollout(&port, "tenant-1").await.record;
        assert_eq!((found.settings.state, found.wave), (RolloutState::Running, 0));
        let waits = waiting(&port, "tenant-1").await;
        assert_eq!((&*waits.text, waits.approval.number), ("lanes = []\n", 1));

        // The controller's own key, a stranger's, and the approver's word for something else.
        let right = waits.approval.clone();
        let others = [
            Approval { number: 2, ..right.clone() },
            Approval { tenant: "ferry".parse().unwrap(), ..right.clone() },
            Approval { target: Target::Tag("tram".parse().unwrap()), ..right.clone() },
            Approval { text: Digest::of([&b"lanes = 1"[..]]), ..right.clone() },
        ];
        let mut wrong: Vec<_> = [7, 8, 9].map(|seed| sign(&right, &identity(seed))).into();
        wrong.extend(others.iter().map(|other| sign(other, &identity(APPROVER))));
        for signed in &wrong {
            let (status, said) = approve(&port, "tenant-1", signed).await;
            assert_eq!(status, 422, "{said}");
        }
        device.rest(Duration::from_millis(300)).await;
        assert_eq!(device.text(), None);
        let signed = waits.sign(&identity(APPROVER)).unwrap();
        let (status, said) = approve(&port, "tenant-1", &signed).await;
        assert_eq!(status, 200, "{said}");
        device.until("the approved one", |it| it.text().is_some()).await;
        assert_eq!(device.text().as_deref(), Some("lanes = []\n"));
        device.pass(120);
        device.send().await;

        // What nobody has approved takes nothing away; nor does taking back what was approved.
        roll_out(&port, 2, Scope::Tenant, json!({ "lanes": [1] }), &[100]).await;
        // The plan may change the roll-out as well, between the reading and the writing.
        loop {
            let first = rollout(&port, "tenant-1").await;
            let mut record = first.record.clone();
            record.settings.state = RolloutState::Aborted;
            let mut change = port.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
            match change.update(&first, record).await {
                Ok(_) => {
                    change.commit().await.unwrap();
                    break;
                }
                Err(StoreError::Changed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        port.app.outbox.hint();
        device.rest(Duration::from_secs(1)).await;
        assert_eq!(device.text().as_deref(), Some("lanes = []\n"));
    });
}

#[test]
fn a_box_alone_is_approved_for_by_its_key() {
    runtime().block_on(async {
        let port = with_approver(sqlite().await).await;
        let of_box = token(&port, TokenRole::Box, 1, None).await;
        let mut device = Member::join(&port, 1, Role::Box, &of_box, "").await;
        let scope = Scope::Device("member-1".to_owned());
        roll_out(&port, 1, scope, json!({ "lanes": [] }), &[100]).await;
        let waits = waiting(&port, "device-member-1-1").await;
        assert_eq!(waits.approval.target, Target::Device(identity(1).public_key()));
        let signed = waits.sign(&identity(APPROVER)).unwrap();
        assert_eq!(approve(&port, "device-member-1-1", &signed).await.0, 200);
        device.until("the approved one", |it| it.text().is_some()).await;
        // A version comes with its approval too, and with no other.
        let body = |signature: &Value| {
            let body = json!({ "scope": "tenant", "body": {}, "signature": signature });
            body.to_string()
        };
        let path = "POST /api/v1/tenants/tram/configs";
        let other = json!(serde_json::to_string(&signed).unwrap());
        let answer = web(&port, path, "owner", &body(&other)).await;
        assert!(answer.starts_with("HTTP/1.1 422"), "{answer}");
        let answer = web(&port, path, "owner", &body(&Value::Null)).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    });
}
