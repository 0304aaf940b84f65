//! Calls the program `nft`.

use std::io;
use std::process::Command;
use std::time::Duration;

use super::nftables::Nftables;
use crate::DeviceError;
use crate::program::{self, Failure};

pub(crate) fn remove_tables(tables: &[String]) -> Result<(), DeviceError> {
    let mut netlink = Nftables::open().ok();
    let is_there = |table: &&String| {
        let contents = netlink.as_mut().and_then(|netlink| netlink.contents(table).ok());
        contents.is_none_or(|contents| contents.rules > 0)
    };
    let remove = |table| format!("add table inet {table}\ndelete table inet {table}\n");
    let script: String = tables.iter().filter(is_there).map(remove).collect();
    if script.is_empty() { Ok(()) } else { call_nft(&["-f", "-"], &script, REMOVAL_LIMIT) }
}

pub(super) fn run_nft(script: &str) -> Result<(), DeviceError> {
    call_nft(&["-f", "-"], script, LIMIT)
}

pub(super) fn call_nft(
    arguments: &[&str],
    script: &str,
    limit: Duration,
) -> Result<(), DeviceError> {
    match program::run(Command::new("nft").args(arguments), script, limit) {
        Ok(()) => Ok(()),
        Err(Failure::NotStarted(error)) => Err(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => DeviceError::Unavailable {
                why: format!("cannot run the program nft ({error}): install nftables"),
            },
            // No descriptors or no memory: temporary.
            _ => DeviceError::system("run nft", error),
        }),
        Err(Failure::Said(detail)) if detail.contains("Operation not permitted") => {
            Err(DeviceError::NoPermission { what: "set packet filters".to_owned() })
        }
        Err(Failure::Said(detail)) => {
            Err(DeviceError::Program { program: "nft".to_owned(), detail })
        }
    }
}

/// 4,000 prefixes take a second on a slow machine; without processor time a few take above 10 s.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Two removals take at most a minute: a service manager kills a program after 90 s. `nft` waits
/// for RCU grace periods of the kernel, which take seconds on a busy machine.
pub(super) const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
