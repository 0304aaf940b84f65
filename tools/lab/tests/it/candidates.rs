//! A client whose servers are named anew while it runs.

use std::time::Duration;

use roadweave_lab::failover::Failover;
use roadweave_lab::world::servers::{Fault, Servers};
use roadweave_proto::Instant;
use roadweave_tunnel::{CANDIDATES_MAX, Candidate, CandidatePlace, ClientEvent};

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn fleet(sites: &[&str]) -> Servers {
    Failover::new(Fault::Crash, 1).fleet(sites, &[]).expect("it can be made")
}

/// Tells the client that these of the servers are its candidates from now on.
fn name(fleet: &mut Servers, known: &[Candidate], numbers: &[usize]) {
    let wanted = numbers.iter().map(|number| known[*number].clone()).collect();
    let now = fleet.now();
    fleet.client().set_candidates(now, wanted);
    fleet.flush();
}

#[test]
fn other_candidates_leave_a_session_with_one_of_them_alone() {
    let mut fleet = fleet(&["a", "b", "c", "d", "e", "f"]);
    let known = fleet.client().servers().to_vec();
    assert_eq!(known.len(), CANDIDATES_MAX);
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(4_000));
    let joins = |fleet: &Servers| {
        let events = fleet.client_events().iter();
        events.filter(|(_, event)| !matches!(event, ClientEvent::Notice(_))).count()
    };
    assert_eq!((fleet.home(), joins(&fleet)), (0, 1));
    // More, in another order, with the own one as the last of too many, and without the standby.
    for numbers in [&[1, 0][..], &[3, 2, 1, 4, 0], &[0, 3]] {
        name(&mut fleet, &known, numbers);
        let now = fleet.now();
        fleet.run_until(now + Duration::from_secs(4));
        let now = fleet.now();
        let candidates = fleet.client().candidates(now);
        assert_eq!(candidates.len(), numbers.len());
        let waits = |place| candidates.iter().filter(|it| it.place == place).count();
        assert_eq!((waits(CandidatePlace::InUse), waits(CandidatePlace::Standby)), (1, 1));
        assert_eq!((fleet.home(), joins(&fleet)), (0, 1), "{numbers:?}");
    }
    // It is the one that is named still to which the client goes.
    fleet.befall(0, Fault::Crash);
    // Without traffic it takes a while until anybody notices.
    let now = fleet.now();
    fleet.run_until(now + Duration::from_secs(20));
    assert_eq!((fleet.home(), fleet.moves()), (3, 1));
}

#[test]
fn a_server_that_is_named_no_more_is_left_for_another() {
    for has_standby in [true, false] {
        let mut fleet = fleet(&["a", "b", "c"]);
        let known = fleet.client().servers().to_vec();
        if !has_standby {
            name(&mut fleet, &known, &[0]);
        }
        fleet.run_until(at(4_000));
        name(&mut fleet, &known, &[2, 1]);
        fleet.run_until(at(9_000));
        let now = fleet.now();
        let names: Vec<String> =
            fleet.client().candidates(now).into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["proxy-2", "proxy-1"].map(str::to_owned));
        assert!(fleet.client().status().is_some() && fleet.home() != 0);
        assert_eq!(fleet.moves(), usize::from(has_standby));
        // Without any nothing changes.
        let home = fleet.home();
        name(&mut fleet, &known, &[]);
        fleet.run_until(at(12_000));
        assert_eq!((fleet.home(), fleet.client().servers().len()), (home, 2));
    }
}

#[test]
fn a_server_with_another_key_is_another_server() {
    let mut fleet = fleet(&["a", "b"]);
    let known = fleet.client().servers().to_vec();
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(4_000));
    // Nobody answers by the key of server 1 where server 0 is.
    let stranger = Candidate { addresses: known[0].addresses.clone(), ..known[1].clone() };
    let now = fleet.now();
    fleet.client().set_candidates(now, vec![stranger]);
    fleet.flush();
    fleet.run_until(at(8_000));
    assert!(fleet.client().status().is_none());
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(12_000));
    assert!(fleet.client().status().is_some() && fleet.home() == 0);
}
