//! What a proxy may ask of an anchor.

use super::*;
use crate::testing::{self, key, signed};

fn anchor() -> Anchor {
    testing::anchor(&[1], &[50], None)
}

fn press(anchor: &mut Anchor, now: Instant, leg: u64) -> usize {
    let id = ConnectionId(leg);
    let end = LegEnd::new(None);
    anchor.start(now, id, Leg { proxy: key(50), name: "proxy".into(), end });
    let binding = signed(1, 0, 50, 1);
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
fn attached_clients_stay_while_no_new_ones_are_admitted() {
    let (mut anchor, now) = (anchor(), Instant::from_millis(5));
    let (tables, id) =
        ([anchor.tenants[0].devices.clone(), anchor.proxies.clone()], ConnectionId(1));
    anchor.start(now, id, Leg { proxy: key(50), name: "proxy".into(), end: LegEnd::new(None) });
    let binding = signed(1, 9, 50, 1);
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
