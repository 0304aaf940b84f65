use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::testing::{name, numbered as key};

fn proxy(number: u16, region: &str, site: &str) -> ProxyView {
    ProxyView {
        key: key(number),
        scopes: vec![Scope::All],
        region: name(region),
        site: name(site),
        is_active: true,
        vital: HealthState::Alive,
        band: Band::Light,
    }
}

fn seeker(number: u16) -> Seeker {
    Seeker { key: key(1_000 + number), tenant: name("north"), region: None, current: None }
}

fn fleet(count: u16, sites: u16) -> Vec<ProxyView> {
    (0..count).map(|number| proxy(number, "west", &format!("site-{}", number % sites))).collect()
}

fn keys(seeker: &Seeker, proxies: &[ProxyView]) -> Vec<PublicKey> {
    candidates(seeker, proxies).unwrap_or_default().iter().map(|it| it.key).collect()
}

fn fit(seeker: &Seeker, proxies: &[ProxyView]) -> BTreeSet<PublicKey> {
    let list = candidates(seeker, proxies).unwrap_or_default();
    list.into_iter().filter(|it| !it.last_resort).map(|it| it.key).collect()
}

#[test]
fn a_band_is_left_only_with_a_margin() {
    let steps = [(499, Band::Light), (500, Band::Busy), (401, Band::Busy), (399, Band::Light)];
    let mut band = Band::Light;
    for (load, expected) in steps {
        band = band.after(load);
        assert_eq!(band, expected, "{load}");
    }
    assert_eq!(Band::Light.after(900), Band::Full);
    assert_eq!(Band::Full.after(760), Band::Full);
    assert_eq!(Band::Full.after(0), Band::Light);
    assert_eq!(Band::Full.after(u16::MAX), Band::Full);
}

#[test]
fn who_is_dead_drained_full_or_of_another_tenant_gets_no_boxes() {
    let spoil: [fn(&mut ProxyView); 5] = [
        |proxy| proxy.vital = HealthState::Dead,
        |proxy| proxy.vital = HealthState::Lost,
        |proxy| proxy.is_active = false,
        |proxy| proxy.band = Band::Full,
        |proxy| proxy.scopes = vec![Scope::Tenant(name("south"))],
    ];
    for (case, spoil) in spoil.iter().enumerate() {
        let mut proxies = fleet(3, 3);
        spoil(&mut proxies[1]);
        assert_eq!(fit(&seeker(1), &proxies), [key(0), key(2)].into(), "case {case}");
        proxies.iter_mut().for_each(spoil);
        assert!(fit(&seeker(1), &proxies).is_empty(), "case {case}");
    }
}

#[test]
fn full_and_unheard_proxies_are_a_last_resort_and_others_none() {
    let offered = |number, last_resort| Offered { key: key(number), last_resort };
    let mut proxies = fleet(4, 2);
    proxies[1].band = Band::Full;
    proxies[2].vital = HealthState::Lost;
    proxies[3].vital = HealthState::Dead;
    let on_0 = Seeker { current: Some(key(0)), ..seeker(1) };
    let list = candidates(&on_0, &proxies).expect("some");
    assert_eq!(list[0], offered(0, false));
    assert_eq!(BTreeSet::from_iter(list[1..].to_vec()), [1, 2].map(|it| offered(it, true)).into());
    proxies[0].vital = HealthState::Dead;
    let list = candidates(&on_0, &proxies).expect("some");
    assert!(list.iter().all(|it| it.last_resort) && list.len() == 2, "{list:?}");
    assert_eq!(candidates(&seeker(2), &proxies).expect("some").len(), 2);
    proxies.iter_mut().for_each(|proxy| proxy.is_active = false);
    assert_eq!(candidates(&on_0, &proxies), None);
}

#[test]
fn a_box_keeps_a_proxy_that_is_full_and_none_that_is_dead_or_drained() {
    let on = |number| Seeker { current: Some(key(number)), ..seeker(1) };
    let mut proxies = fleet(10, 2);
    proxies[3].band = Band::Full;
    proxies[4].vital = HealthState::Lost;
    proxies[5].vital = HealthState::Dead;
    proxies[6].is_active = false;
    for kept in [3, 4] {
        let first = candidates(&on(kept), &proxies).expect("some")[0];
        assert_eq!(first, Offered { key: key(kept), last_resort: false });
    }
    for left in [5, 6] {
        assert!(!keys(&on(left), &proxies).contains(&key(left)));
    }
}

#[test]
fn the_own_region_comes_first_and_another_site_is_always_there() {
    let near = Seeker { region: Some(name("west")), ..seeker(1) };
    let mut proxies = fleet(10, 1);
    proxies.push(proxy(20, "east", "far-a"));
    proxies.push(proxy(21, "east", "far-b"));
    let chosen = keys(&near, &proxies);
    let region = |key: PublicKey| {
        proxies.iter().find(|proxy| proxy.key == key).expect("known").region.as_str()
    };
    let regions: Vec<&str> = chosen.into_iter().map(region).collect();
    assert_eq!(regions, ["west", "west", "west", "east", "east"]);
    assert_eq!(keys(&near, &proxies[..10]).len(), 5);
}

