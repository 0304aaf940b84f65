use super::*;

fn small(seed: u64) -> FleetConfig {
    FleetConfig { regions: 2, is_thorough: true, ..FleetConfig::new(40, 8, 6, seed) }
}

fn json(outcome: &FleetOutcome) -> String {
    serde_json::to_string(outcome).expect("JSON")
}

#[test]
fn equal_seeds_give_equal_fleets() {
    assert_eq!(json(&run(&small(3))), json(&run(&small(3))));
    assert_ne!(json(&run(&small(3))), json(&run(&small(4))));
}

#[test]
fn what_the_big_world_skips_changes_nothing() {
    let thorough = run(&small(5));
    let quick = run(&FleetConfig { is_thorough: false, ..small(5) });
    let quick = FleetOutcome {
        config: thorough.config.clone(),
        warning_texts: thorough.warning_texts.clone(),
        ..quick
    };
    assert_eq!(json(&thorough), json(&quick));
}

/// Keys are revoked in time, no box is cut off permanently, no live proxy counts as dead, and a bad
/// version reaches few boxes.
#[test]
fn a_fleet_lives_through_its_faults() {
    let (mut handed_back, mut declared_dead) = (0, 0);
    for seed in 10..16 {
        let outcome = run(&small(seed));
        let context = format!("seed {seed}: {outcome:#?}");
        assert!(
            outcome.revoked.revocations > 0 && outcome.revoked.revoke_max_ms <= 2_000,
            "{context}"
        );
        assert_eq!(outcome.counts.declared_dead_falsely, 0, "{context}");
        assert!(outcome.without_proxy_ppm < 5_000.0, "{context}");
        assert_eq!((outcome.wrongly_refused, outcome.cut_off), (0, 0), "{context}");
        assert!(outcome.warning_texts.is_empty(), "{:?}: {context}", outcome.warning_texts);
        let [begun, done, halted, aborted] = outcome.counts.rollouts;
        assert!(begun >= 5 && done >= 2 && halted >= 2 && aborted >= 2, "{context}");
        // Each of the four tenants has a first wave of one box.
        let [.., taken_back, refused] = outcome.counts.versions;
        assert!((1..=12).contains(&taken_back) && (1..=4).contains(&refused), "{context}");
        handed_back += outcome.revoked.revocations_handed_back;
        declared_dead += outcome.counts.declared_dead;
    }
    assert!(handed_back > 0 && declared_dead > 0, "{handed_back} {declared_dead}");
}

#[test]
fn a_fleet_without_faults_declares_no_proxy_dead() {
    let outcome = run(&FleetConfig { faults: false, ..small(7) });
    assert_eq!((outcome.counts.declared_dead, outcome.on_dead_proxy_ppm), (0, 0.0));
    assert_eq!(outcome.revoked.revoke_open, 0);
}
