//! A client whose list of servers changes at run time.

use crate::servers::{Fault, Servers};
use crate::world::{count, ms};
use roadweave_tunnel::{CANDIDATES_MAX, Candidate, CandidatePlace, ClientEvent};

fn of(all: &[Candidate], numbers: &[usize]) -> Vec<Candidate> {
    numbers.iter().map(|number| all[*number].clone()).collect()
}

#[test]
fn other_candidates_leave_a_session_with_one_of_them_alone() {
    let mut fleet = Servers::at(&["a", "b", "c", "d", "e", "f"]);
    let all = fleet.client().servers().to_vec();
    assert_eq!(all.len(), CANDIDATES_MAX);
    fleet.set_candidates(of(&all, &[0]));
    fleet.run_to(4_000);
    // More servers; another order, with the server in use last of too many; without the standby.
    for numbers in [&[1, 0][..], &[3, 2, 1, 4, 0], &[0, 3]] {
        fleet.set_candidates(of(&all, numbers));
        fleet.run(ms(4_000));
        fleet.check_home(0, 0);
        let events = count(fleet.client_events(), |it| !matches!(it, ClientEvent::Notice(_)));
        assert_eq!(events, 1, "one session");
        let reports = fleet.reports();
        assert_eq!(reports.len(), numbers.len());
        let count = |place| reports.iter().filter(|it| it.place == place).count();
        let found = (count(CandidatePlace::InUse), count(CandidatePlace::Standby));
        assert_eq!(found, (1, 1), "{numbers:?}");
    }
    // The client moves to the one that is still listed. Without traffic, detection takes a while.
    fleet.befall(0, Fault::Crash);
    fleet.run(ms(20_000));
    fleet.check_home(3, 1);
}

#[test]
fn a_server_that_is_named_no_more_is_left_for_another() {
    for has_standby in [true, false] {
        let mut fleet = Servers::at(&["a", "b", "c"]);
        let all = fleet.candidates();
        if !has_standby {
            fleet.set_candidates(of(&all, &[0]));
        }
        fleet.run_to(4_000);
        fleet.set_candidates(of(&all, &[2, 1]));
        fleet.run_to(9_000);
        let names: Vec<String> = fleet.reports().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["proxy-2", "proxy-1"]);
        let home = fleet.home();
        assert_ne!(home, 0);
        fleet.check_home(home, usize::from(has_standby));
        // An empty list changes nothing.
        fleet.set_candidates(Vec::new());
        fleet.run_to(12_000);
        assert_eq!((fleet.home(), fleet.client().servers().len()), (home, 2));
    }
}

#[test]
fn a_server_with_another_key_is_another_server() {
    let mut fleet = Servers::at(&["a", "b"]);
    let all = fleet.candidates();
    fleet.set_candidates(of(&all, &[0]));
    fleet.run_to(4_000);
    // The key of server 1 at the address of server 0.
    let stranger = Candidate { addresses: all[0].addresses.clone(), ..all[1].clone() };
    fleet.set_candidates(vec![stranger]);
    fleet.run_to(8_000);
    assert!(fleet.client().status().is_none());
    fleet.set_candidates(of(&all, &[0]));
    fleet.run_to(12_000);
    assert!(fleet.client().status().is_some() && fleet.home() == 0);
}
