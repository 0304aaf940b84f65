//! A fleet of real agents against a real controller on this machine, measured: `make fleet-load`.
//!
//! ```text
//! this program: boxes and proxies, a task each, the fleet's own agents over TLS
//!      │ joins, samples, reports                 ▲ documents, revocations
//!      ▼                                         │
//! roadweave-controller, started and killed here ─┘ ◄─ HTTPS ─ changes, revocations
//! ```
//!
//! Both share the machine, so what is measured is the controller and its agents together; the
//! controller's processor time and memory are its own, from /proc.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    missing_docs,
    reason = "a program that measures: it reads the clock, and ends where it cannot go on"
)]

mod controller;
mod member;
mod web;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use roadweave_fleet::{JoinToken, Role};
use serde_json::json;
use tokio::sync::Semaphore;

use self::controller::Controller;
use self::member::{Board, Member};
use self::web::Web;

/// Measures a controller with so many agents
#[derive(Parser)]
struct Options {
    /// Boxes
    #[arg(long, default_value_t = 1_000)]
    boxes: usize,
    /// Proxies, at two sites
    #[arg(long, default_value_t = 10)]
    proxies: usize,
    /// Changes of configuration, each to all boxes
    #[arg(long, default_value_t = 5)]
    changes: usize,
    /// Boxes that are revoked, one after the other
    #[arg(long, default_value_t = 40)]
    revocations: usize,
    /// Times that the controller is killed
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// How long nothing happens, seconds
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// postgres://user:password@host/name, in place of SQLite
    #[arg(long)]
    database: Option<String>,
    /// The program roadweave-controller
    #[arg(long, default_value = "target/release/roadweave-controller")]
    controller: std::path::PathBuf,
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    let mut controller = Controller::make(&options.controller, &place, options.database.as_deref());
    controller.start();
    let web = Web::log_in(&controller).await;
    let board = Arc::new(Board::new(options.boxes + options.revocations + options.proxies));
    join(&options, &web, &controller, &board).await;
    say("documents at all", board.all_have_documents().await);
    idle(&options, &controller).await;
    change(&options, &web, &board).await;
    revoke(&options, &web, &board).await;
    kill(&options, &mut controller, &board).await;
}

fn say(what: &str, figure: impl std::fmt::Debug) {
    println!("{what}: {figure:.2?}");
}

async fn join(options: &Options, web: &Web, controller: &Controller, board: &Arc<Board>) {
    let begun = Instant::now();
    for site in ["fra", "ber"] {
        let settings = json!({ "site": site, "region": "eu" });
        web.post("/pools", &json!({ "id": site, "settings": settings })).await;
    }
    let permits = Arc::new(Semaphore::new(64));
    let mut joined = Vec::new();
    let boxes = options.boxes + options.revocations;
    let mut spawn = |number: usize, role: Role, token: &JoinToken| {
        let member = Member::new(number, role, token.clone(), controller.port, Arc::clone(board));
        joined.push(member.start(Arc::clone(&permits)));
    };
    for (at, site) in ["fra", "ber"].iter().enumerate() {
        let token = token(web, json!({ "role": "proxy", "uses": 1_000, "pool": site })).await;
        for number in (at..options.proxies).step_by(2) {
            spawn(boxes + number, Role::Proxy, &token);
        }
    }
    let token = token(web, json!({ "uses": 10_000 })).await;
    (0..boxes).for_each(|number| spawn(number, Role::Box, &token));
    for one in joined {
        one.await.unwrap();
    }
    println!("{boxes} boxes and {} proxies joined: {:.2?}", options.proxies, begun.elapsed());
}

async fn token(web: &Web, settings: serde_json::Value) -> JoinToken {
    let made = web.post("/tokens", &json!({ "settings": settings })).await;
    made["join"].as_str().unwrap().parse().unwrap()
}

/// Nothing changes; streams are up, and proxies send figures of all boxes.
async fn idle(options: &Options, controller: &Controller) {
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (begun, before) = (Instant::now(), controller.cpu());
    tokio::time::sleep(Duration::from_secs(options.idle)).await;
    let used = controller.cpu() - before;
    let share = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let (now, most) = controller.memory_mb();
    println!("idle: {share:.1} % of a core, {now} MB of memory ({most} MB at most so far)");
}

/// A configuration to all at once; in force is what a box's own agent says.
async fn change(options: &Options, web: &Web, board: &Board) {
    let mut all = Vec::new();
    for number in 0..options.changes {
        let body = json!({ "lanes": [{ "name": format!("lane-{number}") }] });
        let made = web.post("/configs", &json!({ "scope": "tenant", "body": body })).await;
        let id = made["id"].as_str().unwrap().to_owned();
        let begun = board.await_text(&format!("lane-{number}"));
        let settings = json!({ "config": id, "waves": [100] });
        web.post("/rollouts", &json!({ "id": id, "settings": settings })).await;
        all.extend(board.texts_since(begun, options.boxes).await);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    percentiles("a change in force", all);
}

/// Until each proxy has it in force, and until the answer says so.
async fn revoke(options: &Options, web: &Web, board: &Board) {
    let (mut all, mut answers) = (Vec::new(), Vec::new());
    for number in options.boxes..options.boxes + options.revocations {
        let begun = board.await_revocation();
        let path = format!("/devices/box-{number}/revoke");
        let answer = web.post(&path, &json!({ "reason": "measured" })).await;
        answers.push(begun.elapsed());
        let confirmed = answer["confirmed"].as_array().unwrap().len();
        assert_eq!(confirmed, options.proxies, "{answer}");
        all.extend(board.revocations_since(begun));
    }
    percentiles("a revocation in force at a proxy", all);
    percentiles("its answer, with who has confirmed", answers);
}

async fn kill(options: &Options, controller: &mut Controller, board: &Board) {
    for _ in 0..options.kills {
        board.await_streams();
        controller.kill();
        let begun = Instant::now();
        controller.start();
        let listens = begun.elapsed();
        let back = board.streams_since(begun, options.boxes + options.proxies).await;
        println!("after kill -9: listens after {listens:.2?}");
        percentiles("  back, with what it has told and heard", back);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    let (now, most) = controller.memory_mb();
    println!("memory afterwards: {now} MB, {most} MB at most");
}

fn percentiles(what: &str, mut all: Vec<Duration>) {
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
    println!(
        "{what}: {} times, p50 {:.3?}, p99 {:.3?}, most {:.3?}",
        all.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
