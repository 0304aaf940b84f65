//! What a proxy may ask of an anchor.

use std::sync::Arc;

use roadweave_identity::Identity;
use roadweave_quic::Epoch;

use super::*;
use crate::anchor::{AnchorConfig, AnchorTenant};
use crate::peers::{Peer, PeerTable};
use crate::testing::key;

fn table(name: &str, key: PublicKey) -> Arc<PeerTable> {
    Arc::new(PeerTable::new([(key, Peer::new(name, Vec::new()))]))
}

#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
fn anchor() -> Anchor {
    let tenant = AnchorTenant {
        name: "acme".into(),
        devices: table("box", key(1)),
        clients_reach_clients: false,
        rate_limit: None,
    };
    let transport = TransportConfig::new([3; 32]);
    let (tenants, memory_max) = (vec![tenant], 0);
    let config = AnchorConfig { transport, tenants, leg_rate: None, streams: None, memory_max };
    let epoch = Epoch::new(std::time::Instant::now());
    let identity = Arc::new(Identity::from_seed([9; 32]));
    Anchor::new(epoch, config, identity, table("proxy", key(50))).unwrap()
}

fn press(anchor: &mut Anchor, now: Instant, leg: u64) -> usize {
    let id = ConnectionId(leg);
    let end = LegEnd::new(None);
    anchor.start(now, id, Leg { proxy: key(50), name: "proxy".into(), end });
    let binding = Binding {
        tenant: "acme".into(),
        anchor: [0; 32],
        proxy: [0; 32],
        number: 1,
        signature: [0; 64],
    };
    let mut bring = |handle| {
        let at = At { leg: id, handle };
        anchor.try_attach(now, at, key(1), binding.clone()).expect_err("it is forged").0
    };
    let checked = (0..).map(&mut bring).take_while(|why| *why == Detached::Forged).count();
    anchor.end_leg(now, id, "enough");
    checked
}

#[test]
fn a_proxy_that_begins_leg_after_leg_has_no_more_bindings_checked() {
    let (mut anchor, now) = (anchor(), Instant::from_millis(5));
    let first = press(&mut anchor, now, 1);
    assert!(first > 1_000, "{first}");
    assert_eq!(press(&mut anchor, now, 2), 0);
    let later = now + std::time::Duration::from_millis(100);
    assert_eq!(press(&mut anchor, later, 3), 100, "they come back at their rate");
    let whole = later + std::time::Duration::from_secs(60);
    assert_eq!(press(&mut anchor, whole, 4), first);
}

#[test]
fn who_is_in_stays_in_while_nobody_is_let_in() {
    let (mut anchor, now) = (anchor(), Instant::from_millis(5));
    let (tables, id) =
        ([anchor.tenants[0].devices.clone(), anchor.proxies.clone()], ConnectionId(1));
    anchor.start(now, id, Leg { proxy: key(50), name: "proxy".into(), end: LegEnd::new(None) });
    let mut binding = Binding {
        tenant: "acme".into(),
        anchor: *key(9).as_bytes(),
        proxy: *key(50).as_bytes(),
        number: 1,
        signature: [0; 64],
    };
    binding.signature = *Identity::from_seed([1; 32]).sign(&binding.signed()).as_bytes();
    anchor.try_attach(now, At { leg: id, handle: 0 }, key(1), binding).unwrap();
    tables.iter().for_each(|table| table.close_but(Some([].into())));
    anchor.on_time_of_day(now);
    assert_eq!((anchor.attached(), anchor.legs.len()), (1, 1));
    tables[0].revoke([key(1)]);
    anchor.on_time_of_day(now);
    assert_eq!((anchor.attached(), anchor.legs.len()), (0, 1));
    tables[1].revoke([key(50)]);
    anchor.on_time_of_day(now);
    assert_eq!(anchor.legs.len(), 0);
}
