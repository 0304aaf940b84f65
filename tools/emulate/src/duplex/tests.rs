use super::*;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    seed: u64,
    link: Vec<LinkFields>,
}

fn resolve(text: &str) -> Result<Vec<DuplexLink>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let links = DuplexLink::of_fields(&file.link, file.seed, Path::new("/nowhere"));
    links.map_err(|error| error.to_string())
}

#[test]
fn a_link_of_fixed_values_has_them_in_both_directions() {
    let links = resolve(
        "[[link]]\nname = 'a'\nrate_kbps = 40000\ndelay_ms = 35.5\njitter_ms = 8\nreorder = true\n\
         loss = 0.01\nloss_burst = 3\nqueue_bytes = 50000\n[[link]]\nname = 'b'\nrate_kbps = 9\n",
    )
    .unwrap();
    let link = &links[0];
    for settings in [&link.up, &link.down] {
        assert_eq!(settings.trace.capacity().mean_rate(), Rate::from_kbps(40_000));
        assert_eq!(settings.trace.delay().at(Duration::ZERO), Duration::from_micros(35_500));
        let jitter = Jitter { deviation: Duration::from_millis(8), reorders: true };
        assert_eq!(settings.jitter, Some(jitter));
        assert_eq!(settings.burst_loss, Some(GilbertElliott::bursts(0.01, 3.0)));
        assert_eq!(settings.queue_bytes, 50_000);
    }
    assert_ne!(link.up.seed, link.down.seed);
}

#[test]
fn a_synthetic_link_has_the_default_downlink() {
    let links = resolve("seed = 3\n[[link]]\nname = 'x'\noperator = 'lte'\n").unwrap();
    let link = &links[0];
    assert_eq!(link.up.trace, synthetic_trace(3, 0, &Operator::LTE, SYNTHETIC_LENGTH));
    assert_eq!(link.down.trace.capacity().mean_rate(), Drive::DOWNLINK);
}

#[test]
fn errors_name_the_link_the_field_and_the_cure() {
    let check = |text: &str, expected: &str| {
        let error = resolve(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    let link = |fields: &str| format!("[[link]]\nname = 'x'\n{fields}\n");
    check(&link("operator = 'o2'"), "link 1: operator: unknown `o2`; an operator is att");
    check(&link("operator = 'att'\ntrace = 'x.csv'"), "a trace or an operator, not both");
    check(&link("rate_kbps = 1\nloss = 0.5\nloss_burst = 0"), "link 1: loss_burst: 0; 1 to");
    check(&link("rate_kbps = 1\ndelay_ms = -1"), "link 1: delay_ms: -1; milliseconds");
    check("[[link]]\nname = 'a b'\nrate_kbps = 1", "link 1: name: `a b` is not a name; a name is");
    check("[[link]]\nrate_kbps = 1", "link 1: name: `` is not a name");
}

#[test]
fn added_loss_is_in_both_directions_and_stretches_are_at_once() {
    let trace = Trace::constant(Rate::from_kbps(1_000), Duration::from_millis(20));
    let link = DuplexLink::new(&DriveLink::symmetric("a", trace), 0, 1);
    let bursts = link.clone().with_loss(AddedLoss::Bursts { share: 0.1, packets: 5.0 });
    for way in [&bursts.up, &bursts.down] {
        assert_eq!(way.burst_loss, Some(GilbertElliott::bursts(0.1, 5.0)));
    }
    let stretches = AddedLoss::Stretches { share: 0.1, within: 0.5, ms: 200.0 };
    let [one, other] = [link.clone(), link].map(|link| link.with_loss(stretches));
    assert_eq!(one.up.trace, one.down.trace);
    assert_eq!(one.up.trace, other.up.trace, "equal seeds");
    let losses: Vec<f64> = one.up.trace.loss().iter().map(|(_, loss)| loss).collect();
    assert!(losses.len() > 100 && losses.iter().all(|loss| [0.0, 0.5].contains(loss)));
}
