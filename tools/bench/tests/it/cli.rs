//! The command line of roadweave-lab, without privileges.

use crate::{check_refused, run, said, write};

#[test]
fn wrong_words_are_refused_with_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        "dmeo",
        "demo --secnods 3",
        "demo --strategies best",
        "demo --strategies best-adaptive",
        "demo --drive /nowhere",
        "demo --bitrate fast",
        "demo --seconds 1",
        "demo --config /nowhere.toml",
        "demo --config /nowhere.toml --drive /nowhere",
        "demo --report /nowhere/demo.html",
        "record client --server 192.0.2.1 --output / --interfaces lo",
        "record client --server 192.0.2.1 --output x --interfaces lo --mode constant",
        "record client --server 192.0.2.1 --output x --interfaces lo,lo",
        "record client --server 192.0.2.1 --output x --interfaces enx0c5b8f279a64",
        "record client --server 192.0.2.1 --output x --interfaces a=",
        "record client --server 192.0.2.1 --output x --interfaces lo --rate eth1=5M",
        "record client --server 192.0.2.1 --output x --interfaces lo --rate fast",
        "record client --server 192.0.2.1 --output x --interfaces lo --seconds 1",
    ];
    check_refused("refused.txt", folder.path(), &lines);
    // The resolver's message depends on the machine.
    let output =
        run(folder.path(), "record client --server nowhere.invalid --output x --interfaces lo");
    let text = said(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("--server nowhere.invalid"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_broken_description_says_where_and_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let link = "[[link]]\nname = 'a'\nrate_kbps = 1\n";
    let lines = [
        ("none", "link = []".to_owned()),
        ("twice", format!("{link}{link}")),
        ("loss", format!("{link}\nloss = 7\n")),
        ("rate", "[[link]]\nname = 'a'".to_owned()),
        ("mtu", format!("[place]\nmtu = 5\n{link}")),
        ("speed", format!("{link}speed = 1")),
        ("address", format!("{link}far_addresses = ['10.0.0.0.1']")),
        ("trace", format!("{link}trace = 'x.csv'")),
    ];
    let lines = lines.map(|(name, text)| {
        write(folder.path(), &format!("{name}.toml"), text);
        format!("emulate --check --config {name}.toml")
    });
    let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    lines.push("emulate --check --config nowhere.toml");
    check_refused("refused-emulate.txt", folder.path(), &lines);
}
