//! Joining by the word of a delegate, where the controller has no root key.

use roadweave_fleet::{Grant, Scope, Statement};

use super::*;
use crate::model::Delegate;
use crate::store::tests::count;

const ROOT: u8 = 8;
const DELEGATE: u8 = 30;

fn statement(seed: u8, role: Role, tenant: &str) -> Statement {
    let name = if role == Role::Delegate { "tokens" } else { "Bus-17" };
    let (key, name) = (identity(seed).public_key(), name.parse().unwrap());
    let scope = Scope::Tenant(tenant.parse().unwrap());
    Statement { key, name, role, scope, tags: Default::default(), grant: None }
}

fn delegate(seed: u8, tenant: &str) -> Chain {
    let roles = [Role::Box, Role::Proxy].into();
    let grant = Some(Grant { roles, tags: Default::default(), uses: Some(9) });
    let statement = Statement { grant, ..statement(seed, Role::Delegate, tenant) };
    Chain::new(vec![Signed::sign(&statement, &identity(ROOT)).unwrap()])
}

fn says(by: u8, above: &Chain, statement: &Statement) -> Chain {
    above.clone().then(Signed::sign(statement, &identity(by)).unwrap())
}

async fn with_token() -> (Port, JoinToken, Chain) {
    let port = Port::elsewhere(sqlite().await).await;
    let above = delegate(DELEGATE, "tram");
    let admitted = port.app.authority.follow(&above).unwrap();
    let text = serde_json::to_string(&above).unwrap();
    port.insert(Delegate::of(&admitted, text, "tram").unwrap()).await;
    let delegate = Some("tokens".to_owned());
    let token = port.token_of(TokenSettings { uses: 9, delegate, ..TokenSettings::default() });
    let token = token.await;
    (port, token, above)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_admits_only_its_own_key() {
    let (port, token, above) = with_token().await;
    let refused = async |chain: Option<Chain>, part: &str| {
        let mut client = port.client(1).await.unwrap();
        client.join_by(&token, chain).await;
        let answer = client.receive().await;
        let Some(Down::Refused { reason, retry: false }) = answer else {
            panic!("{part}: {answer:?}")
        };
        assert!(reason.contains(part), "{part}: {reason}");
    };
    let good = |seed| statement(seed, Role::Box, "tram");
    refused(None, "lacks its delegate").await;
    let other = "for another key";
    refused(Some(says(DELEGATE, &above, &good(2))), other).await;
    let proxy = statement(1, Role::Proxy, "tram");
    refused(Some(says(DELEGATE, &above, &proxy)), other).await;
    let renamed = Statement { name: "Bus-18".parse().unwrap(), ..good(1) };
    refused(Some(says(DELEGATE, &above, &renamed)), other).await;
    refused(Some(above.clone()), other).await;
    let ferry = statement(1, Role::Box, "ferry");
    refused(Some(says(DELEGATE, &above, &ferry)), "beyond what").await;
    refused(Some(says(31, &delegate(31, "ferry"), &ferry)), other).await;
    refused(Some(says(32, &above, &good(1))), "statement 2").await;
    let unknown = delegate(33, "tram");
    refused(Some(says(33, &unknown, &good(1))), "no delegate of this tenant").await;
    let count = count::<Device>(&port.app.store, "tram").await;
    assert_eq!(count, 0);
    let mut client = port.client(1).await.unwrap();
    client.join_by(&token, Some(says(DELEGATE, &above, &good(1)))).await;
    let answer = client.receive().await;
    assert!(matches!(answer, Some(Down::Welcome { .. })), "{answer:?}");
    let mut next = port.client(2).await.unwrap();
    next.join_by(&token, Some(says(DELEGATE, &above, &good(2)))).await;
    let answer = next.receive().await;
    let Some(Down::Refused { reason, .. }) = answer else { panic!("{answer:?}") };
    assert!(reason.contains("--name"), "{reason}");
}
