//! RAVEN's evaluation over TCP, as in its paper: each request is a connection, and goes as a
//! stream.
//!
//! ```text
//! Person ─ open, speak or ask ─► connection ─► answers ─► Person: how long it took
//! Load ─── page, video, download ───────────────────────► Loaded: what was sent twice
//! ```
//!
//! The pages have the sizes and numbers of requests that are published of the web ([`PAGES`]); each
//! is loaded as browsers do over HTTP/1.1, by six connections that ask in turn.
//!
//! Source: RAVEN sections 5.2, 5.3 and 5.6.

mod load;
mod person;

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_emulate::{Drive, DuplexLink};
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};
use roadweave_types::Instant;
use serde::Serialize;

use self::load::Loading;
pub use self::load::{Load, PAGES};
use self::person::Person;
use super::{Answered, PIECE, REQUEST_TIMEOUT, links, name_of, sent};
use crate::traffic::App;
use crate::video::quality::Percentiles;
use crate::web::Visit;
use crate::world::{World, WorldConfig, WorldError};

/// What was sent for one load on one route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loaded {
    /// The route.
    pub route: String,
    /// What was loaded: [`Load::name`].
    pub load: &'static str,
    /// The strategy.
    pub strategy: String,
    /// Parts that came whole, of so many: pages, chunks or files.
    pub whole: u64,
    /// Parts.
    pub parts: u64,
    /// From the first request of a part to its last byte.
    pub took_ms: Percentiles,
    /// Bytes that were sent a second time, by all bytes that were sent: to the vehicle.
    pub copies_down: f64,
    /// The same from the vehicle.
    pub copies_up: f64,
    /// The same both ways together.
    pub copies: f64,
}

/// Lets people use `app` on `route` over streams, as [`super::ask`] does over datagrams.
///
/// # Errors
/// [`WorldError`] when the route makes no world.
pub fn ask(
    route: (&str, &Drive),
    app: App,
    strategy: &Strategy,
    learned: &str,
    seeds: std::ops::Range<u64>,
) -> Result<Answered, WorldError> {
    let mut all = Answered {
        route: route.0.to_owned(),
        app: name_of(app).to_owned(),
        strategy: strategy.to_string(),
        ..Answered::default()
    };
    for seed in seeds {
        let length = route.1.length().unwrap_or(PIECE);
        let mut visit = visit(route.1, strategy, learned, seed)?;
        let start = visit.world.now();
        let before = sent(&visit.world);
        let end = start + length.saturating_sub(REQUEST_TIMEOUT);
        let mut person = Person::new(app, start, end, seed);
        visit.run(&mut person, start + length);
        let after = sent(&visit.world);
        all.source_bytes += after.0.saturating_sub(before.0);
        all.further_bytes += after.1.saturating_sub(before.1);
        all.asked += person.asked();
        all.answered += person.responses().len() as u64;
        all.responses.extend_from_slice(person.responses());
    }
    all.settle();
    Ok(all)
}

/// Loads `load` on `route`.
///
/// # Errors
/// [`WorldError`] when the route makes no world.
pub fn load(
    route: (&str, &Drive),
    load: Load,
    strategy: &Strategy,
    learned: &str,
    seed: u64,
) -> Result<Loaded, WorldError> {
    let mut visit = visit(route.1, strategy, learned, seed)?;
    let before = both_ways(&visit.world);
    let start = visit.world.now();
    let mut loading = Loading::new(load, start, seed);
    visit.run(&mut loading, start + LOAD_MAX);
    let after = both_ways(&visit.world);
    let ways = [0, 1].map(|way| {
        let (source, further): (u64, u64) = after[way];
        (source.saturating_sub(before[way].0), further.saturating_sub(before[way].1))
    });
    let share = |(source, further): (u64, u64)| further as f64 / (source + further).max(1) as f64;
    let [up, down] = ways;
    let mut took = loading.took().to_vec();
    took.sort_unstable();
    Ok(Loaded {
        route: route.0.to_owned(),
        load: load.name(),
        strategy: strategy.to_string(),
        whole: took.len() as u64,
        parts: load.parts(),
        took_ms: Percentiles::of_sorted(&took),
        copies_down: share(down),
        copies_up: share(up),
        copies: share((up.0 + down.0, up.1 + down.1)),
    })
}

/// A session in use on `route`, which begins now: all its links, or that which the strategy names.
fn visit(
    route: &Drive,
    strategy: &Strategy,
    learned: &str,
    seed: u64,
) -> Result<Visit, WorldError> {
    let mut links: Vec<DuplexLink> = links(route, seed);
    if let Some(uplink) = strategy.uplink() {
        links.retain(|link| link.name == uplink);
    }
    // Over one link there is nothing to choose, and a server knows no uplink's name.
    let strategy = match strategy.uplink() {
        Some(_) => "minrtt".parse().expect("it is one of the strategies"),
        None => strategy.clone(),
    };
    let lane = LaneConfig { strategy, ..StreamsConfig::default().lane };
    let packets = || vec![LaneConfig::new("default", Strategy::xnc())];
    let mut visit = Visit::new(WorldConfig {
        links: links.clone(),
        lanes_up: packets(),
        lanes_down: packets(),
        streams: Some(StreamsConfig { lane, ..StreamsConfig::default() }),
        congestion: CongestionControl::default(),
        speedtest: None,
        seed,
        trust: Default::default(),
        policies: BTreeMap::new(),
        strangers: Default::default(),
        learned: BTreeMap::from([(StreamsConfig::LANE.to_owned(), learned.to_owned())]),
        machine: Default::default(),
    })?;
    visit.world.restart_links(links);
    Ok(visit)
}

/// Bytes of first copies, and of others, from the vehicle and to it.
fn both_ways(world: &World) -> [(u64, u64); 2] {
    let of = |status: &[roadweave_tunnel::SessionStatus]| {
        let lanes = status.iter().flat_map(|status| &status.stats.lanes);
        lanes.fold((0, 0), |(source, further), lane| {
            let sent = &lane.sent;
            (source + sent.source_bytes, further + sent.duplicate_bytes + sent.coded_bytes)
        })
    };
    let client: Vec<_> = world.client_status().into_iter().collect();
    [of(&client), of(&world.server_status())]
}

/// A load that takes longer is cut off.
const LOAD_MAX: Duration = Duration::from_secs(600);

/// The moment of whatever is due, the earliest.
fn soonest(moments: impl IntoIterator<Item = Option<Instant>>) -> Option<Instant> {
    moments.into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
