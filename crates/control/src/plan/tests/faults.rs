//! Faults of databases, clocks and controllers while documents are planned.

use tokio::io::AsyncReadExt as _;

use super::*;
use crate::store::revocation;

async fn succeed(port: &Port) {
    port.planner.abort();
    while !port.planner.is_finished() {
        tokio::task::yield_now().await;
    }
    let over = "UPDATE counter SET value = 0 WHERE name = 'planner'";
    assert_eq!(port.world.tamper(over).await, 1);
    tokio::spawn(planner(port, &port.mailboxes).run());
}

#[test]
fn a_roll_out_goes_on_where_it_was_after_its_controller_died() {
    on_both_with(Port::new, |port| async move {
        let mut boxes = boxes(&port, 4).await;
        roll_out(&port, 1, Scope::Tenant, json!({ "lanes": [] }), &[25, 100]).await;
        eventually("the first wave", async || {
            rest(&mut boxes, 50).await;
            boxes.iter().any(|it| it.text().is_some())
        })
        .await;
        port.planner.abort();
        let first = boxes.iter().position(|it| it.text().is_some()).unwrap();
        assert_eq!(boxes[first].text().as_deref(), Some("lanes = []\n"));
        boxes[first].confirm().await;
        let confirmed = boxes[first].agent.persisted().taken()[&Kind::Configuration];
        boxes[first].rest(1_000).await;
        let having = |boxes: &[TestMember]| boxes.iter().filter(|it| it.text().is_some()).count();
        assert_eq!(having(&boxes), 1, "half a roll-out stays half a roll-out");
        succeed(&port).await;
        eventually("the second wave", async || {
            rest(&mut boxes, 50).await;
            having(&boxes) == 4
        })
        .await;
        let still = boxes[first].agent.persisted().taken()[&Kind::Configuration];
        assert_eq!(still, confirmed, "who had it is not given it again");
        for device in &mut boxes {
            device.confirm().await;
        }
        reaches(&port, "tenant-1", RolloutState::Done).await;
        let signed = port.app.metrics.documents.get();
        let mut another = leading(&port, &Arc::default());
        another.turn(Some(Vec::new())).await.unwrap();
        assert_eq!(port.app.metrics.documents.get(), signed, "nothing is signed again");
    });
}

fn admitted_after_restart(proxy: &TestMember) -> Vec<(PublicKey, usize)> {
    let text = serde_json::to_string(proxy.agent.persisted()).unwrap();
    let persisted = serde_json::from_str(&text).unwrap();
    let key = identity(20).public_key();
    admitted(&Agent::restore(Instant::ZERO, key, Role::Proxy, "1.0", persisted))
}

#[test]
fn a_box_whose_row_was_deleted_is_out_once_it_is_read_and_no_other_is() {
    on_both_with(Port::new, |port| async move {
        let mut proxy = TestMember::new(&port, 20, Role::Proxy, None, "192.0.2.1:1").await;
        let _boxes = boxes(&port, 2).await;
        proxy.until("both", |it| it.admitted().len() == 2).await;
        port.planner.abort();
        let gone = identity(1).public_key();
        for table in ["address", "report", "session", "sample", "device"] {
            let column = if table == "device" { "id" } else { "device" };
            let whose = "SELECT id FROM device WHERE public_key";
            let sql = format!("DELETE FROM {table} WHERE {column} IN ({whose} = '{gone}')");
            port.world.tamper(&sql).await;
        }
        succeed(&port).await;
        let left = [(identity(2).public_key(), 1)];
        proxy.until("one", |it| it.admitted() == left).await;
        assert_eq!(admitted_after_restart(&proxy), left);
        let mut again = port.client(1).await.unwrap();
        again.send(&Up::Have(roadweave_fleet::HeldVersions::default())).await;
        let end = again.receive().await;
        assert!(matches!(end, Some(Down::Refused { retry: false, .. })), "{end:?}");
    });
}

#[test]
fn a_revocation_that_was_deleted_comes_back_from_a_proxy() {
    on_both_with(Port::new, |port| async move {
        let mut proxy = TestMember::new(&port, 20, Role::Proxy, None, "192.0.2.1:1").await;
        let gone = identity(1).public_key();
        port.revoke(1).await;
        proxy.until("revoked", |it| it.agent.persisted().trust().is_revoked(&gone)).await;
        assert_eq!(port.world.tamper("DELETE FROM revocation").await, 1);
        let mut change = port.change().await;
        let other = identity(2).public_key().to_string();
        let refused = revocation::add(&mut change, "tram", &other, "lost").await;
        assert!(matches!(refused, Err(StoreError::Older(_))), "{refused:?}");
        drop(change);
        let port = port.afresh().await.unwrap();
        let known =
            async || !revocation::list(&port.app.store, None, 0, 9).await.unwrap().is_empty();
        assert!(!known().await);
        proxy.reconnect(&port, 20).await;
        eventually("it is back", async || {
            proxy.rest(50).await;
            known().await
        })
        .await;
        assert!(proxy.agent.persisted().trust().is_revoked(&gone), "it was never forgotten");
        let refused = async || match port.client(1).await {
            Err(_) => true,
            Ok(mut client) => client.tls.read(&mut [0]).await.is_err(),
        };
        eventually("its key is refused again", refused).await;
    });
}

#[test]
fn what_was_taken_out_of_the_chain_of_revocations_is_not_signed_over() {
    on_both_with(Port::new, |port| async move {
        for seed in 1..=3 {
            port.revoke(seed).await;
        }
        port.world.tamper("DELETE FROM revocation WHERE serial = 2").await;
        let error = port.again().await.err().unwrap();
        assert!(error.to_string().contains("were altered"), "{error}");
    });
}
