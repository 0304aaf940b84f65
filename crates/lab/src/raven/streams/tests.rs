use roadweave_emulate::{AtEnd, Capacity, DriveLink, Timeline, Trace};
use roadweave_types::{DropReason, Rate};

use super::super::{CAPACITY, learn};
use super::load::page;
use super::*;

/// Networks with these round trips, each of which varies by 2 ms; one of them is dead for the last
/// half of each minute.
fn route(rtts_ms: &[u64], seconds: u64, dead: Option<usize>) -> Drive {
    let link = |(index, rtt_ms): (usize, &u64)| {
        let half = Duration::from_micros(rtt_ms * 500);
        let second = Duration::from_secs;
        let delays = (0..seconds).map(|at| (second(at), half + Duration::from_millis(at % 3)));
        let losses = (0..seconds).map(|at| {
            let is_dead = dead == Some(index) && at % 60 >= 30;
            (second(at), f64::from(u8::from(is_dead)))
        });
        let delay = Timeline::new(delays, second(seconds), AtEnd::Repeat).unwrap();
        let loss = Timeline::new(losses, second(seconds), AtEnd::Repeat).unwrap();
        let trace = Trace::constant(CAPACITY, half).with_delay(delay).with_loss(loss);
        DriveLink::symmetric(format!("net{index}"), trace)
    };
    Drive { links: rtts_ms.iter().enumerate().map(link).collect() }
}

fn asked(route: &Drive, app: App, strategy: &str) -> Answered {
    let learned = learn([route]);
    let strategy = strategy.parse().unwrap();
    ask(("first", route), app, &strategy, &learned, 1..2).unwrap()
}

#[test]
fn each_app_takes_its_round_trips_and_no_more() {
    let route = route(&[50, 55], 60, None);
    for (app, trips, most) in [(App::Speech, 1, 25), (App::Music, 2, 11), (App::Recommender, 1, 4)]
    {
        let answered = asked(&route, app, "raven");
        assert!(answered.asked >= 2 && answered.asked <= most, "{answered:?}");
        assert_eq!(answered.answered, answered.asked);
        let p50 = answered.response_ms.p50;
        let trip = 50.0..66.0;
        assert!(trip.contains(&(p50 / f64::from(trips))), "{app:?}: {p50} ms");
    }
}

#[test]
fn what_nobody_answers_is_given_up_after_ten_seconds_and_counts_so() {
    let route = route(&[50, 60], 120, Some(0));
    let alone = asked(&route, App::Music, "single:net0");
    assert!(alone.answered < alone.asked, "{alone:?}");
    assert_eq!(alone.response_ms.p999, 10_000.0);
    let both = asked(&route, App::Music, "raven");
    assert_eq!(both.answered, both.asked);
    assert!(both.response_ms.p99 < 1_000.0, "{both:?}");
}

#[test]
fn confidence_costs_bytes_of_small_requests_and_few_of_large_loads() {
    let route = route(&[50, 52], 40, None);
    assert!(asked(&route, App::Recommender, "raven:0").extra_bytes < 0.01);
    assert!(asked(&route, App::Recommender, "raven:100").extra_bytes > 0.5);
    let learned = learn([&route]);
    let copies = |what: Load, strategy: &str| {
        let strategy = strategy.parse().unwrap();
        let loaded = load(("first", &route), what, &strategy, &learned, 1).unwrap();
        assert_eq!((loaded.whole, loaded.parts), (what.parts(), what.parts()), "{loaded:?}");
        loaded.copies
    };
    // Of both networks each would get all of it: 50 %.
    for (what, most) in [(Load::Download, 0.1), (Load::Video, 0.1), (Load::Unbroken, 0.001)] {
        let share = copies(what, "raven:100");
        assert!(share > 0.0 && share < most, "{share} of a load {}", what.name());
    }
    assert!(copies(Load::Download, "minrtt") < 0.001);
}

#[test]
fn copies_for_a_slow_network_are_withdrawn_when_another_has_brought_the_bytes() {
    let mut route = route(&[50, 55], 60, None);
    let slow = Capacity::constant(Rate::from_kbps(150));
    route.links[1].down = route.links[1].down.with_capacity(slow);
    let strategy: Strategy = "raven:100".parse().unwrap();
    let mut visit = visit(&route, &strategy, &learn([&route]), 1).unwrap();
    let (start, end) = (visit.world.now(), visit.world.now() + Duration::from_secs(50));
    let mut person = Person::new(App::Music, start, end, 1);
    visit.run(&mut person, end);
    let status = visit.world.server_status();
    let lanes = status.iter().flat_map(|status| &status.stats.lanes);
    let withdrawn: u64 = lanes.map(|lane| lane.sent.drops.get(DropReason::CopyCancelled)).sum();
    assert!(withdrawn > 20, "{withdrawn} copies of {} answers", person.responses().len());
}

#[test]
fn a_page_has_its_requests_and_its_bytes() {
    for (requests, kilobytes) in PAGES {
        let answers = page((requests, kilobytes), 7);
        assert_eq!(answers.len(), requests as usize);
        let sum: u64 = answers.iter().map(|answer| u64::from(*answer)).sum();
        let off = sum.abs_diff(u64::from(kilobytes) * 1_000);
        assert!(off <= 51 * u64::from(requests), "{sum} bytes for {kilobytes} kB");
    }
}
