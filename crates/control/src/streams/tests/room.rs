//! How many are served, and for how long where the database is away.

use super::*;

async fn is_served(client: &mut TestClient) -> bool {
    if client.tls.write_all(&encode(&Up::Alive).unwrap()).await.is_err() {
        return false;
    }
    loop {
        match client.receive().await {
            Some(Down::Alive) => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

async fn served(port: &Port, seed: u8) -> Option<TestClient> {
    let mut client = port.client(seed).await.ok()?;
    is_served(&mut client).await.then_some(client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_of_one_address_are_few_and_members_do_not_count() {
    let port =
        Port::limited(ConnectionLimits { of_address: 3, ..ConnectionLimits::default() }).await;
    for seed in 20..25 {
        port.proxy(&format!("fra-{seed}"), seed).await;
    }
    let mut there = Vec::new();
    for seed in 20..25 {
        there.push(served(&port, seed).await.expect("a member"));
    }
    let strangers = [served(&port, 1).await, served(&port, 2).await, served(&port, 3).await];
    assert!(strangers.iter().all(Option::is_some));
    assert!(served(&port, 4).await.is_none(), "its address has as many as it may");
    assert!(port.app.metrics.text().contains(r#"reason="connections-of-address""#));
    drop(strangers);
    eventually("others may come", async || served(&port, 4).await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boxes_and_strangers_leave_room_for_people_and_proxies() {
    let port =
        Port::limited(ConnectionLimits { strangers: 2, all: 9, ..ConnectionLimits::default() })
            .await;
    port.proxy("fra-1", 20).await;
    let _strangers = [served(&port, 1).await.unwrap(), served(&port, 2).await.unwrap()];
    assert!(served(&port, 3).await.is_none());
    assert!(port.app.metrics.text().contains(r#"reason="streams-of-boxes""#));
    let _proxy = served(&port, 20).await.expect("it has a permit");
    let answer = web(&port, "GET /healthz", "", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_read_nothing_do_not_block_others() {
    let port =
        Port::limited(ConnectionLimits { strangers: 2, all: 6, ..ConnectionLimits::default() })
            .await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(ask(&port, "GET /api/v1/openapi.json", "", "").await);
    }
    let answer = web(&port, "GET /healthz", "", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(port.app.metrics.text().contains(r#"reason="stranger""#));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_say_nothing_give_way() {
    let port = Port::limited(ConnectionLimits { all: 4, ..ConnectionLimits::default() }).await;
    port.proxy("fra-1", 20).await;
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(TcpStream::connect(port.address).await.unwrap());
    }
    let _proxy = served(&port, 20).await.expect("the oldest of them goes");
    let answer = web(&port, "GET /healthz", "", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_does_not_take_all_seats() {
    let port = Port::new(sqlite().await).await;
    port.proxy("fra-1", 20).await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(served(&port, 20).await.expect("a stream"));
    }
    let mut rest = [0; 4096];
    let end = async { while all[0].tls.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(Duration::from_secs(30), end).await.expect("the first gives way");
    assert!(is_served(&mut all[4]).await);
    assert!(port.app.metrics.text().contains(r#"reason="streams-of-key""#));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_of_a_controller_whose_database_is_away_may_go_elsewhere() {
    let port = Port::new(sqlite().await).await;
    let token = port.token(1, false).await;
    port.proxy("fra-1", 20).await;
    let mut device = port.joined(1, &token).await;
    let mut proxy = served(&port, 20).await.expect("a stream");
    let begun = std::time::Instant::now();
    // Like a standby that lags: it answers, and must not be used.
    let lag = "UPDATE counter SET value = value - 1 WHERE name = 'change'";
    while *port.app.outbox.health().borrow() == crate::outbox::Health::Good {
        port.world.tamper(lag).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let mut rest = [0; 4096];
    let ended = async { while proxy.tls.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is let go");
    assert!(begun.elapsed() > Duration::from_secs(9), "a moment is nothing");
    assert!(served(&port, 20).await.is_none(), "and finds nobody here");
    assert!(is_served(&mut device).await, "a box loses nothing by it");
    port.world.tamper("UPDATE counter SET value = value + 1000 WHERE name = 'change'").await;
    eventually("it is back", async || served(&port, 20).await.is_some()).await;
}
