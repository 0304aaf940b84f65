//! The interface of our programs to people: output, errors and exit codes, the log.
//!
//! ```text
//! standard output   results, for people and pipes      out
//! standard error    remarks and the log, never waits   out, logging
//! exit code         0, 1, 2, 141                       exit
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "this is the edge to the terminal: the end of the process, and the time in the log"
)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod command_line;
pub mod exit;
pub mod logging;
pub mod out;
pub mod program;
pub mod rate;
pub mod seconds;
pub mod secret;

pub use roadweave_proto::VERSION;

/// The commands of `roadweave-admin`, which `roadweave` runs, and their summaries.
pub const ADMIN: [(&str, &str); 7] = [
    ("doctor", "Checks this machine against a configuration, and says how to fix each problem"),
    ("hooks", "Runs programs when the tunnel comes up, goes down, or an uplink changes"),
    ("modems", "Reports modems to a client: operator, technology, signal, SIM, APN"),
    ("peer", "Adds, removes and shows the clients of a server, also while it runs"),
    ("qlog", "Writes qlog traces of the sessions and paths of a running client or server"),
    ("report", "Collects what a maintainer needs in a folder, without secrets"),
    ("top", "Shows a running client or server on one screen, for a crew"),
];

/// The commands of `roadweave-manual`, which `roadweave` runs, and their summaries.
pub const MANUAL: [(&str, &str); 1] =
    [("completions", "Prints a completion script for a shell: bash, fish or zsh")];

/// The commands of `roadweave-lab`, which `roadweave` runs, and their summaries.
pub const TOOLS: [(&str, &str); 8] = [
    ("bench", "Measures how fast roadweave is on this machine"),
    (
        "demo",
        "Streams video through the tunnel over emulated links, with one strategy after another",
    ),
    ("emulate", "Puts emulated links between pairs of TUN devices, for any IP traffic"),
    (
        "lab",
        "Runs experiments in virtual time: minutes of a drive in seconds, repeatable to the byte",
    ),
    ("qoe", "Computes what a viewer saw, from the files of a run"),
    (
        "record",
        "Records links of a moving vehicle: capacity, delay and loss, both ways, for emulate and \
         lab to replay",
    ),
    (
        "stack",
        "Starts a fleet with two boxes and video on this machine, and kills its controller and a proxy",
    ),
    ("trace", "Summarises, draws and converts recordings of links, and generates synthetic ones"),
];
