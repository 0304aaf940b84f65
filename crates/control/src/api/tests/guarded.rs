//! The guard against callers that disconnect, guess or crowd.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::*;

/// The result of `work` after at most so many polls; then it is dropped.
async fn turns<T>(most: usize, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut turns = 0;
    std::future::poll_fn(move |context| {
        turns += 1;
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if turns >= most => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[test]
fn a_post_whose_caller_leaves_in_its_middle_acts_once() {
    on_both_with(Api::on, |api| async move {
        let ask = |once: &str| {
            let ask = api.post("/tokens", json!({ "settings": { "uses": 1 } }));
            ask.header("idempotency-key", once).send()
        };
        for most in 1..=12 {
            let once = format!("once-{most}");
            let first = turns(most, ask(&once)).await;
            let begun = Instant::now();
            let answer = loop {
                let again = ask(&once).await;
                if again.status != 409 || begun.elapsed() > Duration::from_secs(20) {
                    break again;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(answer.status, 201, "left after {most} turns: {}", answer.body);
            assert!(first.is_none_or(|first| first.body == answer.body));
        }
        let tokens = api.get("/tokens").send().await.body;
        assert_eq!(tokens["items"].as_array().unwrap().len(), 12);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_keys_is_refused_before_the_database_is_asked() {
    let api = Api::new().await;
    let guess = |at: usize| {
        let guess = api.ask("GET", "/sessions/current").key(&format!("guess-{at}"));
        guess.from("198.51.100.2").status()
    };
    let known = || api.get("/devices").from("198.51.100.2").status();
    assert_eq!((guess(1).await, known().await), (401, 200));
    let (address, later) = ("198.51.100.2".parse().unwrap(), Instant::now() + HOUR);
    while api.app.limits.strangers.take(address, later) {}
    assert_eq!(known().await, 200, "who is known is not kept out by a neighbour");
    api.world.store.close().await;
    assert_eq!((guess(2).await, known().await), (429, 503), "the latter asks the database");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_no_text_is_a_problem_like_any_other() {
    let api = Api::new().await;
    for path in ["/tenants/%ff", "/tenants/tram/devices/%c3%28"] {
        assert_eq!(api.ask("GET", path).key("tram-owner").status().await, 404, "{path}");
    }
    let text = api.app.metrics.text();
    for operation in ["getTenant", "getDevice"] {
        let counted = format!(r#"operation="{operation}",status="404"}} 1"#);
        assert!(text.contains(&counted), "{operation}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_logins_from_two_addresses_do_not_lock_the_user_out() {
    let api = Api::new().await;
    api.person("home", "admin", Role::Owner).await;
    let body = |password: &str| json!({ "tenant": "home", "user": "admin", "password": password });
    for at in 0..40 {
        let ask = api.ask("POST", "/sessions").json(body("wrong"));
        ask.from(&format!("203.0.113.{}", at % 4)).status().await;
    }
    let ask = api.ask("POST", "/sessions").json(body(PASSWORD));
    assert_eq!(ask.from("198.51.100.7").status().await, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_watches_much_leaves_room_for_others() {
    let api = Api::new().await;
    let watch = |key: &'static str| api.ask("GET", "/tenants/tram/live").key(key).response();
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(watch("tram-viewer").await);
    }
    assert!(open.iter().all(|it| it.status() == StatusCode::OK));
    let more = api.ask("GET", "/tenants/tram/live").key("tram-viewer").send().await;
    assert_eq!(more.status, 429, "{}", more.body);
    assert_eq!(watch("tram-crew").await.status(), StatusCode::OK);
    open.pop();
    assert_eq!(watch("tram-viewer").await.status(), StatusCode::OK);
}

const HOUR: Duration = Duration::from_secs(3600);
