use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Rtype, Ttl};
use domain::rdata::{A, Aaaa};

use super::*;

type Zone<'a> = &'a [(&'a str, u32, &'a str)];

fn serve(zone: Zone<'_>, question: &[u8]) -> Vec<u8> {
    let asked = Message::from_slice(question).unwrap();
    let question = asked.sole_question().unwrap();
    let mut answer = MessageBuilder::new_vec().start_answer(asked, Rcode::NOERROR).unwrap();
    for (name, ttl, address) in zone {
        let name: Name<Vec<u8>> = name.parse().unwrap();
        if name != *question.qname() {
            continue;
        }
        let ttl = Ttl::from_secs(*ttl);
        match address.parse().unwrap() {
            IpAddr::V4(v4) if question.qtype() == Rtype::A => {
                answer.push((name, ttl, A::new(v4))).unwrap()
            }
            IpAddr::V6(v6) if question.qtype() == Rtype::AAAA => {
                answer.push((name, ttl, Aaaa::new(v6))).unwrap()
            }
            _ => {}
        }
    }
    answer.finish()
}

fn request(names: &[&str], ipv4: bool, ipv6: bool) -> LookupRequest {
    let names = names.iter().map(|name| name.parse().unwrap()).collect();
    LookupRequest { names, ipv4, ipv6, ..LookupRequest::default() }
}

fn turn(request: LookupRequest, answers: impl Fn(&[u8]) -> Option<Vec<u8>>) -> (Found, Instant) {
    let servers = vec!["192.0.2.53:53".parse().unwrap()];
    let mut now = Instant::ZERO;
    let mut search = Search::new(now, request, servers, Path::new("/nowhere"));
    loop {
        while let Some((place, next)) = search.poll_try(now, &[0x33; ENTROPY]) {
            if let Some(answer) = answers(&next.message) {
                assert!(search.handle_message(now, place, next.id, &answer));
            }
        }
        if let Some(found) = search.poll_found(now) {
            return (found, now);
        }
        let next = search.poll_timeout(now);
        assert!(next > now, "time goes on");
        now = next;
    }
}

fn check(request: LookupRequest, zone: Zone<'_>, expected: &[&str]) -> Found {
    let (found, now) = turn(request, |question| Some(serve(zone, question)));
    let servers: Vec<String> = found.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, expected);
    assert_eq!(now, Instant::ZERO, "all was answered at once");
    found
}

const ZONE: Zone<'_> = &[
    ("edge.example.org", 300, "192.0.2.1"),
    ("edge.example.org", 120, "2001:db8::1"),
    ("edge.example.org", 300, "192.0.2.2"),
    ("four.example.org", 30, "192.0.2.4"),
    ("ipv4only.arpa", 9, "64:ff9b::192.0.0.170"),
    ("ipv4only.arpa", 9, "64:ff9b::192.0.0.171"),
];

#[test]
fn an_uplink_learns_the_addresses_that_it_can_reach() {
    let edge = ["edge.example.org:1"];
    let found =
        check(request(&edge, true, true), ZONE, &["[2001:db8::1]:1", "192.0.2.1:1", "192.0.2.2:1"]);
    assert_eq!(found.lasts, Some(Duration::from_secs(120)), "the shortest counts");
    check(request(&edge, true, false), ZONE, &["192.0.2.1:1", "192.0.2.2:1"]);
    let both = ["four.example.org:2", "203.0.113.9:3", "[2001:db8::9]:4", "four.example.org:2"];
    check(request(&both, true, true), ZONE, &["192.0.2.4:2", "203.0.113.9:3", "[2001:db8::9]:4"]);
    let found = check(request(&["nobody.example.org:1"], true, true), ZONE, &[]);
    assert_eq!(found.reason.as_deref(), Some("nobody.example.org:1 has no address"));
}

#[test]
fn behind_a_nat64_addresses_of_ipv4_are_reached_by_its_prefix() {
    let literal = ["203.0.113.9:3"];
    check(request(&literal, false, true), ZONE, &["[64:ff9b::cb00:7109]:3"]);
    check(request(&["four.example.org:2"], false, true), ZONE, &["[64:ff9b::c000:204]:2"]);
    let mut with_prefix = request(&literal, false, true);
    with_prefix.prefixes = vec![Nat64Prefix::new("2001:db8:64::".parse().unwrap(), 96).unwrap()];
    assert_eq!(
        with_prefix.known().unwrap().servers,
        ["[2001:db8:64::cb00:7109]:3".parse().unwrap()]
    );
    check(with_prefix, &[], &["[2001:db8:64::cb00:7109]:3"]);
    check(request(&literal, false, true), &[], &[]);
    assert_eq!(request(&literal, false, true).known(), None);
    let known = request(&literal, true, true).known().unwrap();
    assert_eq!(known.servers, ["203.0.113.9:3".parse().unwrap()]);
    assert_eq!(known.lasts, None);
}

#[test]
fn no_more_than_eight_addresses_of_a_name_count() {
    let many: Vec<String> = (1..=8).map(|number| format!("192.0.2.{number}")).collect();
    let six: Vec<String> = (1..=8).map(|number| format!("2001:db8::{number}")).collect();
    let zone: Vec<_> =
        many.iter().chain(&six).map(|one| ("edge.example.org", 60, one.as_str())).collect();
    let (found, _) =
        turn(request(&["edge.example.org:1"], true, true), |asked| Some(serve(&zone, asked)));
    let fours = found.servers.iter().filter(|server| server.is_ipv4()).count();
    assert_eq!((found.servers.len(), fours), (ADDRESSES_MAX, 4));
}

#[test]
fn one_kind_that_is_never_answered_holds_the_other_up_for_two_seconds() {
    let only_v4 = |question: &[u8]| {
        let kind = Message::from_slice(question).unwrap().qtype();
        (kind == Some(Rtype::A)).then(|| serve(ZONE, question))
    };
    let (found, at) = turn(request(&["edge.example.org:1"], true, true), only_v4);
    assert_eq!(found.servers.len(), 2);
    assert_eq!(at, Instant::ZERO + OTHERS_TIMEOUT);
    let (found, at) = turn(request(&["edge.example.org:1"], true, true), |_| None);
    assert_eq!(found.servers, []);
    assert!(found.reason.unwrap().contains("do not answer"));
    assert!(at <= Instant::ZERO + DEADLINE, "{at}");
}
