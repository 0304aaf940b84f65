//! Roll-outs where the trust list names approvers.

use super::*;
use crate::streams::tests::{trust_list, web};
use roadweave_fleet::{Approval, Digest, Signed, Target, Waiting};
use roadweave_identity::Identity;

const APPROVER: u8 = 40;

async fn with_approver(world: crate::store::tests::World) -> Port {
    let list = trust_list(vec![identity(APPROVER).public_key()]);
    let port = Port::trusted(world, vec![list]).await;
    port.owner().await;
    port
}

async fn waiting(port: &Port, config: &str) -> Waiting {
    let path = format!("GET /api/v1/tenants/tram/configs/{config}/approval");
    let answer = web(port, &path, "owner", "").await;
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

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
    on_both_with(with_approver, |port| async move {
        let mut device = TestMember::device(&port, 1).await;
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[100]).await;
        device.rest(1_000).await;
        assert_eq!(device.text(), None);
        let found = rollout(&port, "tenant-1").await;
        assert_eq!((found.settings.state, found.wave), (RolloutState::Running, 0));
        let waits = waiting(&port, "tenant-1").await;
        assert_eq!((&*waits.text, waits.approval.number), ("lanes = []\n", 1));

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
        device.rest(300).await;
        assert_eq!(device.text(), None);
        let signed = waits.sign(&identity(APPROVER)).unwrap();
        let (status, said) = approve(&port, "tenant-1", &signed).await;
        assert_eq!(status, 200, "{said}");
        device.until("the approved one", |it| it.text().is_some()).await;
        assert_eq!(device.text().as_deref(), Some("lanes = []\n"));
        device.confirm().await;

        roll_out(&port, 2, Scope::Tenant, json!({ "lanes": [1] }), &[100]).await;
        set(&port, "tenant-1", RolloutState::Aborted).await;
        device.rest(1_000).await;
        assert_eq!(device.text().as_deref(), Some("lanes = []\n"));
    });
}

#[test]
fn a_box_alone_is_approved_for_by_its_key() {
    runtime().block_on(async {
        let port = with_approver(sqlite().await).await;
        let mut device = TestMember::device(&port, 1).await;
        let scope = Scope::Device("member-1".to_owned());
        roll_out(&port, 1, scope, json!({ "lanes": [] }), &[100]).await;
        let waits = waiting(&port, "device-member-1-1").await;
        assert_eq!(waits.approval.target, Target::Device(identity(1).public_key()));
        let signed = waits.sign(&identity(APPROVER)).unwrap();
        assert_eq!(approve(&port, "device-member-1-1", &signed).await.0, 200);
        device.until("the approved one", |it| it.text().is_some()).await;
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
