//! Which proxies a box takes of those that it is told of.

use super::*;

/// The keys of the candidates that a box was told.
fn told(stream: &Stream) -> Vec<PublicKey> {
    let servers = stream.events.iter().find_map(|event| match event {
        AgentEvent::Candidates(servers) => Some(servers),
        _ => None,
    });
    servers.expect("told").iter().map(|server| server.key).collect()
}

#[test]
fn a_box_goes_to_proved_proxies_alone() {
    let published = published(0, &[22]);
    let mut stream = Stream::new(member(BOX, Role::Box, &published), BOX, true, &published);
    let candidate = |chain: Chain| Candidate {
        chain,
        site: name("fra"),
        addresses: vec!["192.0.2.1:443".into()],
        to_anchor_us: 900,
        last_resort: false,
    };
    let proxies = vec![
        candidate(chain(PROXY, Role::Proxy, ROOT)),
        candidate(chain(21, Role::Proxy, CONTROLLER)),
        candidate(chain(22, Role::Proxy, ROOT)),
        candidate(chain(23, Role::Box, ROOT)),
    ];
    let (version, envelope) = document(BOX, 1, Candidates { proxies });
    stream.desk.desire(Kind::Candidates, version, envelope);
    stream.turn(1);
    assert_eq!(told(&stream), [key(PROXY)]);
    assert_eq!(stream.warnings().len(), 3);
}

#[test]
fn a_delegate_signs_for_as_many_proxies_of_a_list_as_it_may() {
    let published = published(0, &[]);
    let mut stream = Stream::new(member(BOX, Role::Box, &published), BOX, true, &published);
    let grant = Grant { roles: [Role::Proxy].into(), tags: Default::default(), uses: Some(2) };
    let pool = Statement { grant: Some(grant), ..statement(30, Role::Delegate) };
    let pool = Chain::new(vec![Signed::sign(&pool, &identity(ROOT)).expect("signed")]);
    let candidate = |seed: u8| {
        let signed = Signed::sign(&statement(seed, Role::Proxy), &identity(30)).expect("signed");
        let addresses = vec!["192.0.2.1:443".into()];
        let chain = pool.clone().then(signed);
        Candidate { chain, site: name("fra"), addresses, to_anchor_us: 900, last_resort: false }
    };
    // Once for each key, however often that is named.
    let proxies = [20, 20, 21, 22].map(candidate).into();
    let (version, envelope) = document(BOX, 1, Candidates { proxies });
    stream.desk.desire(Kind::Candidates, version, envelope);
    stream.turn(1);
    assert_eq!(told(&stream), [key(20), key(20), key(21)]);
    assert!(stream.warnings()[0].contains("more than it may"), "{:?}", stream.warnings());
}
