//! For the demo and the benches: namespaces joined by cables, processes inside them, one clock.
//!
//! ```text
//!   enter --> NetNs --connect--> NetNs --> Tunnel::start --> wait_for_paths --> load, measure
//!                                          (Daemon: server, client)
//! ```

pub mod clock;
pub mod daemon;
pub mod router;
pub mod sockets;
pub mod tunnel;
pub mod usage;

use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use roadweave_linux::netns::{CableEnd, NetNs, Sandbox};
use roadweave_linux::{Signal, Signals, wait_readable};
use roadweave_terminal::exit;
use roadweave_terminal::out;

/// One end of a cable: namespace, interface, and address with prefix length.
pub type End<'a> = (&'a NetNs, &'a str, &'a str);

pub fn connect(left: End<'_>, right: End<'_>) -> anyhow::Result<()> {
    let addresses = |(_, _, address): End<'_>| -> anyhow::Result<[IpNet; 1]> {
        Ok([address.parse().with_context(|| format!("{address} is not an address"))?])
    };
    let (left_addresses, right_addresses) = (addresses(left)?, addresses(right)?);
    let left_end = CableEnd { namespace: left.0, interface: left.1, addresses: &left_addresses };
    let right_end =
        CableEnd { namespace: right.0, interface: right.1, addresses: &right_addresses };
    NetNs::connect(&left_end, &right_end)
        .with_context(|| format!("cannot join {} and {}", left.0.name(), right.0.name()))
}

/// Continues in a sandbox. A signal ends the program, the sandbox and all its processes.
pub fn enter() -> anyhow::Result<()> {
    if let Sandbox::Ended(code) = Sandbox::enter()? {
        exit::now(code);
    }
    let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate, Signal::Hangup])?;
    std::thread::spawn(move || {
        loop {
            let readable = wait_readable(&signals, Duration::from_secs(3_600));
            if readable.is_err() || signals.take().is_some() {
                out::note("\ninterrupted; nothing is left behind");
                exit::now(130);
            }
        }
    });
    Ok(())
}
