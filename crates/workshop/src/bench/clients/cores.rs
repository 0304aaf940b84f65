//! Which of this machine's cores the server has, and which the simulated clients.
//!
//! ```text
//! cores: 0 1 2 3   a server with one shard: 0   clients: 1 2 3
//! ```
//!
//! Boxes and server are different machines. Where there are cores enough each side has its own, so
//! that what one side uses is nothing that the other lacks, and a side that is full shows as such.
//! Else both share all.

use std::process::Command;

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    server: Vec<usize>,
    clients: Vec<usize>,
}

impl Cores {
    /// Shares this machine's cores out between a server that uses up to `shards` and its clients.
    ///
    /// # Errors
    /// When the system does not tell the cores.
    pub fn share_out(shards: u16) -> anyhow::Result<Self> {
        let may = sched_getaffinity(None).context("cannot ask for this machine's cores")?;
        let all = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).collect();
        Ok(Self::of(all, shards.into()))
    }

    fn of(all: Vec<usize>, shards: usize) -> Self {
        match all.len() > shards {
            true => Self { server: all[..shards].to_vec(), clients: all[shards..].to_vec() },
            false => Self { server: all.clone(), clients: all },
        }
    }

    /// How many the clients have.
    pub fn of_clients(&self) -> usize {
        self.clients.len()
    }

    /// Whether both sides have the same.
    pub fn are_shared(&self) -> bool {
        self.server == self.clients
    }

    /// Lets the calling thread, and those that it starts, use the cores of the clients.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn use_for_clients(&self) -> anyhow::Result<()> {
        let mut set = CpuSet::new();
        self.clients.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).context("cannot choose the cores of the clients")
    }

    /// Lets `command`, which runs what follows in its arguments, use the cores of the server.
    pub fn use_for_server<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let list: Vec<String> = self.server.iter().map(usize::to_string).collect();
        command.args(["taskset", "--cpu-list", &list.join(",")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_core_for_each_shard_where_one_is_left_for_the_clients() {
        let all = || vec![1, 2, 5];
        let both = |shards| {
            let cores = Cores::of(all(), shards);
            (cores.server.clone(), cores.clients.clone(), cores.are_shared())
        };
        assert_eq!(both(1), (vec![1], vec![2, 5], false));
        assert_eq!(both(2), (vec![1, 2], vec![5], false));
        assert_eq!(both(3), (all(), all(), true));
        assert_eq!(both(64), (all(), all(), true));
    }

    #[test]
    fn threads_use_the_cores_that_they_are_given() {
        let cores = Cores::share_out(1).unwrap();
        let may = std::thread::spawn(move || {
            cores.use_for_clients().unwrap();
            let may = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).collect::<Vec<_>>()
                == cores.clients
        });
        assert!(may.join().unwrap());
    }
}
