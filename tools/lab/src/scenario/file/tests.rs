use roadweave_emulate::{AtEnd, Capacity, Direction, DriveLink};
use roadweave_proto::{Order, Rate};
use roadweave_tunnel::FlowClass;

use super::*;
use crate::event::Action;
use crate::traffic::{App, Bulk, FrameSource, TrafficKind};

const LINKS: &str = "[[link]]\nname = \"a\"\nrate_kbps = 8_000\ndelay_ms = 20\n\
                     [[link]]\nname = \"b\"\noperator = \"lte\"\n";
const VIDEO: &str = "[[traffic]]\nkind = \"video\"\nrate_kbps = 5_000\n";

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(Path::new("bus.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn the_smallest_file_has_the_products_defaults() {
    let scenario = parse(&format!("{LINKS}{VIDEO}")).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.seed, scenario.seconds), ("bus", 1, 30));
    assert_eq!(scenario.lanes, [LaneConfig::new("default", Strategy::xnc())]);
    assert_eq!(scenario.congestion, CongestionControl::Bbr);
    assert_eq!(scenario.machine, Machine::Punctual);
    let rate = |link: usize| match scenario.links[link].up.trace.capacity().as_ref() {
        Capacity::Rates(rates) => rates.at(Duration::ZERO),
        Capacity::Opportunities(_) => panic!("a fixed rate"),
    };
    assert_eq!(rate(0), Rate::from_kbps(8_000));
    let video = &scenario.traffic[0];
    assert_eq!((video.lasting, video.direction), (Duration::from_secs(30), Direction::Up));
    let frames = FrameSource::Synthetic { bitrate: Rate::from_kbps(5_000) };
    assert!(matches!(&video.kind, TrafficKind::Video { frames: is, .. } if *is == frames));
}

#[test]
fn everything_that_may_stand_in_a_file_is_understood() {
    let text = "name = \"n\"\nseed = 9\nseconds = 8\ncongestion = \"cubic\"\n\
        machine = \"busy\"\n\
        [[lane]]\nname = \"l\"\nstrategy = \"single:b\"\nports = [1, 9]\ndscp = [46]\n\
        deadline_ms = 50\nexpire_after_ms = 90\nqueue_bytes = 10_000\n\
        classes = [\"tcp\"]\nrank = 1\nordering = \"frames\"\nmax_buffer_ms = 40\n\
        decode_ms = 7\n\
        [[traffic]]\nkind = \"constant\"\nrate_kbps = 10\npacket_bytes = 64\ndirection = \"down\"\n\
        port = 7\nbegin_s = 1.5\nlasting_s = 20\n\
        [[traffic]]\nkind = \"requests\"\napp = \"music\"\n\
        [[traffic]]\nkind = \"bulk\"\nbytes = 5_000\ncongestion = \"bbr\"\n\
        [[traffic]]\nkind = \"tcp\"\nbytes = 7_000\ncongestion = \"bbr\"\n\
        [[traffic]]\nkind = \"call\"\nrate_kbps = 900\n\
        [[event]]\nat_s = 2\nlink = \"b\"\naction = \"delay\"\ndelay_ms = 7.5\n\
        [[cross]]\nlink = \"a\"\nrate_kbps = 100\nbegin_s = 1\nend_s = 2\non_s = 0.1\noff_s = 0.2\n";
    let scenario = parse(&format!("{text}{LINKS}")).unwrap();
    assert_eq!((scenario.strategy().as_str(), scenario.machine), ("single:b", Machine::Busy));
    assert_eq!(scenario.lanes[0].rule.ports, Some(1..=9));
    assert_eq!(scenario.lanes[0].rule.classes, Some(vec![FlowClass::Tcp]));
    let [deadline, decode, max_buffer] = [50, 7, 40].map(Duration::from_millis);
    let order = Order::Frames { deadline, decode, max_buffer };
    assert_eq!((scenario.lanes[0].order, scenario.lanes[0].rank), (order, 1));
    assert_eq!(scenario.lanes_down()[0].strategy, Strategy::xnc(), "a server has no uplinks");
    let [constant, music, bulk, tcp, call] = &scenario.traffic[..] else { panic!("{scenario:?}") };
    let ms = Duration::from_millis;
    assert_eq!((constant.begin, constant.lasting, constant.port), (ms(1_500), ms(6_500), 7));
    assert_eq!(music.kind, TrafficKind::Requests(App::Music));
    let five_thousand = Bulk { bytes: Some(5_000), congestion: CongestionControl::Bbr };
    assert_eq!((bulk.kind.clone(), &*bulk.name), (TrafficKind::Bulk(five_thousand), "bulk"));
    let seven_thousand = Bulk { bytes: Some(7_000), congestion: CongestionControl::Bbr };
    assert_eq!((tcp.kind.clone(), &*tcp.name), (TrafficKind::Tcp(seven_thousand), "tcp"));
    assert_eq!(call.kind, TrafficKind::Call { rate_max: Rate::from_kbps(900) });
    let action = Action::Delay(Duration::from_micros(7_500));
    assert_eq!(scenario.events, [crate::event::ScriptEvent { at: ms(2_000), link: 1, action }]);
    assert_eq!((scenario.cross[0].on, scenario.cross[0].end), (ms(100), ms(2_000)));
}

