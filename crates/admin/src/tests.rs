//! Sample answers of an instance, for the tests of this crate.

use serde_json::{Value, json};

/// A client with one session over these paths (ID, uplink, status), and with their uplinks.
pub(crate) fn client(paths: &[(u32, &str, &str)]) -> Value {
    let uplinks: Vec<_> = paths.iter().map(|(_, name, _)| uplink(name)).collect();
    json!({
        "role": "client", "name": "bus", "version": "0.1.0", "uptime_seconds": 1.0, "tun": "rw0",
        "drops": {}, "log": { "lines_lost": 0 },
        "device": { "packets_read": 0, "bytes_read": 0, "packets_written": 0, "bytes_written": 0 },
        "sessions": [session(paths)], "no_session": null, "suppressed_notices": 0,
        "uplinks": uplinks,
    })
}

pub(crate) fn server(sessions: Vec<Value>) -> Value {
    let mut server = client(&[]);
    server["role"] = "server".into();
    server["sessions"] = sessions.into();
    server["memory_bytes"] = 0.into();
    server["refusals"] = json!({});
    server
}

pub(crate) fn uplink(name: &str) -> Value {
    json!({ "name": name, "heard": true })
}

pub(crate) fn session(paths: &[(u32, &str, &str)]) -> Value {
    let path = |(id, uplink, status): &(u32, &str, &str)| {
        json!({
            "id": id, "uplink": uplink, "remote": "198.51.100.1:4433", "status": status,
            "smoothed_rtt_ms": 61.0, "min_rtt_ms": 60.0, "rtt_deviation_ms": 1.5, "loss": 0.25,
            "congestion_window_bytes": 12_000, "bytes_in_flight": 300, "mtu_bytes": 1200, "weight": 1,
            "counters": {
                "packets_sent": 10, "bytes_sent": 9000, "packets_received": 5,
                "bytes_received": 4000, "datagrams_sent": 8, "source_bytes": 7000,
                "redundant_bytes": 1000, "datagrams_acknowledged": 6, "datagrams_lost": 2,
                "probes_sent": 1,
            },
        })
    };
    json!({
        "peer": "198.51.100.1:4433", "public_key": "key",
        "paths": paths.iter().map(path).collect::<Vec<_>>(),
    })
}