#[test]
fn equals_get_equal_shares_and_the_busy_ones_less() {
    let mut proxies = fleet(10, 10);
    proxies[0].band = Band::Busy;
    proxies[1].band = Band::Strained;
    let mut first = [0u32; 10];
    for number in 0..4_000 {
        let chosen = keys(&seeker(number), &proxies);
        first[proxies.iter().position(|proxy| proxy.key == chosen[0]).expect("known")] += 1;
    }
    // Draws: 8 proxies of 4, one of 2, one of 1: 35 in all.
    let share = 4_000 / 35;
    for (index, draws) in [2, 1, 4, 4, 4, 4, 4, 4, 4, 4].iter().enumerate() {
        let expected = draws * share;
        assert!(first[index].abs_diff(expected) < 30 + expected / 5, "{first:?}");
    }
}

fn any_proxy(number: u16) -> impl Strategy<Value = ProxyView> {
    let bands = prop::sample::select(vec![Band::Light, Band::Busy, Band::Strained, Band::Full]);
    let vitals = prop::sample::select(vec![
        HealthState::Alive,
        HealthState::Alive,
        HealthState::Unheard,
        HealthState::Lost,
        HealthState::Dead,
    ]);
    (0..4u8, prop::bool::weighted(0.9), vitals, bands).prop_map(
        move |(site, is_active, vital, band)| ProxyView {
            is_active,
            vital,
            band,
            ..proxy(number, ["west", "east"][usize::from(site % 2)], &format!("site-{site}"))
        },
    )
}

fn any() -> impl Strategy<Value = (Vec<ProxyView>, Seeker)> {
    let proxies = (1..16u16).prop_flat_map(|count| (0..count).map(any_proxy).collect::<Vec<_>>());
    let current = prop::option::of(0..16u16);
    let region = prop::option::of(prop::sample::select(vec!["west", "east"]));
    (proxies, 0..100u16, current, region).prop_map(|(proxies, number, current, region)| {
        let (current, region) = (current.map(key), region.map(name));
        (proxies, Seeker { current, region, ..seeker(number) })
    })
}

proptest! {
    #[test]
    fn lists_are_short_of_two_sites_and_of_the_fit_first((proxies, seeker) in any()) {
        let is_fit = |proxy: &ProxyView| {
            proxy.may_get(&seeker.tenant) || seeker.current == Some(proxy.key)
        };
        let living: BTreeMap<PublicKey, &ProxyView> = proxies
            .iter()
            .filter(|proxy| proxy.may_keep(&seeker.tenant))
            .map(|proxy| (proxy.key, proxy))
            .collect();
        let fit = living.values().filter(|proxy| is_fit(proxy)).count();
        let sites = |list: &[Offered]| {
            list.iter().map(|it| &living[&it.key].site).collect::<BTreeSet<_>>().len()
        };
        match candidates(&seeker, &proxies) {
            None => prop_assert!(living.is_empty()),
            Some(list) => {
                prop_assert_eq!(list.len(), living.len().min(Candidates::MAX));
                prop_assert_eq!(keys(&seeker, &proxies).iter().collect::<BTreeSet<_>>().len(), list.len());
                let split = list.partition_point(|it| !it.last_resort);
                prop_assert_eq!(split, fit.min(Candidates::MAX));
                prop_assert!(list[..split].iter().all(|it| is_fit(living[&it.key])));
                prop_assert!(list[split..].iter().all(|it| it.last_resort && !is_fit(living[&it.key])));
                let of = |it: &&&ProxyView| is_fit(it);
                let there = living.values().filter(of).map(|it| &it.site).collect::<BTreeSet<_>>();
                prop_assert!(sites(&list[..split]) >= there.len().min(2));
            }
        }
    }

    #[test]
    fn the_order_of_the_views_does_not_matter((proxies, seeker) in any()) {
        let mut turned = proxies.clone();
        turned.reverse();
        prop_assert_eq!(candidates(&seeker, &proxies), candidates(&seeker, &turned));
    }

    #[test]
    fn a_change_of_one_proxy_changes_one_place(
        (proxies, seeker) in any(), index in 0..16usize, to in any_proxy(99),
    ) {
        let index = index % proxies.len();
        let mut changed = proxies.clone();
        changed[index] = ProxyView { key: proxies[index].key, site: proxies[index].site.clone(),
            region: proxies[index].region.clone(), ..to };
        let (old, new) = (fit(&seeker, &proxies), fit(&seeker, &changed));
        prop_assert!(old.difference(&new).count() <= 1, "{:?} {:?}", old, new);
        prop_assert!(new.difference(&old).count() <= 1, "{:?} {:?}", old, new);
        let moved = proxies[index].key;
        prop_assert!(old == new || old.contains(&moved) || new.contains(&moved));
    }
}