#[test]
fn the_products_lanes_can_be_asked_for() {
    let scenario = parse(&format!("lanes = \"default\"\n{LINKS}{VIDEO}")).unwrap();
    assert_eq!(scenario.lanes, default_lanes());
    assert_eq!(scenario.strategy(), "default");
    let both = parse(&format!("lanes = \"default\"\nstrategy = \"xnc\"\n{LINKS}{VIDEO}"));
    assert!(both.unwrap_err().contains("line 1, column 9: lanes: there is a strategy"));
}

#[test]
fn errors_name_the_file_the_line_the_field_and_the_cure() {
    let check = |text: &str, words: &[&str]| {
        let error = parse(text).unwrap_err();
        for word in ["bus.toml: "].iter().chain(words) {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
    };
    let with = |more: &str| format!("{LINKS}{VIDEO}{more}");
    check("seconds = \"x\"", &["line 1", "seconds"]);
    check(&with("[[even]]\n"), &["line 11", "unknown field `even`"]);
    check("", &["no link", "drive = "]);
    check(LINKS, &["no traffic", "[[traffic]]"]);
    check(&format!("seconds = 0\n{LINKS}{VIDEO}"), &["line 1", "1 to 3600"]);
    check(&format!("strategy = \"best\"\n{LINKS}"), &["line 1", "unknown strategy", "xnc"]);
    check(&format!("strategy = \"single:c\"\n{LINKS}"), &["line 1", "there are: a, b"]);
    check(&format!("drive = \"x\"\n{LINKS}"), &["line 1", "one or the other"]);
    check(&format!("drive = \"nowhere\"\n{VIDEO}"), &["nowhere"]);
    check(&format!("{VIDEO}[[link]]\nname = \"a\"\n"), &["line 4", "link 1: rate_kbps", "absent"]);
    check(
        &format!("{VIDEO}[[link]]\nname = \"a\"\noperator = \"o2\"\n"),
        &["line 6", "unknown `o2`", "att, verizon"],
    );
    check(&with("[[event]]\nat_s = 1\nlink = \"c\"\naction = \"up\"\n"), &["line 13", "a, b"]);
    check(&with("[[event]]\nat_s = -1\nlink = \"a\"\naction = \"up\"\n"), &["line 12", "at_s"]);
    check(&with("[[event]]\nat_s = 1\nlink = \"a\"\naction = \"delay\"\n"), &["delay_ms", "60000"]);
    check(
        &with("[[event]]\nat_s = 1\nlink = \"a\"\naction = \"up\"\nfactor = 1.0\n"),
        &["line 15", "action = \"capacity\""],
    );
    check(&with("[[traffic]]\nkind = \"constant\"\n"), &["traffic 2: rate_kbps", "kbit/s"]);
    check(&with("[[traffic]]\nkind = \"requests\"\n"), &["line 11", "app", "recommender"]);
    check(
        &with("[[traffic]]\nkind = \"requests\"\napp = \"music\"\nfps = 30\n"),
        &["line 14", "traffic 2: fps", "not applicable"],
    );
    check(&with("[[traffic]]\nkind = \"bulk\"\nbytes = 0\n"), &["line 13", "traffic 2: bytes"]);
    check(&with("[[traffic]]\nkind = \"call\"\n"), &["traffic 2: rate_kbps", "kbit/s is needed"]);
    check(&with("[[traffic]]\nkind = \"bulk\"\nrate_kbps = 9\n"), &["line 13", "not applicable"]);
    check(
        &with("[[traffic]]\nkind = \"constant\"\nrate_kbps = 1\nport = 5000\n"),
        &["line 14", "port"],
    );
    check(
        &with("[[traffic]]\nkind = \"video\"\nfile = \"none.h264\"\n"),
        &["line 13", "none.h264"],
    );
    check(
        &with("[[traffic]]\nkind = \"video\"\nfile = \"/dev/zero\"\nfps = 30\n"),
        &["line 13", "traffic 2: file: /dev/zero: not an H.264"],
    );
    check(&with("[[cross]]\nlink = \"a\"\nrate_kbps = 0\n"), &["line 13", "cross 1: rate_kbps"]);
    check(&with("[[cross]]\nlink = \"a\"\nrate_kbps = 5\non_s = 1\n"), &["cross 1: off_s"]);
}

#[test]
fn what_could_never_be_is_refused() {
    let check = |text: &str, words: &[&str]| {
        let error = parse(&format!("seconds = 3\n{LINKS}{VIDEO}{text}")).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    };
    let lane = |more: &str| format!("[[lane]]\nname = \"l\"\nstrategy = \"xnc\"\n{more}\n");
    check(&lane("ports = [6000, 5000]"), &["line 15", "lane \"l\": ports", "lower port first"]);
    check(&lane("deadline_ms = 0"), &["line 15", "0 is out of bounds, 1 to 60000"]);
    check(&lane("expire_after_ms = 10_001"), &["line 15", "10001 is out of bounds, 1 to 10000"]);
    check(&lane("queue_bytes = 9_999"), &["line 15", "9999 is out of bounds, 10000 to"]);
    check(&lane("ordering = \"sorted\""), &["line 15", "sorted", "reorder-adaptive"]);
    check(&lane("max_buffer_ms = 10_001"), &["line 15", "10001 is out of bounds, 1 to 10000"]);
    check(&lane("dscp = [46, 64]"), &["line 15", "64 is out of bounds, 0 to 63"]);
    check(&format!("{}{}", lane(""), lane("")), &["line 17", "two lanes are called"]);
    check("[[lane]]\nname = \"\"\nstrategy = \"xnc\"\n", &["line 13", "lane 1: name"]);
    check(
        "[[traffic]]\nkind = \"requests\"\napp = \"music\"\nbegin_s = 100\n",
        &["line 15", "traffic 2: begin_s: 100", "ends after 3 s"],
    );
    check(
        "[[event]]\nat_s = 3\nlink = \"a\"\naction = \"up\"\n",
        &["line 13", "at_s: 3", "ends after 3 s"],
    );
    let cross = "[[cross]]\nlink = \"a\"\nrate_kbps = 5\n";
    check(&format!("{cross}begin_s = 3\n"), &["line 15", "begin_s", "ends after 3 s"]);
    check(&format!("{cross}begin_s = 2\nend_s = 2\n"), &["line 16", "end_s", "later"]);
}

#[test]
fn a_recording_of_endless_changes_is_refused() {
    let steps = (0..1_000).map(|step| (Duration::from_micros(step), Duration::from_nanos(step)));
    let delay = Timeline::new(steps, Duration::from_millis(1), AtEnd::Repeat).unwrap();
    let link = DriveLink::from_uplink(
        "a",
        Trace::constant(Rate::from_kbps(1_000), Duration::ZERO).with_delay(delay),
    );
    let links = [DuplexLink::new(&link, 0, 1)];
    assert_eq!(check_changes(&links, Duration::from_secs(1)), Ok(()));
    let fault = check_changes(&links, Duration::from_secs(30)).unwrap_err();
    assert!(fault.message.contains("changes 32000002 times in 32 s"), "{fault:?}");
}

#[test]
fn the_scenarios_that_users_learn_from_can_be_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let file = entry.unwrap().path();
        let scenario = Scenario::read(&file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(scenario.name, file.file_stem().unwrap().to_string_lossy());
        count += 1;
    }
    assert!(count >= 4, "{count} scenarios in {}", dir.display());
}

fn fields_of(table: &str) -> Vec<String> {
    let text = match table {
        "" => "zz = 1\n".to_owned(),
        table => format!("[[{table}]]\nzz = 1\n"),
    };
    let error = parse(&text).unwrap_err();
    let (_, list) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{error}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_field_has_its_line_in_the_documentation() {
    let documentation = include_str!("../../../../../docs/lab.md");
    for table in ["", "link", "lane", "traffic", "event", "cross"] {
        let fields = fields_of(table);
        assert!(fields.len() >= 5, "{table}: {fields:?}");
        for field in fields.iter().filter(|field| !field.ends_with("_addresses")) {
            let name = if table.is_empty() { field.clone() } else { format!("{table}.{field}") };
            let is_documented = documentation.contains(&format!("`{name}`"))
                || documentation.contains(&format!("`[[{name}]]`"));
            assert!(is_documented, "docs/lab.md has no `{name}`");
        }
    }
}
