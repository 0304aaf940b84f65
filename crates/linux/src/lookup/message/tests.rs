use domain::base::Ttl;
use domain::rdata::Cname;
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name<Vec<u8>> {
    text.parse().unwrap()
}

fn query() -> Query {
    Query::new(&name("edge.example.org"), Rtype::A, &[0x5a; ENTROPY])
}

fn answer(query: &Query, aliases: &[(&str, u32, &str)], found: &[(&str, u32, &str)]) -> Vec<u8> {
    let asked = Message::from_slice(&query.bytes).unwrap();
    let builder = MessageBuilder::new_vec();
    let mut answer = builder.start_answer(asked, Rcode::NOERROR).unwrap();
    for (owner, ttl, target) in aliases {
        answer.push((name(owner), Ttl::from_secs(*ttl), Cname::new(name(target)))).unwrap();
    }
    for (owner, ttl, address) in found {
        let (owner, ttl) = (name(owner), Ttl::from_secs(*ttl));
        match address.parse().unwrap() {
            IpAddr::V4(v4) => answer.push((owner, ttl, A::new(v4))).unwrap(),
            IpAddr::V6(v6) => answer.push((owner, ttl, Aaaa::new(v6))).unwrap(),
        }
    }
    answer.finish()
}

fn expect(addresses: &[&str], seconds: u64) -> ParsedReply {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    ParsedReply::Answer(AddressRecords { addresses, lasts: Duration::from_secs(seconds) })
}

#[test]
fn the_addresses_at_the_end_of_the_aliases_count() {
    let query = query();
    let check = |aliases: &[_], found: &[_], expected| {
        assert_eq!(query.read(&answer(&query, aliases, found)), expected);
    };
    check(&[], &[("edge.example.org", 60, "192.0.2.1")], expect(&["192.0.2.1"], 60));
    check(
        &[("edge.example.org", 5, "a.example.net"), ("a.example.net", 5, "b.example.net")],
        &[
            ("b.example.net", 300, "192.0.2.2"),
            ("b.example.net", 200, "192.0.2.3"),
            ("b.example.net", 300, "192.0.2.2"),
            ("evil.example.net", 300, "192.0.2.66"),
        ],
        expect(&["192.0.2.2", "192.0.2.3"], 200),
    );
    check(&[("edge.example.org", 5, "a.example.net")], &[], expect(&[], 0));
    let circle =
        [("edge.example.org", 5, "a.example.net"), ("a.example.net", 5, "edge.example.org")];
    let malformed = ParsedReply::Failed("its answer is malformed".to_owned());
    check(&circle, &[("a.example.net", 5, "192.0.2.1")], malformed);
}

#[test]
fn at_most_eight_addresses_count_and_none_that_no_server_can_have() {
    let query = query();
    let many: Vec<String> = (1..=20).map(|number| format!("192.0.2.{number}")).collect();
    let many: Vec<_> = many.iter().map(|one| ("edge.example.org", 9, one.as_str())).collect();
    let ParsedReply::Answer(read) = query.read(&answer(&query, &[], &many)) else { panic!() };
    assert_eq!(read.addresses.len(), ADDRESSES_MAX);
    let odd = ["127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "169.254.169.254"];
    let odd = odd.iter().chain(&["::1", "::", "fe80::1", "ff02::1", "::ffff:10.0.0.1"]);
    for address in odd {
        let found = [("edge.example.org", 9, *address)];
        assert_eq!(query.read(&answer(&query, &[], &found)), expect(&[], 0), "{address}");
    }
}

#[test]
fn what_answers_another_question_is_foreign() {
    let query = query();
    let good = answer(&query, &[], &[("edge.example.org", 60, "192.0.2.1")]);
    assert!(query.bytes.windows(4).any(|part| part != part.to_ascii_lowercase()));
    let other = Query::new(&name("edge.example.com"), Rtype::A, &[0x5a; ENTROPY]);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        query.read(&bytes)
    };
    assert_eq!(other.read(&good), ParsedReply::Foreign);
    assert_eq!(changed(&|bytes| bytes[0] ^= 1), ParsedReply::Foreign, "the ID");
    assert_eq!(changed(&|bytes| bytes[2] &= 0x7f), ParsedReply::Foreign, "a query, no answer");
    let flip = |bytes: &mut Vec<u8>| bytes[HEADER + 1] ^= 0x20;
    assert_eq!(changed(&flip), ParsedReply::Foreign, "the case of a letter");
    assert_eq!(changed(&|bytes| bytes.truncate(HEADER + 3)), ParsedReply::Foreign);
    assert_eq!(changed(&|bytes| bytes[2] |= 2), ParsedReply::Truncated);
    let refused = changed(&|bytes| bytes[3] = 5);
    assert_eq!(refused, ParsedReply::Failed("it answers REFUSED".to_owned()));
    assert_eq!(changed(&|bytes| bytes[3] = 3), expect(&[], 0), "there is no such name");
}

proptest! {
    #[test]
    fn any_bytes_and_any_changed_answer_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        entropy in any::<[u8; 34]>(),
        (at, to) in (0_usize..120, any::<u8>()),
    ) {
        let query = Query::new(&name("a.b"), Rtype::AAAA, &entropy);
        query.read(&bytes);
        // Any bytes behind a valid header and question.
        let mut fitting = query.bytes.clone();
        fitting[2] |= 0x80;
        fitting[7] = bytes.first().copied().unwrap_or(0);
        fitting.extend(&bytes);
        if let ParsedReply::Answer(answer) = query.read(&fitting) {
            prop_assert!(answer.addresses.len() <= ADDRESSES_MAX);
        }
        let query = self::query();
        let aliases = [("edge.example.org", 5, "b.example.net")];
        let mut bytes = answer(&query, &aliases, &[("b.example.net", 60, "192.0.2.1")]);
        let at = at % bytes.len();
        bytes[at] = to;
        query.read(&bytes);
    }
}
