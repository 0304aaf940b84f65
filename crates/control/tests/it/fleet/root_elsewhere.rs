//! A controller without root key, which signs on another machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fleet::world::{World, program};
use crate::run::CommandRunner;

struct Workstation<'a> {
    folder: &'a Path,
    program: PathBuf,
}

impl CommandRunner for Workstation<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.folder).env_remove("ROADWEAVE_LOG");
        command
    }
}

impl Workstation<'_> {
    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }
}

fn join(token: &str, folder: &Path) -> (bool, String) {
    let file = folder.with_extension("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).unwrap();
    let mut command = Command::new(program("roadweave").unwrap());
    let name = folder.file_name().unwrap();
    let command = command.arg("join").arg("--token-file").arg(file);
    let command = command.arg("--state-directory").arg(folder).arg("--name").arg(name);
    let output = command.env_remove("ROADWEAVE_LOG").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn boxes_join_by_the_word_of_a_root_that_the_controller_never_had() {
    let (Some(program), Some(_)) = (program("roadweave-controller"), program("roadweave")) else {
        return;
    };
    let away = tempfile::tempdir().unwrap();
    let workstation = Workstation { folder: away.path(), program };
    let root = workstation.prints(&["keygen", "root.key"]);
    let root = root.trim();
    assert!(workstation.refused(&["keygen", "root.key"]).contains("exists"));
    let Some(mut world) = World::made(tempfile::tempdir().unwrap(), &["--root", root]) else {
        return;
    };
    let folder = world.home.path().join("controller");
    assert!(!folder.join("root.key").exists());
    let controller = workstation.prints(&["key", "--folder", folder.to_str().unwrap()]);
    workstation.prints(&["trust", "--key", "root.key", "--controller", controller.trim()]);
    fs::copy(away.path().join("trust.json"), folder.join("trust.json")).unwrap();
    world.start();
    assert!(world.log_in(&world.password, &world.fingerprint).status.success());

    assert!(world.failed(&["token", "create"]).contains("the root key is elsewhere"));
    let make = ["delegate", "--key", "root.key", "--token", "--tenant", "home", "--name", "trams"];
    workstation.prints(&[&make[..], &["--uses", "2", "--tag", "tram"]].concat());
    let file = workstation.file("trams.delegate");
    let create = ["token", "create", "--delegate", &file, "--no-qr", "--json"];
    assert!(world.refused(&create).contains("trams"), "it is not put in yet");
    world.prints(&["delegate", "add", &file]);
    let beyond = |words: &[&str]| world.refused(&[&create[..], words].concat());
    assert!(beyond(&["--uses", "3"]).contains("uses: "));
    let made = world.prints(&["token", "create", "--delegate", &file, "--no-qr"]);
    assert!(made.starts_with("rw1_") && made.contains("roadweave join -"), "{made}");
    assert!(!made.contains("join rw1_"), "{made}");
    let waits = world.json(&["token", "list"]);
    world.prints(&["token", "remove", waits[0]["id"].as_str().unwrap()]);
    let made = world.json(&["token", "create", "--delegate", &file, "--uses", "2", "--no-qr"]);
    let token = made["join"].as_str().unwrap();
    assert!(beyond(&[]).contains("2 are used"));

    let boxes = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let (is_in, said) = join(token, &boxes.path().join(name));
        assert!(is_in, "{said}");
    }
    let (is_in, said) = join(token, &boxes.path().join("three"));
    assert!(!is_in && said.contains("used up"), "{said}");
    assert!(world.prints(&["delegate", "list"]).contains("trams"));
    let tagged = world.json(&["device", "list", "--tag", "tram"]);
    assert_eq!(tagged.as_array().unwrap().len(), 2);

    let lost = ["delegate", "revoke", "trams", "--reason", "lost"];
    assert!(world.prints(&lost).contains("trams is revoked"));
    let out = world.json(&["device", "list", "--state", "revoked"]);
    assert_eq!(out.as_array().unwrap().len(), 2);
    assert!(beyond(&[]).contains("revoked"));
    assert!(world.failed(&["delegate", "add", &file]).contains("revoked"));
}

#[test]
fn a_signer_makes_delegates_within_its_own() {
    let Some(program) = program("roadweave-controller") else { return };
    let away = tempfile::tempdir().unwrap();
    let workstation = Workstation { folder: away.path(), program };
    workstation.prints(&["keygen", "root.key"]);
    let root = ["delegate", "--key", "root.key", "--tenant", "home"];
    let no_uses = workstation.refused(&[&root[..], &["--signer", "--name", "anna"]].concat());
    assert!(no_uses.contains("--uses"), "{no_uses}");
    workstation.prints(
        &[&root[..], &["--signer", "--name", "anna", "--uses", "5", "--tag", "tram"]].concat(),
    );
    let anna = ["delegate", "--key", "anna.delegate", "--token", "--name", "shift"];
    let refused = |words: &[&str]| workstation.refused(&[&anna[..], words].concat());
    for words in [
        &["--tenant", "ferry"][..],
        &["--tenant", "home", "--uses", "6"],
        &["--tenant", "home", "--tag", "vip"],
        &["--tenant", "home", "--role", "proxy"],
    ] {
        assert!(refused(words).contains("this delegate would be refused"), "{words:?}");
    }
    assert!(refused(&["--all-tenants"]).contains("--all-tenants"));
    let signer = ["delegate", "--key", "anna.delegate", "--signer", "--tenant", "home"];
    let signer = workstation.refused(&[&signer[..], &["--uses", "2"]].concat());
    assert!(signer.contains("needs a root key"), "{signer}");
    let tags: Vec<String> = (0..40).map(|tag| format!("--tag={tag}-{}", "x".repeat(40))).collect();
    let long = ["delegate", "--key", "root.key", "--token", "--tenant", "home"];
    let tags = tags.iter().map(String::as_str).collect::<Vec<_>>();
    let long = workstation.refused(&[&long[..], &tags].concat());
    assert!(long.contains("not fit into a token"), "{long}");
    let said = workstation.prints(&[&anna[..], &["--tenant", "home", "--uses", "2"]].concat());
    assert!(said.contains("roadweave fleet delegate add shift.delegate"), "{said}");
    let path = away.path().join("anna.delegate");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&["--tenant", "home"]).contains("chmod 600"));
}
