//! Full disks: the tunnel goes on, one line says so, no good file is lost, and state is written
//! once there is room again. `dead_log.rs` has the log.

use std::fs::{self, File};
use std::thread::sleep;
use std::time::Duration;

use crate::common::disk::Disk;
use crate::common::*;

#[test]
fn a_client_whose_state_finds_no_room_goes_on_and_keeps_what_was_there() {
    on_network(|network| {
        let disk = Disk::mount("/run/road/state");
        for name in ["client.toml", "server.toml"] {
            network.edit(name, |text| text.replace("\"/run/road\"", "\"/run/road/state\""));
        }
        network.set_resolvers("nameserver 192.0.2.53\n");
        network.edit("client.toml", |text| {
            let policy =
                "[[uplinks.policies]]\nname = \"eth*\"\nmetered = { monthly_cap_mb = 100 }\n";
            format!("dns = [\"10.77.0.1\"]\n{text}")
                .replace("[routes]\n", &format!("{policy}[routes]\n"))
        });
        let (server, client) = network.start_both();
        network.wait_for_echo();
        client.interrupt();
        let usage = fs::read_to_string(disk.0.join("rw0.usage.json")).unwrap();
        let names = disk.names();

        disk.fill();
        let client = network.start_joined("client");
        network.wait_for_paths(&["eth1", "eth2"]);
        assert!(network.wait_for_traffic() < Duration::from_secs(2));
        // The resolvers do not change while the former file cannot be kept.
        client.wait_for("No space left on device");
        let resolvers = || fs::read_to_string("/etc/resolv.conf").unwrap();
        assert_eq!(resolvers(), "nameserver 192.0.2.53\n");
        sleep(Duration::from_secs(9));
        assert_eq!(client.count("No space left on device"), 1, "{}", client.log());
        assert_eq!(disk.names(), names, "nothing half-written is left");
        disk.make_room();
        client.wait_for("resolvers of the session are set");
        assert!(resolvers().contains("nameserver 10.77.0.1"), "{}", resolvers());

        disk.fill();
        let log = client.log();
        client.interrupt();
        assert_eq!(fs::read_to_string(disk.0.join("rw0.usage.json")).unwrap(), usage);
        disk.make_room();
        let client = network.start_joined("client");
        assert_eq!(client.count("is not used"), 0, "{}", client.log());
        client.interrupt();
        assert_eq!(resolvers(), "nameserver 192.0.2.53\n", "{log}");
        assert_ne!(fs::read_to_string(disk.0.join("rw0.usage.json")).unwrap(), usage);
        server.interrupt();
    });
}

#[test]
fn daemons_start_run_and_clean_up_while_run_is_full() {
    on_network(|network| {
        network.set_rp_filters(&[("eth1", "1"), ("eth2", "1")]);
        let run = Disk::mount("/run/roadweave");
        let before = network.state();
        run.fill();
        let (server, client) = network.start_with_echo();
        assert!(network.wait_for_traffic() < Duration::from_secs(2));
        for daemon in [&server, &client] {
            assert_eq!(daemon.count("No space left on device"), 1, "{}", daemon.log());
        }
        interrupt([client, server]);
        run.make_room();
        assert_eq!(network.state(), before, "what an orderly end knows, it undoes");

        let (server, client) = network.start_both();
        client.kill();
        server.kill();
        let (server, client) = network.start_both();
        interrupt([client, server]);
        assert_eq!(network.state(), before);
    });
}

#[test]
fn init_on_a_full_disk_leaves_the_files_that_were_there_and_no_half_ones() {
    run_sandboxed(|| {
        let disk = Disk::mount("/run/full");
        let init = || roadweave(&["init", "--force", "--server", "192.0.2.1:4433", "/run/full"]);
        assert!(init().status.success());
        let read =
            || ["client.toml", "server.toml"].map(|name| fs::read(disk.0.join(name)).unwrap());
        let good = read();
        disk.fill();
        let ballast = disk.0.join("ballast");
        let length = fs::metadata(&ballast).unwrap().len();
        for room in [0, 4096] {
            File::options().write(true).open(&ballast).unwrap().set_len(length - room).unwrap();
            let output = init();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let errors = String::from_utf8(output.stderr).unwrap();
            for part in ["No space left on device", "/run/full/"] {
                assert!(errors.contains(part), "{errors}");
            }
            assert_eq!(read(), good);
        }
        assert_eq!(disk.names(), ["client.toml", "server.toml"]);
    });
}
