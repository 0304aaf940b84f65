//! A client whose list of servers changes at run time.

use crate::failover::fleet;
use crate::servers::{Fault, Servers};
use crate::world::{at, ms};
use roadweave_tunnel::{CANDIDATES_MAX, Candidate, CandidatePlace, ClientEvent};

fn name(fleet: &mut Servers, known: &[Candidate], numbers: &[usize]) {
    let wanted = numbers.iter().map(|number| known[*number].clone()).collect();
    let now = fleet.now();
    fleet.client().set_candidates(now, wanted);
    fleet.flush();
}

#[test]
fn other_candidates_leave_a_session_with_one_of_them_alone() {
    let mut fleet = fleet(&["a", "b", "c", "d", "e", "f"], 1);
    let known = fleet.client().servers().to_vec();
    assert_eq!(known.len(), CANDIDATES_MAX);
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(4_000));
    let joins = |fleet: &Servers| {
        let events = fleet.client_events().iter();
        events.filter(|(_, event)| !matches!(event, ClientEvent::Notice(_))).count()
    };
    assert_eq!((fleet.home(), joins(&fleet)), (0, 1));
    // More servers; another order, with the server in use last of too many; without the standby.
    for numbers in [&[1, 0][..], &[3, 2, 1, 4, 0], &[0, 3]] {
        name(&mut fleet, &known, numbers);
        fleet.run(ms(4_000));
        let now = fleet.now();
        let candidates = fleet.client().candidates(now);
        assert_eq!(candidates.len(), numbers.len());
        let waits = |place| candidates.iter().filter(|it| it.place == place).count();
        assert_eq!((waits(CandidatePlace::InUse), waits(CandidatePlace::Standby)), (1, 1));
        assert_eq!((fleet.home(), joins(&fleet)), (0, 1), "{numbers:?}");
    }
    // The client moves to the one that is still listed. Without traffic, detection takes a while.
    fleet.befall(0, Fault::Crash);
    fleet.run(ms(20_000));
    assert_eq!((fleet.home(), fleet.moves()), (3, 1));
}

#[test]
fn a_server_that_is_named_no_more_is_left_for_another() {
    for has_standby in [true, false] {
        let mut fleet = fleet(&["a", "b", "c"], 1);
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
        // An empty list changes nothing.
        let home = fleet.home();
        name(&mut fleet, &known, &[]);
        fleet.run_until(at(12_000));
        assert_eq!((fleet.home(), fleet.client().servers().len()), (home, 2));
    }
}

#[test]
fn a_server_with_another_key_is_another_server() {
    let mut fleet = fleet(&["a", "b"], 1);
    let known = fleet.client().servers().to_vec();
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(4_000));
    // The key of server 1 at the address of server 0.
    let stranger = Candidate { addresses: known[0].addresses.clone(), ..known[1].clone() };
    name(&mut fleet, &[stranger], &[0]);
    fleet.run_until(at(8_000));
    assert!(fleet.client().status().is_none());
    name(&mut fleet, &known, &[0]);
    fleet.run_until(at(12_000));
    assert!(fleet.client().status().is_some() && fleet.home() == 0);
}
