use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    client: ClientArgs,
}

fn plans(options: &str) -> Result<Vec<RecordPlan>, String> {
    let words = "record --server 127.0.0.1 --output x".split(' ').chain(options.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    line.client.plans().map_err(|error| error.to_string())
}

#[test]
fn links_have_names_and_rates_of_their_own() {
    let plans =
        plans("--interfaces lte=wwan0,nr=wwan1 --mode constant --rate 50M,nr=100M").unwrap();
    let modes = plans.iter().map(|plan| plan.mode).collect::<Vec<_>>();
    let rates = [50_000, 100_000].map(|kbps| RecordMode::Constant(Rate::from_kbps(kbps)));
    assert_eq!(modes, rates);
    assert_eq!(plans[0].duration(), Duration::from_millis(182_500));
}

#[test]
fn without_options_both_directions_are_saturated_in_cycles() {
    let plans = plans("--interfaces eth0").unwrap();
    assert_eq!(plans, [RecordPlan::default()]);
    let down = self::plans("--interfaces eth0 --direction down --rate 20M --cycle 4").unwrap();
    assert_eq!((down[0].up, down[0].down), (false, true));
    assert_eq!(down[0].rate_max, Rate::from_kbps(20_000));
}

#[test]
fn a_server_has_a_port_or_the_usual_one() {
    let check = |text: &str, expected: &str| {
        assert_eq!(resolve(text).unwrap(), expected.parse::<SocketAddr>().unwrap());
    };
    check("192.0.2.1", "192.0.2.1:4437");
    check("192.0.2.1:99", "192.0.2.1:99");
    check("2001:db8::1", "[2001:db8::1]:4437");
    check("[2001:db8::1]:99", "[2001:db8::1]:99");
    assert!(resolve("192.0.2.1:many").is_err());
}
