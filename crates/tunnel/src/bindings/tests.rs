use super::*;
use crate::testing::{self, at as ms, key};
use proptest::prelude::*;

const TENANT: TenantId = TenantId(0);
const ANCHOR: u8 = 100;

fn signed(device: u8, proxy: u8, number: u64) -> Binding {
    testing::signed(device, ANCHOR, proxy, number)
}

fn at(leg: u64, handle: u32) -> At {
    At { leg: ConnectionId(leg), handle }
}

fn attach(at: At, device: u8, proxy: u8, binding: Binding) -> Attach {
    Attach { at, device: (TENANT, key(device)), proxy: key(proxy), binding }
}

#[test]
fn the_highest_number_wins_and_the_former_may_send_for_two_seconds() {
    let mut bindings = Bindings::new(key(ANCHOR));
    let (old, new) = (at(1, 0), at(2, 0));
    let first = bindings.attach(ms(0), attach(old, 1, 50, signed(1, 50, 7)));
    assert_eq!(first, Attached::Yes { former: None });
    let second = bindings.attach(ms(1_000), attach(new, 1, 51, signed(1, 51, 8)));
    assert_eq!(second, Attached::Yes { former: Some(old) });
    assert_eq!(bindings.at(&(TENANT, key(1))), Some(new));
    assert!(bindings.sender(ms(2_999), old).is_some());
    assert!(bindings.sender(ms(3_000), old).is_none());
    assert!(bindings.sender(ms(9_000), new).is_some());
    bindings.detach(old);
    assert_eq!(bindings.at(&(TENANT, key(1))), Some(new));
}

#[test]
fn what_is_replayed_foreign_older_or_forged_is_refused() {
    let mut bindings = Bindings::new(key(ANCHOR));
    bindings.attach(ms(0), attach(at(1, 0), 1, 50, signed(1, 50, 7)));
    bindings.attach(ms(0), attach(at(2, 0), 1, 51, signed(1, 51, 8)));
    let mut refused = |binding: Binding, proxy| {
        let answer = bindings.attach(ms(5), attach(at(1, 9), 1, proxy, binding));
        let Attached::No(why, newest) = answer else { panic!("{answer:?}") };
        assert_eq!(newest.is_some(), why == Detached::Old);
        assert!(newest.is_none_or(|newest| newest == signed(1, 51, 8)));
        why
    };
    assert_eq!(refused(signed(1, 50, 7), 50), Detached::Old, "replayed");
    assert_eq!(refused(signed(1, 50, 3), 50), Detached::Old);
    assert_eq!(refused(signed(1, 50, 8), 50), Detached::Old, "the same number elsewhere");
    assert_eq!(refused(signed(1, 51, 9), 50), Detached::Forged, "of another proxy");
    assert_eq!(refused(signed(2, 50, 9), 50), Detached::Forged, "by another device");
    let raised = Binding { number: 9, ..signed(1, 50, 7) };
    assert_eq!(refused(raised, 50), Detached::Forged);
    let elsewhere = Binding { anchor: [1; 32], ..signed(1, 50, 9) };
    assert_eq!(refused(elsewhere, 50), Detached::Forged);
    assert_eq!(bindings.at(&(TENANT, key(1))), Some(at(2, 0)), "nothing has changed");
}

#[test]
fn a_proxy_attaches_the_same_again_after_its_leg_restarts() {
    let mut bindings = Bindings::new(key(ANCHOR));
    let binding = signed(1, 50, 7);
    bindings.attach(ms(0), attach(at(1, 0), 1, 50, binding.clone()));
    bindings.detach_leg(ConnectionId(1));
    assert_eq!(bindings.at(&(TENANT, key(1))), None);
    let again = bindings.attach(ms(9), attach(at(2, 0), 1, 50, binding.clone()));
    assert_eq!(again, Attached::Yes { former: None });
    let taken = bindings.attach(ms(9), attach(at(2, 0), 2, 50, signed(2, 50, 1)));
    assert_eq!(taken, Attached::No(Detached::Busy, None), "a handle is one device's");
    assert_eq!(bindings.forget(&(TENANT, key(1))), Some(at(2, 0)));
    assert_eq!((bindings.sender(ms(9), at(2, 0)), bindings.count_of(ConnectionId(2))), (None, 0));
}

