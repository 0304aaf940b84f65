//! Which proxies of a list a box takes.

use super::*;

fn server_keys(stream: &TestStream) -> Vec<PublicKey> {
    let servers = stream.events.iter().find_map(|event| match event {
        AgentEvent::Candidates(servers) => Some(servers),
        _ => None,
    });
    servers.expect("told").iter().map(|server| server.key).collect()
}

#[test]
fn a_box_goes_to_proved_proxies_alone() {
    let mut stream = TestStream::of(BOX, &published(0, &[22]));
    let proxies = vec![
        candidate(chain(PROXY, Role::Proxy, ROOT)),
        candidate(chain(21, Role::Proxy, CONTROLLER)),
        candidate(chain(22, Role::Proxy, ROOT)),
        candidate(chain(23, Role::Box, ROOT)),
    ];
    stream.desire(BOX, 1, Candidates { proxies });
    stream.turn(1);
    assert_eq!(server_keys(&stream), [key(PROXY)]);
    assert_eq!(stream.warnings().len(), 3);
}

#[test]
fn a_delegate_signs_for_as_many_proxies_of_a_list_as_it_may() {
    let mut stream = TestStream::of(BOX, &published(0, &[]));
    let pool = delegate(30, &[Role::Proxy], Some(2));
    let chain = |seed| testing::chain(&[(ROOT, &pool), (30, &statement(seed, Role::Proxy))]);
    let proxies = [20, 20, 21, 22].map(|seed| candidate(chain(seed))).into();
    stream.desire(BOX, 1, Candidates { proxies });
    stream.turn(1);
    assert_eq!(server_keys(&stream), [key(20), key(20), key(21)]);
    assert!(stream.warnings()[0].contains("more keys than it may"), "{:?}", stream.warnings());
}
