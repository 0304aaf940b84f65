//! A log that cannot be written: the tunnel carries on and counts the lost lines.

use std::process::Stdio;

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_client_whose_log_is_not_read_goes_on_and_counts_what_is_lost() {
    on_network(|network| {
        let _server = network.start_server();
        let (_reader, writer) = std::io::pipe().unwrap();
        let mut command = network.vehicle.command(PROGRAM);
        command.args(["--log", "trace", "client", "--config"]).arg(network.path("client.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let mut client = command.spawn().unwrap();
        let show = || roadweave(&["show", "--json", "--socket", &socket(CLIENT)]);
        wait_until("it runs", || show().status.success());
        network.wait_for_paths(&["eth1", "eth2"]);
        // The grant is used once the filters hold, which may be after the paths are usable.
        let is_answered = || ping(&network.vehicle, GATEWAY_V4, "-c 1").status.success();
        wait_until("its first answer", is_answered);
        check_ping(&network.vehicle, GATEWAY_V4, "-q -c 1000 -i 0.004");
        let lost = |status: &serde_json::Value| status["log"]["lines_lost"].as_u64() > Some(0);
        network.wait_for_status(CLIENT, "lost lines", lost);
        check_ping(&network.vehicle, GATEWAY_V4, "-c 20 -i 0.05");
        kill_process(Pid::from_child(&client), Signal::INT).unwrap();
        wait_until("its end", || client.try_wait().unwrap().is_some());
        assert_eq!(client.wait().unwrap().code(), Some(0));
    });
}