#[test]
fn restored_bindings_count_only_if_signed_for_this_anchor() {
    let mut bindings = Bindings::new(key(ANCHOR));
    let device = (TENANT, key(1));
    bindings.restore(device, signed(2, 50, 900));
    bindings.restore(device, signed(1, 50, 40));
    bindings.restore((TENANT, key(3)), Binding { anchor: [1; 32], ..signed(3, 50, 5) });
    assert_eq!(bindings.newest().map(|(_, binding)| binding.number).collect::<Vec<_>>(), [40]);
    let answer = bindings.attach(ms(0), attach(at(1, 0), 1, 50, signed(1, 50, 2)));
    assert!(matches!(answer, Attached::No(Detached::Old, Some(_))));
}

#[test]
fn a_device_that_was_gone_for_a_while_is_bound_by_no_older_word() {
    let mut bindings = Bindings::new(key(ANCHOR));
    let device = (TENANT, key(1));
    bindings.attach(ms(0), attach(at(1, 0), 1, 50, signed(1, 50, 7)));
    bindings.attach(ms(0), attach(at(2, 0), 1, 51, signed(1, 51, 8)));
    assert_eq!(bindings.forget(&device), Some(at(2, 0)));
    assert_eq!((bindings.at(&device), bindings.sender(ms(1), at(1, 0))), (None, None));
    let replayed = bindings.attach(ms(9), attach(at(1, 1), 1, 50, signed(1, 50, 7)));
    assert_eq!(replayed, Attached::No(Detached::Old, Some(signed(1, 51, 8))));
    let mut restarted = Bindings::new(key(ANCHOR));
    bindings.newest().for_each(|(key, newest)| restarted.restore((TENANT, *key), newest.clone()));
    let replayed = restarted.attach(ms(9), attach(at(1, 1), 1, 50, signed(1, 50, 7)));
    assert!(matches!(replayed, Attached::No(Detached::Old, _)));
    let newer = bindings.attach(ms(9), attach(at(1, 2), 1, 50, signed(1, 50, 9)));
    assert_eq!((newer, bindings.forgotten.len()), (Attached::Yes { former: None }, 0));
}

#[test]
fn of_many_devices_that_are_gone_the_first_are_forgotten() {
    let mut bindings = Bindings::new(key(ANCHOR));
    let device = |number: usize| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        (TENANT, PublicKey::from_bytes(key))
    };
    let newest = signed(1, 50, 7);
    let hold =
        |_: usize| Held { newest: newest.clone(), now_at: None, former: None, forgotten: None };
    for number in 0..FORGOTTEN_MAX + 10 {
        bindings.devices.insert(device(number), hold(number));
        (0..2).for_each(|_| assert_eq!(bindings.forget(&device(number)), None));
    }
    assert_eq!((bindings.devices.len(), bindings.forgotten.len()), (FORGOTTEN_MAX, FORGOTTEN_MAX));
    assert!(
        !bindings.devices.contains_key(&device(9)) && bindings.devices.contains_key(&device(10))
    );
}

proptest! {
    #[test]
    fn tables_are_bounded_by_the_devices_whatever_is_attached(
        steps in prop::collection::vec((0_u64..3, 0_u8..3, 0_u64..20, 0_u8..5), 1..60),
    ) {
        let mut bindings = Bindings::new(key(ANCHOR));
        let mut highest: BTreeMap<u8, u64> = BTreeMap::new();
        for (step, (leg, device, number, kind)) in (0_u32..).zip(steps) {
            let now = ms(u64::from(step) * 300);
            match kind {
                0 => bindings.detach_leg(ConnectionId(leg)),
                1 => bindings.detach(at(leg, step.saturating_sub(1))),
                4 => _ = bindings.forget(&(TENANT, key(device))),
                _ => {
                    let proxy = 50 + leg as u8;
                    let binding = signed(device, proxy, number);
                    let is_newer = highest.get(&device).is_none_or(|held| *held < number);
                    let answer =
                        bindings.attach(now, attach(at(leg, step), device, proxy, binding));
                    if is_newer {
                        let attached = matches!(answer, Attached::Yes { .. });
                        prop_assert!(attached);
                        highest.insert(device, number);
                    }
                }
            }
            prop_assert!(bindings.devices.len() <= 3 && bindings.senders.len() <= 6);
            prop_assert!(bindings.forgotten.len() <= 3);
            prop_assert_eq!(bindings.counts.values().sum::<usize>(), bindings.senders.len());
            for ((_, device), held) in &bindings.devices {
                let seed = (0..3).find(|seed| key(*seed) == *device).expect("one of three");
                prop_assert_eq!(held.newest.number, highest[&seed]);
            }
        }
    }
}
