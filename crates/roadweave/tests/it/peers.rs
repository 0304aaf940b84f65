//! Clients are added and removed while the server runs, and a broken file changes nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use crate::common::*;
use serde_json::Value;

fn peer(network: &TestNetwork, words: &[&str]) -> Output {
    let config = network.path("server.toml").display().to_string();
    let socket = socket(SERVER);
    let place = ["peer", "--config", &config, "--socket", &socket];
    let words: Vec<&str> = place.iter().chain(words).copied().collect();
    roadweave(&words)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_client_that_is_added_joins_at_once_and_one_that_is_removed_goes_at_once() {
    run_sandboxed(|| {
        if beside("roadweave-admin").is_none() {
            return;
        }
        let network = TestNetwork::new();
        let (_server, client) = network.start_both();
        let before = fs::read_to_string(network.path("server.toml")).unwrap();

        let reload = || roadweave(&["reload", "--socket", &socket(SERVER)]);
        let (sound, broken) = ("masquerade = false", "masqerade = false");
        network.edit("server.toml", |text| format!("{sound}\n{text}"));
        let told = reload();
        assert!(told.status.success(), "{told:?}");
        assert!(said(&told).contains("not before the next start: masquerade"), "{told:?}");

        network.edit("server.toml", |text| text.replace(sound, broken));
        let text = fs::read_to_string(network.path("server.toml")).unwrap();
        let told = reload();
        assert_eq!(told.status.code(), Some(2), "{told:?}");
        assert!(said(&told).contains("nothing was changed"), "{told:?}");
        let key = keygen().public;
        let refused = peer(&network, &["add", "bus-2", "--public-key", &key]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(said(&refused).contains("masqerade"), "{refused:?}");
        assert_eq!(fs::read_to_string(network.path("server.toml")).unwrap(), text);
        network.edit("server.toml", |text| text.replace(&format!("{broken}\n"), ""));

        let file = network.path("bus-2.toml");
        let file = file.to_str().unwrap();
        let words = ["add", "bus-2", "--server", "198.51.100.1:4433", "--out", file];
        let added = peer(&network, &words);
        assert!(added.status.success(), "{added:?}");
        for part in ["10.77.0.3/32, fd77::3/128", "has applied it"] {
            assert!(said(&added).contains(part), "{added:?}");
        }
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        let listed = peer(&network, &["list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!([0, 1].map(|at| listed[at]["connected"].as_bool()), [Some(true), Some(false)]);
        client.interrupt();
        let state = network.path("").display().to_string();
        network.edit("bus-2.toml", |text| format!("state_directory = \"{state}\"\n{text}"));
        let client = network.start_joined("bus-2");

        assert_eq!(peer(&network, &words).status.code(), Some(2));
        let unknown = peer(&network, &["remove", "bus-3"]);
        assert_eq!(unknown.status.code(), Some(2));
        assert!(said(&unknown).contains("there are: vehicle-1, bus-2"), "{unknown:?}");

        let removed = peer(&network, &["remove", "bus-2"]);
        assert!(removed.status.success(), "{removed:?}");
        network.wait_for_status(SERVER, "the end of the session", |status| {
            status["sessions"].as_array().unwrap().is_empty()
        });
        let after = fs::read_to_string(network.path("server.toml")).unwrap();
        assert_eq!(after.trim_end(), before.trim_end());
        client.interrupt();
    });
}
