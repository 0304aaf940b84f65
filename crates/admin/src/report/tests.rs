//! No secret leaves.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use roadweave_identity::Identity;

use super::*;

const PASSWORD: &str = "hunter2";

fn file(key: &str, old: &str, public: &str) -> String {
    format!(
        "# the key before: {old}\nname = \"bus-17\" # {PASSWORD}\nprivate_key = \"{key}\"\n\
         fleet_token = \"short\"\npasswords = [\"{PASSWORD}\"]\nnote = \"it was {old}!\"\n\
         pin = 271828\nstate_directory = \"/state/{old}\"\n\"{old}\" = 1\n\
         [server]\naddresses = [\"vpn.example:4433\", \"https://me:{PASSWORD}@vpn:1?t={PASSWORD}\"]\n\
         public_key = \"{public}\"\n[tun]\nname = \"rw0\"\n{PASSWORD} = true\n\
         [[peers]]\nname = \"a\"\npublic_key = \"{key}\"\nPrivate_Key = '{key}'\n\
         [peers.metered]\nsecret = {{ a = \"{PASSWORD}\" }}\n[[lanes]]\nmatch = {{ ports = [1, 2] }}\n"
    )
}

#[test]
fn no_secret_of_the_configuration_or_the_log_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = |seed| Identity::from_seed([seed; 32]).to_base64().as_str().to_owned();
    let (key, old) = (text(7), text(8));
    let public = Identity::from_seed([9; 32]).public_key().to_string();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
        path(name)
    };
    let whole = file(&key, &old, &public);
    let broken = format!("{whole}\nprivate_key = \"{key}\nx = {old}\n");
    let wrong = format!("private_key = \"{key}\"\nlisten = \"[::]:1\"\n{PASSWORD} = 1\n");
    let log = format!("{}it said {old} and {key}=\nlast line\n", "x\n".repeat(200_000));
    for (round, text) in [whole, broken, wrong].iter().enumerate() {
        let args = ReportArgs {
            config: write("client.toml", text),
            socket: path("rw0.sock"),
            log_file: Some(write("log", &log)),
            out: path(&format!("report-{round}")),
        };
        args.run().unwrap();
        let mut all = String::new();
        for entry in fs::read_dir(&args.out).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            all += &fs::read_to_string(entry.path()).unwrap();
        }
        for secret in [&key[..20], &old[20..], PASSWORD, "short", "271828", "https://me"] {
            assert!(!all.contains(secret), "{secret} is in\n{all}");
        }
        assert!(all.contains("last line") && all.contains("nothing runs at"), "{all}");
        assert_eq!(all.contains(&public[..8]), round == 0);
        assert_eq!(all.contains("vpn.example:4433"), round == 0);
        assert!(fs::metadata(args.out.join("log.txt")).unwrap().len() <= LOG_MAX);
        assert_eq!(fs::metadata(&args.out).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(args.run().is_err(), "a folder that is there stays as it is");
    }
    let config = fs::read_to_string(path("report-0/config.toml")).unwrap();
    assert!(config.starts_with("# 8 unknown fields are left out\n"), "{config}");
    assert!(config.contains("ports = [1, 2]") && config.contains("name = \"rw0\""), "{config}");
}

#[test]
fn pipes_devices_and_links_block_nothing_and_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pipe = path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    assert!(tail(&pipe).contains("is not a file"));
    assert!(tail(Path::new("/dev/zero")).contains("is not a file"));
    let refused = |config: &str, out: &str, why: &str| {
        let (config, socket, out) = (path(config), path("rw0.sock"), path(out));
        let args = ReportArgs { config, socket, log_file: None, out };
        let error = args.run().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused("pipe", "report", "is not a configuration file");
    assert!(!path("report").exists());
    fs::create_dir(path("elsewhere")).unwrap();
    symlink(path("elsewhere"), path("link")).unwrap();
    symlink(path("not-there"), path("dangling")).unwrap();
    refused("nothing.toml", "link", "File exists");
    refused("nothing.toml", "dangling", "File exists");
    assert!(fs::read_dir(path("elsewhere")).unwrap().next().is_none());
    assert!(!path("not-there").exists());
}

#[test]
fn the_end_of_a_line_that_is_too_long_is_not_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let longest = usize::try_from(LOG_MAX).unwrap();
    fs::write(&path, format!("token={}{PASSWORD}", " x".repeat(longest))).unwrap();
    assert_eq!(tail(&path), "");
    fs::write(&path, format!("\u{20ac}{}\nend\n", "y".repeat(longest - 6))).unwrap();
    assert_eq!(tail(&path), "end\n");
}

#[test]
fn what_is_like_a_secret_is_found_in_a_log() {
    let check = |line: &str, expected: &str| assert_eq!(redact::log(line), format!("{expected}\n"));
    check("joined server=203.0.113.1:4433", "joined server=203.0.113.1:4433");
    check("Authorization: Bearer abc", "Authorization (removed)");
    check("{\"token\":\"abc\",\"a\":1}", "{\"token (removed)");
    check("join rw1_abc with TOKEN abc", "join rw1_abc with TOKEN (removed)");
    check("asked https://me:pw@host:1/a?b=c now", "asked https://(removed)@host:1/a now");
    check("asked https://me@host/@x?b now", "asked https://(removed)@x now");
    check("a@https://host#b, me:p@ss@host", "https://host (removed)@host");
    for password in ["p4,ss", "p(4)ss", "p'4", "p[4]s|s", "p;4", "{p}", "p?4", "p#4"] {
        let line = format!("to rtsp://me:{password}@host/live, now");
        check(&line, "to rtsp://(removed)@host/live, now");
    }
    check("https://h/cb?code=a,refresh", "https://h/cb");
    check("https://host/x;jsessionid=abc?k=v end", "https://host/x end");
    check("unlocked by PIN 4711", "unlocked by PIN (removed)");
    check("from fd77::1:2:3:4:5 to 02:00:00:00:00:01", "from fd77::1:2:3:4:5 to 02:00:00:00:00:01");
    check("is 01:23:45:67:89:ab:cd:ef:01:23:45:67", "is (removed)");
    check("roadweave-client@client: up", "roadweave-client@client: up");
    check("abcdefgh%2Bijklmnop\\/qrstuvwxyz.", "(removed).");
    check("red \u{1b}[31mword\u{7}", "red  [31mword ");
    check("\u{130}\u{212a}token \u{130}x", "\u{130}\u{212a}token (removed)");
    assert_eq!(redact::unquoted("1:2: \"a\"b\" is 'c"), "1:2: (removed) is (removed)");
}

#[test]
fn an_instances_status_is_without_them_too() {
    let key = Identity::from_seed([9; 32]).public_key().to_string();
    let status = serde_json::json!({
        "sessions": [{ "public_key": key, "peer": format!("it is {key}"), "path": 3 }],
        "fleet": { "join_token": { "a": "abc" }, "why": "http://me:pw@host", key.clone(): 1 },
    });
    let expected = serde_json::json!({
        "sessions": [{ "public_key": format!("{}...", &key[..8]), "peer": "it is (removed)", "path": 3 }],
        "fleet": { "join_token": "(removed)", "why": "http://(removed)@host", "(removed)": 1 },
    });
    assert_eq!(redact::json(status), expected);
}
