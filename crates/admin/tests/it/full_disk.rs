//! `roadweave peer add` on a full disk fails with a message and changes nothing.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use roadweave_identity::Identity;
use roadweave_linux::netns::run_sandboxed;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-admin");
const DISK: &str = "/run/disk";

fn add(name: &str) -> Output {
    let (config, out) = (format!("{DISK}/server.toml"), format!("{DISK}/{name}.toml"));
    let words = ["add", name, "--server", "203.0.113.1:4433", "--out", &out, "--config", &config];
    Command::new(PROGRAM).arg("peer").args(words).output().unwrap()
}

fn fill_but(files: usize) {
    let _ = fs::remove_file(format!("{DISK}/ballast"));
    let spare: Vec<String> = (0..files).map(|file| format!("{DISK}/spare-{file}")).collect();
    spare.iter().for_each(|path| fs::write(path, "1").unwrap());
    let mut ballast = File::create(format!("{DISK}/ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    spare.iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn a_client_that_finds_no_room_is_not_added() {
    run_sandboxed(|| {
        fs::create_dir_all(DISK).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", DISK];
        assert!(Command::new("mount").args(mount).status().unwrap().success());
        let server = Path::new(DISK).join("server.toml");
        let key = Identity::from_seed([7; 32]).to_base64();
        // More than one page: there may be room for a client's file but not for this.
        let text = format!(
            "listen = \"[::]:4433\"\nprivate_key = \"{}\"\naddresses = [\"10.77.0.1/24\"]\n{}",
            key.as_str(),
            "# a line that somebody wrote\n".repeat(200),
        );
        fs::write(&server, &text).unwrap();
        fs::set_permissions(&server, Permissions::from_mode(0o600)).unwrap();
        for files in [0, 1] {
            fill_but(files);
            let refused = add("bus");
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(said.contains("No space left on device"), "room for {files}: {said}");
            assert_eq!(fs::read_to_string(&server).unwrap(), text);
            let mut names: Vec<_> =
                fs::read_dir(DISK).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["ballast", "server.toml"], "room for {files}");
        }
        fs::remove_file(format!("{DISK}/ballast")).unwrap();
        assert!(add("bus").status.success());
        assert!(fs::read_to_string(&server).unwrap().contains("bus"));
    });
}
